"""Of several texts that could come next one is laid: what the model would say and what each is worth, weighed together.

Knows token ids, worths and a model's passes; knows no text, no question and no file.

The texts are a tree of tokens. At every fork a branch is worth its token's log-probability plus the greatest gain of a
text below it; where two are close, the model first reads a few tokens into each. What is left without a fork is laid in
one pass, so that forty tokens cost three passes instead of forty.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch

from desk_rag.kv.forward.runner import Pass


@dataclass(frozen=True, slots=True)
class Forks:
    """When branches are looked into."""

    margin: float = 3.0
    """Nats; branches closer than this are."""
    looks: int = 3
    """At most so many of them."""
    ahead: int = 5
    """Tokens behind the fork."""


@dataclass(frozen=True, slots=True)
class Branch:
    """One text that could be laid."""

    ids: tuple[int, ...]
    gain: float
    """Nats that speak for it besides the model's own."""


@dataclass(frozen=True, slots=True)
class Laid:
    """What now stands in the cache."""

    token_ids: tuple[int, ...]
    """An id that ends answers is the last of them, if at all, and is not in the cache."""
    logits: torch.Tensor
    """[vocab] behind the last that is, up to a constant, valid until the next pass."""


class TreeWalk:
    """Down the trees of one answer; `ends` are the ids that end answers."""

    def __init__(self, run: Pass, forks: Forks, ends: Collection[int]) -> None:
        self._run, self._forks, self._ends = run, forks, ends

    def down(self, branches: Sequence[Branch], logs: torch.Tensor, start: int) -> Laid:
        """Lay one of `branches` whole, from `start` on; `logs` are log-probabilities [vocab] there, on the host."""
        live, depth = tuple(branches), 0
        while True:
            live = self._branch(live, depth, logs, start)
            end = _common(live, depth + 1)
            stretch = live[0].ids[depth:end]
            over = stretch[-1] in self._ends
            read = stretch[:-1] if over else stretch
            logits = self._run.forward(read, start + depth) if read else logs
            # One that is another's beginning ends here, unless that is worth more.
            ended = next((branch for branch in live if len(branch.ids) == end), None)
            going_on = tuple(branch for branch in live if len(branch.ids) > end)
            if ended is not None and all(ended.gain > branch.gain for branch in going_on):
                return Laid(ended.ids, logits)
            live, depth, logs = going_on, end, log_probabilities(logits)

    def _branch(self, live: Sequence[Branch], depth: int, logs: torch.Tensor, start: int) -> tuple[Branch, ...]:
        """Those below the best child of this fork; the best of them first."""
        below: dict[int, list[Branch]] = {}
        for branch in sorted(live, key=lambda branch: -branch.gain):
            below.setdefault(branch.ids[depth], []).append(branch)
        worth = {token: float(logs[token]) + branches[0].gain for token, branches in below.items()}
        best, *others = sorted(worth, key=lambda token: -worth[token])
        if others and worth[best] - worth[others[0]] < self._forks.margin and self._forks.ahead:
            near = [best, *others][: self._forks.looks]
            best = max(near, key=lambda token: worth[token] + self._ahead(below[token][0], depth, start))
        return tuple(below[best])

    def _ahead(self, branch: Branch, depth: int, start: int) -> float:
        """Log-probability of the tokens of `branch` behind the one at `depth`; leaves the cache as it was."""
        told = branch.ids[depth + 1 : depth + 1 + self._forks.ahead]
        if not told:
            return 0.0
        logits = self._run.forward_all(branch.ids[depth : depth + len(told)], start + depth)
        self._run.rewind(len(told))
        logs = logits.float().log_softmax(-1)
        return float(logs.gather(-1, torch.tensor(told, device=logs.device)[:, None]).sum())


def log_probabilities(logits: torch.Tensor) -> torch.Tensor:
    """On the host, in memory of their own."""
    return logits.float().log_softmax(-1).cpu()


def _common(branches: Sequence[Branch], depth: int) -> int:
    """How far all of them agree, at least to `depth`."""
    ids = branches[0].ids
    shortest = min(len(branch.ids) for branch in branches)
    while depth < shortest and all(branch.ids[depth] == ids[depth] for branch in branches):
        depth += 1
    return depth
