"""Decode one of several given texts: constrained decoding over their prefix tree.

At every fork a child scores its token's log-probability plus the largest bonus of any text below it. Where two children
are close, the model first reads a few tokens into each. Stretches without a fork take a single forward pass, so forty
tokens cost about three passes instead of forty.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
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


class TrieDecoder:
    """Decodes candidates with one model pass; `stop_ids` end an answer."""

    def __init__(self, run: Pass, lookahead: LookaheadConfig, stop_ids: Collection[int]) -> None:
        self._run, self._lookahead, self._stop_ids = run, lookahead, stop_ids

    def decode_best(self, candidates: Sequence[Candidate], log_probs: torch.Tensor, start: int) -> Decoded:
        """Write the best of `candidates` into the cache from position `start` on.

        `log_probs` are the log-probabilities [vocab] of the first token, on the host.
        """
        remaining, depth = tuple(candidates), 0
        while True:
            remaining = self._below_best_child(remaining, depth, log_probs, start)
            end = _common_length(remaining, depth + 1)
            shared_ids = remaining[0].ids[depth:end]
            ids_to_read = shared_ids[:-1] if shared_ids[-1] in self._stop_ids else shared_ids
            logits = self._run.forward(ids_to_read, start + depth) if ids_to_read else log_probs
            # A candidate that is a prefix of others wins here only if its bonus is the largest.
            complete = next((candidate for candidate in remaining if len(candidate.ids) == end), None)
            longer = tuple(candidate for candidate in remaining if len(candidate.ids) > end)
            if complete is not None and all(complete.bonus > candidate.bonus for candidate in longer):
                return Decoded(complete.ids, logits)
            remaining, depth, log_probs = longer, end, log_probabilities(logits)

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
        logits = self._run.forward_all(candidate.ids[depth : depth + len(ahead_ids)], start + depth)
        self._run.rewind(len(ahead_ids))
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
