"""No state that a power cut may leave loses what was reported done or shows anything that is not sound."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path

import pytest
import torch

from desk_rag.store.store import Store
from desk_rag.store.vectors.index import HnswIndex, approximate_search_available
from tests.durability.breaking import BREAKS
from tests.durability.judging import judge
from tests.durability.power_cut import Drive, State, sample
from tests.durability.recording import CannotRecord, Job, Op, library, record
from tests.durability.workload import DIM, vector_of
from tests.store import made

FEW, MANY = 60, 2_400
STEPS = 40


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    """In memory where that can be: states are many and none needs to last."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        yield Path(folder)


@pytest.fixture(scope="module")
def recorded(place: Path) -> dict[str, list[Op]]:
    """The workload with a kill in it, and once for every flush or order taken out."""
    torch.set_num_threads(1)
    try:
        library()
        runs = record(
            [
                Job(3, STEPS if len(kinds) > 1 else 8, broken, kills=int(broken == "nothing"))
                for broken, (_, kinds) in BREAKS.items()
            ],
            place / "recorded",
        )
    except CannotRecord as error:
        pytest.skip(str(error))
    return dict(zip(BREAKS, runs, strict=True))


def faulty(states: Iterator[tuple[State, Sequence[Op]]], place: Path) -> Iterator[tuple[int, str]]:
    """Yield, for each state, how many were looked at and what does not hold in it."""
    for number, (state, before) in enumerate(states, start=1):
        faults = judge(state, before, place)
        yield number, f"after {state.cut} operations, {state.how}: {faults}" if faults else ""


@pytest.mark.skipif(not approximate_search_available(), reason="needs hnswlib")
def test_only_a_graph_without_its_name_may_hold_the_vector_of_a_purged_text(place: Path) -> None:
    """It is wiped before it gets its name; a cut before that leaves it to the next start, which removes it."""
    index = HnswIndex(DIM)
    index.add([1], vector_of("a secret")[None])
    index.save(place / "graph")
    content = (place / "graph").read_bytes()
    assert vector_of("a secret").tobytes() in content
    begun = place / "begun"
    Store.open(begun / "data", made.settings(), writer=True).close()
    entries = sorted(begun.rglob("*"))
    folders = tuple(str(path.relative_to(begun)) for path in entries if path.is_dir())
    files = tuple((str(path.relative_to(begun)), path.read_bytes()) for path in entries if path.is_file())
    purged = Op("N", note={"purged": "no such trace", "texts": ["a secret"]})
    name = "data/vectors/0123456789abcdef.hnsw"
    for path, is_fault in ((f"{name}.4194305-104.tmp", False), (name, True)):
        state = State(1, "all is there", tuple({*folders, "data/vectors"}), (*files, (path, content)))
        faults = judge(state, [purged], place / "state")
        assert any("is back" in fault for fault in faults) == is_fault, (path, faults)
        assert not list((place / "state").rglob("*.tmp")), "the start has removed it"


def test_a_cut_at_any_moment_loses_nothing_that_was_done(recorded: dict[str, list[Op]], place: Path) -> None:
    looked_at = 0
    for looked_at, fault in faulty(sample(recorded["nothing"], 1, FEW), place / "state"):  # noqa: B007
        assert not fault
    assert looked_at > 0.9 * FEW


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_thousand_cuts_lose_nothing_that_was_done(place: Path) -> None:
    looked_at = 0
    try:
        runs = record([Job(11, 60), Job(12, 60), Job(13, 40, kills=3)], place / "many")
    except CannotRecord as error:
        pytest.skip(str(error))
    for ops in runs:
        number = 0
        for number, fault in faulty(sample(ops, 2, MANY // 3), place / "state"):  # noqa: B007
            assert not fault
        looked_at += number
    assert looked_at >= 2_000


@pytest.mark.parametrize("broken", [name for name in BREAKS if name != "nothing"])
def test_each_flush_and_each_order_is_missed_when_it_is_gone(
    recorded: dict[str, list[Op]], place: Path, broken: str
) -> None:
    ops = recorded[broken]
    states = chain(sample(ops, 1, FEW // 2, only_reports=True), sample(ops, 1, 4 * FEW))
    assert any(fault for _, fault in faulty(states, place / "state"))


def test_a_state_holds_what_was_flushed_and_any_part_of_the_rest() -> None:
    drive = Drive()
    drive.know_root(1)
    ops = [
        Op("C", 2, path="a.tmp"), Op("W", 2, 0, data=b"x" * 1024), Op("F", 2), Op("R", path="a.tmp", target="a"),
        Op("F", 1, 1), Op("W", 2, 512, data=b"y" * 1024), Op("C", 3, path="b"), Op("W", 3, data=b"z"),
    ]  # fmt: skip
    for op in ops:
        drive.apply(op)
    contents: dict[str, set[bytes]] = {}
    for state in drive.cuts(random.Random(1), 200):
        for path, content in state.files:
            contents.setdefault(path, set()).add(content)
        assert "a" in dict(state.files), "its name was flushed"
    assert all(content[:512] == b"x" * 512 for content in contents["a"]), "its first sector was flushed"
    old, new = b"x" * 512, b"y" * 512
    assert contents["a"] >= {old + old, old + new + new, old + new, old + old + new}
    assert b"" in contents["b"] and b"z" in contents["b"] and b"\0" in contents["b"] and "a.tmp" not in contents
