"""Decode one of several given texts: constrained decoding over their prefix tree.

At every fork a child scores its token's log-probability plus the largest bonus of any text below it. Where two children
are close, the model first reads a few tokens into each.

The text with the largest bonus is read as a whole in one pass, because thirty tokens take little longer than one, and
its logits decide the forks along it. Only where another child wins, what was read behind the fork is dropped and the
best text below that child is read. So most texts take a single pass, and the choice is that of reading fork by fork.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import torch

from desk_rag.kv.forward.runner import Pass


@dataclass(frozen=True, slots=True)
class LookaheadConfig:
    """Limits on reading into the children of a fork before one is chosen."""

    margin: float = 3.0
    """Score difference in nats below which children are compared by reading ahead."""
    max_candidates: int = 3
    """Maximum children compared at one fork."""
    num_tokens: int = 5
    """Tokens read after the fork; 0 never reads ahead."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A text that may be decoded."""

    ids: tuple[int, ...]
    bonus: float
    """Nats added to the model's own log-probability."""


@dataclass(frozen=True, slots=True)
class Decoded:
    """Tokens that were written into the cache."""

    token_ids: tuple[int, ...]
    """The last one may be a stop id, which is not in the cache."""
    logits: torch.Tensor
    """[vocab] after the last token in the cache, up to a constant; valid until the next pass."""


class ReadAhead:
    """Tokens that are in the cache before they are chosen, with the logits behind each of them."""

    def __init__(self, run: Pass) -> None:
        self._run, self._start, self._ids = run, 0, tuple[int, ...]()
        self._logits = torch.empty(0)

    def logits(self, ids: Sequence[int], position: int) -> torch.Tensor | None:
        """Logits [N, vocab] behind each of these tokens; None if they are not in the cache from this position on."""
        first = position - self._start
        stop = first + len(ids)
        return self._logits[first:stop] if first >= 0 and self._ids[first:stop] == tuple(ids) else None

    def read(self, ids: Sequence[int], position: int) -> torch.Tensor:
        """Read these tokens into the cache from this position on, in place of all that lies there."""
        self.drop_from(position)
        self._start, self._ids = position, tuple(ids)
        self._logits = self._run.forward_all(ids, position)
        return self._logits

    def step(self, token_id: int, position: int) -> torch.Tensor:
        """Logits [vocab] behind a token that is chosen; it is read unless it lies there already."""
        logits = self.logits((token_id,), position)
        return self.read_chosen((token_id,), position) if logits is None else logits[-1]

    def read_chosen(self, ids: Sequence[int], position: int) -> torch.Tensor:
        """Read tokens that are chosen already, in place of what was read ahead; logits [vocab] behind the last."""
        self.drop_from(position)
        self._ids = ()
        return self._run.forward(ids, position)

    def drop_from(self, position: int) -> None:
        """Drop what was read ahead from this position on."""
        kept = max(0, position - self._start)
        if self._ids[kept:]:
            self._run.rewind(len(self._ids) - kept)
            self._ids, self._logits = self._ids[:kept], self._logits[:kept]


