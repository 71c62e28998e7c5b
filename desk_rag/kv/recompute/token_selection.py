"""Select chunk tokens from scores: the highest, the first of every chunk, or whole windows.

Tokens are numbered over all chunks together, from the first chunk's first token. Everything is vectorised: a Python
loop over thousands of scores would take longer than computing them.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np
import numpy.typing as npt
import torch

Scores = npt.NDArray[np.float32]
WINDOW = 8
MORE_THAN = 5
"""A window of 8 tokens is recomputed when more than 5 of them were selected (CacheClip, arXiv 2510.10129)."""


def on_host(scores: torch.Tensor) -> Scores:
    """Copy fp32 [tokens] to a writable array; waits for the device."""
    return np.array(scores.float().cpu().numpy())


def budget_of(ratio: float, tokens: int) -> int:
    """Number of tokens that `ratio` of `tokens` stands for; at least one if the ratio is above 0."""
    return min(tokens, max(1, round(ratio * tokens))) if ratio > 0 and tokens else 0


def best(scores: Scores, budget: int) -> list[int]:
    """Tokens with the `budget` highest scores; ties go to the earlier token."""
    budget = min(budget, len(scores))
    if not budget:
        return []
    least = np.partition(scores, len(scores) - budget)[len(scores) - budget]
    above = np.flatnonzero(scores > least)
    kept = np.concatenate((above, np.flatnonzero(scores == least)[: budget - len(above)]))
    order = np.argsort(-scores[kept], kind="stable")
    tokens: list[int] = kept[order].tolist()
    return tokens


def beginnings(lengths: Sequence[int], count: int) -> list[int]:
    """The first `count` tokens of every chunk."""
    starts = accumulate(lengths, initial=0)
    return [token for start, length in zip(starts, lengths, strict=False)
            for token in range(start, start + min(count, length))]  # fmt: skip


def even_share(lengths: Sequence[int], budget: int) -> int:
    """Largest number of first tokens that every chunk can have within `budget`."""
    for index, length in enumerate(sorted(lengths)):
        sharing = len(lengths) - index
        if length * sharing > budget:
            return budget // sharing
        budget -= length
    return max(lengths, default=0)


def windows(
    selected: Sequence[int] | npt.NDArray[np.int64],
    lengths: Sequence[int],
    size: int = WINDOW,
    more_than: int = MORE_THAN,
) -> list[int]:
    """All tokens of the windows in which more than `more_than` of `size` tokens were selected.

    Selected tokens in other windows are dropped. Windows do not cross chunks; a chunk's last window may be shorter and
    needs the same share.
    """
    is_selected = np.zeros(sum(lengths), np.int64)
    is_selected[np.asarray(selected, np.int64)] = 1
    ends = list(accumulate(lengths, initial=0))
    firsts = [first for start, end in zip(ends, ends[1:], strict=False) for first in range(start, end, size)]
    if not firsts:
        return []
    sizes = np.diff(np.array([*firsts, len(is_selected)]))
    taken = np.add.reduceat(is_selected, firsts) * size > more_than * sizes
    chosen: list[int] = np.flatnonzero(np.repeat(taken, sizes)).tolist()
    return chosen


def windows_within(scores: Scores, lengths: Sequence[int], budget: int) -> list[int]:
    """`windows` of the highest scores, with as many selected tokens as fill `budget` tokens of windows.

    The published rule selects `budget` tokens and drops those whose window has too few, which leaves a fraction of the
    budget. Selecting more tokens only adds windows, so a binary search finds the number that fills it.
    """
    order = np.array(best(scores, len(scores)), np.int64)
    low, high = 0, len(order)
    while low < high:
        middle = (low + high + 1) // 2
        if len(windows(order[:middle], lengths)) <= budget:
            low = middle
        else:
            high = middle - 1
    return windows(order[:low], lengths)
