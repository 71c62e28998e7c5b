"""Retrieval over a real store with the real embedder: fusion, scope, one text shown once, the same order every time."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from desk_rag.config import ModelSettings, StoreSettings
from desk_rag.documents.chunking import Chunk, ChunkId, Location
from desk_rag.documents.document import Block, BlockKind, Document, SourceFile
from desk_rag.retrieval.embedding import Embedder, load_embedder
from desk_rag.retrieval.search import RetrievedChunk, _fuse, retrieve
from desk_rag.store.store import Store
from desk_rag.store.types import FileStamp, Hit

TEXTS = {
    "home/lease.md": "The monthly rent for the flat in Alder Street is 950 euro, due on the third.",
    "home/boiler.txt": "The plumber needs the key of the boiler room, which sits in box 14.",
    "home/garden.txt": "Prune the roses in late winter, when the buds begin to swell.",
    "office/errors.log": "Pump controller reported E-4711 and stopped at 02:14.",
    "office/minutes.txt": "The impeller is quieter by 4 dB. The field trial was postponed to 16 April.",
    "office/plants.txt": "Chlorophyll absorbs red and blue light and reflects green.",
    "office/old/rent-draft.txt": "The monthly rent for the flat in Alder Street is 900 euro, due on the third.",
}


@pytest.fixture(scope="module")
def embedder() -> Iterator[Embedder]:
    yield load_embedder(ModelSettings(device="cpu"))


def put(store: Store, path: Path, text: str, title: str = "") -> ChunkId:
    """One document of one chunk, as the indexer would have it."""
    chunk_id = ChunkId(hashlib.blake2b(text.encode(), digest_size=16).hexdigest())
    digest = hashlib.blake2b(text.encode(), digest_size=32).hexdigest()
    document = Document(SourceFile(path, len(text), 1, digest), title, (Block(text, BlockKind.PARAGRAPH),), "text/1")
    chunk = Chunk(chunk_id, 0, text, len(text) // 4, Location(line_start=1, line_end=1))
    store.put_document(document, [chunk], FileStamp(len(text), 1, abs(hash(str(path))) % 10**6, "1"))
    return chunk_id


def embed(store: Store, embedder: Embedder) -> None:
    pending = store.chunks_without_vector(embedder.fingerprint, 100)
    vectors = embedder.encode_chunks([chunk.text for chunk in pending]).vectors
    store.put_vectors(embedder.fingerprint, [chunk.chunk_id for chunk in pending], vectors)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, embedder: Embedder) -> Iterator[Store]:
    with Store.open(tmp_path_factory.mktemp("store"), StoreSettings(), writer=True) as opened:
        for name, text in TEXTS.items():
            put(opened, Path("/docs") / name, text)
        embed(opened, embedder)
        yield opened


def names(found: list[RetrievedChunk]) -> list[str]:
    return [str(chunk.passage.path.relative_to("/docs")) for chunk in found]


def test_words_find_what_meaning_does_not(store: Store, embedder: Embedder) -> None:
    best = retrieve(store, embedder, "E-4711", 3)[0]
    assert names([best]) == ["office/errors.log"] and best.words_rank == 1


def test_meaning_finds_what_words_do_not(store: Store, embedder: Embedder) -> None:
    best = retrieve(store, embedder, "How do leaves use sunshine?", 3)[0]
    assert names([best]) == ["office/plants.txt"]
    assert best.words_rank is None and best.vector_rank == 1 and 0.2 < best.similarity < 1


def test_both_together_come_first_with_the_highest_score(store: Store, embedder: Embedder) -> None:
    passages = retrieve(store, embedder, "Which box has the key the plumber needs?", 7)
    assert names(passages)[0] == "home/boiler.txt"
    assert passages[0].words_rank == passages[0].vector_rank == 1 and passages[0].score == pytest.approx(1.0)
    scores = [chunk.score for chunk in passages]
    assert scores == sorted(scores, reverse=True) and all(0 < score <= 1 for score in scores)
    assert len({chunk.passage.chunk.chunk_id for chunk in passages}) == len(passages) == 7


def test_similarity_is_the_cosine_of_question_and_chunk(store: Store, embedder: Embedder) -> None:
    question = "When should roses be cut?"
    best = retrieve(store, embedder, question, 1)[0]
    (chunk,) = embedder.encode_chunks([best.passage.chunk.text]).vectors
    expected = float(embedder.encode_question(question).vector @ chunk)
    assert best.similarity == pytest.approx(expected, abs=5e-3)


def test_limit_and_odd_questions(store: Store, embedder: Embedder) -> None:
    assert len(retrieve(store, embedder, "rent", 2)) == 2
    assert retrieve(store, embedder, "rent", 0) == []
    assert retrieve(store, embedder, " \n", 3) == []
    for question in ['"', "AND OR NOT (", "who is it?", "\u0000*", "x" * 5000, "\u5bb6\u8cc3"]:
        assert len(retrieve(store, embedder, question, 3)) <= 3


def test_only_documents_in_scope(store: Store, embedder: Embedder) -> None:
    question = "How much is the monthly rent of the flat?"
    assert set(names(retrieve(store, embedder, question, 7, [Path("/docs/home")]))) <= {
        name for name in TEXTS if name.startswith("home/")
    }
    assert names(retrieve(store, embedder, question, 7, [Path("/docs/office/old/rent-draft.txt")])) == [
        "office/old/rent-draft.txt"
    ]
    assert retrieve(store, embedder, question, 7, [Path("/elsewhere")]) == []


def test_versions_that_differ_in_a_figure_are_both_shown(store: Store, embedder: Embedder) -> None:
    assert set(names(retrieve(store, embedder, "How much is the monthly rent of the flat?", 2))) == {
        "home/lease.md",
        "office/old/rent-draft.txt",
    }


def test_equal_scores_are_not_ordered_by_when_a_file_was_read() -> None:
    hits = [Hit(ChunkId("b"), 3.0), Hit(ChunkId("a"), 3.0), Hit(ChunkId("c"), 1.0)]
    orders = [[chunk for chunk, _ in _fuse(words, [])] for words in (hits, [hits[1], hits[0], hits[2]])]
    assert orders[0] == orders[1] == ["a", "b", "c"]
    assert [candidate.words_rank for _, candidate in _fuse(hits, [])] == [1, 1, 3]


def test_the_same_order_on_every_call(store: Store, embedder: Embedder) -> None:
    for question in ["the", "rent", "What happened in April?"]:
        first = retrieve(store, embedder, question, 7)
        assert all(retrieve(store, embedder, question, 7) == first for _ in range(3))


def test_words_alone_before_there_are_vectors(tmp_path: Path, embedder: Embedder) -> None:
    with Store.open(tmp_path, StoreSettings(), writer=True) as opened:
        for name, text in TEXTS.items():
            put(opened, Path("/docs") / name, text)
        for chosen in (embedder, None):
            (best, *_) = retrieve(opened, chosen, "What does E-4711 mean?", 3)
            assert names([best]) == ["office/errors.log"]
            assert best.vector_rank is None and best.similarity == 0 and best.score == pytest.approx(0.55)


def test_one_text_in_several_files_is_shown_once(tmp_path: Path, embedder: Embedder) -> None:
    text = TEXTS["home/lease.md"]
    typeset = text.replace(" ", "  ").replace("Alder Street", "\u201cAlder Street\u201d").upper()
    with Store.open(tmp_path, StoreSettings(), writer=True) as opened:
        put(opened, Path("/docs/a.txt"), text)
        put(opened, Path("/docs/copy/a.txt"), text)
        put(opened, Path("/docs/b.txt"), typeset)
        put(opened, Path("/docs/c.md"), f"Lease \u203a Costs\n{text}", title="Lease")
        put(opened, Path("/docs/d.txt"), text.replace("950", "9.50"))
        put(opened, Path("/docs/e.txt"), TEXTS["office/plants.txt"])
        embed(opened, embedder)
        passages = retrieve(opened, embedder, "monthly rent of the flat", 6)
        assert len(passages) == 3 and names(passages)[2] == "e.txt" and "d.txt" in names(passages)
        # Scope decides which of two places of one chunk is shown.
        assert names(retrieve(opened, embedder, "monthly rent", 1, [Path("/docs/copy")])) == ["copy/a.txt"]


def test_vectors_of_another_embedder_are_not_compared(store: Store, embedder: Embedder) -> None:
    assert store.search_vectors("0" * 32, np.ones(embedder.dim, dtype=np.float32), 5) == []
