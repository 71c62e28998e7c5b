"""Rows of word pieces: where question, chunk and filling stand, and what is cut."""

from __future__ import annotations

import torch

from desk_rag.answering.evidence.span_model import QuestionChunkPair, build_batch


def test_question_and_chunk_stand_apart_and_the_rest_is_filling() -> None:
    pairs = [QuestionChunkPair([7, 8], [20, 21, 22]), QuestionChunkPair([9], []), QuestionChunkPair([], [23])]
    batch = build_batch(pairs, 1, 2, width=8)
    assert batch.ids.tolist() == [[1, 7, 8, 2, 20, 21, 22, 2], [1, 9, 2, 2, 0, 0, 0, 0], [1, 2, 23, 2, 0, 0, 0, 0]]
    assert batch.kinds.tolist() == [[0, 0, 0, 0, 1, 1, 1, 1], [0, 0, 0, 1, 0, 0, 0, 0], [0, 0, 1, 1, 0, 0, 0, 0]]
    assert batch.known.sum(1).tolist() == [8, 4, 4] == [pair.length for pair in pairs]
    assert [row.nonzero().flatten().tolist() for row in batch.inside] == [[4, 5, 6], [], [2]]
    assert [pair.start for pair in pairs] == [4, 3, 2]


def test_a_chunk_that_is_too_long_is_cut_and_the_row_is_closed() -> None:
    pair = QuestionChunkPair((5,), tuple(range(30, 60)))
    assert pair.length == 34
    batch = build_batch([pair], 1, 2, width=10)
    assert batch.ids.tolist() == [[1, 5, 2, *range(30, 36), 2]]
    assert batch.inside[0].tolist() == [False] * 3 + [True] * 6 + [False] and bool(batch.known.all())


def test_what_is_done_to_each_is_done_to_all() -> None:
    found = build_batch([QuestionChunkPair([7], [8])], 1, 2, width=5).map(lambda part: part.repeat(2, 1))
    assert found.ids.shape == found.kinds.shape == found.known.shape == found.inside.shape == (2, 5)
    assert found.ids.dtype == torch.int64 and found.inside.dtype == torch.bool
