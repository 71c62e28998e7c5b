"""Settings: each with meaning, value and origin; changed in the user's file after a question about the cost."""

from __future__ import annotations

from functools import partial
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.content import Content
from textual.widgets import Input, Static

from desk_rag.tui.management.session import Session
from desk_rag.tui.management.settings_list import SettingChange, SettingRow, SettingsList, shown
from desk_rag.tui.messages import Problem
from desk_rag.tui.panels.base import PanelScreen
from desk_rag.tui.panels.choice import Choice, ChoiceScreen
from desk_rag.tui.panels.value_input import ValueScreen
from desk_rag.tui.widgets.entry_list import EntryList
from desk_rag.tui.widgets.line_input import LineInput
from desk_rag.tui.wording import fit, home_path, safe

_NAME_CELLS = 28
_ORIGIN_CELLS = 13


class SettingsScreen(PanelScreen):
    """All settings in one list, filtered by typing."""

    NAME = "Settings"
    KEYS = (
        ("letters", "filter by name and meaning"),
        ("Up, Down", "move"),
        ("Enter", "change the setting; empty text means the default"),
        ("Esc", "clear the filter; without one, back"),
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "change", "Change"),
        Binding("up", "move(-1)", "Up", show=False),
        Binding("down", "move(1)", "Down", show=False),
        Binding("pageup", "move_page(-1)", "Page up", show=False),
        Binding("pagedown", "move_page(1)", "Page down", show=False),
    ]

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self._settings = SettingsList(session)
        self._all: list[SettingRow] = []
        self._rows: list[SettingRow] = []
        self._change_when_there = False

    def compose_body(self) -> ComposeResult:
        with Horizontal(id="library-filter"):
            yield LineInput("filter", "Type to filter")
        yield EntryList(id="entries")
        yield Static("", id="entry-detail", markup=False)

    def on_mount(self) -> None:
        self.query_one(LineInput).focus()
        self.title_right(home_path(self.session.file.path))
        self._load()

    def _load(self) -> None:
        self.in_thread(self._settings.rows, self._came, group="rows")

    def _came(self, rows: list[SettingRow]) -> None:
        self._all = rows
        self._list(keep=bool(self._rows))
        if self._change_when_there:
            self.action_change()

    def _list(self, *, keep: bool) -> None:
        words = self.query_one(LineInput).value.lower().split()
        self._rows = [row for row in self._all if all(word in f"{row.name} {row.meaning}".lower() for word in words)]
        entries = self.query_one(EntryList)
        (entries.change if keep else entries.show)(len(self._rows), empty="No setting says that.")
        self._draw()

    def _draw(self) -> None:
        entries = self.query_one(EntryList)
        width = entries.scrollable_content_region.width
        entries.take(0, [_line(row, width) for row in self._rows], entries.generation)

    def on_resize(self) -> None:
        self._draw()

    @on(EntryList.RowsWanted)
    def _rows_wanted(self) -> None:
        self._draw()

    @on(EntryList.Highlighted)
    def _highlighted(self) -> None:
        row = self._row
        self.query_one("#entry-detail", Static).update(_detail(row) if row is not None else "")

    @property
    def _row(self) -> SettingRow | None:
        number = self.query_one(EntryList).highlighted
        return self._rows[number] if number < len(self._rows) else None

    @on(Input.Changed, "#filter")
    def _filter_changed(self) -> None:
        self._list(keep=False)

    @on(EntryList.Chosen)
    def _clicked_again(self) -> None:
        self.action_change()

    def action_move(self, by: int) -> None:
        """Move the highlight."""
        self.query_one(EntryList).move(by)

    def action_move_page(self, by: int) -> None:
        """Move the highlight by a screen."""
        self.query_one(EntryList).move_page(by)

    def action_close(self) -> None:
        """Clear the filter; without one go back."""
        words = self.query_one(LineInput)
        if words.value:
            words.value = ""
        else:
            self.dismiss()

    # Changes --------------------------------------------------------------------------------------------------

    def action_change(self) -> None:
        """Ask for a new value of the highlighted setting; while the list is on its way, once it is there."""
        row, self._change_when_there = self._row, not self._all
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
                self._ask(row, text, problem.message)

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
    style = "$foreground 50%" if row.origin == "default" else "$accent"
    origin = fit(Content.styled(row.origin, style), _ORIGIN_CELLS)
    value = fit(safe(shown(_shown_value(row)), single_line=True, most=300), max(0, width - _NAME_CELLS - _ORIGIN_CELLS))
    return Content.assemble(name, value.stylize("bold") if row.origin != "default" else value, origin)


def _shown_value(row: SettingRow) -> object:
    """Return the value in force; of a change that waits for the next start, the new one."""
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
