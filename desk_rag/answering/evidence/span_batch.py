"""Batches of question and chunk as the span scorer reads them, in training and in use."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

LONGEST_ROW = 448
"""Maximum word pieces of question and chunk together, [CLS] and [SEP] included."""
LONGEST_QUESTION = 96
"""Maximum word pieces of the question."""


@dataclass(frozen=True, slots=True)
class QuestionChunkPair:
    """Word piece ids of a question and of one chunk."""

    question: Sequence[int]
    chunk: Sequence[int]
    name: Sequence[int] = ()
    """Read before the chunk, for what it says of it; no answer lies in it."""

    @property
    def start(self) -> int:
        """Index in the row of the chunk's first word piece."""
        return len(self.question) + 2 + len(self.name)

    @property
    def length(self) -> int:
        """Tokens of the row if nothing is cut."""
        return self.start + len(self.chunk) + 1


@dataclass(frozen=True, slots=True)
class SpanBatch:
    """Input of the network. A row is [CLS] question [SEP] name chunk [SEP], then padding with zeros."""

    ids: Tensor
    """int64 [B, T]: word pieces."""
    kinds: Tensor
    """int64 [B, T]: token types, 0 up to the first [SEP] and 1 after it."""
    known: Tensor
    """bool [B, T]: True where the row is not padding."""
    inside: Tensor
    """bool [B, T]: True for the chunk's word pieces."""

    def map(self, function: Callable[[Tensor], Tensor]) -> SpanBatch:
        """Apply `function` to every tensor."""
        return SpanBatch(function(self.ids), function(self.kinds), function(self.known), function(self.inside))


def build_batch(pairs: Sequence[QuestionChunkPair], cls: int, sep: int, width: int) -> SpanBatch:
    """Build one row of `width` tokens per pair; a chunk that does not fit loses its end.

    `cls` and `sep` are the ids of [CLS] and [SEP].
    """
    shape = (len(pairs), width)
    ids, kinds = torch.zeros(shape, dtype=torch.int64), torch.zeros(shape, dtype=torch.int64)
    known, inside = torch.zeros(shape, dtype=torch.bool), torch.zeros(shape, dtype=torch.bool)
    for number, pair in enumerate(pairs):
        row = [cls, *pair.question, sep, *pair.name, *pair.chunk][: width - 1] + [sep]
        ids[number, : len(row)] = torch.tensor(row)
        kinds[number, len(pair.question) + 2 : len(row)] = 1
        known[number, : len(row)] = True
        inside[number, pair.start : len(row) - 1] = True
    return SpanBatch(ids, kinds, known, inside)
