"""Score the pointer on held-out passages.

Knows a network and held-out material; trains nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from desk_rag.answering.evidence.span_model import SpanModel
from desk_rag.training.pointer.material import Asked, Material, Version
from desk_rag.training.pointer.rows import Batches, Row
from desk_rag.training.pointer.training import half


@dataclass(frozen=True, slots=True)
class Score:
    """Shares in [0, 1], 0 of nothing."""

    questions: int
    """Answerable ones."""
    span: float
    """The best of all spans is the answer."""
    passage: float
    """True if it is in the right passage."""
    none: float
    """Unanswerable questions for which no span is worth more than 'none'."""
    silent: float
    """Answerable ones for which that holds as well."""

    def __str__(self) -> str:
        shares = (
            f"{name} {100 * share:.1f}"
            for name, share in (
                ("span", self.span),
                ("passage", self.passage),
                ("none", self.none),
                ("silent", self.silent),
            )
        )
        return f"{self.questions} held-out questions: " + ", ".join(shares)


@torch.no_grad()
def score(net: SpanModel, of: Material, batches: Batches, chunks: int = 5) -> Score:
    """Ask the held-out passages as they were written, each among `chunks` - 1 that are like it, titles left out.

    Questions whose answer a row cannot show are not asked.
    """
    device = net.head.ends.weight.device
    net.eval()
    span = passage = none = silent = answerable = unanswerable = 0
    for number in sorted(of.held):
        own = of.versions[number][0]
        for asked in own.asked:
            first = Row(asked, own, False, True)
            if first.misleads():
                continue
            others = _beside(of, number, asked, chunks - 1)
            batch = batches.batch([first, *(Row(asked, other, False, False) for other in others)], 1 + len(others))
            batch = batch.to(device)
            with half(device):
                scores = net(batch.rows)
            nothing = bool(scores.max() < 0)
            if not asked.answer:
                unanswerable += 1
                none += nothing
                continue
            answerable += 1
            row, place = divmod(int(scores.argmax()), scores[0].numel())
            span += [row, *divmod(place, scores.shape[2])] in batch.gold.tolist()
            passage += row == 0
            silent += nothing
    return Score(
        answerable, span / max(1, answerable), passage / max(1, answerable),
        none / max(1, unanswerable), silent / max(1, answerable),
    )  # fmt: skip


def _beside(of: Material, number: int, asked: Asked, most: int) -> list[Version]:
    """The passages most like the held one that do not say the answer; any, where it has too few that are like it."""
    near = [other for each in of.near[number] for other in each]
    order = dict.fromkeys([*near, *range(len(of.versions))])
    candidates = (of.versions[other][0] for other in order if other != number)
    return [version for version in candidates if not version.says(asked)][:most]
