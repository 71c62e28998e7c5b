"""Turn answered questions into rows of estimates, and rows into a table and a JSON object."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from desk_rag.bench.answer_quality import score
from desk_rag.bench.answer_quality.bootstrap import Estimate, mean_of, ratio_of
from desk_rag.bench.answer_quality.modes import FULL
from desk_rag.bench.answer_quality.results_cache import Answered, Entry, by_task
from desk_rag.bench.harness import report

ALL = "all"
"""The task that holds every question, where there are several tasks."""
_OF_FULL = ("exact", "f1", "rouge_l", "contains", "recall", "coverage", "right_quote", "refused")


@dataclass(frozen=True, slots=True)
class Row:
    """One mode on one task."""

    task: str
    mode: str
    count: int
    scores: Mapping[str, Estimate]
    """Estimates by name: those of `Marks`, kl (nats) and top1, as far as they apply; shares of 0..1."""
    of_full: Mapping[str, Estimate]
    """The same scores as ratios of full prefill's, over the same questions."""
    recomputed: float
    """Mean share of chunk tokens computed at answer time."""
    ttft: report.Spread
    """Seconds to the first token from chunk KV in memory, selection included."""
    select: report.Spread
    """Seconds of it that choosing took."""
    speedup: float | None
    """Median of full prefill's TTFT over this one's, question by question."""
    tokens: float
    """Median of chunks and question."""
    left_out: int
    """Chunks that did not fit into the model's window, over all questions."""


@dataclass(frozen=True, slots=True)
class Report:
    """All rows, task by task, modes in the order they were asked for."""

    rows: tuple[Row, ...]
    name: str
    """Hash of the configuration."""

    def row(self, mode: str, task: str | None = None) -> Row:
        """The row of a mode; of the only task, or of all of them together. Raises KeyError."""
        tasks = list(dict.fromkeys(row.task for row in self.rows))
        wanted = task or (ALL if ALL in tasks else tasks[0])
        for row in self.rows:
            if (row.task, row.mode) == (wanted, mode):
                return row
        raise KeyError(f"{wanted}, {mode}")

    def table(self, *, markdown: bool = False) -> str:
        """Format shares in percent with half of their 95 % interval; empty columns are left out."""
        cells = [_cells(row) for row in self.rows]
        again = _HEADINGS.index(_SHOWN["contains"]), _HEADINGS.index(_SHOWN["recall"])
        columns = [index for index in range(len(_HEADINGS)) if any(line[index] != "-" for line in cells)]
        if all(line[again[0]] == line[again[1]] for line in cells) and again[1] in columns:
            columns.remove(again[1])
        lines = [[line[index] for index in columns] for line in cells]
        return report.table([_HEADINGS[index] for index in columns], lines, markdown=markdown)

    def to_json(self) -> dict[str, object]:
        """Return estimates as [mean, low, high, questions], by task and mode."""
        tasks: dict[str, dict[str, object]] = {}
        for row in self.rows:
            tasks.setdefault(row.task, {})[row.mode] = _json(row)
        return {"configuration": self.name, "tasks": tasks}


def to_report(entries: Sequence[Entry], modes: Sequence[str], name: str) -> Report:
    """Sum up at least one entry."""
    assert entries, "a report of nothing"
    tasks = by_task(entries)
    if len(tasks) > 1:
        tasks[ALL] = list(entries)
    rows = [_row(task, mode, members) for task, members in tasks.items() for mode in modes]
    return Report(tuple(rows), name)


def _row(task: str, mode: str, entries: Sequence[Entry]) -> Row:
    answered = [entry.modes[mode] for entry in entries]
    full = [entry.modes[FULL.label] for entry in entries] if FULL.label in entries[0].modes else None
    scores, of_full = {}, {}
    for name, read in _SCORES.items():
        values = [read(one) for one in answered]
        estimate = mean_of([value for value in values if value is not None])
        if estimate is not None:
            scores[name] = estimate
        if full is not None and name in _OF_FULL:
            pairs = [(a, b) for a, b in zip(values, map(read, full), strict=True) if a is not None and b is not None]
            ratio = ratio_of([a for a, _ in pairs], [b for _, b in pairs])
            if ratio is not None:
                of_full[name] = ratio
    speedup = None
    if full is not None:
        speedup = report.Spread.of([_ttft(b) / _ttft(a) for a, b in zip(answered, full, strict=True)]).median
    return Row(
        task=task,
        mode=mode,
        count=len(answered),
        scores=scores,
        of_full=of_full,
        recomputed=sum(one.recomputed for one in answered) / len(answered),
        ttft=report.Spread.of([_ttft(one) for one in answered]),
        select=report.Spread.of([one.select_seconds for one in answered]),
        speedup=speedup,
        tokens=report.Spread.of([one.tokens for one in answered]).median,
        left_out=sum(one.left_out for one in answered),
    )


def _mark_reader(name: str) -> Callable[[Answered], float | None]:
    def read(answered: Answered) -> float | None:
        value: float | None = getattr(answered.marks, name)
        return value

    return read


_SCORES: Mapping[str, Callable[[Answered], float | None]] = {
    **{name: _mark_reader(name) for name in score.NAMES},
    "kl": lambda answered: answered.kl,
    "top1": lambda answered: answered.top1,
}


def _ttft(answered: Answered) -> float:
    return answered.prefill_seconds + answered.select_seconds


# Showing ----------------------------------------------------------------------------------------------------------

_SHOWN = {
    "exact": "exact", "f1": "F1", "rouge_l": "ROUGE-L", "contains": "in output", "recall": "parts",
    "coverage": "coverage", "right_quote": "right quote", "refused": "refused", "false_refusal": "false refusal",
    "misled": "misled",
}  # fmt: skip
_HEADINGS = [
    "task", "mode", "n", *_SHOWN.values(), "F1 of full", "in output of full", "KL", "top-1", "recomputed", "tokens",
    "select ms", "TTFT ms", "faster",
]  # fmt: skip


def _cells(row: Row) -> list[str]:
    kl, top1 = row.scores.get("kl"), row.scores.get("top1")
    return [
        row.task,
        row.mode,
        str(row.count),
        *(_percent(row.scores.get(name)) for name in _SHOWN),
        _percent(row.of_full.get("f1")),
        _percent(row.of_full.get("contains")),
        "-" if kl is None else f"{kl.mean:.4f}",
        "-" if top1 is None else f"{100 * top1.mean:.1f}",
        f"{100 * row.recomputed:.1f}%",
        f"{row.tokens:.0f}",
        f"{1e3 * row.select.median:.1f}",
        f"{1e3 * row.ttft.median:.1f}",
        "-" if row.speedup is None else f"{row.speedup:.1f}x",
    ]


def _percent(estimate: Estimate | None) -> str:
    return "-" if estimate is None else f"{100 * estimate.mean:.1f}±{100 * estimate.half:.1f}"


def _json(row: Row) -> dict[str, object]:
    return {
        "questions": row.count,
        **{name: estimate.to_json() for name, estimate in row.scores.items()},
        "of_full": {name: estimate.to_json() for name, estimate in row.of_full.items()},
        "recomputed": round(row.recomputed, 4),
        "tokens": row.tokens,
        "left_out": row.left_out,
        "ttft_ms": row.ttft.scaled(1e3, 2),
        "select_ms": row.select.scaled(1e3, 2),
        "speedup": None if row.speedup is None else round(row.speedup, 2),
    }
