"""Late interaction: the comparison itself, its place in the ranking, and stores that were made without it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from desk_rag.config import ModelSettings, StoreSettings
from desk_rag.ingest import damage, pipeline
from desk_rag.retrieval import search
from desk_rag.retrieval.embedding import Embedder, load_embedder
from desk_rag.retrieval.search import RANK_CONSTANT, TOKENS_WEIGHT, RetrievedChunk, retrieve
from desk_rag.retrieval.token_vectors import pack_signs, similarities
from desk_rag.store.store import Store
from tests.retrieval.test_search import TEXTS, put

QUESTION = "How many members were present on 9 September 2025?"
MINUTES = """Grain cooperative, minutes of 2025-09-09
In the chair: Ines Okafor. Present: twelve members.

Report
The accounts were read and approved without questions. The state of the silo was discussed briefly.

Main matter: the election of the board
Ines Okafor is confirmed as treasurer, Leif Anders hands the chair to Solveig Dahl.

Next meeting: 14 October, half past six, in the granary."""
INVOICE = """Ottery Mill
Invoice 2025-049
Date: 8 September 2025
Customer: Saint Barbara School
Goods: wheat flour
Weight: 60 kg
Total: 85.80 crowns
Payable by 22 September 2025"""


@pytest.fixture(scope="module")
def embedder() -> Iterator[Embedder]:
    """An embedder with the weights as published, whose vectors and words put the wrong one first."""
    module = load_embedder(ModelSettings(device="cpu"))._module
    yield Embedder("as published", module, is_embedded=False, fingerprint="0" * 32)


def never() -> bool:
    return False


def filled(root: Path, embedder: Embedder, texts: Sequence[str], *, tokens: bool = True) -> Store:
    store = Store.open(root, StoreSettings(reserve_gib=0), writer=True)
    for number, text in enumerate(texts):
        put(store, Path(f"/docs/{number}.txt"), text)
    pending = store.chunks_without_vector(embedder.fingerprint, 100)
    encodings = embedder.encode_chunks([chunk.text for chunk in pending])
    ids = [chunk.chunk_id for chunk in pending]
    store.put_vectors(embedder.fingerprint, ids, encodings.vectors, encodings.signs if tokens else None)
    return store


def word_by_word(question: NDArray[np.float32], tokens: NDArray[np.float32]) -> float:
    """The definition: for each word piece of the question the largest cosine, and the mean of these."""
    unit = tokens / np.linalg.norm(tokens, axis=1, keepdims=True)
    return float(np.mean([max(float(word @ other) for other in unit) for word in question]))


def test_the_comparison_is_that_of_vectors_of_signs() -> None:
    rng = np.random.default_rng(1)
    for dim in (16, 20, 384):
        question = rng.standard_normal((7, dim)).astype(np.float32)
        question /= np.linalg.norm(question, axis=1, keepdims=True)
        chunks = [rng.standard_normal((count, dim)).astype(np.float32) for count in (1, 3, 600, 511, 2, 1300)]
        expected = [word_by_word(question, np.where(chunk > 0, 1.0, -1.0).astype(np.float32)) for chunk in chunks]
        packed = [pack_signs(chunk) for chunk in chunks]
        assert [each.shape for each in packed] == [(len(chunk), -(-dim // 8)) for chunk in chunks]
        np.testing.assert_allclose(similarities(question, packed), expected, atol=1e-5)


def test_signs_order_chunks_as_the_vectors_themselves_do(embedder: Embedder) -> None:
    texts = [*TEXTS.values(), MINUTES, INVOICE]
    _, tokens = embedder._embed(texts, None, embedder.autocast(), embedder._module, tokens=True)
    signs = embedder.encode_chunks(texts).signs
    assert tokens is not None and signs is not None
    for question in (QUESTION, "Where is the key for the plumber?", "What is the rent of the flat?"):
        encoding = embedder.encode_question(question)
        assert encoding.tokens is not None
        exact = np.array([word_by_word(encoding.tokens, each) for each in tokens])
        rough = similarities(encoding.tokens, signs)
        assert int(exact.argmax()) == int(rough.argmax())
        assert np.corrcoef(exact, rough)[0, 1] > 0.97 and np.abs(exact - rough).max() < 0.25


def test_words_and_numbers_have_token_vectors_and_nothing_else(embedder: Embedder) -> None:
    signs = embedder.encode_chunks(["Box 14.", "Box 14 ... -- !?", "?!", "tea in Rome " * 400]).signs
    assert signs is not None
    assert [len(each) for each in signs] == [2, 2, 0, 1200], "all windows of a long text, in order"
    question = embedder.encode_question("Which box?")
    assert question.tokens is not None and question.tokens.shape == (2, embedder.dim)
    np.testing.assert_allclose(np.linalg.norm(question.tokens, axis=1), 1, atol=1e-5)
    assert np.array_equal(question.vector, embedder.embed_question("Which box?"))
    assert embedder.encode_question("?!").tokens is None


def names(chunks: Sequence[RetrievedChunk]) -> list[str]:
    return [chunk.passage.path.name for chunk in chunks]


def test_minutes_come_before_an_invoice_of_nearly_the_same_day(tmp_path: Path, embedder: Embedder) -> None:
    texts = [INVOICE, MINUTES, *TEXTS.values()]
    with filled(tmp_path / "without", embedder, texts, tokens=False) as store:
        assert names(retrieve(store, embedder, QUESTION, 2)) == ["0.txt", "1.txt"]
    with filled(tmp_path / "with", embedder, texts) as store:
        best = retrieve(store, embedder, QUESTION, 9)
        assert names(best)[:2] == ["1.txt", "0.txt"]
        assert [chunk.score for chunk in best] == sorted((chunk.score for chunk in best), reverse=True)
        assert all(0 < chunk.score <= 1 for chunk in best)


def test_chunks_without_token_vectors_keep_their_rank(tmp_path: Path, embedder: Embedder) -> None:
    texts = [INVOICE, MINUTES, *TEXTS.values()]
    with filled(tmp_path, embedder, texts, tokens=False) as store:
        before = retrieve(store, embedder, QUESTION, 9)
        third = before[2].passage.chunk
        signs = embedder.encode_chunks([MINUTES, third.text])
        minutes = next(chunk.passage.chunk.chunk_id for chunk in before if chunk.passage.chunk.text == MINUTES)
        store.put_vectors(embedder.fingerprint, [minutes, third.chunk_id], signs.vectors, signs.signs)
        after = retrieve(store, embedder, QUESTION, 9)
    assert names(after) == names(before), "the better of the two compared stays before the other; the rest is as it was"
    for rank, (old, new) in enumerate(zip(before, after, strict=True), start=1):
        share = (RANK_CONSTANT + 1) / (RANK_CONSTANT + rank)
        assert new.score == pytest.approx((1 - TOKENS_WEIGHT) * old.score + TOKENS_WEIGHT * share)


def test_only_the_best_candidates_are_compared(
    tmp_path: Path, embedder: Embedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "COMPARED_BY_TOKENS", 1)
    with filled(tmp_path, embedder, [INVOICE, MINUTES, *TEXTS.values()]) as store:
        assert names(retrieve(store, embedder, QUESTION, 2)) == ["0.txt", "1.txt"]


def test_an_older_store_gets_what_a_new_one_has(tmp_path: Path, embedder: Embedder) -> None:
    texts = [INVOICE, MINUTES, "?!", "Tea in Rome. " * 300, *TEXTS.values()]
    with (
        filled(tmp_path / "new", embedder, texts) as new,
        filled(tmp_path / "old", embedder, texts, tokens=False) as old,
    ):
        vectors = {text: old.search_vectors(embedder.fingerprint, embedder.embed_question(text), 1) for text in texts}
        events = list(pipeline.add_token_vectors(old, embedder, never))
        assert events[-1].done == events[-1].total == len(texts)
        assert old.counts(None, embedder.fingerprint) == new.counts(None, embedder.fingerprint)
        ids = [chunk.chunk_id for chunk in new.chunks_without_token_vectors("another", 99)]
        before, after = (store.token_vectors(embedder.fingerprint, ids) for store in (new, old))
        assert before.keys() == after.keys() and len(before) == len(texts) - 1
        for chunk_id, signs in before.items():  # batches differ, and with them the last bits of a sum
            assert signs.shape == after[chunk_id].shape
            assert np.unpackbits(signs ^ after[chunk_id]).mean() < 0.01
        for text, hits in vectors.items():
            assert old.search_vectors(embedder.fingerprint, embedder.embed_question(text), 1) == hits
        assert list(pipeline.add_token_vectors(old, embedder, never)) == []
        assert old.verify().clean


def test_answers_and_counts_say_that_vectors_are_still_to_be_made(tmp_path: Path, embedder: Embedder) -> None:
    """As after another embedder was chosen: words alone find the passages."""
    with filled(tmp_path, embedder, [INVOICE, MINUTES]) as store:
        assert damage.notices(store, (), (), embedder.fingerprint) == ()
        assert store.coverage(embedder.fingerprint).with_vectors == 2
        (notice,) = damage.notices(store, (), (), "another embedder")
        assert notice.startswith("2 passages found by the words in them only") and "desk-rag index" in notice
        assert store.coverage("another embedder").with_vectors == 0 < store.coverage().with_vectors
        assert damage.notices(store, (), ()) == (), "only an answer that no vector found asks for it"


def test_it_waits_while_it_may_not_run_and_ends_at_a_stop(
    tmp_path: Path, embedder: Embedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "_WAIT_POLL", 0.0)
    reasons = iter(["the computer is in use", "the computer is in use"])
    with filled(tmp_path, embedder, [INVOICE, MINUTES], tokens=False) as store:
        events = list(pipeline.add_token_vectors(store, embedder, never, lambda: next(reasons, "")))
        assert [event.waiting for event in events][:2] == ["the computer is in use"] * 2
        assert store.counts(None, embedder.fingerprint).with_tokens == 2
        store.verify(repair=True)
        stops = iter([False, True])
        assert list(pipeline.add_token_vectors(store, embedder, lambda: next(stops, True))) == []


def test_a_drive_without_room_gets_vectors_only(tmp_path: Path, embedder: Embedder) -> None:
    with Store.open(tmp_path, StoreSettings(reserve_gib=1e6), writer=True) as store:
        put(store, Path("/docs/0.txt"), MINUTES)
        list(pipeline.embed_pending(store, embedder, never))
        assert list(pipeline.add_token_vectors(store, embedder, never)) == []
        counts = store.counts(None, embedder.fingerprint)
        assert (counts.with_vectors, counts.with_tokens) == (1, 0)
    with Store.open(tmp_path, StoreSettings(reserve_gib=0), writer=True) as store:
        list(pipeline.add_token_vectors(store, embedder, never))
        assert store.counts(None, embedder.fingerprint).with_tokens == 1
