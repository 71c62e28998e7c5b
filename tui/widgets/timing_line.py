"""Line below an answer: time to the first word, passages read ahead of time, quotes; on demand where the time went."""

from __future__ import annotations

from dataclasses import dataclass

from textual.content import Content
from textual.widgets import Static

from desk_rag.answering.events import Answer, Timings
from desk_rag.tui.wording import seconds

_MUTED = "$foreground 60%"
_LEAST_WAIT = 1.0
"""Seconds from which a wait is told."""
_STAGES = {
    "queue": "wait for other work",
    "retrieve": "search",
    "load": "load caches",
    "stitch": "place them",
    "live prefill": "read cold chunks",
    "choose": "choose what to read again",
    "prefill": "read the question",
}
"""Stages of the time to first token, in plain words."""


@dataclass
class Times:
    """What a timing line shows; it outlives the widget."""

    waited: float = 0.0
    """Seconds before the question was asked: for the model, or for answers above it."""
    first_word: float | None = None
    answer: Answer | None = None
    detailed: bool = False


class TimingLine(Static):
    """Line of times; empty until a word of the answer is on the screen."""

    def __init__(self, times: Times) -> None:
        super().__init__("", markup=False)
        self._times = times
        self._draw()

    def first_word(self, elapsed: float) -> None:
        """Show the seconds from the question to the first word on the screen."""
        self._times.first_word = elapsed
        self._draw()

    def finish(self, answer: Answer) -> None:
        """Show everything that is known."""
        self._times.answer = answer
        self._draw()

    def toggle_details(self) -> None:
        """Show or hide the stages of the time to first token."""
        self._times.detailed = not self._times.detailed
        self._draw()

    def _draw(self) -> None:
        content = _drawn(self._times)
        self.display = bool(content)
        self.update(content)


def _drawn(times: Times) -> Content:
    if times.first_word is None:
        return Content("")
    lines = [summary(times.first_word, times.answer, times.waited)]
    if times.detailed and times.answer and times.answer.timings.stages:
        lines.append(stages(times.answer.timings))
    return Content("\n").join(lines)


def summary(first_word: float, answer: Answer | None, waited: float = 0.0) -> Content:
    """Return 'first word after 0.19 s · 3 of 3 passages read ahead of time · quotes from 2', a wait before it."""
    parts = [Content.styled(f"waited {seconds(waited)}", _MUTED)] if waited >= _LEAST_WAIT else []
    parts.append(Content.assemble(("first word after ", _MUTED), (seconds(first_word), "bold $success")))
    parts += [Content.styled(part, _MUTED) for part in (_facts(answer) if answer else ())]
    return Content.styled(" · ", _MUTED).join(parts)


def _facts(answer: Answer) -> list[str]:
    chunks = answer.warm_chunks + answer.cold_chunks
    facts = [answer.warmth] if chunks else []
    timings = answer.timings
    if timings.recompute_ratio > 0:
        facts.append(f"{timings.recompute_ratio:.0%} recomputed")
    if answer.citations:
        facts.append(f"quotes from {len({citation.source_number for citation in answer.citations})}")
    return facts


def stages(timings: Timings) -> Content:
    """Return the time to first token and its parts in the order they ran."""
    parts = " + ".join(f"{_STAGES.get(stage.name, stage.name)} {seconds(stage.seconds)}" for stage in timings.stages)
    text = f"first token {seconds(timings.ttft)} = {parts} · {timings.context_tokens:,} tokens in context"
    if timings.decoded_tokens > 1 and timings.decode_seconds > 0:
        text += f" · {timings.decoded_tokens / timings.decode_seconds:.0f} tokens/s"
    return Content.styled(text, _MUTED)
