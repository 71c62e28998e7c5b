"""The byte budget: reserved before written, never exceeded at any instant, given back; who goes first; admission."""

from __future__ import annotations

import os
import random
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from desk_rag.kv.loading.costs import Rates
from desk_rag.store.kv import rates
from desk_rag.store.kv.budget import Budget, break_even, estimate, readable
from desk_rag.store.store import Store
from tests.store import made
from tests.store.kv.test_chunk_file import flipped
from tests.store.kv.test_reconcile import on_disk, place

A = Path("/d/a.md")
FILE = 8192
"""Bytes that one of the tests' KV files counts for."""


def put(store: Store, text: str, namespace: str = made.NS, seconds: float = 0.5) -> bool:
    key = made.key(text, made.Namespace(namespace))
    return store.put_kv(key, made.kv_for(key), [made.chunk_id(text)], seconds)


def index(store: Store, texts: list[str], path: Path = A) -> None:
    store.put_document(made.document(path, texts), made.chunks(texts), made.stamp())


def kept(store: Store, texts: list[str], namespace: str = made.NS) -> list[str]:
    return [text for text in texts if store.has_kv([made.key(text, made.Namespace(namespace))])]


def demand(store: Store, *texts: str, times: int = 2) -> None:
    store.note_use([made.chunk_id(text) for text in texts for _ in range(times)])


# the counter -------------------------------------------------------------------------------------------------


