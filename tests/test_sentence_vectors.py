"""Remembered vectors are the embedder's, and they are not remembered without end."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from desk_rag.sentence_vectors import SentenceVectors


class Lengths:
    """Vectors of a text's length; notes what it was asked."""

    is_embedded = True

    def __init__(self) -> None:
        self.calls: list[list[str]] = []

    def embed_chunks(self, texts: Sequence[str]) -> NDArray[np.float32]:
        self.calls.append(list(texts))
        return np.array([[len(text)] for text in texts], dtype=np.float32)

    def embed_question(self, text: str) -> NDArray[np.float32]:
        self.calls.append(["?", text])
        return np.array([len(text)], dtype=np.float32)


def test_only_what_is_new_is_embedded_in_one_call() -> None:
    embedder = Lengths()
    vectors = SentenceVectors(embedder)
    assert vectors.embed_chunks(["aa", "b", "aa"])[:, 0].tolist() == [2, 1, 2]
    assert vectors.embed_chunks(["ccc", "aa", "dddd"])[:, 0].tolist() == [3, 2, 4]
    assert embedder.calls == [["aa", "b"], ["ccc", "dddd"]]
    assert vectors.is_embedded


def test_what_was_used_longest_ago_is_forgotten() -> None:
    embedder = Lengths()
    vectors = SentenceVectors(embedder, room=2)
    vectors.embed_chunks(["a", "bb"])
    vectors.embed_chunks(["a"])
    vectors.embed_chunks(["ccc"])
    assert vectors.embed_chunks(["a", "ccc"])[:, 0].tolist() == [1, 3]
    assert embedder.calls == [["a", "bb"], ["ccc"]]
    assert vectors.embed_chunks(["bb", "a", "ccc"])[:, 0].tolist() == [2, 1, 3]  # more than there is room for
    assert embedder.calls[2:] == [["bb"]]


def test_the_last_question_is_remembered() -> None:
    embedder = Lengths()
    vectors = SentenceVectors(embedder)
    for question in ("When?", "When?", "Who is it?", "When?"):
        assert vectors.embed_question(question).tolist() == [len(question)]
    assert embedder.calls == [["?", "When?"], ["?", "Who is it?"], ["?", "When?"]]


def test_rows_are_kept_without_their_batch() -> None:
    vectors = SentenceVectors(Lengths())
    vectors.embed_chunks(["aa", "b"])
    vectors.embed_question("When?")
    assert all(row.base is None for row in vectors._kept.values())
    assert vectors._asked is not None and vectors._asked[1].base is None


def test_another_thread_may_push_out_what_this_one_found() -> None:
    """While one embeds, another fills the little room there is."""
    embedder = Lengths()
    vectors = SentenceVectors(embedder, room=2)
    vectors.embed_chunks(["a"])
    embed = embedder.embed_chunks

    def disturbed(texts: Sequence[str]) -> NDArray[np.float32]:
        embedder.embed_chunks = embed  # type: ignore[method-assign]
        other = threading.Thread(target=vectors.embed_chunks, args=(["ccc", "dddd"],), daemon=True)
        other.start()
        other.join(timeout=20)
        assert not other.is_alive(), "held up by the one that embeds"
        return embed(texts)

    embedder.embed_chunks = disturbed  # type: ignore[method-assign]
    assert vectors.embed_chunks(["a", "bb"])[:, 0].tolist() == [1, 2]
    assert list(vectors._kept) == ["a", "bb"]
