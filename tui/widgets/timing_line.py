"""Line below an answer: TTFT, warm chunks, speed, citations; two bars if it was asked both ways."""

from __future__ import annotations

from textual.content import Content
from textual.widgets import Static

from desk_rag.answering.events import Answer, AnswerMode, Timings
from desk_rag.tui.wording import seconds

_BAR_CELLS = 18
_MUTED = "$foreground 60%"
_NAMES = {AnswerMode.CACHED: "cached", AnswerMode.FULL: "full prefill"}


class TimingLine(Static):
    """Empty until the first token is there, then grows with what is known."""

    def __init__(self) -> None:
        super().__init__("", markup=False)
        self._timings: Timings | None = None
        self._answer: Answer | None = None
        self._other: Answer | None = None
        self._detailed = False

    def first_token(self, timings: Timings) -> None:
        """Show TTFT as soon as it is known."""
        self._timings = timings
        self._draw()

    def finish(self, answer: Answer, other: Answer | None = None) -> None:
        """Show everything; `other` is the answer to the same question in the other mode."""
        self._timings, self._answer, self._other = answer.timings, answer, other
        self._draw()

    def toggle_details(self) -> None:
        """Show or hide the stages whose sum is TTFT."""
        self._detailed = not self._detailed
        self._draw()

    def _draw(self) -> None:
        if self._timings is None or not self._timings.stages:
            return
        lines = [summary(self._timings, self._answer)]
        if self._answer and self._other and self._other.timings.stages:
            lines = [*bars(self._answer, self._other), *lines]
        if self._detailed:
            lines.append(stages(self._timings))
        self.update(Content("\n").join(lines))


def summary(timings: Timings, answer: Answer | None) -> Content:
    """Return 'first word 0.19 s · 3 of 3 chunks warm · 31 tok/s · cited 2'."""
    full = answer is not None and answer.mode is AnswerMode.FULL
    parts = [
        Content.assemble(
            ("first word ", _MUTED), (seconds(timings.ttft), "bold $primary" if full else "bold $success")
        ),
    ]
    if answer:
        parts += [Content.styled(part, _MUTED) for part in _facts(answer)]
    return Content.styled(" · ", _MUTED).join(parts)


def _facts(answer: Answer) -> list[str]:
    chunks = answer.warm_chunks + answer.cold_chunks
    facts = []
    if answer.mode is AnswerMode.FULL:
        facts.append("full prefill")
    elif chunks:
        facts.append(f"{answer.warm_chunks} of {chunks} chunks warm")
    timings = answer.timings
    if timings.recompute_ratio > 0:
        facts.append(f"{timings.recompute_ratio:.0%} recomputed")
    if timings.decoded_tokens > 1 and timings.decode_seconds > 0:
        facts.append(f"{timings.decoded_tokens / timings.decode_seconds:.0f} tok/s")
    if answer.citations:
        facts.append(f"cited {len({citation.source_number for citation in answer.citations})}")
    return facts


def stages(timings: Timings) -> Content:
    """Return the named parts of TTFT in the order they ran."""
    text = " + ".join(f"{stage.name} {seconds(stage.seconds)}" for stage in timings.stages)
    return Content.styled(f"{text} · {timings.context_tokens:,} tokens in context", _MUTED)


def bars(answer: Answer, other: Answer) -> list[Content]:
    """Return both TTFTs as bars on one scale, cached first, and how many times the other the slower one took."""
    cached, full = sorted((answer, other), key=lambda one: one.mode is AnswerMode.FULL)
    longest = max(cached.timings.ttft, full.timings.ttft)
    lines = []
    for one, style in ((cached, "$success"), (full, "$primary")):
        ttft = one.timings.ttft
        cells = max(1, round(_BAR_CELLS * ttft / longest)) if longest > 0 else 1
        ratio = ttft / min(cached.timings.ttft, full.timings.ttft) if ttft == longest and ttft else 1.0
        note = f"  {ratio:.0f} times" if ratio >= 1.5 else ""
        lines.append(
            Content.assemble(
                (f"{_NAMES[one.mode]:<13}", _MUTED),
                ("━" * cells, style),
                " " * (_BAR_CELLS - cells),
                (f"{ttft:>7.2f} s", "bold"),
                (note, _MUTED),
            )
        )
    return lines
