"""Status bar: whether the index is fresh, at work and warm, as a function of `Status` and the width."""

from __future__ import annotations

from textual import events
from textual.content import Content
from textual.widgets import Static

from desk_rag.documents.status import IndexStage
from desk_rag.tui.backend import Freshness, Status
from desk_rag.tui.wording import about, brief, count, gib, percent, safe

_MARKS = {
    Freshness.STARTING: ("◌", "$primary"),
    Freshness.WATCHING: ("●", "$success"),
    Freshness.INDEXING: ("◐", "$primary"),
    Freshness.PAUSED: ("‖", "$warning"),
    Freshness.UNATTENDED: ("○", "$warning"),
}
_VERBS = {
    IndexStage.SCAN: "looking for changes",
    IndexStage.WORDS: "reading files",
    IndexStage.VECTORS: "computing vectors",
    IndexStage.WARM: "warming chunks",
}


class IndexStatus(Static):
    """The status bar."""

    def __init__(self) -> None:
        super().__init__("", id="status", markup=False)
        self._status = Status()
        self._notice = ""

    def show(self, status: Status) -> None:
        """Show this status from now on."""
        self._status = status
        self._draw()

    def notice(self, text: str) -> None:
        """Put one sentence before the counts (starting, a folder that is absent); empty takes it away."""
        self._notice = text
        self._draw()

    def on_resize(self, event: events.Resize) -> None:
        self._draw()

    def _draw(self) -> None:
        width = self.content_region.width
        choices = [line(self._status, self._notice, detail) for detail in (3, 2, 1, 0)]
        fitting = [one for one in choices if one.cell_length <= width]
        self.update(fitting[0] if fitting else choices[-1])


def line(status: Status, notice: str, detail: int) -> Content:
    """Return the bar's text; `detail` from 3 (everything, in words) down to 0 (letters, for 80 columns)."""
    letter, style = _MARKS[status.freshness]
    said = notice or _doing(status, detail)
    parts = [safe(said, single_line=True, most=160)] if said else []
    if status.freshness is not Freshness.STARTING or status.files:
        parts += [Content(part) for part in _counts(status, detail)]
    joined = Content.styled(" · ", "$foreground 40%").join(parts)
    return Content.assemble((f"{letter} ", style), joined)


def _doing(status: Status, detail: int) -> str:
    if status.freshness is Freshness.PAUSED:
        left = status.paused_seconds
        return f"paused, {about(left)} left" if left and detail else "paused"
    if status.stage is None or status.freshness is not Freshness.INDEXING:
        who = f" by {status.writer}" if status.writer and detail >= 2 else ""
        return f"{status.freshness.value}{who}"
    if status.waiting:
        return f"waiting: {status.waiting}" if detail else status.waiting
    text = _VERBS[status.stage]
    if detail >= 2 and status.total:
        text += f" {status.done:,} of {status.total:,}"
    if status.eta_seconds is not None and detail:
        text += f", {about(status.eta_seconds)} left"
    return text


def _counts(status: Status, detail: int) -> list[str]:
    vectors, warm = percent(status.with_vectors, status.chunks), percent(status.warm, status.chunks)
    used, budget = gib(status.kv_bytes), gib(status.budget_bytes)
    failed = [f"{status.failed:,} failed"] if status.failed and detail else []
    if detail >= 2:
        counts = [count(status.files, "file"), *failed, f"vectors {vectors}%", f"warm {warm}%"]
        return [*counts, f"cache {used} of {budget}"] if detail == 3 else [*counts, f"cache {used}"]
    return [brief(status.files) + (" files" if detail else ""), *failed, f"v{vectors} k{warm}", used.replace(" ", "")]
