"""Scores become chosen chunk tokens: the best of them, chunk beginnings first, or whole windows.

Knows numbers; knows no model and no device. Tokens are counted over all chunks together, from the first chunk's first
token. No scores are walked one by one in Python: thousands of them would cost more than looking at them did.
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
"""A window of 8 tokens is computed anew when more than 5 of them were picked (CacheClip, arXiv 2510.10129)."""


def on_host(scores: torch.Tensor) -> Scores:
    """A copy of fp32 [tokens] that may be written to. Waits for the device, once."""
    return np.array(scores.float().cpu().numpy())


def budget_of(ratio: float, tokens: int) -> int:
    """How many of `tokens` a ratio stands for; at least one if there is a ratio at all."""
    return min(tokens, max(1, round(ratio * tokens))) if ratio > 0 and tokens else 0


def best(scores: Scores, budget: int) -> list[int]:
    """The `budget` highest scores, as token numbers; of equals the earlier."""
    budget = min(budget, len(scores))
    if not budget:
        return []
    least = np.partition(scores, len(scores) - budget)[len(scores) - budget]
    above = np.flatnonzero(scores > least)
    kept = np.concatenate((above, np.flatnonzero(scores == least)[: budget - len(above)]))
    order = np.argsort(-scores[kept], kind="stable")
    found: list[int] = kept[order].tolist()
    return found


def beginnings(lengths: Sequence[int], each: int) -> list[int]:
    """The first `each` tokens of every chunk."""
    starts = accumulate(lengths, initial=0)
    return [token for start, length in zip(starts, lengths, strict=False)
            for token in range(start, start + min(each, length))]  # fmt: skip


def even_share(lengths: Sequence[int], budget: int) -> int:
    """The largest number of tokens that every chunk can have from its beginning within `budget`."""
    for index, length in enumerate(sorted(lengths)):
        sharing = len(lengths) - index
        if length * sharing > budget:
            return budget // sharing
        budget -= length
    return max(lengths, default=0)


def windows(
    picked: Sequence[int] | npt.NDArray[np.int64],
    lengths: Sequence[int],
    size: int = WINDOW,
    more_than: int = MORE_THAN,
) -> list[int]:
    """All tokens of the windows in which more than `more_than` of `size` tokens were picked; other picks are dropped.

    Windows do not cross chunks. A chunk's last window may be shorter; it is held to the same share.
    """
    wanted = np.zeros(sum(lengths), np.int64)
    wanted[np.asarray(picked, np.int64)] = 1
    ends = list(accumulate(lengths, initial=0))
    firsts = [at for start, end in zip(ends, ends[1:], strict=False) for at in range(start, end, size)]
    if not firsts:
        return []
    sizes = np.diff(np.array([*firsts, len(wanted)]))
    taken = np.add.reduceat(wanted, firsts) * size > more_than * sizes
    chosen: list[int] = np.flatnonzero(np.repeat(taken, sizes)).tolist()
    return chosen


def windows_within(scores: Scores, lengths: Sequence[int], budget: int) -> list[int]:
    """As `windows` of the best scores, with as many picks as fill `budget` tokens of windows.

    The rule as published picks `budget` tokens and then drops those whose window has too few, which leaves a fraction
    of what was asked for. More picks only ever add windows, so the number that fills the budget can be searched for.
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
