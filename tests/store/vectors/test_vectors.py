"""Finding by meaning: exact and approximate give the same contract; a bad index file costs time, never an answer."""

from __future__ import annotations

import errno
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from desk_rag.owned_directory import OwnedDirectory
from desk_rag.store.catalog.database import Database
from desk_rag.store.store import Store
from desk_rag.store.vectors import search as vector_search
from desk_rag.store.vectors.index import (
    ExactIndex,
    HnswIndex,
    Matches,
    Vectors,
    approximate_search_available,
    saved_labels,
)
from desk_rag.store.vectors.search import VectorSearch
from tests.store import made
from tests.store.faults import FullAt

DIM = 16
needs_hnswlib = pytest.mark.skipif(not approximate_search_available(), reason="hnswlib is not installed")


def unit(count: int, seed: int = 0) -> NDArray[np.float32]:
    matrix = np.random.default_rng(seed).normal(size=(count, DIM)).astype(np.float32)
    return matrix / np.linalg.norm(matrix, axis=1, keepdims=True)


def filled(index: ExactIndex | HnswIndex, vectors: NDArray[np.float32]) -> ExactIndex | HnswIndex:
    index.add([10 * i for i in range(len(vectors))], vectors)
    return index


@pytest.mark.parametrize("kind", [ExactIndex, pytest.param(HnswIndex, marks=needs_hnswlib)])
def test_both_indexes_keep_the_same_contract(kind: type[ExactIndex] | type[HnswIndex]) -> None:
    vectors = unit(3000)
    index = filled(kind(DIM), vectors)
    question = unit(1, seed=9)[0]
    order = np.argsort(-(vectors @ question))
    best = index.search(question, 20)
    assert [label for label, _ in best[:5]] == [10 * int(i) for i in order[:5]]
    assert [score for _, score in best] == sorted((score for _, score in best), reverse=True)
    assert best[0][1] == pytest.approx(float(vectors[order[0]] @ question), abs=1e-5)
    index.remove([best[0][0], best[0][0], 999_999])
    assert best[0][0] not in index and len(index) == 2999
    assert index.search(question, 1)[0][0] == best[1][0]
    if isinstance(index, ExactIndex):
        within = [10 * int(i) for i in order[[0, 7, 50, 2000]]] + [31]
        assert [label for label, _ in index.search_within(question, 9, within)] == within[1:4]
    assert len(index.search(question, 5000)) == 2999, "more than there are"
    assert index.search(question, 0) == []
    assert kind(DIM).search(question, 5) == []


@needs_hnswlib
def test_recall_of_the_graph_against_exact_search() -> None:
    vectors = unit(6000)
    exact, graph = filled(ExactIndex(DIM), vectors), filled(HnswIndex(DIM), vectors)
    hits = 0
    for question in unit(50, seed=3):
        wanted = {label for label, _ in exact.search(question, 10)}
        hits += len(wanted & {label for label, _ in graph.search(question, 10)})
    assert hits / 500 > 0.97


@needs_hnswlib
def test_removed_vectors_are_not_in_a_saved_graph(tmp_path: Path) -> None:
    index = filled(HnswIndex(DIM), unit(200))
    assert isinstance(index, HnswIndex)
    victim = unit(200)[7]
    index.save(tmp_path / f"{'a' * 16}.hnsw")
    assert victim.tobytes() in (tmp_path / f"{'a' * 16}.hnsw").read_bytes()
    index.remove([70])
    index.save(tmp_path / f"{'a' * 16}.hnsw")
    assert victim.tobytes() not in (tmp_path / f"{'a' * 16}.hnsw").read_bytes()
    again = HnswIndex.load(tmp_path / f"{'a' * 16}.hnsw", DIM)
    assert again is not None
    question = unit(1, seed=4)[0]
    expected = [10 * int(i) for i in np.argsort(-(unit(200) @ question)) if i != 7][:5]
    assert [label for label, _ in again.search(question, 5)] == expected


