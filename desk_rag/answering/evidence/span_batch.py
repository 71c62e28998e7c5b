"""How a question and a chunk stand in one row of word pieces, where the pointer learns and where it reads.

Knows the ids of word pieces; knows no text, no tokenizer and no network.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

LONGEST_ROW = 448
"""Word pieces of question and chunk together, [CLS] and [SEP] included."""
LONGEST_QUESTION = 96


@dataclass(frozen=True, slots=True)
class Pair:
    """A question beside a chunk, both in word pieces."""

    question: Sequence[int]
    chunk: Sequence[int]

    @property
    def start(self) -> int:
        """The token of the chunk's first piece."""
        return len(self.question) + 2

    @property
    def length(self) -> int:
        """Tokens if nothing is cut."""
        return self.start + len(self.chunk) + 1


@dataclass(frozen=True, slots=True)
class Rows:
    """What the network reads; [CLS] question [SEP] chunk [SEP] in each row, then zeros."""

    ids: Tensor
    """int64 [B, T]."""
    kinds: Tensor
    """int64 [B, T]: 0 up to the first [SEP], 1 behind it."""
    known: Tensor
    """bool [B, T]: what is no filling."""
    inside: Tensor
    """bool [B, T]: the chunk's pieces."""

    def each(self, of: Callable[[Tensor], Tensor]) -> Rows:
        """The same, every tensor changed by `of`."""
        return Rows(of(self.ids), of(self.kinds), of(self.known), of(self.inside))


def rows(pairs: Sequence[Pair], cls: int, sep: int, width: int) -> Rows:
    """One row of `width` tokens per pair; what does not fit is cut from the end of its chunk. `cls` and `sep` are [CLS]
    and [SEP]."""
    shape = (len(pairs), width)
    ids, kinds = torch.zeros(shape, dtype=torch.int64), torch.zeros(shape, dtype=torch.int64)
    known, inside = torch.zeros(shape, dtype=torch.bool), torch.zeros(shape, dtype=torch.bool)
    for number, pair in enumerate(pairs):
        line = [cls, *pair.question, sep, *pair.chunk][: width - 1] + [sep]
        ids[number, : len(line)] = torch.tensor(line)
        kinds[number, pair.start : len(line)] = 1
        known[number, : len(line)] = True
        inside[number, pair.start : len(line) - 1] = True
    return Rows(ids, kinds, known, inside)
