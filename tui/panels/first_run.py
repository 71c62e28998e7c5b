"""First-run screen: choose a folder, see its contents and cost, start. Nothing is read before the start."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from desk_rag.assets import assets_dir
from desk_rag.ingest.preview import FolderPreview, IndexEstimate, giant_line
from desk_rag.sanitize import home_path
from desk_rag.tui.keys.bindings import bound
from desk_rag.tui.management.first_run import FirstRun
from desk_rag.tui.management.models import ModelChoice
from desk_rag.tui.management.session import Session
from desk_rag.tui.messages import Problem
from desk_rag.tui.panels.base import PanelScreen
from desk_rag.tui.panels.models import ModelsScreen
from desk_rag.tui.widgets.line_input import LineInput
from desk_rag.tui.wording import about, count, gib, hanging, safe

_TALL = 30
"""Rows of a terminal that has room for the preview and the sentences about what to do."""
_LOADING = "which takes some seconds at each start"
_FIRST_USE = "and at its first use tested, for a minute at most"
_PRIVACY = "Nothing leaves this computer: no account, no telemetry, no connection. Your files are only read."


class FirstRunScreen(PanelScreen):
    """Screen that asks for a folder: Enter previews it, Enter again chooses it; returns the folder."""

    NAME = "First steps"
    KEYS = (
        ("letters", "name a folder"),
        ("Up, Down", "choose one of those shown"),
        ("Tab", "complete the name with the chosen one"),
        ("Enter", "look at the folder; once it was looked at, start"),
        ("other_model", "choose the model; the embedded reader needs no download"),
        ("leave_out", "once it was looked at: leave out the folder chosen with Up or Down; again: read it after all"),
        ("leave_out", "without one chosen: leave out the file that holds most of the text"),
        ("Esc", "stop looking, or back to the name; then go on without a folder"),
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "go_on", "Look at it"),
        Binding("enter", "start", "Start"),
        Binding("tab", "complete", "Complete", priority=True),
        bound("other_model", "other_model", "Model", show=True),
        bound("leave_out", "leave_out", "Leave out"),
        Binding("up", "move(-1)", "Up", show=False),
        Binding("down", "move(1)", "Down", show=False),
    ]

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self._first_run = FirstRun(session)
        self._preview: FolderPreview | None = None
        self._described: Callable[[int], Content] = lambda _: Content("")
        """Preview as lines of a width."""
        self._stop = threading.Event()
        self._looking = False
        self._folders: list[Path] = []
        model = session.settings.model
        self._model = ModelChoice(model.name, model.quantization)
        self._taken = ""
        """Actual path of the folder that was put into the input; '' once something was typed."""

    def compose_body(self) -> ComposeResult:
        yield Static(
            Content.assemble(
                ("Which folder do you want to ask about?\n", "bold"),
                (
                    f"It is looked through first; nothing is read before you start. {self.keymap.shown('help')} "
                    "explains the keys here.",
                    "$foreground 60%",
                ),
            ),
            markup=False,
            id="first-intro",
        )
        yield LineInput("folder", "~/Documents")
        yield OptionList(id="folders", compact=True, markup=False)
        with VerticalScroll(id="preview-pane", can_focus=False):
            yield Static("", id="first-preview", markup=False)
        yield Static(Content.styled(_PRIVACY, "$foreground 60%"), markup=False, id="first-privacy")

    def on_mount(self) -> None:
        self.query_one(OptionList).can_focus = False
        self.query_one("#folder", Input).focus()
        self._complete_from("")

    def on_unmount(self) -> None:
        self._stop.set()

    # Choosing -------------------------------------------------------------------------------------------------

    @on(Input.Changed)
    def _typed(self, message: Input.Changed) -> None:
        self._taken = ""
        self.query_one(OptionList).highlighted = None  # Enter takes what was typed, not what was offered before
        self._forget_preview()
        self._complete_from(message.value)

    def _complete_from(self, typed: str) -> None:
        self.in_thread(partial(self._first_run.folders, typed), self._folders_came, group="folders")

    def _folders_came(self, folders: list[Path]) -> None:
        self._folders = folders
        options = self.query_one(OptionList)
        options.clear_options()
        options.add_options([Option(_offer(folder, self._first_run.left_out)) for folder in folders])
        options.highlighted = 0 if folders and not self.query_one("#folder", Input).value else None

    def action_move(self, by: int) -> None:
        """Choose one of the folders shown."""
        options = self.query_one(OptionList)
        if by > 0:
            options.action_cursor_down()
        else:
            options.action_cursor_up()

    def action_complete(self) -> None:
        """Take the chosen folder, or the only one, into the input."""
        folder = self._chosen or (self._folders[0] if self._folders else None)
        if folder is not None:
            self._take(folder)

    @on(OptionList.OptionSelected)
    def _clicked(self, message: OptionList.OptionSelected) -> None:
        self._take(self._folders[message.option_index])

    def _take(self, folder: Path) -> None:
        """Put a folder into the input, where its name is shown without what could steer the terminal."""
        self._taken = f"{str(folder).rstrip('/')}/"
        name = self.query_one("#folder", Input)
        with self.prevent(Input.Changed):
            name.value = f"{home_path(folder).rstrip('/')}/"
        name.cursor_position = len(name.value)
        self._forget_preview()
        self._complete_from(self._taken)

    @property
    def _chosen(self) -> Path | None:
        number = self.query_one(OptionList).highlighted
        return None if number is None or number >= len(self._folders) else self._folders[number]

    # Looking --------------------------------------------------------------------------------------------------

    def action_go_on(self) -> None:
        """Look through the folder without reading it."""
        if self._looking:
            return
        name = self.query_one("#folder", Input)
        if self._chosen is not None:
            self._take(self._chosen)
        if (self._taken or name.value).strip():
            self._look()

    def _look(self) -> None:
        typed = self._taken or self.query_one("#folder", Input).value
        self._stop = threading.Event()
        self._looking = True
        self._draw(Content("looking through the folder …"))
        self.in_thread(
            partial(self._first_run.preview, typed, self._stop.is_set, self._seen),
            self._preview_came,
            group="preview",
            failed=self._cannot_look,
        )

    def _seen(self, number: int) -> None:
        if not self._stop.is_set() and self.is_running:
            said = Content(f"looking through the folder: {count(number, 'file')} so far …")
            self.app.call_from_thread(self._draw, said)

    def _preview_came(self, preview: FolderPreview) -> None:
        self._looking = False
        if not preview.complete:
            self._draw(Content("Stopped."))
            return
        self._preview = preview
        if not any(folder.parent == preview.folder for folder in self._folders):  # those in it can be left out
            self._complete_from(f"{preview.folder}/")
        free, room = self._first_run.room()
        described = partial(_described, preview, free, room, self._model.name, self.session.file.path, self._model_key)
        self._described = lambda width: Content("\n").join([described(width), *self._left_out_lines(preview, width)])
        self.on_resize()
        self.refresh_bindings()

    def on_resize(self) -> None:
        if self._preview is not None:
            self._draw(self._described(self.query_one("#preview-pane").scrollable_content_region.width))

    def _left_out_lines(self, preview: FolderPreview, width: int) -> list[Content]:
        """Return what the user leaves out, and how more of it is left out or taken back."""
        key, left_out = self.keymap.shown("leave_out"), self._first_run.left_out
        names = ", ".join(path.name for path in left_out)
        lines = [_row(width, "without", f"{names}, by your choice; {key} reads it after all")] if left_out else []
        if preview.giant is not None:
            lines.append(_row(width, "", f"{key} leaves {preview.giant.name} out"))
        choice = [_row(width, "", f"Up or Down chooses a folder in it, and {key} leaves that out")]
        return [*lines, *(choice if preview.files or left_out else [])]

    def action_leave_out(self) -> None:
        """Leave out the chosen folder, or else the file with most of the text; or take it back. Then look again."""
        if self._preview is None:
            return
        left_out, number = self._first_run.left_out, self.query_one(OptionList).highlighted
        chosen = self._chosen if self._preview.folder in (self._chosen or Path()).parents else None
        wanted = chosen or self._preview.giant or next(iter(left_out), None)
        if wanted is None:
            return
        without = tuple(path for path in left_out if path != wanted)
        self._first_run.left_out = (*left_out, wanted) if without == left_out else without
        if chosen is not None and number is not None:
            offered = _offer(chosen, self._first_run.left_out)
            self.query_one(OptionList).replace_option_prompt_at_index(number, offered)
        self._preview = None
        self._look()

    def _cannot_look(self, problem: Problem) -> None:
        self._looking = False
        remedy = problem.remedy
        if self._folders and not self._taken:
            remedy = f"Tab completes the name: {home_path(self._folders[0])}"
        self._draw(Content.assemble(safe(f"{problem.message} ", "$error"), safe(remedy)))

    def _draw(self, content: Content) -> None:
        self.query_one("#first-preview", Static).update(content)
        self.query_one("#first-intro").display = self._preview is None or self.size.height >= _TALL

    def _forget_preview(self) -> None:
        self._stop.set()
        self._looking, self._preview, self._first_run.left_out = False, None, ()
        self._draw(Content(""))
        self.refresh_bindings()

    @property
    def _model_key(self) -> str:
        return self.keymap.shown("other_model")

    # Model ----------------------------------------------------------------------------------------------------

    def action_other_model(self) -> None:
        """Show the models on this computer, with the disk that this folder would take."""
        text = self._preview.estimate.text_bytes if self._preview is not None else None
        self.app.push_screen(ModelsScreen(self.session, self._model_chosen, text))

    def _model_chosen(self, choice: ModelChoice) -> None:
        self._model = choice
        if self._preview is not None:
            self._preview_came(self._preview)

    # Leaving --------------------------------------------------------------------------------------------------

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        ready = self._preview is not None and self._preview.files > 0
        if action == "start":
            return ready
        return not ready if action == "go_on" else True

    def action_start(self) -> None:
        """Index the folder from now on."""
        if self._preview is not None:
            folder = self._preview.folder
            self.in_thread(partial(self._first_run.choose, folder, self._model), self._started, group="start")

    def _started(self, unsaved: str) -> None:
        if unsaved:
            self.say(unsaved)
        self.dismiss()

    def action_close(self) -> None:
        """Stop the preview or discard it; if there is none, leave without a folder."""
        if self._looking or self._preview is not None:
            self._forget_preview()
        else:
            self.dismiss()


def _offer(folder: Path, left_out: Sequence[Path]) -> Content:
    """Return a folder as it is offered; the one that nobody would know says what it is."""
    if folder in left_out:
        return Content.assemble(safe(home_path(folder)), ("  left out", "$warning"))
    about = "  sample documents, to try desk-rag" if folder == assets_dir() / "sample_docs" else ""
    return Content.assemble(safe(home_path(folder)), (about, "$foreground 60%"))


def _described(
    preview: FolderPreview, free: int, room: int, name: str, file: Path, model_key: str, width: int
) -> Content:
    """Return the preview of a folder as lines of `width` cells."""
    row = partial(_row, width)
    if not preview.files:
        lines = [row("nothing", "no file in it can be read", style="$warning")]
        return Content("\n").join([*lines, *_not_read(preview, row)])
    cost = preview.estimate
    model = "embedded reader: needs no download and no GPU" if name == "embedded" else name
    lines = [
        row("will read", f"{count(preview.files, 'file')}, {gib(preview.size)}: {preview.kinds_line}"),
        *_not_read(preview, row),
        *([row("large", giant_line(preview.giant), style="$warning")] if preview.giant else []),
        Content(""),
        row("model", model),
        row("", f"{model_key} shows the models on this computer, and which of them fit"),
        row(
            "ready",
            f"by words in about {about(cost.seconds_to_words)}, by meaning in {about(cost.seconds_to_meaning)},",
        ),
        row("", f"once the model is loaded, {_LOADING if name == 'embedded' else _FIRST_USE}"),
        row("", f"all caches after about {about(cost.seconds_to_warm)} of idle time (rough)"),
        row("disk", _disk(cost, free, room)),
        row("noted in", f"{home_path(file)}: opened from now on"),
    ]
    return Content("\n").join(lines)


def _not_read(preview: FolderPreview, row: Callable[..., Content]) -> list[Content]:
    lines = []
    if preview.left_out:
        lines.append(row("left out", f"{preview.left_out.amount}: {preview.left_out.by_kind}"))
    if preview.unreadable:
        lines.append(row("no access", f"{preview.unreadable:,} may not be opened by you", style="$warning"))
    return lines


def _disk(cost: IndexEstimate, free: int, room: int) -> str:
    said = f"about {gib(cost.index_bytes)} for the index"
    said += f", {gib(min(cost.kv_bytes, room))} for caches, of {gib(free)} free"
    if cost.kv_bytes > room:
        share = 100 * room // max(1, cost.kv_bytes)
        said += f"; they would need {gib(cost.kv_bytes)}, so {share}% of the text is kept warm, the most used first"
    return said


def _row(width: int, label: str, text: str, *, style: str = "") -> Content:
    said = safe(text, style, single_line=True, most=400)
    return hanging(Content.styled(f" {label:<10}", "$foreground 60%"), said, width)