def test_reservations_of_many_threads_never_pass_the_limit(tmp_path: Path) -> None:
    budget = Budget(tmp_path, made.settings(budget_bytes=1000), 100)
    granted: list[int] = []

    def work(seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(2000):
            size = rng.randrange(1, 400)
            if budget.reserve(size):
                assert budget.taken <= 1000
                budget.written(size) if rng.random() < 0.5 else budget.release(size)
                if budget.used > 600:
                    budget.freed(min(300, budget.used))
                granted.append(size)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(granted) > 100 and budget.taken <= 1000


def test_limit_is_the_smaller_of_cap_and_what_the_drive_leaves(tmp_path: Path) -> None:
    import shutil

    free = shutil.disk_usage(tmp_path).free
    assert Budget(tmp_path, made.settings(budget_bytes=5000), 0).limit() == 5000
    tight = Budget(tmp_path, made.settings(budget_bytes=1 << 60, reserve_bytes=free - (1 << 30)), 777)
    assert abs(tight.limit() - ((1 << 30) + 777)) < 1 << 29
    assert Budget(tmp_path, made.settings(reserve_bytes=1 << 60), 10).limit() == 0


# who goes first ----------------------------------------------------------------------------------------------


def test_least_saved_time_per_byte_goes_first_and_use_counts(root: Path) -> None:
    texts = ["dear", "cheap", "used"]
    with Store.open(root, made.settings(budget_bytes=3 * FILE), writer=True) as store:
        index(store, [*texts, "new"])
        for text, seconds in zip(texts, (5.0, 0.1, 0.2), strict=True):
            assert put(store, text, seconds=seconds)
        for _ in range(9):
            store.get_kv([made.key("used")])
        demand(store, "new")
        assert put(store, "new", seconds=1.0)
        assert kept(store, [*texts, "new"]) == ["dear", "used", "new"]
        assert on_disk(root) == 3 * FILE


def test_a_newcomer_worth_less_is_refused_and_not_offered_again_until_used_again(root: Path) -> None:
    with Store.open(root, made.settings(budget_bytes=2 * FILE), writer=True) as store:
        index(store, ["a", "b", "poor"])
        for text in ("a", "b"):
            assert put(store, text, seconds=9.0)
        demand(store, "poor")
        assert [chunk.text for chunk in store.chunks_without_kv(made.NS, 9)] == ["poor"]
        assert not put(store, "poor", seconds=0.1)
        assert kept(store, ["a", "b"]) == ["a", "b"] and store.chunks_without_kv(made.NS, 9) == []
        demand(store, "poor", times=1)
        assert [chunk.text for chunk in store.chunks_without_kv(made.NS, 9)] == ["poor"]


def test_other_models_go_first_whatever_they_are_worth(root: Path) -> None:
    texts = ["a", "b", "c", "d"]
    with Store.open(root, made.settings(budget_bytes=4 * FILE), writer=True) as store:
        index(store, texts)
        for text in texts[:2]:
            assert put(store, text, made.OTHER_NS, seconds=1000.0)
        for text in texts:
            demand(store, text)
            assert put(store, text, seconds=0.01)
        assert kept(store, texts) == texts and kept(store, texts, made.OTHER_NS) == []


def test_pinned_folders_go_last_and_are_always_admitted(root: Path) -> None:
    pinned, others = [f"p{i}" for i in range(3)], [f"o{i}" for i in range(6)]
    with Store.open(root, made.settings(budget_bytes=4 * FILE), writer=True) as store:
        index(store, pinned, Path("/pin/me/x.md"))
        index(store, others)
        store.pin(Path("/pin/me"))
        assert store.pins() == [Path("/pin/me")]
        for text in others[:4]:
            put(store, text, seconds=9.0)
        for text in pinned:
            assert put(store, text, seconds=0.001), "never used, and worth nothing"
        for text in others:
            demand(store, text, times=9)
            put(store, text, seconds=99.0)
        assert kept(store, pinned) == pinned and len(kept(store, others)) == 1
        store.unpin(Path("/pin/me"))
        demand(store, *others)
        for text in others:
            put(store, text, seconds=99.0)
        assert len(kept(store, others)) == 4


def test_a_pin_protects_nothing_of_another_model(root: Path) -> None:
    """Files that only another model, or this one before a drift, could read go before anything of the one in use."""
    texts = ["p0", "p1", "p2", "p3"]
    with Store.open(root, made.settings(budget_bytes=4 * FILE), writer=True) as store:
        index(store, texts, Path("/pin/x.md"))
        index(store, ["new"])
        store.pin(Path("/pin"))
        for text in texts:
            demand(store, text, times=9)
            assert put(store, text, made.OTHER_NS, seconds=1000.0)
        assert put(store, "new", seconds=0.001), "not pinned, hardly worth anything, but of the model in use"
        assert len(kept(store, texts, made.OTHER_NS)) == 3
    with Store.open(root, made.settings(budget_bytes=FILE), writer=True) as store:
        assert kept(store, ["new"]) == ["new"], "a limit that shrinks takes the model used last, last"
        assert kept(store, texts, made.OTHER_NS) == [] and on_disk(root) == FILE
        assert store.notices == ("24 KiB of chunk caches were removed to stay within the limit of 8 KiB.",)


def test_even_pinned_folders_give_way_when_the_limit_shrinks(root: Path) -> None:
    with Store.open(root, made.settings(budget_bytes=4 * FILE), writer=True) as store:
        index(store, ["p0", "p1"], Path("/pin/x.md"))
        index(store, ["o0", "o1"])
        store.pin(Path("/pin"))
        for text, seconds in (("p0", 1.0), ("p1", 2.0), ("o0", 50.0), ("o1", 50.0)):
            demand(store, text)
            assert put(store, text, seconds=seconds)
    for files, left in ((2, ["p0", "p1"]), (1, ["p1"]), (0, [])):
        with Store.open(root, made.settings(budget_bytes=files * FILE), writer=True) as store:
            assert kept(store, ["p0", "p1", "o0", "o1"]) == left and on_disk(root) == files * FILE


def test_last_fifth_of_the_limit_is_for_what_is_retrieved_twice(root: Path) -> None:
    texts = [f"t{i}" for i in range(40)]
    with Store.open(root, made.settings(budget_bytes=12 * FILE), writer=True) as store:
        index(store, texts)
        rounds = 0
        while pending := store.chunks_without_kv(made.NS, 3):
            rounds += 1
            assert all(put(store, chunk.text) for chunk in pending[:1])
        assert rounds == store.counts(made.NS).warm == 10, "ten of twelve are the first above four fifths"
        demand(store, "t35", times=1)
        assert not put(store, "t35") and store.chunks_without_kv(made.NS, 99) == []
        demand(store, "t35", times=1)
        assert [chunk.text for chunk in store.chunks_without_kv(made.NS, 99)] == ["t35"]
        assert put(store, "t35")
        store.want_kv([made.chunk_id("t36")] * 2)
        assert [chunk.text for chunk in store.chunks_without_kv(made.NS, 99)] == ["t36"]
        store.pin(A.parent)
        assert len(store.chunks_without_kv(made.NS, 99)) == 29


def test_after_a_change_of_model_the_new_one_is_warmed_at_the_cost_of_the_old(root: Path) -> None:
    texts = [f"t{i}" for i in range(40)]
    with Store.open(root, made.settings(budget_bytes=10 * FILE), writer=True) as store:
        index(store, texts)
        for namespace in (made.OTHER_NS, made.NS):
            while pending := store.chunks_without_kv(namespace, 9):
                assert put(store, pending[0].text, namespace)
        assert len(kept(store, texts)) == 8 and len(kept(store, texts, made.OTHER_NS)) == 2


def test_small_corpus_is_cached_whole_without_being_asked(root: Path) -> None:
    texts = [f"t{i}" for i in range(9)]
    with Store.open(root, made.settings(budget_bytes=12 * FILE), writer=True) as store:
        index(store, texts)
        while pending := store.chunks_without_kv(made.NS, 4):
            for chunk in pending:
                assert put(store, chunk.text)
        assert store.counts(made.NS).warm == 9


# never more than the cap -------------------------------------------------------------------------------------


class Instants:
    """Measures the files after every system call of this process that may change them; nothing happens in between."""

    CALLS = ("open", "write", "ftruncate", "replace", "rename", "unlink")

    def __init__(self, root: Path, patch: pytest.MonkeyPatch) -> None:
        self.root, self.most, self.looks = root, 0, 0
        self.opening = os.open
        for name in self.CALLS:
            patch.setattr(os, name, self._measured(getattr(os, name)))

    def _measured(self, real: Callable[..., object]) -> Callable[..., object]:
        opening = self.opening

        def call(*arguments: object, **named: object) -> object:
            result = real(*arguments, **named)
            if real is opening and not arguments[1] & os.O_CREAT:  # opened to be read, or a directory
                return result
            self.looks += 1
            self.most = max(self.most, on_disk(self.root))
            return result

        return call


@dataclass
class Soaked:
    stored: int = 0
    refused: int = 0
    hits: int = 0


def soak(root: Path, cap: int, *, restarts: int, operations: int, seed: int) -> Soaked:
    """Use a store of two models in every way, with damage, restarts and writes cut off; check it at every step."""
    rng = random.Random(seed)
    texts = [f"t{i}" for i in range(60)]
    done = Soaked()
    for restart in range(restarts):
        with Store.open(root, made.settings(budget_bytes=cap), writer=True) as store:
            store.verify(repair=True)  # of files that were damaged and not read since
            assert store.verify().clean
            for _ in range(operations):
                one_operation(store, root, rng, texts, done)
                assert on_disk(root) <= cap
                counted = store.counts(made.NS)
                assert counted.kv_bytes == on_disk(root) and counted.budget_bytes == cap
        if restart % 2 and (files := made.kv_files(root)):
            # As a kill leaves it: room was made for a write, and the write got half way.
            files[0].replace(files[0].with_suffix(".9-0.tmp"))
            os.truncate(files[0].with_suffix(".9-0.tmp"), 5000)
    return done


def one_operation(store: Store, root: Path, rng: random.Random, texts: list[str], done: Soaked) -> None:
    text = rng.choice(texts)
    namespace = made.NS if rng.random() < 0.7 else made.OTHER_NS
    action = rng.random()
    if action < 0.1:
        index(store, rng.sample(texts, 12), Path(f"/d/{rng.randrange(8)}"))
    elif action < 0.14:
        store.remove_document(Path(f"/d/{rng.randrange(8)}"))
    elif action < 0.2 and place(root, text).exists():
        flipped(place(root, text), 5000)
    elif action < 0.5:
        demand(store, text, times=1)
        keys = [made.key(text), made.key(text, made.OTHER_NS)]
        for key, kv in zip(keys, store.get_kv(keys), strict=True):
            assert kv is None or made.same(kv, made.kv_for(key))
            done.hits += kv is not None
    else:
        stored = put(store, text, namespace, seconds=rng.uniform(0.01, 5))
        done.stored += stored
        done.refused += not stored


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_soak_of_two_models_and_restarts_never_exceeds_the_cap(fast_directory: Path) -> None:
    root = fast_directory / "data"
    cap = 25 * FILE
    with pytest.MonkeyPatch.context() as patch:
        instants = Instants(root, patch)
        done = soak(root, cap, restarts=8, operations=90, seed=11)
    assert done.stored > 100 and done.refused > 20 and done.hits > 20, "the soak must really press against the cap"
    assert instants.looks > 2000 and 20 * FILE < instants.most <= cap


# words for people --------------------------------------------------------------------------------------------


def test_estimate_before_indexing() -> None:
    fits = estimate(1_000_000, 5_000, 20 << 30, 0.001)
    assert fits.kv_bytes == 5_000_000_000 and fits.seconds == 1000
    assert fits.sentence == (
        "The chunk caches would take about 4.7 GiB of the 20.0 GiB they may take; all of them fit."
        " Making them takes about 17 min of idle time."
    )
    tight = estimate(10_000_000, 5_000, 20 << 30)
    assert tight.seconds is None and "43% of them fit" in tight.sentence and "second time" in tight.sentence


def test_break_even_is_a_sentence_with_this_machines_numbers() -> None:
    result = break_even(0.005, 1e9, 14_500, on_gpu=True)
    assert result.speedup == pytest.approx(344.8, abs=0.1)
    assert result.days == pytest.approx(400 * (0.005 - 14_500 / 1e9) / (14_500 * 0.08 / 1e9) / 86_400)
    assert "is ready 345 times sooner (1,000 tokens take 5 s to read and 14.5 ms to load)" in result.sentence
    last = "used at least once in 20 days (reckoned with 400 euros for a GPU and 0.08 euros for a GB of the drive)"
    assert result.sentence.endswith(last)
    by_processor = break_even(0.005, 1e9, 14_500)
    assert by_processor.days == pytest.approx(result.days / 2) and "200 euros for a processor" in by_processor.sentence
    slow = break_even(0.00001, 1e8, 100_000)
    assert slow.days == 0 and "no less time than reading the passages" in slow.sentence


def test_store_measures_its_own_rates(store: Store) -> None:
    index(store, ["x"])
    assert store.break_even(made.NS) is None
    key = made.key("x")
    store.put_kv(key, made.kv_for(key, layers=8, tokens=512, dim=128), [made.chunk_id("x")], 4.0)
    for _ in range(2):
        store.get_kv([key])
    result = store.break_even(made.NS)
    assert result is not None and result.speedup > 1 and "times sooner" in result.sentence


def test_break_even_in_a_process_that_read_nothing_measures_and_counts_no_use(root: Path) -> None:
    with Store.open(root, made.settings(), writer=True) as store:
        index(store, ["x"])
        key = made.key("x")
        store.put_kv(key, made.kv_for(key, layers=8, tokens=512, dim=128), [made.chunk_id("x")], 4.0)
    uses = "SELECT hits, tick FROM kv"
    before = rows(root, uses)
    with Store.open(root, made.settings(), writer=False) as reader:
        result = reader.break_even(made.NS)
        assert result is not None and "1,000 tokens take 7.81 s to read" in result.sentence and result.speedup > 1
        assert reader.break_even(made.OTHER_NS) is None
    assert rows(root, uses) == before
    flipped(place(root, "x"), 5000)
    with Store.open(root, made.settings(), writer=False) as reader:
        assert reader.break_even(made.NS) is None, "nothing sound to measure"
        assert place(root, "x").exists()


def rows(root: Path, query: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(root / "catalog.sqlite")) as connection:
        return connection.execute(query).fetchall()


def test_outlook_counts_what_is_there_and_what_waits(root: Path) -> None:
    with Store.open(root, made.settings(budget_bytes=100 * FILE), writer=True) as store:
        index(store, ["a", "b", "c"])
        assert store.outlook(None, 512.0) is None, "no model has made anything yet"
        first = store.outlook(made.NS, 512.0)
        assert first is not None and first.kv_bytes == 3 * 16 * 512 and first.seconds is None
        assert put(store, "a")
        measured = store.outlook(None, 1.0)
        assert measured is not None and measured.seconds == pytest.approx(2 * 0.5)
        size = place(root, "a").stat().st_size
        assert measured.kv_bytes == pytest.approx(FILE + 2 * size, abs=2), "the measured rate goes before the given one"
        assert "all of them fit" in measured.sentence and measured.limit_bytes == 100 * FILE
        assert put(store, "b") and put(store, "c")
        assert store.outlook(made.NS, 512.0) is None and store.outlook(None, 512.0) is None


def test_readable_sizes() -> None:
    assert [readable(size) for size in (5, 2048, 3 << 20, 5 << 30)] == ["5 bytes", "2 KiB", "3 MiB", "5.0 GiB"]


def test_a_cache_that_is_slower_to_read_than_to_make_is_written_only_if_it_is_asked_for_twice(tmp_path: Path) -> None:
    slow = Rates(0.0, 1.0, 1e9, 0.0, 1e6)  # a byte a second from the drive
    with Store.open(tmp_path / "data", made.settings(), writer=True) as store:
        store.put_document(made.document(Path("/a"), ["one", "two"]), made.chunks(["one", "two"]), made.stamp())
        rates.keep(store.root, f"{made.NS} gpu drive", slow)
        assert not made.warm(store, "one") and not made.kv_files(store.root)
        assert made.warm(store, "one", made.OTHER_NS), "another model was not measured"
        store.note_use([made.chunk_id("one")] * 2)
        assert made.warm(store, "one")
        rates.keep(store.root, f"{made.NS} cpu drive", Rates(0.0, 1e9, 1e9, 0.0, 1e6))
        assert made.warm(store, "two"), "on another device here it pays"
