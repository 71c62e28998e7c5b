"""Activity screen: progress, speed and reasons to wait of each stage; pause, or work now."""

from __future__ import annotations

import math
from functools import partial
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import Static

from desk_rag.documents.status import IndexStage
from desk_rag.tui.backend import Status
from desk_rag.tui.keys.bindings import bound
from desk_rag.tui.management.activity import (
    FULL_SPEED_SECONDS,
    UNTIL_RESTART,
    ActivityReport,
    ActivityView,
    Failure,
    StageRow,
)
from desk_rag.tui.management.session import Session
from desk_rag.tui.messages import PauseWanted
from desk_rag.tui.panels.base import PanelScreen
from desk_rag.tui.panels.choice import Choice, ChoiceScreen
from desk_rag.tui.wording import about, hanging, percent, safe

_SECONDS = 1.0
_NAMES = {
    IndexStage.SCAN: ("looked through", "files"),
    IndexStage.WORDS: ("found by words", "files"),
    IndexStage.VECTORS: ("found by meaning", "chunks"),
    IndexStage.WARM: ("warm: fast answers", "chunks"),
}
_BAR = 16
_PAUSES = (
    Choice("3600", "1", "For an hour"),
    Choice("28800", "8", "For eight hours"),
    Choice("inf", "r", "Until desk-rag is started again, or you let it go on"),
)


class ActivityScreen(PanelScreen):
    """Screen of what the indexer does, renewed every second."""

    NAME = "Activity"
    KEYS = (
        ("Enter", "pause, or go on"),
        ("work_now", "fill caches for an hour although the computer is busy; again: no longer"),
        ("pause", "pause for an hour, or go on"),
        ("Esc", "back"),
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "pause", "Pause …"),
        Binding("enter", "go_on", "Go on"),
        bound("work_now", "work_now(True)", "Work now", show=True),
        bound("work_now", "work_now(False)", "Only when idle", show=True),
    ]

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self._view = ActivityView(session)
        self._report = ActivityReport(())

    def compose_body(self) -> ComposeResult:
        with VerticalScroll(id="activity"):
            yield Static("", id="activity-text", markup=False)

    def on_mount(self) -> None:
        self.query_one("#activity").focus()
        self._look()
        self.set_interval(_SECONDS, self._look)

    def _look(self) -> None:
        if self.is_current:
            status = getattr(self.app, "status", Status())
            self.in_thread(partial(self._view.report, status), self._came, group="report")

    def _came(self, report: ActivityReport) -> None:
        changed = report != self._report
        self._report = report
        if changed:
            self._draw()
            self.refresh_bindings()

    def _draw(self) -> None:
        width = self.query_one("#activity").scrollable_content_region.width
        text = _text(self._report, self.keymap.shown("library"), self.keymap.shown("cache"), width)
        self.query_one("#activity-text", Static).update(text)

    def on_resize(self) -> None:
        if self._report.stages:
            self._draw()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        paused = self._report.paused_seconds is not None
        if action in ("pause", "go_on"):
            return paused is (action == "go_on")
        if action == "work_now":
            return (self._report.full_speed_seconds is None) is parameters[0]
        return True

    def action_pause(self) -> None:
        """Ask for a duration, and pause."""

        def answered(name: str | None) -> None:
            if name is not None:
                self._pause(UNTIL_RESTART if name == "inf" else float(name))

        text = "Reading, vectors and caches stand still meanwhile. Questions are answered as ever."
        self.app.push_screen(ChoiceScreen("Pause the indexing", text, _PAUSES), answered)

    def action_go_on(self) -> None:
        """End the pause."""
        self._pause(None)

    def _pause(self, seconds: float | None) -> None:
        self.app.post_message(PauseWanted(seconds))
        self.set_timer(0.3, self._look)

    def action_work_now(self, now: bool) -> None:
        """Fill caches although the computer is busy, or only when it is idle."""
        seconds = FULL_SPEED_SECONDS if now else None
        self.in_thread(partial(self._view.work_now, seconds), lambda _: self._look(), group="work")


