"""Several namespaces of one model: they share its room, and give way to each other by worth and not as strangers."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from desk_rag.kv.types import Namespace
from desk_rag.store.store import Store
from tests.store import made
from tests.store.kv.test_budget import FILE, demand, index, kept, put

UPPER_NS, TOP_NS = Namespace("89abcdef01234567" * 2), Namespace("fedcba9876543210" * 2)


def texts(store: Store, *names: str) -> list[str]:
    index(store, list(names))
    return list(names)


def test_an_upper_rung_does_not_drive_out_the_plain_one(root: Path) -> None:
    with Store.open(root, made.settings(budget_bytes=4 * FILE), writer=True) as store:
        names = texts(store, "a", "b", "c", "d")
        store.register_model([made.NS, UPPER_NS])
        assert all(put(store, name) for name in names)
        assert not put(store, "a", UPPER_NS, seconds=0.1), "worth less than what is there"
        assert kept(store, names) == names
        assert not store.chunks_without_kv(UPPER_NS, 9), "nothing is left of what may be taken without being asked"
        demand(store, "b", "c", times=9)
        assert not put(store, "b", UPPER_NS, seconds=9.0), "better answers are no reason for slower ones"
        assert kept(store, names) == names


def test_the_plain_rung_drives_out_what_is_above(root: Path) -> None:
    """However much was asked for the others: an unread document must not wait until it has been asked for twice."""
    with Store.open(root, made.settings(budget_bytes=4 * FILE), writer=True) as store:
        names = texts(store, "a", "b", "c", "d")
        store.register_model([made.NS, UPPER_NS, TOP_NS])
        assert put(store, "a") and put(store, "b")
        demand(store, "a", "b", times=9)
        assert put(store, "a", UPPER_NS, seconds=9.0) and put(store, "a", TOP_NS, seconds=9.0)
        assert put(store, "c", seconds=0.1), "eager: of the plain rung there is little"
        assert kept(store, names, TOP_NS) == [] and kept(store, names, UPPER_NS) == ["a"], "the highest goes first"
        assert put(store, "d", seconds=0.1)
        assert kept(store, names) == names and kept(store, names, UPPER_NS) == []


def test_without_being_told_they_are_strangers(root: Path) -> None:
    """The counterpart of the test above: the very same calls drive the plain rung out."""
    with Store.open(root, made.settings(budget_bytes=4 * FILE), writer=True) as store:
        names = texts(store, "a", "b", "c", "d")
        assert all(put(store, name) for name in names)
        assert put(store, "a", UPPER_NS, seconds=0.1)
        assert len(kept(store, names)) == 3


def test_other_models_still_go_before_both(root: Path) -> None:
    with Store.open(root, made.settings(budget_bytes=4 * FILE), writer=True) as store:
        names = texts(store, "a", "b", "c", "d")
        demand(store, "d", times=9)
        store.register_model([made.NS, UPPER_NS])
        assert put(store, "a") and put(store, "a", UPPER_NS)
        assert put(store, "d", made.OTHER_NS, seconds=9.0) and put(store, "c", made.OTHER_NS, seconds=9.0)
        demand(store, "b", times=2)
        assert put(store, "b", seconds=0.1) and put(store, "b", UPPER_NS, seconds=0.1)
        assert kept(store, names, made.OTHER_NS) == []
        assert kept(store, names) == kept(store, names, UPPER_NS) == ["a", "b"]


def test_it_is_remembered_until_the_model_has_one_namespace_again(root: Path) -> None:
    with Store.open(root, made.settings(budget_bytes=100 * FILE), writer=True) as store:
        texts(store, "a", "b")
        store.register_model([made.NS, UPPER_NS])
        assert put(store, "a") and put(store, "a", UPPER_NS)
    with Store.open(root, made.settings(budget_bytes=100 * FILE), writer=False) as reader:
        both = reader.outlook(None, 1.0)
        assert both is not None and both.kv_bytes == pytest.approx(4 * FILE, rel=0.25), "of both, there and to come"
        reader.register_model([made.NS])  # a process that may not write says nothing
        assert reader.outlook(None, 1.0) == both
    with Store.open(root, made.settings(budget_bytes=100 * FILE), writer=True) as store:
        store.register_model([made.OTHER_NS])
        assert store.outlook(made.NS, 1.0) == both, "another model's namespaces are its own affair"
        store.register_model([made.NS])
        alone = store.outlook(made.NS, 1.0)
        assert alone is not None and alone.kv_bytes == pytest.approx(2 * FILE, rel=0.25)


def test_the_auxiliary_takes_only_the_room_that_its_model_leaves(root: Path) -> None:
    auxiliary = made.OTHER_NS
    with Store.open(root, made.settings(budget_bytes=4 * FILE), writer=True) as store:
        names = texts(store, "a", "b", "c", "d")
        store.register_model([made.NS, UPPER_NS], auxiliary)
        assert put(store, "a") and put(store, "a", UPPER_NS) and put(store, "a", auxiliary)
        assert store.auxiliary_share() == (FILE, 1)
        assert put(store, "b") and put(store, "c", seconds=0.1), "eager, whatever the auxiliary has"
        assert kept(store, names, auxiliary) == [] and kept(store, names, UPPER_NS) == ["a"], "it goes first"
        demand(store, "b", times=9)
        assert not put(store, "b", auxiliary, seconds=9.0), "it drives out nothing of its model's"
        assert not store.chunks_without_kv(auxiliary, 9), "beyond the eager share of both it waits for demand"
        assert kept(store, names) == ["a", "b", "c"] and kept(store, names, UPPER_NS) == ["a"]


def test_the_auxiliary_does_not_count_as_the_model_in_use(root: Path) -> None:
    with Store.open(root, made.settings(budget_bytes=100 * FILE), writer=True) as store:
        texts(store, "a", "b", "c")
        assert put(store, "a")
        alone = store.outlook(None, 1.0)
        store.register_model([made.NS], made.OTHER_NS)
        assert all(put(store, name, made.OTHER_NS) for name in ("a", "b", "c"))
        assert store.fullest_namespace() == made.NS and store.coverage().warm == 1
        assert store.outlook(None, 1.0) == alone, "neither its files nor its speed are the model's"
    with Store.open(root, made.settings(budget_bytes=100 * FILE), writer=True) as store:
        assert store.auxiliary_share() == (3 * FILE, 3)
        store.register_model([made.NS])
        assert store.auxiliary_share() is None and store.fullest_namespace() == made.OTHER_NS


def test_a_reader_sees_the_room_that_is_left_after_another_process_has_written(tmp_path: Path) -> None:
    settings = made.settings(budget_bytes=1 << 60)
    with (
        Store.open(tmp_path / "data", settings, writer=True) as writer,
        Store.open(tmp_path / "data", settings, writer=False) as reader,
    ):
        for name in texts(writer, *(f"text {number}" for number in range(40))):
            assert put(writer, name)

        def room() -> bool:
            """Whether the reader counts what is free now, which other programs may change meanwhile."""
            before = shutil.disk_usage(tmp_path).free
            counts = reader.counts(made.NS)
            return counts.budget_bytes - counts.kv_bytes == before == shutil.disk_usage(tmp_path).free

        assert any(room() for _ in range(1000))