class TrieDecoder:
    """Decodes candidates with one model pass; `stop_ids` end an answer."""

    def __init__(self, run: Pass, lookahead: LookaheadConfig, stop_ids: Collection[int]) -> None:
        self._run, self._lookahead, self._stop_ids = run, lookahead, stop_ids
        self._ahead = ReadAhead(run)

    def decode_best(
        self,
        candidates: Sequence[Candidate],
        log_probs: torch.Tensor,
        start: int,
        follow: Callable[[Candidate], Sequence[int]] = lambda _: (),
    ) -> Decoded:
        """Write the best of `candidates` into the cache from position `start` on.

        `log_probs` are the log-probabilities [vocab] of the first token, on the host. `follow` returns tokens that are
        expected behind a candidate: they may be read with it, and stay in the cache until the next call or `drop_from`.
        """
        remaining, depth = tuple(candidates), 0
        while True:
            remaining = self._below_best_child(remaining, depth, log_probs, start)
            end = _common_length(remaining, depth + 1)
            ids_to_read = self._readable(remaining[0].ids[depth:end])
            logits = self._read(remaining, depth, ids_to_read, start, follow) if ids_to_read else log_probs
            # A candidate that is a prefix of others wins here only if its bonus is the largest.
            complete = next((candidate for candidate in remaining if len(candidate.ids) == end), None)
            longer = tuple(candidate for candidate in remaining if len(candidate.ids) > end)
            if complete is not None and all(complete.bonus > candidate.bonus for candidate in longer):
                position, behind = start + len(self._readable(complete.ids)), self._readable(follow(complete))
                if not behind or self._ahead.logits(behind, position) is None:
                    self._ahead.drop_from(position)
                return Decoded(complete.ids, logits)
            remaining, depth, log_probs = longer, end, log_probabilities(logits)

    def drop_from(self, position: int) -> None:
        """Drop what was read ahead from this position on."""
        self._ahead.drop_from(position)

    def _readable(self, ids: Sequence[int]) -> Sequence[int]:
        return ids[:-1] if ids and ids[-1] in self._stop_ids else ids

    def _read(
        self,
        remaining: Sequence[Candidate],
        depth: int,
        ids: Sequence[int],
        start: int,
        follow: Callable[[Candidate], Sequence[int]],
    ) -> torch.Tensor:
        """Logits [vocab] behind `ids`, which all of `remaining` have from `depth` on; the first has the best bonus."""
        position = start + depth
        logits = self._ahead.logits(ids, position)
        if logits is None:
            best = remaining[0]
            expected = self._readable([*best.ids[depth:], *self._readable(follow(best))])
            if not self._run.reads_at_once or len(expected) == len(ids):
                return self._ahead.read_chosen(ids, position)
            logits = self._ahead.read(expected, position)[: len(ids)]
        return logits[-1]

    def _below_best_child(
        self, candidates: Sequence[Candidate], depth: int, log_probs: torch.Tensor, start: int
    ) -> tuple[Candidate, ...]:
        """The candidates below the best child of this fork, largest bonus first."""
        candidates_by_token: dict[int, list[Candidate]] = {}
        for candidate in sorted(candidates, key=lambda candidate: -candidate.bonus):
            candidates_by_token.setdefault(candidate.ids[depth], []).append(candidate)
        score_by_token = {
            token: float(log_probs[token]) + below[0].bonus for token, below in candidates_by_token.items()
        }
        best, *others = sorted(score_by_token, key=lambda token: -score_by_token[token])
        lookahead = self._lookahead
        if others and score_by_token[best] - score_by_token[others[0]] < lookahead.margin and lookahead.num_tokens:
            compared = [best, *others][: lookahead.max_candidates]
            best = max(
                compared,
                key=lambda token: score_by_token[token] + self._read_ahead(candidates_by_token[token][0], depth, start),
            )
        return tuple(candidates_by_token[best])

    def _read_ahead(self, candidate: Candidate, depth: int, start: int) -> float:
        """Log-probability of the tokens of `candidate` after the one at `depth`.

        Leaves the cache as it was.
        """
        ahead_ids = candidate.ids[depth + 1 : depth + 1 + self._lookahead.num_tokens]
        if not ahead_ids:
            return 0.0
        ids, position = candidate.ids[depth : depth + len(ahead_ids)], start + depth
        logits = self._ahead.logits(ids, position)
        if logits is None:
            logits = self._ahead.read(ids, position)
            self._ahead.drop_from(position)
        log_probs = logits.float().log_softmax(-1)
        return float(log_probs.gather(-1, torch.tensor(ahead_ids, device=log_probs.device)[:, None]).sum())


def log_probabilities(logits: torch.Tensor) -> torch.Tensor:
    """Log-softmax of `logits`, copied to the host."""
    return logits.float().log_softmax(-1).cpu()


def _common_length(candidates: Sequence[Candidate], depth: int) -> int:
    """Length of the prefix that all candidates share, at least `depth`."""
    ids = candidates[0].ids
    shortest = min(len(candidate.ids) for candidate in candidates)
    while depth < shortest and all(candidate.ids[depth] == ids[depth] for candidate in candidates):
        depth += 1
    return depth