def _text(report: ActivityReport, library_key: str, cache_key: str, width: int) -> Content:
    lines = [_state(report), *_attended(report), Content("")]
    if report.no_caches:
        lines.insert(1, Content.styled(f"   {cache_key} says what helps", "$foreground 60%"))
    if report.gone:
        label = Content.styled(" ! ", "$warning")
        lines.insert(-1, hanging(label, safe(report.gone, single_line=True, most=200), width))
        lines.insert(-1, Content.styled(f"   answers still quote them; {library_key} lists them", "$foreground 60%"))
    lines += [_stage(row) for row in report.stages]
    if report.current:
        lines += [Content(""), _labelled("last read", report.current)]
    if report.failures:
        lines += [Content(""), Content.styled(f" Could not be read ({library_key} lists the files)", "bold")]
        lines += [
            hanging(Content.styled(f"  {failure.files:>6,}  ", "$error"), _failure(failure), width)
            for failure in report.failures
        ]
    return Content("\n").join(lines)


def _state(report: ActivityReport) -> Content:
    if report.paused_seconds is not None:
        left = "until desk-rag is started again" if math.isinf(report.paused_seconds) else about(report.paused_seconds)
        return Content.assemble((" ‖ ", "$warning"), f"paused: {left}")
    if not report.writer:
        return Content.assemble((" ○ ", "$warning"), "nobody indexes now; files that change are not noticed")
    if report.waiting:
        return Content.assemble((" ◐ ", "$primary"), safe(f"waiting: {report.waiting}", single_line=True, most=200))
    if report.no_caches:
        return Content.assemble((" ! ", "$warning"), safe(report.no_caches, single_line=True, most=200))
    at_work = any(row.at_work for row in report.stages)
    mark = (" ◐ ", "$primary") if at_work else (" ● ", "$success")
    return Content.assemble(mark, "at work" if at_work else "everything is up to date")


def _attended(report: ActivityReport) -> list[Content]:
    """Return the line about who indexes, unless nobody does now."""
    if report.paused_seconds is not None or not report.writer:
        return []
    said = f"   indexed by {report.writer}"
    if report.full_speed_seconds is not None:
        said += f"; works although the computer is busy, for {about(report.full_speed_seconds)}"
    elif report.waiting:
        said += "; questions are answered meanwhile"
    return [Content.styled(said, "$foreground 60%")]


def _failure(failure: Failure) -> Content:
    """Return a reason and the files that it is about, some of them by name."""
    names = ", ".join(failure.named)
    if names and failure.files > len(failure.named):
        names += ", …"
    reason = failure.reason.rstrip(".")
    return safe(f"{reason}: {names}" if names else reason, single_line=True, most=400)


def _stage(row: StageRow) -> Content:
    name, unit = ("warm: auxiliary", "chunks") if row.of_auxiliary else _NAMES[row.stage]
    if row.stage is IndexStage.SCAN and not row.at_work:
        return Content.styled(f"   {name:<20} nothing to look through now", "$foreground 60%")
    share = percent(row.done, row.total)
    filled = _BAR * row.done // row.total if row.total else 0
    line = Content.assemble(
        (" ▸ " if row.at_work else "   ", "$primary"),
        f"{name:<20} ",
        ("█" * filled, "$success"),
        ("░" * (_BAR - filled), "$foreground 30%"),
        f" {share:>3}%  {row.done:,} of {row.total:,} {unit}",
    )
    said = [f"{row.rate:,.1f} {unit} a second"] if row.rate else []
    said += [f"{about(row.eta_seconds)} left"] if row.at_work and row.eta_seconds is not None else []
    if said:
        line += Content.styled(f"\n   {'':<20} {' · '.join(said)}", "$foreground 70%")
    return line


def _labelled(label: str, text: str) -> Content:
    return Content.assemble((f"   {label:<20} ", "$foreground 60%"), safe(text, single_line=True, most=200))
