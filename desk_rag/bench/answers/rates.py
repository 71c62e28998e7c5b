"""Shares of marked answers with Wilson intervals, in tables by kind of question and kind of file.

The interval is that of Wilson, "Probable inference, the law of succession, and statistical inference", 1927: it stays
within 0 and 1 and holds for small numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from desk_rag.bench.answers.marks import NAMES, Marks
from desk_rag.bench.answers.questions import NO_ANSWER, Question
from desk_rag.bench.harness import report

_Z = 1.959964
"""Quantile of the normal distribution for 95 %."""
_HEADINGS = {
    "file": "file",
    "chunk": "passage",
    "output": "in output",
    "exact": "exact",
    "quoted": "quoted",
    "withheld": "withheld",
    "refused": "refused",
    "misled": "wrong, quoted",
}


@dataclass(frozen=True, slots=True)
class Rate:
    """A share of `count` answers, with the interval that holds it in 95 of 100 cases."""

    hits: int
    count: int

    @property
    def share(self) -> float:
        """Hits of all."""
        return self.hits / self.count

    @property
    def interval(self) -> tuple[float, float]:
        """The Wilson interval."""
        n, p = self.count, self.share
        middle, spread = p + _Z**2 / (2 * n), _Z * math.sqrt(p * (1 - p) / n + _Z**2 / (4 * n**2))
        whole = 1 + _Z**2 / n
        return max(0.0, (middle - spread) / whole), min(1.0, (middle + spread) / whole)

    def __str__(self) -> str:
        low, high = self.interval
        return f"{100 * self.share:.0f} [{100 * low:.0f}, {100 * high:.0f}]"

    def to_json(self) -> list[float]:
        """[share, low, high, count]"""
        return [*(round(number, 4) for number in (self.share, *self.interval)), self.count]


@dataclass(frozen=True, slots=True)
class Marked:
    """One question with the marks of its answer and its times in seconds."""

    question: Question
    marks: Marks
    first_token: float
    whole: float


def rate(marked: Sequence[Marked], name: str) -> Rate | None:
    """The share of a mark over the answers that it applies to; None if there are none."""
    values = [value for one in marked if (value := getattr(one.marks, name)) is not None]
    return Rate(sum(values), len(values)) if values else None


def groups(marked: Sequence[Marked]) -> dict[str, list[Marked]]:
    """The answers in all, by wording, by kind of question and by kind of file; groups may overlap."""
    by_group: dict[str, list[Marked]] = {"all": list(marked)}
    for one in marked:
        question = one.question
        names = [question.wording, question.kind]
        if question.kind != NO_ANSWER:
            names.append(f".{question.file_kind}")
        for name in filter(None, names):
            by_group.setdefault(name, []).append(one)
    order = {"all": 0, "same words": 1, "other words": 2}
    return dict(sorted(by_group.items(), key=lambda item: (order.get(item[0], 3), item[0].startswith("."), item[0])))


def table(marked: Sequence[Marked], *, markdown: bool = False) -> str:
    """Format each mark's percentage for every group, with 95 % intervals."""
    rows: list[list[str]] = []
    for name, group in groups(marked).items():
        rates = [rate(group, mark) for mark in NAMES]
        rows.append([name, str(len(group)), *("" if one is None else str(one) for one in rates)])
    return report.table(["", "n", *(_HEADINGS[name] for name in NAMES)], rows, markdown=markdown)


def to_json(marked: Sequence[Marked]) -> dict[str, object]:
    """Every rate of every group, and the times' quantiles in milliseconds."""
    times = {"first_token_ms": [one.first_token for one in marked], "whole_ms": [one.whole for one in marked]}
    shares = {name: _rates(group) for name, group in groups(marked).items()}
    return {"rates": shares, **{name: report.Spread.of(values).scaled(1000, 0) for name, values in times.items()}}


def _rates(group: Iterable[Marked]) -> dict[str, list[float]]:
    members = list(group)
    return {name: one.to_json() for name in NAMES if (one := rate(members, name)) is not None}