@needs_hnswlib
def test_saved_graph_comes_back_with_its_removals_and_grows_on(tmp_path: Path) -> None:
    index = filled(HnswIndex(DIM), unit(1500))
    index.remove([0, 10])
    assert isinstance(index, HnswIndex)
    path = tmp_path / f"{'a' * 16}.hnsw"
    index.save(path)
    assert path.stat().st_mode & 0o077 == 0 and not list(tmp_path.glob("*.tmp"))
    loaded = HnswIndex.load(path, DIM)
    assert loaded is not None and len(loaded) == 1498
    loaded.remove([0, 10, 20])
    loaded.add(list(range(100_000, 103_000)), unit(3000, seed=5))
    question = unit(3000, seed=5)[1234]
    assert loaded.search(question, 1)[0][0] == 101_234 and len(loaded) == 4497


@needs_hnswlib
@pytest.mark.parametrize("damage", ["flip", "truncate", "facts", "no facts", "other dim", "garbage"])
def test_a_damaged_index_file_never_reaches_the_library(tmp_path: Path, damage: str) -> None:
    path = tmp_path / f"{'a' * 16}.hnsw"
    index = filled(HnswIndex(DIM), unit(50))
    assert isinstance(index, HnswIndex)
    index.save(path)
    raw, facts = bytearray(path.read_bytes()), path.with_suffix(".json").read_bytes()
    if damage == "flip":
        raw[len(raw) // 2] ^= 1
        path.write_bytes(raw)
    elif damage == "truncate":
        path.write_bytes(raw[:-1])
    elif damage == "facts":
        path.with_suffix(".json").write_bytes(facts.replace(b"490", b"491"))
    elif damage == "no facts":
        path.with_suffix(".json").unlink()
    elif damage == "garbage":
        path.with_suffix(".json").write_bytes(b"\xff\n{}")
    assert HnswIndex.load(path, 8 if damage == "other dim" else DIM) is None


class Corpus:
    """Chunks with vectors in a store whose graph starts early."""

    def __init__(self, store: Store, root: Path, count: int) -> None:
        self.store, self.root = store, root
        self.texts = [f"text {i}" for i in range(count)]
        for half, folder in enumerate(["/d/even", "/d/odd"]):
            texts = self.texts[half::2]
            store.put_document(made.document(Path(folder), texts), made.chunks(texts), made.stamp())
        self.vectors = unit(count)
        store.put_vectors("e", [made.chunk_id(text) for text in self.texts], self.vectors)

    def expected(self, question: NDArray[np.float32], limit: int, step: slice = slice(None)) -> list[str]:
        order = np.argsort(-(self.vectors[step] @ question))[:limit]
        return [made.chunk_id(self.texts[step][int(i)]) for i in order]


@pytest.fixture
def early_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(VectorSearch.__init__, "__kwdefaults__", {"threshold": 100})
    monkeypatch.setattr(vector_search, "_ABSORB_PER_PUT", 150)


QUESTION = unit(1, seed=77)[0]


def saved(root: Path) -> list[Path]:
    return sorted((root / "vectors").iterdir())


@needs_hnswlib
def test_store_search_is_the_same_with_and_without_a_graph(store: Store, root: Path, early_graph: None) -> None:
    corpus = Corpus(store, root, 400)
    search = store._vectors()
    for _ in range(3):  # the graph takes over piece by piece; the answer never changes
        hits = store.search_vectors("e", 3 * QUESTION, 8)
        assert [hit.chunk_id for hit in hits] == corpus.expected(QUESTION, 8)
        assert all(-1.0001 <= hit.score <= 1.0001 for hit in hits)
    head = search._loaded["e"].head
    assert head is not None and len(head) == 400, "the graph is really in use"
    under = store.search_vectors("e", QUESTION, 8, [Path("/d/odd")])
    assert [hit.chunk_id for hit in under] == corpus.expected(QUESTION, 8, slice(1, None, 2))


@needs_hnswlib
def test_graph_survives_restarts_and_a_damaged_file_only_costs_time(root: Path, early_graph: None) -> None:
    with Store.open(root, made.settings(), writer=True) as store:
        corpus = Corpus(store, root, 300)
        store.search_vectors("e", QUESTION, 5)
    assert [path.suffix for path in saved(root)] == [".hnsw", ".json"]
    with Store.open(root, made.settings(), writer=False) as store:
        assert [hit.chunk_id for hit in store.search_vectors("e", QUESTION, 5)] == corpus.expected(QUESTION, 5)
        loaded = store._vectors()._loaded["e"]
        assert loaded.head is not None and len(loaded.head) == 300
    graph = saved(root)[0]
    graph.write_bytes(graph.read_bytes()[:-100])
    with Store.open(root, made.settings(), writer=True) as store:
        assert [hit.chunk_id for hit in store.search_vectors("e", QUESTION, 5)] == corpus.expected(QUESTION, 5)


@needs_hnswlib
def test_a_full_disk_at_any_step_of_saving_costs_no_answer(root: Path, early_graph: None) -> None:
    """The graph can always be made again: closing must not fail, and what is left must be whole or absent."""
    with Store.open(root, made.settings(), writer=True) as store:
        corpus = Corpus(store, root, 300)
    failures = 0
    for step in range(1, 40):
        for path in saved(root):
            path.unlink()
        store = Store.open(root, made.settings(), writer=True)
        store.search_vectors("e", QUESTION, 5)
        with pytest.MonkeyPatch.context() as patch:
            disk = FullAt(patch, step)
            store.close()
        failures += len(saved(root)) < 2
        assert not list((root / "vectors").glob("*.tmp"))
        with Store.open(root, made.settings(), writer=False) as store:
            assert [hit.chunk_id for hit in store.search_vectors("e", QUESTION, 5)] == corpus.expected(QUESTION, 5)
            assert store.verify().clean
        if disk.calls < step:
            break
    assert failures >= 3 and len(saved(root)) == 2


@needs_hnswlib
def test_without_the_extension_search_is_exact(root: Path, early_graph: None, monkeypatch: pytest.MonkeyPatch) -> None:
    with Store.open(root, made.settings(), writer=True) as store:
        corpus = Corpus(store, root, 300)
        store.search_vectors("e", QUESTION, 5)
    assert saved(root)
    monkeypatch.setitem(sys.modules, "hnswlib", None)
    with Store.open(root, made.settings(), writer=True) as store:
        assert [hit.chunk_id for hit in store.search_vectors("e", QUESTION, 5)] == corpus.expected(QUESTION, 5)
        assert store._vectors()._loaded["e"].head is None


def test_removed_chunks_are_not_found_and_leave_the_saved_graph(root: Path, early_graph: None) -> None:
    with Store.open(root, made.settings(), writer=True) as store:
        corpus = Corpus(store, root, 300)
        store.search_vectors("e", QUESTION, 5)
        store._vectors().save()
        with Store.open(root, made.settings(), writer=False) as other:
            assert len(other.search_vectors("e", QUESTION, 300)) == 300
            store.remove_document(Path("/d/even"))
            assert saved(root) == [], "a saved index that holds removed vectors goes at once"
            for opened in (store, other):
                hits = opened.search_vectors("e", QUESTION, 300)
                assert [hit.chunk_id for hit in hits] == corpus.expected(QUESTION, 300, slice(1, None, 2))
        store._vectors().save()
        victim = corpus.vectors[0].tobytes()
        store.checkpoint()
        for path in root.rglob("*"):
            assert not path.is_file() or victim not in path.read_bytes(), path


def test_k_beyond_what_the_graph_reaches_is_answered_exactly(
    store: Store, root: Path, early_graph: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = Corpus(store, root, 300)
    store.search_vectors("e", QUESTION, 5)

    def unreachable(self: HnswIndex, vector: object, limit: int) -> None:
        raise RuntimeError("Cannot return the results in a contiguous 2D array. Probably ef or M is too small")

    with monkeypatch.context() as patch:
        patch.setattr(HnswIndex, "search", unreachable)
        for _ in range(3):
            assert [hit.chunk_id for hit in store.search_vectors("e", QUESTION, 9)] == corpus.expected(QUESTION, 9)
    assert [hit.chunk_id for hit in store.search_vectors("e", QUESTION, 9)] == corpus.expected(QUESTION, 9)


def test_pending_and_put_are_idempotent_and_per_embedder(store: Store, root: Path) -> None:
    store.put_document(made.document(Path("/a"), ["x", "y"]), made.chunks(["x", "y"]), made.stamp())
    assert [chunk.text for chunk in store.chunks_without_vector("e", 9)] == ["x", "y"]
    ids = [made.chunk_id("x"), made.chunk_id("gone")]
    for _ in range(2):
        store.put_vectors("e", ids, unit(2))
    assert [chunk.text for chunk in store.chunks_without_vector("e", 9)] == ["y"]
    assert len(store.chunks_without_vector("other", 9)) == 2 and len(store.chunks_without_vector("other", 1)) == 1
    assert store.counts(None, "e").with_vectors == 1
    assert len(store.search_vectors("e", unit(1)[0], 9)) == 1
    assert store.search_vectors("unknown", unit(1)[0], 9) == []
    for odd in (np.zeros(DIM, dtype=np.float32), np.full(DIM, np.nan, dtype=np.float32)):
        assert store.search_vectors("e", odd, 9) == []


def test_other_process_sees_new_vectors_at_its_next_search(root: Path, store: Store) -> None:
    corpus = Corpus(store, root, 50)
    with Store.open(root, made.settings(), writer=False) as reader:
        assert len(reader.search_vectors("e", QUESTION, 99)) == 50
        store.put_document(made.document(Path("/new"), ["new"]), [made.chunk("new")], made.stamp())
        store.put_vectors("e", [made.chunk_id("new")], QUESTION[None])
        assert reader.search_vectors("e", QUESTION, 1)[0].chunk_id == made.chunk_id("new")
    assert isinstance(store._database, Database) and len(corpus.texts) == 50


@needs_hnswlib
def test_a_large_scope_is_searched_by_the_graph_and_a_small_one_exactly(
    store: Store, root: Path, early_graph: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vector_search, "_FEW_IN_SCOPE", 100)
    corpus = Corpus(store, root, 400)
    for _ in range(3):
        store.search_vectors("e", QUESTION, 8)
    rows_searched, by_rows = list[Sequence[Path]](), VectorSearch._search_rows

    def noting(search: VectorSearch, row: int, question: Vectors, limit: int, under: Sequence[Path]) -> Matches:
        rows_searched.append(under)
        return by_rows(search, row, question, limit, under)

    monkeypatch.setattr(VectorSearch, "_search_rows", noting)
    half, all_of_it = [Path("/d/odd")], [Path("/d")]
    chunk_ids = [hit.chunk_id for hit in store.search_vectors("e", QUESTION, 8, half)]
    assert chunk_ids == corpus.expected(QUESTION, 8, slice(1, None, 2)) and rows_searched == []
    chunk_ids = [hit.chunk_id for hit in store.search_vectors("e", QUESTION, 8, all_of_it)]
    assert chunk_ids == corpus.expected(QUESTION, 8) and rows_searched == []
    everything = store.search_vectors("e", QUESTION, 150, half)
    assert len(everything) == 150 and rows_searched == [], "more are looked for until there are enough"
    monkeypatch.setattr(vector_search, "_FEW_IN_SCOPE", 200)
    chunk_ids = [hit.chunk_id for hit in store.search_vectors("e", QUESTION, 8, half)]
    assert chunk_ids == corpus.expected(QUESTION, 8, slice(1, None, 2)) and rows_searched == [half]


def test_a_search_goes_through_no_vectors_that_it_knows(root: Path, store: Store) -> None:
    steps = 0

    def count() -> int:
        nonlocal steps
        steps += 1
        return 0

    needed = []
    for total in (50, 1050):
        texts = [f"text {number} of {total}" for number in range(total)]
        store.put_document(made.document(Path(f"/{total}"), texts), made.chunks(texts), made.stamp())
        store.put_vectors("e", [made.chunk_id(text) for text in texts], unit(total, seed=total))
        store.search_vectors("e", QUESTION, 8)
        with store._database.read() as connection:
            connection.set_progress_handler(count, 1)
        steps = 0
        store.search_vectors("e", QUESTION, 8)
        with store._database.read() as connection:
            connection.set_progress_handler(None, 0)
        needed.append(steps)
    assert needed[0] > 0 and needed[1] < 2 * needed[0], "SQLite's steps do not grow with the number of vectors"


@needs_hnswlib
def test_a_graph_cut_off_before_its_checksum_stands_beside_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / f"{'a' * 16}.hnsw"
    index = filled(HnswIndex(DIM), unit(20))
    assert isinstance(index, HnswIndex)
    index.save(path)
    assert saved_labels(path) == {10 * number for number in range(20)}

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    index.remove([0])
    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space"):
        patch.setattr(OwnedDirectory, "write", full)
        index.save(path)
    assert path.exists() and not path.with_suffix(".json").exists(), "the new file would have the old labels"
    assert saved_labels(path) is None and HnswIndex.load(path, DIM) is None
    index.save(path)
    assert saved_labels(path) == {10 * number for number in range(1, 20)}
