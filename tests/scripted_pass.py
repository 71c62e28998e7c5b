"""A pass whose logits are what a test says they are, and which remembers what it was asked to read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

Says = Callable[[tuple[int, ...]], Mapping[int, float]]
"""Maps the ids so far to the logits that are not 0."""


class ScriptedPass:
    """Over a cache that is a list of ids, the first of them at `start`."""

    def __init__(self, size: int, says: Says, start: int = 7, *, reads_at_once: bool = False) -> None:
        self.reads_at_once = reads_at_once
        self._size, self._says, self._start = size, says, start
        self.ids: list[int] = []
        self.read: list[tuple[int, ...]] = []
        """Tokens given to every pass whose tokens stayed or may stay."""
        self.looked: list[tuple[int, ...]] = []
        """Tokens in the cache after every look-ahead."""

    def logits(self) -> torch.Tensor:
        """[size] behind what is in the cache."""
        logits = torch.zeros(self._size)
        for token, height in self._says(tuple(self.ids)).items():
            logits[token] = height
        return logits

    def forward(self, token_ids: Sequence[int], start: int) -> torch.Tensor:
        self.read.append(tuple(token_ids))
        return self._append(token_ids, start)

    def forward_all(self, token_ids: Sequence[int], start: int) -> torch.Tensor:
        rows = [self._append([token], start + place) for place, token in enumerate(token_ids)]
        self.looked.append(tuple(self.ids))
        return torch.stack(rows)

    def rewind(self, count: int) -> None:
        assert 0 <= count <= len(self.ids)
        del self.ids[len(self.ids) - count :]

    def _append(self, token_ids: Sequence[int], start: int) -> torch.Tensor:
        assert token_ids, "a pass over nothing"
        assert start == self._start + len(self.ids), "a pass begins where the cache ends"
        self.ids += token_ids
        return self.logits()
