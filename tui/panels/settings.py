"""Settings screen: meaning, value and origin of each; a change that costs work is confirmed first."""

from __future__ import annotations

from functools import partial
from typing import ClassVar

from textual import on
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.widgets import Input

from desk_rag.sanitize import home_path
from desk_rag.tui.management.session import Session
from desk_rag.tui.management.settings_list import SettingChange, SettingRow, SettingsList, shown
from desk_rag.tui.messages import Problem
from desk_rag.tui.panels.base import FilteredScreen
from desk_rag.tui.panels.choice import Choice, ChoiceScreen
from desk_rag.tui.panels.value_input import ValueScreen
from desk_rag.tui.widgets.line_input import LineInput
from desk_rag.tui.wording import fit, safe

_NAME_CELLS = 28
_ORIGIN_CELLS = 13
_EMPTY = "No setting says that."


class SettingsScreen(FilteredScreen[SettingRow]):
    """Screen of all settings, filtered by typing."""

    NAME = "Settings"
    KEYS = (
        ("letters", "filter by name and meaning"),
        ("Up, Down", "move"),
        ("Enter", "change the setting; empty text means the default"),
        ("Esc", "clear the filter; without one, back"),
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "change", "Change"),
    ]

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self._settings = SettingsList(session)
        self._change_when_there = False

    def on_mount(self) -> None:
        self.query_one(LineInput).focus()
        self.title_right(home_path(self.session.file.path))
        self._load()

    def _load(self) -> None:
        self.in_thread(self._settings.rows, self._came, group="rows")

    def _came(self, rows: list[SettingRow]) -> None:
        self._all = rows
        self.list_rows(empty=_EMPTY, keep=bool(self._rows))
        if self._change_when_there:
            self.action_change()

    def words_of(self, row: SettingRow) -> str:
        return f"{row.name} {row.meaning}"

    def line_of(self, row: SettingRow, width: int) -> Content:
        return _line(row, width)

    def detail_of(self, row: SettingRow | None) -> Content:
        return _detail(row) if row is not None else Content()

    def choose(self) -> None:
        self.action_change()

    @on(Input.Changed, "#filter")
    def _filter_changed(self) -> None:
        self.list_rows(empty=_EMPTY)

    # Changes --------------------------------------------------------------------------------------------------

    def action_change(self) -> None:
        """Ask for a new value of the highlighted setting; while the list is on its way, once it is there."""
        row, self._change_when_there = self.highlighted_row, not self._all
        if row is not None and row.choices:
            choices = [Choice(value, str(number), value) for number, value in enumerate(row.choices, 1)]
            self.app.push_screen(ChoiceScreen(row.name, row.meaning, choices), partial(self._typed, row))
        elif row is not None:
            self._ask(row, shown(row.value) if row.value != "" else "")

    def _ask(self, row: SettingRow, value: str, problem: str = "") -> None:
        self.app.push_screen(ValueScreen(row.name, row.meaning, value, problem), partial(self._typed, row))

    def _typed(self, row: SettingRow, text: str | None) -> None:
        if text is None:
            return

        def wrong(problem: Problem) -> None:
            if row.choices:
                self.complain(problem)
            else:
                self._ask(row, text, problem.message.removeprefix(f"{self.session.file.path}: "))

        job = partial(self._settings.prepare, row, text)
        self.in_thread(job, self._prepared, group="change", failed=wrong)

    def _prepared(self, change: SettingChange) -> None:
        if not change.cost:
            self._make(change)
            return
        value = shown(change.row.default if change.value is None else change.value)
        choices = (Choice("no", "n", "Leave it as it is"), Choice("yes", "y", f"Change it to {value}"))

        def answered(answer: str | None) -> None:
            if answer == "yes":
                self._make(change)

        self.app.push_screen(ChoiceScreen(f"Change {change.row.name}?", change.cost, choices), answered)

    def _make(self, change: SettingChange) -> None:
        self.in_thread(partial(self._settings.make, change), self._made, group="change")

    def _made(self, sentence: str) -> None:
        self.say(sentence)
        self.app.use_keys()  # type: ignore[attr-defined]
        self._load()


def _line(row: SettingRow, width: int) -> Content:
    name = fit(Content(f" {row.name}"), _NAME_CELLS)
    style = "$foreground 65%" if row.origin == "default" else "$accent"
    origin = fit(Content.styled(row.origin, style), _ORIGIN_CELLS)
    value = fit(safe(shown(_shown_value(row)), single_line=True, most=300), max(0, width - _NAME_CELLS - _ORIGIN_CELLS))
    return Content.assemble(name, value.stylize("bold") if row.origin != "default" else value, origin)


def _shown_value(row: SettingRow) -> object:
    """Return the value in use, or the new one if a change waits for the next start."""
    return row.value if row.origin == "next start" else row.in_use


def _detail(row: SettingRow) -> Content:
    said = f"{row.meaning} Default: {shown(row.default)}."
    if row.origin == "next start":
        said += f" This run works with {shown(row.in_use)}."
    elif row.in_use != row.value:
        said += f" Without the {row.origin} it is {shown(row.value)}; a change is made in the settings file."
    return Content.assemble(
        (row.name, "bold"), "  ", safe(shown(_shown_value(row)), "$accent", single_line=True, most=200), "\n",
        safe(said, single_line=True, most=900),
    )  # fmt: skip
