"""Compare the tokens that an auxiliary model scores highest with those that the answering model attends to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np
import torch

from desk_rag.finetune.auxiliary.labels import Reading, Shares, Teacher
from desk_rag.finetune.probe import NORMAL_95
from desk_rag.kv.recompute import token_selection
from desk_rag.kv.recompute.auxiliary_model import AuxiliaryModel

RATIO = 0.2
"""Share of the tokens whose overlap is measured."""
_LEAST = 1e-9


@dataclass(frozen=True, slots=True)
class SelectionProbe:
    """Agreement on each question, in the order of the questions."""

    overlaps: tuple[float, ...]
    """Jaccard index of the best `RATIO` of tokens by either model."""
    divergences: tuple[float, ...]
    """KL(answering model || auxiliary model) of the shares of attention, in nats."""

    @property
    def overlap(self) -> float:
        """Mean of `overlaps`."""
        return fmean(self.overlaps)

    @property
    def divergence(self) -> float:
        """Mean of `divergences`."""
        return fmean(self.divergences)


def probe_selection(auxiliary: AuxiliaryModel, teacher: Teacher, readings: Sequence[Reading]) -> SelectionProbe:
    """Score every question of `readings` by the auxiliary model as it is served, over int8 chunk KV."""
    overlaps, divergences = [], []
    for reading in readings:
        wanted = teacher.shares(auxiliary.model.prompt, reading)
        for question, shares in zip(reading.questions, wanted, strict=True):
            scores = auxiliary.score(reading.texts, question)
            weights = token_selection.on_host(torch.cat([one.weights for one in scores]))
            overlaps.append(jaccard(shares, weights, RATIO))
            divergences.append(divergence(shares, weights))
    return SelectionProbe(tuple(overlaps), tuple(divergences))


def jaccard(one: Shares, other: Shares, ratio: float) -> float:
    """Size of what the best `ratio` of tokens by both have in common, as a share of what either has."""
    budget = token_selection.budget_of(ratio, len(one))
    chosen, others = (set(token_selection.best(scores, budget)) for scores in (one, other))
    return len(chosen & others) / len(chosen | others)


def divergence(wanted: Shares, weights: Shares) -> float:
    """KL(wanted || weights) in nats; `weights` are divided by their sum."""
    given = np.maximum(weights / max(float(weights.sum()), _LEAST), _LEAST)
    seen = wanted > 0
    return float((wanted[seen] * np.log(wanted[seen] / given[seen])).sum())


def half_interval(before: Sequence[float], after: Sequence[float]) -> float:
    """Half of the 95 % interval of the mean difference of pairs; 0 for fewer than two."""
    differences = np.array(after) - np.array(before)
    if len(differences) < 2:
        return 0.0
    return float(NORMAL_95 * differences.std(ddof=1) / np.sqrt(len(differences)))
