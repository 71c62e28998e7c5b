"""Inputs of a pass over one question or several: token ids, and where each question stands in the slabs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from desk_rag.kv.kernels.upload import upload


@dataclass(frozen=True, slots=True)
class Questions:
    """The B questions of one pass."""

    starts: tuple[int, ...]
    """Slot and position of each one's first token."""
    counts: tuple[int, ...]
    """Tokens of each; further ids of its line are padding."""
    rows: tuple[int, ...]
    """The row of the slabs that each one's keys and values are in."""

    @classmethod
    def alike(cls, batch: int, start: int, count: int) -> Questions:
        """Questions of equal length at the same slots of rows 0, 1, 2 and so on."""
        return cls((start,) * batch, (count,) * batch, tuple(range(batch)))

    @property
    def are_alike(self) -> bool:
        """True if `alike` describes them."""
        return self == Questions.alike(len(self.starts), self.starts[0], self.counts[0])

    def end(self, count: int) -> int:
        """First slot behind all of them if each takes `count` slots."""
        return max(self.starts) + count


@dataclass(frozen=True, slots=True)
class Inputs:
    """Inputs of a pass of B questions of N tokens each; on a GPU the same memory at every replay."""

    ids: torch.Tensor
    """int64 [B, N]."""
    numbers: torch.Tensor
    """int64 [3, B]: slot and position of each first token; row of the slabs; index, among the B * N tokens, of the
    token whose logits are returned."""

    @classmethod
    def at_end(cls, batch: int, count: int, capacity: int, device: torch.device) -> Inputs:
        """Inputs for recording, which write to the last slots of the cache only."""
        ids = torch.zeros((batch, count), dtype=torch.int64, device=device)
        return cls(ids, torch.tensor(_numbers(Questions.alike(batch, capacity - count, count), count), device=device))

    @classmethod
    def of(cls, token_ids: torch.Tensor, questions: Questions, device: torch.device) -> Inputs:
        """Inputs of one pass that is not recorded."""
        numbers = upload(np.array(_numbers(questions, token_ids.shape[1]), dtype=np.int64), device)
        return cls(token_ids.to(device, non_blocking=True), numbers)

    def set(self, token_ids: torch.Tensor, questions: Questions) -> None:
        """Set the next replay to run these ids, int64 [B, n] of n <= N.

        The rest is padding: computed, never attended to, its slots overwritten later. Padding repeats the last token,
        so that its keys and values are finite: masked keys have weight 0, and 0 times infinity would be NaN.
        """
        count, size = token_ids.shape[1], self.ids.shape[1]
        if count < size:
            token_ids = torch.cat((token_ids, token_ids[:, -1:].expand(-1, size - count)), 1)
        # Small copies from pageable memory return at once (see `upload`); a blocking copy would wait for the device to
        # finish placing chunks.
        self.ids.copy_(token_ids, non_blocking=True)
        self.numbers.copy_(torch.tensor(_numbers(questions, size)), non_blocking=True)


def padded(lines: Sequence[Sequence[int]]) -> torch.Tensor:
    """Token ids int64 [B, N] of questions of different lengths, each filled up with its last token."""
    size = max(map(len, lines))
    return torch.tensor([[*line, *[line[-1]] * (size - len(line))] for line in lines])


def _numbers(questions: Questions, size: int) -> list[list[int]]:
    last = [line * size + count - 1 for line, count in enumerate(questions.counts)]
    return [list(questions.starts), list(questions.rows), last]
