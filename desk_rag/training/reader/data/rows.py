"""Contexts with questions become training rows: token ids, who they belong to, positions, and which tokens are learned.

The layout is that of stitched inference: prefix, then every chunk behind its own copy of the prefix, then the
questions, which see all chunks but not each other. The visibility rule is a function of two segment numbers, spelled
once, in `visible`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import Tensor

from desk_rag.training.reader.data.frame import Frame, short_start

PREFIX, PAD = 0, -1
QUESTION = 100
"""Segment of the first question; chunks are 1.., a chunk's own copy of the prefix is 1000 + the chunk."""
COPY = 1000
ANSWER_ROOM = 448
"""Most learned tokens of a row."""


@dataclass(frozen=True, slots=True)
class Row:
    """One training row of T tokens."""

    ids: NDArray[np.uint16]
    segments: NDArray[np.int16]
    positions: NDArray[np.int16]
    learned: NDArray[np.int16]
    """[ANSWER_ROOM] indices of tokens whose prediction is learned; -1 fills."""
    short: NDArray[np.bool_]
    """[ANSWER_ROOM] which of them belong to a short answer or end it, and not to a quote."""


ROW_FIELDS = tuple(Row.__dataclass_fields__)


class RowBuilder:
    """Builds rows of `length` tokens with one tokenizer."""

    def __init__(self, tokenizer: Tokenizer, length: int) -> None:
        self._frame = Frame(tokenizer)
        self.length = length
        self.prefix: list[int] = self._frame.prefix

    def build(self, chunks: Sequence[str], asked: Sequence[tuple[str, str]]) -> Row | None:
        """A row of these chunks and (question, answer) pairs; None if not all chunks and one question fit."""
        bodies = self._frame.chunks(chunks)
        questions = self._frame.questions([question for question, _ in asked])
        answers = self._frame.answers([answer for _, answer in asked])
        quotes = self._frame.plain([answer[: short_start(answer)] for _, answer in asked])
        head = len(self.prefix)
        ids, segments, positions = list(self.prefix), [PREFIX] * head, list(range(head))
        position = head
        for number, body in enumerate(bodies):
            if number:
                ids += self.prefix
                segments += [COPY + 1 + number] * head
                positions += list(range(position - head, position))
            ids += body
            segments += [1 + number] * len(body)
            positions += list(range(position, position + len(body)))
            position += len(body)
        learned: list[int] = []
        short: list[bool] = []
        for number, (question, answer, quote) in enumerate(zip(questions, answers, quotes, strict=True)):
            size = len(question) + len(answer)
            if len(ids) + size > self.length or len(learned) + len(answer) > ANSWER_ROOM:
                continue
            learned += range(len(ids) + len(question), len(ids) + size)
            whole = len(quote) + 1 == len(answer)  # nothing stands between the quotes and the mark that ends it
            short += [not whole and place >= len(quote) for place in range(len(answer))]
            ids += question + answer
            segments += [QUESTION + number] * size
            positions += list(range(position, position + size))
        if not learned or len(ids) > self.length:
            return None
        blank = self.length - len(ids)
        return Row(
            np.array(ids + [0] * blank, np.uint16),
            np.array(segments + [PAD] * blank, np.int16),
            np.array(positions + [0] * blank, np.int16),
            np.array(learned + [-1] * (ANSWER_ROOM - len(learned)), np.int16),
            np.array(short + [False] * (ANSWER_ROOM - len(learned)), np.bool_),
        )


def visible(asks: Tensor, held: Tensor, full: Tensor) -> Tensor:
    """May a token of segment `asks` see one of segment `held` that stands before it? All three broadcast.

    `full` rows have full attention: chunks see the chunks before them and the shared prefix, nobody the copies.
    """
    question = (asks >= QUESTION) & (asks < COPY)
    chunk, held_chunk = (asks > 0) & (asks < QUESTION), (held > 0) & (held < QUESTION)
    # The first chunk stands right behind the shared prefix, which is its own copy.
    prefix = (held == PREFIX) & ((asks <= 1) | question | full)
    own_copy = ~full & chunk & (held == asks + COPY)
    return (prefix | (asks == held) | (question & held_chunk) | (full & chunk & held_chunk) | own_copy) & (held >= 0)


def attention_mask(segments: Tensor, full: Tensor, dtype: torch.dtype) -> Tensor:
    """Additive mask [B, 1, T, T] of rows with these segments [B, T]; `full` [B] says which have full attention."""
    length = segments.shape[1]
    order = torch.arange(length, device=segments.device)
    before = order[:, None] >= order[None, :]
    allowed = visible(segments[:, :, None], segments[:, None, :], full[:, None, None]) & before
    allowed |= order[:, None] == order[None, :]
    mask = torch.zeros(allowed.shape, dtype=dtype, device=segments.device)
    return mask.masked_fill_(~allowed, float("-inf"))[:, None]


def save_rows(path: str, rows: Sequence[Row]) -> None:
    """Write rows as arrays, PATH.ids.npy and so on."""
    for field in ROW_FIELDS:
        np.save(f"{path}.{field}.npy", np.stack([getattr(row, field) for row in rows]))
