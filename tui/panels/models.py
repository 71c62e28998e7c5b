"""Models screen: the models on this computer, those that fit first; Enter chooses one."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.widgets import Input, Static

from desk_rag.tui.management.models import ModelChoice, ModelRow, ModelsReport, ModelsView
from desk_rag.tui.management.session import Session
from desk_rag.tui.messages import StartWanted
from desk_rag.tui.panels.base import FilteredScreen
from desk_rag.tui.panels.choice import Choice, ChoiceScreen
from desk_rag.tui.panels.download import DownloadScreen
from desk_rag.tui.widgets.entry_list import EntryList
from desk_rag.tui.widgets.line_input import LineInput
from desk_rag.tui.wording import fit, safe

_NAME_SHARE = 0.45
_MORE = (
    "Another one: type a directory, a GGUF file, an Ollama name or ORG/NAME of the Hugging Face hub. Before desk-rag "
    "connects to the hub, you are asked."
)


class ModelsScreen(FilteredScreen[ModelRow]):
    """Screen of all models, filtered by typing; the typed text can also name another model."""

    NAME = "Models"
    PROMPT = "Type to filter, or name another model"
    KEYS = (
        ("letters", "filter, or name another model: a directory, a GGUF file, an Ollama name, ORG/NAME"),
        ("Up, Down", "move"),
        ("Enter", "choose the marked model, or the one that was typed"),
        ("Esc", "clear what was typed; then back"),
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "choose", "Choose"),
    ]

    def __init__(
        self, session: Session, take: Callable[[ModelChoice], None] | None = None, text_characters: int | None = None
    ) -> None:
        """Pass the choice to `take`, if given, instead of writing it to the settings."""
        super().__init__(session)
        self._models = ModelsView(session, text_characters)
        self._take = take
        self._came_once = False

    def compose_body(self) -> ComposeResult:
        yield Static("looking at the models on this computer …", id="library-summary", markup=False)
        yield from super().compose_body()

    def on_mount(self) -> None:
        self.query_one(LineInput).focus()
        if self.session.models is not None:
            self._came(self.session.models)
        self.in_thread(self._look, self._came, group="models")

    def _look(self) -> ModelsReport:
        """Show the models as soon as they are known; return them with their speed."""
        reports = self._models.reports()
        early = next(reports)
        if self.session.models is None:
            self.app.call_from_thread(self._if_here, self._came, early)
        return next(reports, early)

    def _came(self, report: ModelsReport) -> None:
        marked = self.highlighted_row
        self._all, self._came_once = report.rows, True
        said = report.machine
        if report.is_final:
            self.session.models = report
        else:
            said += " · measuring how fast they are here …"
        self.query_one("#library-summary", Static).update(safe(said, single_line=True, most=300))
        self._list()
        same = (number for number, row in enumerate(self._rows) if marked is not None and row.name == marked.name)
        self.query_one(EntryList).highlight(next(same, 0))

    def _list(self) -> None:
        self.list_rows(empty="Enter checks the model of this name." if self._came_once else "")

    def words_of(self, row: ModelRow) -> str:
        return row.name

    def line_of(self, row: ModelRow, width: int) -> Content:
        return _line(row, width)

    def detail_of(self, row: ModelRow | None) -> Content:
        return _detail(row) if row is not None else safe(_MORE)

    def choose(self) -> None:
        self.action_choose()

    @on(Input.Changed, "#filter")
    def _filter_changed(self) -> None:
        self._list()

    # The choice -----------------------------------------------------------------------------------------------

    def action_choose(self) -> None:
        """Check the marked model, or the one that was typed, and take it."""
        typed = self.query_one(LineInput).value.strip()
        row = self.highlighted_row
        name = typed if row is None or _exists(typed) else row.name
        if name:
            self.in_thread(partial(self._checked, name), self._ask, group="choice")

    def _checked(self, name: str) -> tuple[str, ModelChoice | None, str]:
        return name, self._models.find(name), "" if self._take is not None else self._models.cost()

    def _ask(self, checked: tuple[str, ModelChoice | None, str]) -> None:
        name, choice, cost = checked
        if choice is None:
            again = partial(self.in_thread, partial(self._checked, name), self._ask, group="choice")
            self.app.push_screen(DownloadScreen(self.session, name, again))
            return
        in_use = self.session.settings.model.name == choice.name
        if self._take is not None:
            self._take(choice)
            self.dismiss()
        elif in_use and self.session.indexing is not None:
            self.say(f"{choice.name} is in use.")
        elif not cost or in_use:
            self._make(choice)
        else:
            choices = (Choice("no", "n", "Leave it as it is"), Choice("yes", "y", "Use it from the next start on"))
            decided = partial(self._decided, choice)
            self.app.push_screen(ChoiceScreen(f"Use {choice.name}?", cost, choices), decided)

    def _decided(self, choice: ModelChoice, answer: str | None) -> None:
        if answer == "yes":
            self._make(choice)

    def _make(self, choice: ModelChoice) -> None:
        self.in_thread(partial(self._models.choose, choice), self._made, group="choice")

    def _made(self, sentence: str) -> None:
        self.say(sentence)
        if self.session.indexing is None:
            self.app.post_message(StartWanted())
        self.dismiss()


def _exists(typed: str) -> bool:
    """Return whether what was typed is a path of something."""
    try:
        return bool(typed) and Path(typed).expanduser().exists()
    except (OSError, RuntimeError, ValueError):
        return False


def _line(row: ModelRow, width: int) -> Content:
    mark, style = ("●", "$success") if row.in_use else ("○", "$foreground 65%") if row.suits else ("!", "$warning")
    name_cells = max(12, int(width * _NAME_SHARE))
    source = "ships with desk-rag" if row.source == row.name else row.source
    name = fit(safe(f"{row.name} [{source}]", single_line=True, most=200), name_cells)
    said = "in use; " if row.in_use else ""
    rest = fit(safe(f"{said}{row.verdict}", "$foreground 70%", single_line=True, most=300), width - name_cells - 5)
    return Content.assemble((f" {mark} ", style), name, "  ", rest)


def _detail(row: ModelRow) -> Content:
    return Content.assemble(
        safe(row.name, "bold", single_line=True, most=200), "  ", safe(row.verdict, single_line=True, most=600), "\n",
        safe(row.facts, "$foreground 70%", single_line=True, most=600),
    )  # fmt: skip
