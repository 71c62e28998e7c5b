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
_NOTICE_MARK = ("!", "$warning")
MOST_DETAIL = 4
_VERBS = {
    IndexStage.SCAN: "looking for changes",
    IndexStage.WORDS: "reading files",
    IndexStage.VECTORS: "indexing by meaning",
    IndexStage.WARM: "filling caches",
}


class IndexStatus(Static):
    """The status bar."""

    def __init__(self) -> None:
        super().__init__("", id="status", markup=False)
        self._status = Status()
        self._notice = ""
        self._private = False
        self._drawn: Content | None = None

    def show(self, status: Status) -> None:
        """Show this status from now on."""
        self._status = status
        self._draw()

    def notice(self, text: str) -> None:
        """Put one sentence before the counts (starting, a folder that is absent); empty takes it away."""
        self._notice = text
        self._draw()

    def private(self, is_private: bool) -> None:
        """Show that nothing of the chat is saved, for as long as that is so."""
        self._private = is_private
        self._draw()

    def on_resize(self, event: events.Resize) -> None:
        self._draw()

    def _draw(self) -> None:
        mark = Content.styled("private, nothing is saved · " if self._private else "", "bold $warning")
        width = self.content_region.width - mark.cell_length
        choices = [line(self._status, self._notice, detail) for detail in range(MOST_DETAIL, -1, -1)]
        content = next((one for one in choices if one.cell_length <= width), choices[-1])
        if self._notice and (too_long := content.cell_length - width) > 0:
            content = line(self._status, f"{self._notice[: -too_long - 1].rstrip()}…", 0)  # failures stay in view
        content = Content.assemble(mark, content) if self._private else content
        if content != self._drawn or str(content.spans) != str(self._drawn.spans if self._drawn else ""):
            self._drawn = content
            self.update(content)


def line(status: Status, notice: str, detail: int) -> Content:
    """Return the bar's text, from MOST_DETAIL down to 0; what needs attention is in all of them."""
    letter, style = _NOTICE_MARK if notice.startswith("!") else _MARKS[status.freshness]
    said = notice.removeprefix("! ") or _doing(status, detail)
    parts = [safe(said, single_line=True, most=160)] if said else []
    if status.failed:
        parts.append(Content.styled(f"{status.failed:,} failed", "$warning"))
    if status.freshness is not Freshness.STARTING or status.files:
        parts += [Content(part) for part in _counts(status, detail)]
    joined = Content.styled(" · ", "$foreground 40%").join(parts)
    return Content.assemble((f"{letter} ", style), joined)


def _doing(status: Status, detail: int) -> str:
    if status.freshness is Freshness.PAUSED:
        left = status.paused_seconds
        return f"paused, {about(left)} left" if left and detail else "paused"
    if status.freshness is Freshness.INDEXING and status.stage is not None:
        return _stage(status, status.stage, detail)
    state: str = status.freshness.value
    if status.writer:
        verb = "is watching" if status.freshness is Freshness.WATCHING else "was watching and has ended"
        return f"another process (pid {status.writer}) {verb}" if detail else state
    return state


def _stage(status: Status, stage: IndexStage, detail: int) -> str:
    other = f" (by pid {status.writer})" if status.writer and detail >= 3 else ""
    if status.waiting:
        if stage is IndexStage.WARM and detail:
            answered = "; questions are answered" if detail >= 2 else ""
            return f"caches wait: {status.waiting}{answered}{other}"
        return (f"waiting: {status.waiting}" if detail else status.waiting) + other
    text, done, total = _VERBS[stage], status.done, status.total
    if stage is IndexStage.WARM and status.fills_auxiliary:
        text, done, total = "auxiliary model's caches", status.auxiliary_warm or 0, status.chunks
    if detail >= 1 and total:
        text += f" {done:,} of {total:,}"
    if status.eta_seconds is not None and detail >= 2:
        text += f", {about(status.eta_seconds)} left"
    return text + other


def _counts(status: Status, detail: int) -> list[str]:
    vectors, warm = percent(status.with_vectors, status.chunks), percent(status.warm, status.chunks)
    files = count(status.files, "file") if detail >= 3 else f"{brief(status.files)} files"
    if detail >= 3:
        cache = [f"disk {gib(status.kv_bytes)} of {gib(status.budget_bytes)}"] if detail >= MOST_DETAIL else []
        return [files, f"found by meaning {vectors}%", f"read ahead {warm}%", *cache]
    return [files, f"read ahead {warm}%"] if detail >= 2 else [files] if detail else []
