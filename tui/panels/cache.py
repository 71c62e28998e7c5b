"""Cache screen: space, contents, what is evicted next; and a check of everything stored."""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import Static

from desk_rag.sanitize import clean, home_path
from desk_rag.tui.management.cache import CacheReport, CacheView
from desk_rag.tui.management.session import Session
from desk_rag.tui.messages import Problem
from desk_rag.tui.panels.base import PanelScreen
from desk_rag.tui.wording import count, fit_path, gib, hanging, percent, safe

if TYPE_CHECKING:
    from desk_rag.store.types import VerifyReport

_WIDEST_BAR = 40
_MOST_PROBLEMS = 20
_FULL_REMEDY = "Free some space on that drive, or keep the caches on another one: kv_dir under [store]."


class CacheScreen(PanelScreen):
    """Screen of the caches, read when it is opened and after each check."""

    NAME = "Cache"
    KEYS = (
        ("Enter", "check everything stored against its checksum; again: end the check"),
        ("Up, Down", "scroll"),
        ("settings", "settings: budget_gib and reserve_gib under [store] set the room"),
        ("Esc", "back"),
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "verify", "Verify"),
        Binding("enter", "end_check", "End the check"),
    ]

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self._view = CacheView(session)
        self._report: CacheReport | None = None
        self._stop: threading.Event | None = None
        """Set to end the check that runs; None while none does."""

    def compose_body(self) -> ComposeResult:
        with VerticalScroll(id="cache"):
            yield Static("", id="cache-verify", markup=False)
            yield Static("", id="cache-text", markup=False)

    def on_mount(self) -> None:
        self.query_one("#cache").focus()
        self._look()

    def on_unmount(self) -> None:
        self.action_end_check()

    def _look(self) -> None:
        self.in_thread(self._view.report, self._came, group="report")

    def _came(self, report: CacheReport | None) -> None:
        self._report = report
        self._draw()

    def _draw(self) -> None:
        width = self.query_one("#cache").scrollable_content_region.width
        said = Content(" Nothing is indexed yet.") if self._report is None else _text(self._report, width)
        self.query_one("#cache-text", Static).update(said)

    def on_resize(self) -> None:
        if self._report is not None:
            self._draw()

    # Check ----------------------------------------------------------------------------------------------------

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action == "verify":
            return self._stop is None
        return self._stop is not None if action == "end_check" else True

    def action_verify(self) -> None:
        """Check everything that is stored; nothing is changed."""
        self._stop = threading.Event()
        self._say(Content(" checking the catalog …"))
        self.refresh_bindings()
        job = partial(self._view.verify, self._heard, self._stop.is_set)
        self.in_thread(job, self._checked, group="verify", failed=self._not_checked)

    def action_end_check(self) -> None:
        """End the check."""
        if self._stop is not None:
            self._stop.set()

    def _heard(self, done: int, total: int) -> None:
        if self.is_running and (done % 8 == 0 or done == total):
            said = Content(f" checking: {done:,} of {total:,} KV files, {percent(done, total)}%")
            self.app.call_from_thread(self._say, said)

    def _checked(self, report: VerifyReport) -> None:
        self._over(_result(report))

    def _not_checked(self, problem: Problem) -> None:
        self._over(Content.assemble(" ", safe(f"{problem.message} {problem.remedy}", single_line=True, most=600)))

    def _over(self, said: Content) -> None:
        self._stop = None
        self._say(said)
        self.refresh_bindings()
        self._look()

    def _say(self, content: Content) -> None:
        if self.is_running:
            self.query_one("#cache-verify", Static).update(Content.assemble(content, "\n"))


def _text(report: CacheReport, width: int) -> Content:
    row = partial(_row, width)
    share = min(1.0, report.used / report.limit) if report.limit else 0.0
    used = f"  {gib(report.used)} of {gib(report.limit)}"
    bar = max(1, min(_WIDEST_BAR, width - len(used) - 2))
    filled = round(bar * share)
    lines = [
        Content.assemble(" ", ("█" * filled, "$success"), ("░" * (bar - filled), "$foreground 30%"), used),
        Content(""),
        row("warm", f"{report.warm:,} of {count(report.chunks, 'chunk')} ({percent(report.warm, report.chunks)}%)"),
    ]
    if report.auxiliary_bytes:
        chunks = f"{report.auxiliary_chunks:,} of {count(report.chunks, 'chunk')}"
        lines.append(row("auxiliary", f"{chunks}, {gib(report.auxiliary_bytes)} of the above"))
    if report.text_mb_per_gib is not None:
        lines.append(row("a GiB keeps", f"{report.text_mb_per_gib:.1f} MB of text (measured here)"))
    lines.append(row("room", _room(report)))
    if report.outlook:
        lines.append(row("all warm", report.outlook))
    lines.append(row("kept in", home_path(report.place)))
    if report.away:
        lines.append(row("! away", report.away, "$warning"))
    if report.full:
        lines.append(row("! full", f"{report.full}. {_FULL_REMEDY}", "$warning"))
    lines += [row("pinned", home_path(path)) for path in report.contents.pins]
    reasons = {one.reason for one in report.contents.next}
    common = f" ({reasons.pop()})" if len(reasons) == 1 else ""
    lines += [Content(""), Content.styled(f" Deleted next, if room is needed{common}", "bold")]
    for one in report.contents.next:
        size, reason = f" {gib(one.size):>8}  ", "" if common else f"  {one.reason}"
        path = clean(home_path(one.path), single_line=True) if one.path else "…"
        where = f"  {clean(one.place, single_line=True)}" if one.place else ""
        named = fit_path(path, min(len(path), max(20, width - len(size) - len(where) - len(reason))))
        lines.append(Content.assemble((size, "$foreground 60%"), named, (f"{where}{reason}", "$foreground 60%")))
    return Content("\n").join(lines if report.contents.next else [*lines, Content("   nothing: there are no caches")])


def _room(report: CacheReport) -> str:
    said = f"at most {gib(report.cap)} (budget_gib under [store])"
    if report.limit < report.cap:
        said += f", now {gib(report.limit)}, because {gib(report.reserve)} of the drive stay free (reserve_gib)"
    return said


def _result(report: VerifyReport) -> Content:
    read = f"{count(report.kv_files, 'KV file')} ({gib(report.kv_bytes)}), {count(report.documents, 'document')}"
    if report.clean:
        return Content.assemble((" ● ", "$success"), f"checked {read}: nothing is wrong")
    lines = [Content.assemble((" ! ", "$error"), f"checked {read}: {count(len(report.problems), 'problem')}")]
    lines += [
        Content.assemble("   ", safe(problem.what, single_line=True, most=300))
        for problem in report.problems[:_MOST_PROBLEMS]
    ]
    lines.append(Content("   desk-rag verify --repair removes what is damaged; it is made again when needed."))
    return Content("\n").join(lines)


def _row(width: int, label: str, text: str, style: str = "") -> Content:
    said = safe(text, style, single_line=True, most=400)
    return hanging(Content.styled(f" {label:<12}", "$foreground 60%"), said, width)
