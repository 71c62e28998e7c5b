"""Scores become chosen chunk tokens: the best of them, chunk beginnings first, or whole windows.

Knows numbers; knows no model. Tokens are counted over all chunks together, from the first chunk's first token.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

WINDOW = 8
MORE_THAN = 5
"""A window of 8 tokens is computed anew when more than 5 of them were picked (CacheClip, arXiv 2510.10129)."""


def budget_of(ratio: float, tokens: int) -> int:
    """How many of `tokens` a ratio stands for; at least one if there is a ratio at all."""
    return min(tokens, max(1, round(ratio * tokens))) if ratio > 0 and tokens else 0


def best(scores: torch.Tensor, budget: int) -> list[int]:
    """The `budget` highest scores, as token numbers; of equals the earlier."""
    order = scores.float().cpu().argsort(descending=True, stable=True)
    return order[:budget].tolist()


def beginnings(lengths: Sequence[int], each: int) -> list[int]:
    """The first `each` tokens of every chunk."""
    starts = [sum(lengths[:index]) for index in range(len(lengths))]
    return [start + at for start, length in zip(starts, lengths, strict=True) for at in range(min(each, length))]


def even_share(lengths: Sequence[int], budget: int) -> int:
    """The largest number of tokens that every chunk can have from its beginning within `budget`."""
    each = 0
    while each < max(lengths, default=0) and len(beginnings(lengths, each + 1)) <= budget:
        each += 1
    return each


def windows(picked: Sequence[int], lengths: Sequence[int], size: int = WINDOW, more_than: int = MORE_THAN) -> list[int]:
    """All tokens of the windows in which more than `more_than` of `size` tokens were picked; other picks are dropped.

    Windows do not cross chunks. A chunk's last window may be shorter; it is held to the same share.
    """
    chosen, wanted = [], set(picked)
    start = 0
    for length in lengths:
        for first in range(start, start + length, size):
            window = range(first, min(first + size, start + length))
            if sum(token in wanted for token in window) * size > more_than * len(window):
                chosen += list(window)
        start += length
    return chosen


def windows_within(scores: torch.Tensor, lengths: Sequence[int], budget: int) -> list[int]:
    """As `windows` of the best scores, with as many picks as fill `budget` tokens of windows.

    The rule as published picks `budget` tokens and then drops those whose window has too few, which leaves a fraction
    of what was asked for. More picks only ever add windows, so the number that fills the budget can be searched for.
    """
    order = best(scores, len(scores))
    low, high = 0, len(order)
    while low < high:
        middle = (low + high + 1) // 2
        if len(windows(order[:middle], lengths)) <= budget:
            low = middle
        else:
            high = middle - 1
    return windows(order[:low], lengths)
