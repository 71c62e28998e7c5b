"""Goals for first tokens, and which of them a run has met."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from desk_rag.bench.gpu_paths.first_token import Mode


@dataclass(frozen=True, slots=True)
class Bar:
    """A goal: at this context and number of questions, at least so many times faster than full prefill."""

    context: int
    mode: Mode
    least: float
    questions: int = 1


BARS = (
    Bar(750, Mode.RAM, 3.0),
    Bar(8192, Mode.RAM, 12.0),
    Bar(8192, Mode.VRAM, 25.0),
    Bar(16_349, Mode.RAM, 20.0),
    Bar(8192, Mode.VRAM, 60.0, 4),
    Bar(8192, Mode.VRAM, 80.0, 8),
    Bar(8192, Mode.RAM, 40.0, 4),
    Bar(8192, Mode.RAM, 40.0, 8),
)
COLD_SHARE = 1.15
"""A cold first token may take this many times the larger of bytes over the drive's rate and the question's prefill."""


def verdicts(entries: Sequence[dict[str, object]]) -> list[dict[str, object]]:
    """Each bar that was measured: what, found, wanted, met."""
    results: list[dict[str, object]] = []
    for entry in entries:
        ratios, of_bound = entry["ratio_to_full_prefill"], entry.get("of_bound", {})
        assert isinstance(ratios, dict) and isinstance(of_bound, dict)
        at = f"{entry['context']:,}+{entry['question']}"
        for bar in BARS:
            same = bar.context == entry["context"] and bar.questions == entry["questions"]
            if same and bar.mode.value in ratios:
                ratio = ratios[bar.mode.value][2]
                what = f"{bar.mode.value} at {at}"
                what += f", {bar.questions} at once" if bar.questions > 1 else ""
                results.append(_verdict(f"{what}: times faster than full prefill", ratio, bar.least))
                theirs = _against_transformers(entry, bar.mode)
                if theirs is not None:
                    results.append(_verdict(f"{what}: times faster than transformers' full prefill", theirs, bar.least))
        if entry["questions"] != 1:
            continue
        share = of_bound.get(Mode.COLD.value)
        if share is not None:
            what = f"{Mode.COLD.value} at {entry['context']:,}: times its bound, at most"
            results.append({"bar": what, "found": share, "wanted": COLD_SHARE, "met": share <= COLD_SHARE})
    return results


def _verdict(what: str, ratio: float, least: float) -> dict[str, object]:
    return {"bar": what, "found": ratio, "wanted": least, "met": ratio >= least}


def _against_transformers(entry: dict[str, object], mode: Mode) -> float | None:
    """Ratio of medians to full prefill by transformers' own layers; None if that was not timed."""
    modes = entry["modes"]
    assert isinstance(modes, dict)
    median = {name: times["wall_ms"][2] for name, times in modes.items()}
    theirs = median.get(Mode.THEIRS.value)
    return round(float(theirs / median[mode.value]), 2) if theirs is not None else None
