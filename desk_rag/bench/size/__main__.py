"""Large folders: reading many files, a sweep without changes, word and vector search among many passages.

`--files` writes a folder of made-up files, reads it (without vectors and caches), looks through it again, and changes
one file. `--rows` puts made-up passages into a catalog, opens it again, searches them by words, adds and removes a
document; `--with-vectors` gives them vectors, too. `--vectors` compares the two indexes of vectors alone. Everything
lies in a temporary directory below `--place`; `--keep DIR` keeps the catalog of `--rows` there, and measures the one
that an earlier run left. Searches are timed by the clock and in CPU time, which other programs disturb less. The last
line is JSON.
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import psutil

from desk_rag.bench.size.many_files import MadeUpText, write_files
from desk_rag.config import IndexSettings, StoreSettings

if TYPE_CHECKING:
    from desk_rag.documents.chunking import Chunk
    from desk_rag.documents.document import Document
    from desk_rag.store.store import Store
    from desk_rag.store.vectors.index import Vectors

_SEARCHES = 40
_PASSAGES_PER_DOCUMENT = 200
_DIMENSIONS = 384
_EMBEDDER = "made-up"
_MIB = 1 << 20
_Found = TypeVar("_Found")


class ClusteredVectors:
    """Random unit vectors around common centres, as embeddings are: random directions alone have no neighbours."""

    def __init__(self, seed: int) -> None:
        import numpy as np

        self._centres = np.random.default_rng(0).standard_normal((256, _DIMENSIONS), dtype=np.float32)
        self._generator = np.random.default_rng(seed)

    def rows(self, count: int) -> Vectors:
        """Return the next `count` vectors, float32 [count, 384]."""
        vectors = self._centres[self._generator.integers(len(self._centres), size=count)]
        vectors += 0.7 * self._generator.standard_normal(vectors.shape, dtype="float32")
        vectors /= (vectors**2).sum(axis=1, keepdims=True) ** 0.5
        return vectors


def measure_files(place: Path, count: int) -> dict[str, object]:
    """Return how long reading `count` files and sweeping them takes, and the memory of both processes."""
    from desk_rag.ingest.pipeline import sync_folder
    from desk_rag.model import weights
    from desk_rag.model.prompt import load_prompt

    docs, prompt = place / "docs", load_prompt(weights.resolve("embedded", allow_download=False))
    kinds = write_files(docs, count)
    peak, process = 0, psutil.Process()

    def sweep(store: Store) -> tuple[float, int]:
        nonlocal peak
        began, events = time.perf_counter(), 0
        for event in sync_folder(store, docs, prompt, prompt.chunk_size, IndexSettings(), lambda: False):
            events += 1
            if not events % 500 or event is None:
                peak = max(peak, process.memory_info().rss)
        peak = max(peak, process.memory_info().rss)
        return time.perf_counter() - began, events

    with _store(place) as store:
        before = process.memory_info().rss
        first, _ = sweep(store)
        counts, memory_read = store.counts(), peak
        peak = 0
        again, _ = sweep(store)
        memory_again = peak
        next(docs.rglob("*.md")).write_text("# Changed\n\nThe heron stands in the shallow water.\n")
        one, _ = sweep(store)
        words = _search_times(lambda text: store.search_words(text, 10), MadeUpText(7))
    return {
        "files": count, "kinds": kinds, "passages": counts.chunks, "read_seconds": round(first, 1),
        "files_per_second": round(count / first, 1), "sweep_seconds": round(again, 2),
        "sweep_after_one_change_seconds": round(one, 2), "word_search_ms": words,
        "memory_before_mib": before // _MIB, "memory_reading_mib": memory_read // _MIB,
        "memory_sweeping_mib": memory_again // _MIB,
    }  # fmt: skip


def measure_rows(place: Path, count: int, *, with_vectors: bool = False) -> dict[str, object]:
    """Return how long search and updates take among `count` made-up passages, and what they need."""
    filled = fill_rows(place, count, with_vectors=with_vectors)
    return {"rows": count, "fill_seconds": round(filled, 1), **measure_filled(place, count, with_vectors=with_vectors)}


def measure_kept(place: Path, count: int, *, with_vectors: bool) -> dict[str, object]:
    """Fill a catalog in `place` if there is none yet, and measure it."""
    if (place / "data").exists():
        return {"rows": count, **measure_filled(place, count, with_vectors=with_vectors)}
    place.mkdir(parents=True, exist_ok=True)
    return measure_rows(place, count, with_vectors=with_vectors)


def fill_rows(place: Path, count: int, *, with_vectors: bool) -> float:
    """Put `count` made-up passages into a catalog; return the seconds it took."""
    text, nearby, began = MadeUpText(3), ClusteredVectors(1), time.perf_counter()
    with _store(place) as store:
        for number in range(0, count, _PASSAGES_PER_DOCUMENT):
            _put_made_up(store, place, text, number, nearby if with_vectors else None)
    return time.perf_counter() - began


def measure_filled(place: Path, count: int, *, with_vectors: bool) -> dict[str, object]:
    """Open a filled catalog and measure searches, one update, memory and the space on the disk."""
    process, nearby, text = psutil.Process(), ClusteredVectors(2), MadeUpText(5)
    result: dict[str, object] = {}
    before = process.memory_info().rss
    with _store(place) as store:
        result["word_search_ms"] = _search_times(lambda query: store.search_words(query, 10), MadeUpText(7))
        result["memory_with_words_mib"] = (process.memory_info().rss - before) // _MIB
        if with_vectors:
            questions = nearby.rows(_SEARCHES)
            result["first_vector_search_ms"] = _vector_times(_nearest_in(store), questions[:1])[1]["median"]
            result["vector_search_ms"] = _vector_times(_nearest_in(store), questions)[1]
            result["memory_with_vectors_mib"] = (process.memory_info().rss - before) // _MIB
        began = time.perf_counter()
        path = _put_made_up(store, place, text, count, nearby if with_vectors else None)
        result["add_200_passages_ms"] = round(1000 * (time.perf_counter() - began), 1)
        began = time.perf_counter()
        store.remove_documents([path])
        result["remove_200_passages_ms"] = round(1000 * (time.perf_counter() - began), 1)
        if with_vectors:
            result["next_vector_search_ms"] = _vector_times(_nearest_in(store), nearby.rows(1))[1]["median"]
    files = [file for file in (place / "data").rglob("*") if file.is_file()]
    result["catalog_mib"] = sum(file.stat().st_size for file in files if file.name.startswith("catalog")) // _MIB
    result["vector_index_mib"] = sum(file.stat().st_size for file in files if file.parent.name == "vectors") // _MIB
    return result


def _nearest_in(store: Store) -> Callable[[Vectors, int], object]:
    return lambda question, limit: store.search_vectors(_EMBEDDER, question, limit)


def measure_vectors(count: int) -> dict[str, object]:
    """Return how long exact search and search by graph take among `count` random vectors, and what they need."""
    from desk_rag.store.vectors.index import ExactIndex, HnswIndex, approximate_search_available

    vectors = ClusteredVectors(1).rows(count + _SEARCHES)
    questions, vectors = vectors[count:], vectors[:count]
    exact = ExactIndex(_DIMENSIONS)
    exact.add(range(count), vectors)
    result: dict[str, object] = {"vectors": count, "vectors_mib": vectors.nbytes // _MIB}
    truth, result["exact_ms"] = _vector_times(exact.search, questions)
    if not approximate_search_available():
        return result
    graph, began = HnswIndex(_DIMENSIONS), time.perf_counter()
    for start in range(0, count, 2000):
        graph.add(range(start, min(start + 2000, count)), vectors[start : start + 2000])
    result["graph_build_seconds"] = round(time.perf_counter() - began, 1)
    from_graph, result["graph_ms"] = _vector_times(graph.search, questions)
    shared = sum(
        len({label for label, _ in a} & {label for label, _ in b}) for a, b in zip(truth, from_graph, strict=True)
    )
    result["graph_recall_at_10"] = round(shared / sum(map(len, truth)), 3)
    return result


def _vector_times(
    search: Callable[[Vectors, int], _Found], questions: Vectors
) -> tuple[list[_Found], dict[str, float]]:
    results, times = [], []
    for question in questions:
        began = _now()
        results.append(search(question, 10))
        times.append(_since(began))
    return results, _summary(times)


def _search_times(search: Callable[[str], object], text: MadeUpText) -> dict[str, float]:
    """Time questions of two to six words, more and less frequent ones."""
    times = []
    for number in range(_SEARCHES):
        question = text.question(2 + number % 5)
        began = _now()
        search(question)
        times.append(_since(began))
    return _summary(times)


def _now() -> tuple[float, float]:
    """Seconds by the clock and of this thread on the CPU."""
    return time.perf_counter(), time.thread_time()


def _since(began: tuple[float, float]) -> tuple[float, float]:
    clock, cpu = _now()
    return clock - began[0], cpu - began[1]


def _summary(times: Sequence[tuple[float, float]]) -> dict[str, float]:
    """Milliseconds by the clock, and on the CPU."""
    clock, cpu = ([1000 * seconds for seconds in each] for each in zip(*times, strict=True))
    return {
        "median": round(statistics.median(clock), 2), "slowest": round(max(clock), 2),
        "cpu_median": round(statistics.median(cpu), 2), "cpu_slowest": round(max(cpu), 2),
    }  # fmt: skip


def _store(place: Path) -> Store:
    from desk_rag.store.store import Store

    return Store.open(place / "data", StoreSettings(reserve_gib=0), writer=True)


def _put_made_up(store: Store, place: Path, text: MadeUpText, number: int, nearby: ClusteredVectors | None) -> Path:
    """Put one document of made-up passages, with vectors if there are any to take; return its path."""
    from desk_rag.store.types import FileStamp

    document, chunks = _made_up_document(place, text, number)
    store.put_document(document, chunks, FileStamp(10, 20, number, "1"))
    if nearby is not None:
        store.put_vectors(_EMBEDDER, [chunk.chunk_id for chunk in chunks], nearby.rows(len(chunks)))
    return document.source.path


def _made_up_document(place: Path, text: MadeUpText, number: int) -> tuple[Document, list[Chunk]]:
    import hashlib

    from desk_rag.documents.chunking import Chunk, ChunkId, Location
    from desk_rag.documents.document import Document, SourceFile

    path = place / "docs" / f"{number}.txt"
    texts = [f"{number + ordinal}. {text.paragraph(5)}" for ordinal in range(_PASSAGES_PER_DOCUMENT)]
    chunks = [
        Chunk(
            ChunkId(hashlib.blake2b(part.encode(), digest_size=16).hexdigest()), ordinal, part, 90,
            Location("", None, None, ordinal + 1, ordinal + 1),
        )
        for ordinal, part in enumerate(texts)
    ]  # fmt: skip
    digest = hashlib.blake2b("\n".join(texts).encode(), digest_size=32).hexdigest()
    return Document(SourceFile(path, 10, 20, digest), "", (), "plain/1", ""), chunks


def main(argv: Sequence[str] | None = None) -> int:
    """Run what the options name; with none, a small run of all three."""
    parser = argparse.ArgumentParser(prog="desk-rag bench size", description=__doc__)
    parser.add_argument("--files", type=int, default=0, metavar="N")
    parser.add_argument("--rows", type=int, default=0, metavar="N")
    parser.add_argument("--vectors", type=int, default=0, metavar="N")
    parser.add_argument("--with-vectors", action="store_true", help="vectors for --rows, and a graph")
    parser.add_argument("--place", type=Path, help="directory for temporary data; the system's own by default")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep the catalog of --rows in DIR, to measure again")
    options = parser.parse_args(argv)
    if not (options.files or options.rows or options.vectors):
        options.files, options.rows, options.vectors = 2_000, 20_000, 20_000
    results: dict[str, object] = {}
    rows = functools.partial(measure_rows, with_vectors=options.with_vectors)
    for name, measure, count in (("files", measure_files, options.files), ("rows", rows, options.rows)):
        if count and name == "rows" and options.keep is not None:
            results[name] = measure_kept(options.keep, count, with_vectors=options.with_vectors)
            _print(name, results[name])
        elif count:
            with tempfile.TemporaryDirectory(prefix="desk-rag-size-", dir=options.place) as place:
                results[name] = measure(Path(place), count)
                _print(name, results[name])
    if options.vectors:
        results["vectors"] = measure_vectors(options.vectors)
        _print("vectors", results["vectors"])
    print(json.dumps(results))
    return 0


def _print(name: str, result: object) -> None:
    print(f"{name}:", file=sys.stdout)
    for key, value in (result if isinstance(result, dict) else {}).items():
        print(f"  {key.replace('_', ' '):32} {value}", flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
