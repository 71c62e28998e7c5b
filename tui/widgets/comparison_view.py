"""A question answered both ways: two bars on one scale, whether the words agree, and both answers side by side."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.widgets import Static

from desk_rag.tui.turns.comparison import Comparison, TimedAnswer
from desk_rag.tui.wording import count, safe

_BAR_CELLS = 18
_MUTED = "$foreground 60%"
_NAMES = ("from caches", "full prefill")
_STYLES = ("$success", "$primary")


class ComparisonView(Vertical):
    """The split part of a turn."""

    def __init__(self, comparison: Comparison) -> None:
        super().__init__(classes="comparison")
        self._comparison = comparison

    def compose(self) -> ComposeResult:
        runs = (self._comparison.cached, self._comparison.full)
        lines = [*bars(self._comparison), *verdict(self._comparison)]
        yield Static(Content("\n").join(lines), classes="bars", markup=False)
        with Horizontal(classes="both"):
            for name, style, run in zip(_NAMES, _STYLES, runs, strict=True):
                yield Static(_words(name, style, run), classes="one", markup=False)


def bars(comparison: Comparison) -> list[Content]:
    """Return both times to the first word as bars, and how many times the shorter one the longer one took."""
    times = (comparison.cached.first_word, comparison.full.first_word)
    longest, shortest = max(times), min(times)
    lines = [Content.styled("time to the first word", _MUTED)]
    for name, style, taken in zip(_NAMES, _STYLES, times, strict=True):
        cells = max(1, round(_BAR_CELLS * taken / longest)) if longest > 0 else 1
        ratio = taken / shortest if taken == longest and shortest > 0 else 1.0
        lines.append(
            Content.assemble(
                (f"{name:<13}", _MUTED),
                ("━" * cells, style),
                " " * (_BAR_CELLS - cells),
                (f"{taken:>7.2f} s", "bold"),
                (f"  {ratio:.0f} times" if ratio >= 1.5 else "", _MUTED),
            )
        )
    return lines


def verdict(comparison: Comparison) -> list[Content]:
    """Say whether the words agree, and what makes the times unlike."""
    answer = comparison.cached.answer
    if comparison.same_words:
        lines = [Content.styled("Both give the same words and quotes.", _MUTED)]
    else:
        lines = [Content.styled("! The words differ.", "$warning")]
    if answer.cold_chunks:
        cold = f"! {answer.cold_chunks} of {count(len(answer.sources), 'chunk')} had no cache"
        lines.append(Content.styled(f"{cold}; the time from caches includes reading them.", "$warning"))
    return lines


def _words(name: str, style: str, run: TimedAnswer) -> Content:
    quotes = [
        Content.assemble(safe(one.quote, "italic"), " ", (f"[{one.source_number}]", "bold $accent"))
        for one in run.answer.citations
    ]
    return Content("\n").join([Content.styled(name, style), safe(run.answer.text), *quotes])
