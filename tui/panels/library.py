"""Library screen: folders and files with their states and reasons, and actions on each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.content import Content
from textual.timer import Timer
from textual.widgets import Input, Static
from textual.worker import get_current_worker

from desk_rag.indexer.resident.exclusion import OWN_REASON
from desk_rag.ingest.explanation import SECRET, Explanation
from desk_rag.sanitize import clean, home_path
from desk_rag.tui.keys.bindings import bound
from desk_rag.tui.management.library import Entry, EntryState, FileEntry, FolderEntry, Library, Listed, Shown, Summary
from desk_rag.tui.management.library_changes import Change, Exclusion, LibraryChanges, exception_for
from desk_rag.tui.management.session import Session
from desk_rag.tui.messages import Problem
from desk_rag.tui.panels.base import ListScreen
from desk_rag.tui.panels.choice import Choice, ChoiceScreen
from desk_rag.tui.screens.document_text import DocumentTextScreen
from desk_rag.tui.widgets.entry_line import detail, entry_line, explained
from desk_rag.tui.widgets.entry_list import PAGE, EntryList
from desk_rag.tui.widgets.line_input import LineInput
from desk_rag.tui.wording import count, safe, sent_for_clipboard

_FILTER_SECONDS = 0.15
"""Seconds without a key after which the typed words are searched for."""
_RENEW_SECONDS = 2.0
"""Seconds after which the rows in view are read again."""
_CANCELLED = "Cancelled; nothing was changed."


class LibraryScreen(ListScreen):
    """Screen of one folder, or of everything below it that matches the typed words."""

    NAME = "Library"
    KEYS = (
        ("letters", "filter by parts of the path; all words must occur"),
        ("Up, Down", "move; Page Up, Page Down, Ctrl+Home, Ctrl+End further"),
        ("Enter", "open: go into a folder, read the text of a file"),
        ("entry_actions", "what can be done with the folder or file"),
        ("Backspace", "without a filter: the folder above"),
        ("show", "list all files, those read, failed or left out"),
        ("undo", "undo the last change"),
        ("Esc", "clear the filter; without one, back"),
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "open", "Open"),
        bound("entry_actions", "actions", "Actions", show=True),
        bound("show", "show_next", "Show", show=True),
    ]

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self._library, self._changes = Library(session), LibraryChanges(session)
        self._listed = Listed(None)
        self._shown = Shown.ALL
        self._entries: dict[int, Entry] = {}
        self._explained: tuple[Path, str] | None = None
        self._loading = True
        self._when_there: Callable[[], None] | None = None
        """Action whose key was pressed before the row came that it is about."""
        self._seen = -1
        """State of the index when the list was made."""
        self._typing: Timer | None = None
        """Runs from the last typed letter to the search."""

    def compose_body(self) -> ComposeResult:
        yield Static("", id="library-summary", markup=False)
        with Horizontal(id="library-filter"):
            yield LineInput("filter", "Type to filter")
            yield Static("", id="library-shown", markup=False)
        yield EntryList(id="entries")
        yield Static("", id="entry-detail", markup=False)

    def on_mount(self) -> None:
        self.query_one("#filter", Input).focus()
        self._draw_shown()
        self.in_thread(self._library.start, self._show_folder, group="start", failed=self._not_listed)
        self.set_interval(_RENEW_SECONDS, self._renew)

    # The list -------------------------------------------------------------------------------------------------

    def _go(self, folder: Path | None, coming_from: Path | None = None) -> None:
        with self.prevent(Input.Changed):
            self.query_one("#filter", Input).value = ""
        self._show_folder(folder, coming_from)

    def _show_folder(self, folder: Path | None, coming_from: Path | None = None) -> None:
        self._load(folder, coming_from=coming_from)
        self.in_thread(partial(self._library.summary, folder), self._summary_came, group="summary")

    def _load(self, folder: Path | None, *, again: bool = False, coming_from: Path | None = None) -> None:
        words, self._loading = self.query_one("#filter", Input).value, True
        self._stop_typing()
        shown = self._shown

        def job() -> Listed:
            worker = get_current_worker()
            return self._library.browse(folder, words, shown, lambda: worker.is_cancelled)

        then = partial(self._list_came, words, again, coming_from)
        self.in_thread(job, then, group="list", failed=self._not_listed)

    def _not_listed(self, problem: Problem) -> None:
        self._loading = False
        self.complain(problem)

    def _list_came(self, words: str, again: bool, coming_from: Path | None, listed: Listed) -> None:
        self._listed, self._loading = listed, False
        self.title_right("all folders" if listed.folder is None else home_path(listed.folder))
        empty = listed.nothing(self._shown, words, self.keymap.shown("show"))
        rows = self.query_one(EntryList)
        if again:
            rows.change(listed.total, empty=empty)
        else:
            self._entries.clear()
            row = next((n for n, entry in enumerate(listed.folders) if entry.path == coming_from), 0)
            rows.show(listed.total, empty=empty, highlighted=row)

    def _summary_came(self, summary: Summary) -> None:
        parts = [f"! {summary.absent}; its files are kept and still found"] if summary.absent else []
        parts += [f"{count(summary.indexed, 'file')} read"]
        parts += [f"{summary.failed:,} failed"] if summary.failed else []
        parts += [summary.not_read] if summary.not_read else []
        self.query_one("#library-summary", Static).update(safe(" · ".join(parts), single_line=True, most=400))

    @on(EntryList.RowsWanted)
    def _rows_wanted(self, message: EntryList.RowsWanted) -> None:
        listed, first = self._listed, message.first
        self.in_thread(
            partial(self._library.entries, listed, first, PAGE),
            partial(self._rows_came, first, message.generation),
            group=f"rows-{first}",
        )

    def _rows_came(self, first: int, generation: int, entries: list[Entry]) -> None:
        rows = self.query_one(EntryList)
        if generation != rows.generation:
            return
        self._entries.update(enumerate(entries, first))
        width = rows.scrollable_content_region.width
        base = self._listed.folder
        rows.take(first, [entry_line(entry, base, width) for entry in entries], generation)
        if first <= rows.highlighted < first + len(entries):
            self._draw_detail()
            self.refresh_bindings()
            wanted, self._when_there = self._when_there, None
            if wanted is not None:
                wanted()

    def on_resize(self) -> None:
        rows = self.query_one(EntryList)
        width, base = rows.scrollable_content_region.width, self._listed.folder
        for number, entry in self._entries.items():
            rows.take(number, [entry_line(entry, base, width)], rows.generation)

    def _renew(self) -> None:
        """Read the rows in view again, or the whole list if the index has changed."""
        if self.is_current:
            self.in_thread(self._library.changes, self._changes_came, group="renew")

    def _changes_came(self, changes: int) -> None:
        if self._loading:
            return  # what comes is new
        if changes != self._seen and self._seen >= 0:
            self._reload()
        else:
            self.query_one(EntryList).renew()
        self._seen = changes

    # Where the highlight is -----------------------------------------------------------------------------------

    @on(EntryList.Highlighted)
    def _highlighted(self) -> None:
        self._draw_detail()
        self.refresh_bindings()

    @property
    def _entry(self) -> Entry | None:
        return self._entries.get(self.query_one(EntryList).highlighted)

    def _entry_or_later(self, action: Callable[[], None]) -> Entry | None:
        """Return the highlighted entry; if it has not come yet, `action` is run when it has."""
        if self._typing is not None:
            self._load(self._listed.folder)
        entry = None if self._loading else self._entry
        self._when_there = action if entry is None else None
        return entry

    def _draw_detail(self) -> None:
        entry = self._entry
        pane = self.query_one("#entry-detail", Static)
        if entry is None:
            pane.update("")
            return
        why = self._explained[1] if self._explained and self._explained[0] == entry.path else ""
        pane.update(detail(entry, why))
        if not why and isinstance(entry, FileEntry):
            self.in_thread(partial(self._library.why, entry.path), partial(self._why_came, entry.path), group="why")

    def _why_came(self, path: Path, explanation: Explanation) -> None:
        self._explained = (path, explained(explanation, path))
        if self._entry is not None and self._entry.path == path:
            self._draw_detail()

    # Keys -----------------------------------------------------------------------------------------------------

    @on(Input.Changed)
    def _filter_changed(self) -> None:
        """Search once no letter has come for a moment, and no longer for what was typed before."""
        self._entries.clear()  # what is highlighted now is not what will be
        self._loading = True
        self.workers.cancel_group(self, "list")
        self._stop_typing()
        self._typing = self.set_timer(_FILTER_SECONDS, partial(self._load, self._listed.folder))

    def _stop_typing(self) -> None:
        if self._typing is not None:
            self._typing.stop()
            self._typing = None

    @on(EntryList.Chosen)
    def _clicked_again(self) -> None:
        self.action_open()

    def action_open(self) -> None:
        """Go into the folder, or show the text of the file; if the list is on its way, once it is there."""
        entry = self._entry_or_later(self.action_open)
        if isinstance(entry, FolderEntry):
            self._go(entry.path)
        elif entry is not None:
            self._read(entry.path)

    def key_backspace(self) -> None:
        """Go to the folder above, if there is no filter to shorten."""
        folder = self._listed.folder
        if not self.query_one("#filter", Input).value and folder is not None:
            job = partial(self._library.parent, folder)
            self.in_thread(job, partial(self._go, coming_from=folder), group="list")

    def action_close(self) -> None:
        """Clear the filter; without one go back."""
        if self.query_one("#filter", Input).value:
            self._go(self._listed.folder)
        else:
            self.dismiss()

    def action_show_next(self) -> None:
        """List files in another state."""
        kinds = list(Shown)
        self._shown = kinds[(kinds.index(self._shown) + 1) % len(kinds)]
        self._draw_shown()
        self._load(self._listed.folder)

    def _draw_shown(self) -> None:
        style = "$foreground 60%" if self._shown is Shown.ALL else "$accent"
        self.query_one("#library-shown", Static).update(Content.styled(f"{self._shown.value} ", style))

    # Changes --------------------------------------------------------------------------------------------------

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action == "actions":
            return not self.is_mounted or self._loading or self._listed.total > 0
        return True

    def action_actions(self) -> None:
        """Show what can be done with the highlighted folder or file; if its row is on its way, once it is there."""
        entry = self._entry_or_later(self.action_actions)
        if entry is not None:
            done = partial(self._do, entry)
            self.app.push_screen(ChoiceScreen(entry.path.name or str(entry.path), "", _choices(entry)), done)

    def _do(self, entry: Entry, what: str | None) -> None:
        path = entry.path
        if what == "text":
            self._read(path)
        elif what == "copy":
            self.app.copy_to_clipboard(safe(str(path), single_line=True).plain)
            self.say(sent_for_clipboard("Path"))
        elif what == "again":
            self._change(partial(self._changes.read_again, path))
        elif what == "pin" and isinstance(entry, FolderEntry):
            self._change(partial(self._changes.pin, path, pinned=not entry.pinned))
        elif what == "allow":
            self._change(partial(self._changes.allow, path))
        elif what == "secret":
            self._ask_to_read_secret(path)
        elif what == "exclude":
            self._ask_to_exclude(path)
        elif what == "forget":
            self._ask_to_forget(entry)

    def _read(self, path: Path) -> None:
        """Show the text that was read from a file, or why there is none."""
        self.in_thread(partial(self._library.titled_text, path), self._show_text, group="read")

    def _show_text(self, titled: tuple[str, str]) -> None:
        title, text = titled
        self.app.push_screen(DocumentTextScreen(title, clean(text)))

    def _ask_to_exclude(self, path: Path) -> None:
        root = next((root for root in self.session.folders if root in path.parents), None)
        if root is None:
            self.say("Only what is inside a folder of this window can be excluded; forget the folder instead.")
            return
        self.in_thread(partial(self._changes.exclusion, path, root), self._exclusion_came, group="change")

    def _exclusion_came(self, exclusion: Exclusion) -> None:
        text = (
            f"A rule for {home_path(exclusion.path)} is added to `exclude` in {home_path(self.session.file.path)}. "
            f"{count(exclusion.indexed, 'document')} will leave the index; the files themselves stay as they are. "
            f"{self.keymap.shown('undo')} undoes it until you quit; caches are kept for a while."
        )
        job = partial(self._changes.exclude, exclusion)
        self._ask(f"Exclude {exclusion.path.name}?", text, {Choice("yes", "y", "Exclude"): job})

    def _ask_to_read_secret(self, path: Path) -> None:
        text = (
            f"“{exception_for(path)}” is added to `exclude` in {home_path(self.session.file.path)}. What may be a "
            "secret is then kept in the index, and answers may quote it. "
            f"{self.keymap.shown('undo')} undoes it until you quit."
        )
        job = partial(self._changes.read_secret, path)
        self._ask(f"Read {path.name} all the same?", text, {Choice("yes", "y", "Read it"): job})

    def _ask_to_forget(self, entry: Entry) -> None:
        hours = self.session.settings.index.deletion_grace_hours
        text = (
            f"Text, words, vectors and caches of {home_path(entry.path)} are removed from the index, and it is indexed "
            "no more. Your own files stay as they are."
        )
        keep = Choice("keep", "k", f"Forget; keep the caches for {hours:g} h, so that it can be undone")
        all_of_it = Choice("all", "a", "Forget all of it now; this cannot be undone")
        forget = partial(self._changes.forget, entry.path)
        jobs = {keep: partial(forget, keep_caches=True), all_of_it: partial(forget, keep_caches=False)}
        self._ask(f"Forget {entry.path.name}?", text, jobs, leave=True)

    def _ask(self, title: str, text: str, jobs: Mapping[Choice, Callable[[], Change]], *, leave: bool = False) -> None:
        """Make the change that the user chooses; none if the user cancels."""
        by_name = {choice.name: job for choice, job in jobs.items()}

        def answered(answer: str | None) -> None:
            if (job := by_name.get(answer or "")) is not None:
                self._change(job, leave=leave)
            else:
                self.say(_CANCELLED)

        self.app.push_screen(ChoiceScreen(title, text, (Choice("no", "n", "Cancel"), *jobs)), answered)

    def _change(self, job: Callable[[], Change], *, leave: bool = False) -> None:
        self.in_thread(job, partial(self._changed, leave), group="change")

    def _changed(self, leave: bool, change: Change) -> None:
        self.session.undo = change.undo or self.session.undo
        self.say(change.sentence + (f" {self.keymap.shown('undo')} undoes it." if change.undo else ""))
        self._reload(leave)

    def _reload(self, leave: bool = False) -> None:
        self._explained = None
        self.refresh_bindings()
        if leave:
            self.in_thread(self._library.start, self._go, group="list")
        else:
            self._load(self._listed.folder, again=True)
        folder = self._listed.folder
        self.in_thread(partial(self._library.summary, folder), self._summary_came, group="summary")

    def on_undone(self) -> None:
        """List what the undo has changed."""
        self._reload()


def _choices(entry: Entry) -> tuple[Choice, ...]:
    exclude = Choice("exclude", "x", "Exclude it …")
    if isinstance(entry, FolderEntry):
        return (
            Choice("pin", "p", "Unpin: caches deleted like others" if entry.pinned else "Pin: caches deleted last"),
            *([Choice("again", "r", "Read the files that failed again")] if entry.failed else []),
            exclude,
            Choice("forget", "f", "Forget the folder …"),
            Choice("copy", "c", "Copy its path"),
        )
    text = (Choice("text", "t", "Show the text that was read"),) if entry.chunks else ()
    is_left_out = entry.state is EntryState.LEFT_OUT
    again = () if is_left_out or entry.state.value in ("gone", "waiting") else (Choice("again", "r", "Read it again"),)
    if is_left_out and entry.reason.startswith(OWN_REASON):
        exclude = Choice("allow", "r", "Read it from now on")
    elif is_left_out and entry.reason.startswith(SECRET):
        exclude = Choice("secret", "r", "Read it all the same …")
    return (*text, *again, exclude, Choice("forget", "f", "Forget it …"), Choice("copy", "c", "Copy its path"))
