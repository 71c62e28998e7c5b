"""Doctor screen: the checks of `desk-rag doctor` one by one, with a remedy for each fault."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import Static

from desk_rag.tui.management.checks import Finding
from desk_rag.tui.management.session import Session
from desk_rag.tui.panels.base import PanelScreen
from desk_rag.tui.wording import count, hanging, safe

_MARKS = {"ok": ("●", "$success"), "warn": ("!", "$warning"), "fail": ("✗", "$error")}


class DoctorScreen(PanelScreen):
    """Screen of all checks, run when it is opened and again with Enter."""

    NAME = "Doctor"
    KEYS = (("Enter", "check again"), ("Up, Down", "scroll"), ("Esc", "back"))
    BINDINGS: ClassVar[list[BindingType]] = [Binding("enter", "check", "Check again")]

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self._findings: list[Finding] = []

    def compose_body(self) -> ComposeResult:
        yield Static("", id="doctor-summary", markup=False)
        with VerticalScroll(id="findings"):
            yield Static("", id="findings-text", markup=False)

    def on_mount(self) -> None:
        self.query_one("#findings").focus()
        self.action_check()

    def action_check(self) -> None:
        """Run all checks from the beginning."""
        self._findings = []
        self._draw(done=False)
        self.in_thread(self._run_checks, lambda _: self._draw(done=True), group="checks")

    def _run_checks(self) -> None:
        for finding in self.session.checks(self.session.settings):
            if not self.is_running:
                return
            self.app.call_from_thread(self._came, finding)

    def _came(self, finding: Finding) -> None:
        self._findings.append(finding)
        self._draw(done=False)

    def _draw(self, *, done: bool) -> None:
        if not self.is_running:
            return
        verdicts = [str(finding.verdict.value) for finding in self._findings]
        said = f"{count(len(verdicts), 'check')}: {_verdict(verdicts)}" if done else f"checking … {len(verdicts)} done"
        self.query_one("#doctor-summary", Static).update(Content(said))
        self._list()

    def _list(self) -> None:
        width = self.query_one("#findings").scrollable_content_region.width
        said = Content("\n").join(_lines(finding, width) for finding in self._findings)
        self.query_one("#findings-text", Static).update(said)

    def on_resize(self) -> None:
        self._list()


def _verdict(verdicts: list[str]) -> str:
    bad = [f"{verdicts.count(kind)} {word}" for kind, word in (("fail", "failed"), ("warn", "to look at"))
           if kind in verdicts]  # fmt: skip
    return ", ".join(bad) or "nothing is wrong"


def _lines(finding: Finding, width: int) -> Content:
    verdict = str(finding.verdict.value)
    mark, style = _MARKS[verdict]
    name = Content.assemble((f" {mark} ", style), safe(f"{finding.name:<14}", "bold", most=40), " ")
    line = hanging(name, safe(finding.detail, single_line=True, most=1_000), width)
    if not finding.remedy or verdict == "ok":
        return line
    remedy = safe(finding.remedy, "$accent", single_line=True, most=1_000)
    return Content.assemble(line, "\n", hanging(Content(" " * name.cell_length), remedy, width))
