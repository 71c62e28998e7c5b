"""Means with confidence intervals, single and as ratios of pairs.

Percentile bootstrap over questions (Efron and Tibshirani 1993, chapter 13), seeded, so that equal records give equal
tables. Ratios resample the same questions on both sides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

_ROUNDS = 2000
_LOW, _HIGH = 2.5, 97.5


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean (or a ratio of means) and the interval that holds 95 % of its bootstrap replicas."""

    mean: float
    low: float
    high: float
    count: int
    """Questions it was taken over."""

    @property
    def half(self) -> float:
        """Half the width of the interval."""
        return (self.high - self.low) / 2

    def to_json(self) -> list[float]:
        """[mean, low, high, count]"""
        return [*(float(f"{number:.5g}") for number in (self.mean, self.low, self.high)), self.count]


def mean_of(values: Sequence[float], seed: int = 0) -> Estimate | None:
    """None for nothing."""
    if not values:
        return None
    array = np.asarray(values, dtype=np.float64)
    return _estimate(float(array.mean()), array[_drawn(len(array), seed)].mean(1), len(array))


def ratio_of(values: Sequence[float], reference: Sequence[float], seed: int = 0) -> Estimate | None:
    """Mean of `values` over mean of `reference`, pair by pair; None where the reference is nothing or all zero."""
    assert len(values) == len(reference), "pairs"
    above, below = np.asarray(values, dtype=np.float64), np.asarray(reference, dtype=np.float64)
    if not len(below) or below.mean() == 0:
        return None
    drawn = _drawn(len(below), seed)
    means = below[drawn].mean(1)
    kept = means > 0
    return _estimate(float(above.mean() / below.mean()), above[drawn].mean(1)[kept] / means[kept], len(below))


def _drawn(count: int, seed: int) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    return np.random.default_rng(seed).integers(0, count, (_ROUNDS, count))


def _estimate(mean: float, replicas: np.ndarray[tuple[int, ...], np.dtype[np.float64]], count: int) -> Estimate:
    low, high = np.percentile(replicas, [_LOW, _HIGH])
    return Estimate(mean, float(low), float(high), count)
