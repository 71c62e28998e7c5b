"""One folder or file of the library as a line, and in words below the list."""

from __future__ import annotations

from pathlib import Path

from textual.content import Content

from desk_rag.ingest.explanation import GONE_COMMAND, SECRET_COMMAND, Explanation, rule_in_words
from desk_rag.ingest.unread import with_contents
from desk_rag.sanitize import clean_name, home_path
from desk_rag.tui.management.library import Entry, EntryState, FileEntry, FolderEntry
from desk_rag.tui.wording import count, fit, fit_path, percent, safe

_MARKS = {
    EntryState.READ: ("●", "$success"),
    EntryState.CHANGED: ("◐", "$warning"),
    EntryState.GONE: ("◌", "$warning"),
    EntryState.FAILED: ("!", "$error"),
    EntryState.LEFT_OUT: ("○", "$foreground 65%"),
    EntryState.WAITING: ("·", "$primary"),
}
_GONE_HERE = '"Remove or keep files that are gone" in the palette (Ctrl+P) decides'
_SHARE_OF_NAME = 0.5


def entry_line(entry: Entry, base: Path | None, width: int) -> Content:
    """Return an entry in exactly `width` cells: mark, path below `base`, what is known of it."""
    if isinstance(entry, FolderEntry):
        mark, style, said = "▸", "$primary", _folder_state(entry)
        name = f"{_below(entry.path, base)}/"
    else:
        mark, style = _MARKS[entry.state]
        name = _below(entry.path, base) + ("/" if entry.is_folder else "")
        said = _file_state(entry)
    left = max(10, int(width * _SHARE_OF_NAME))
    right = max(0, width - left - 5)
    state = fit(safe(said, "$foreground 70%", single_line=True, most=300), right)
    return Content.assemble((f" {mark} ", style), fit_path(name, left), "  ", state)


def detail(entry: Entry, why: str) -> Content:
    """Return what stands below the list: the whole path, then state and reason in full."""
    if isinstance(entry, FolderEntry):
        said = _folder_state(entry) + ("; pinned: its caches are deleted last" if entry.pinned else "")
    else:
        warm = f"; {entry.warm:,} of {count(entry.chunks, 'chunk')} warm" if entry.chunks else ""
        reason = in_words(entry.reason, entry.path)
        said = (why or ": ".join(part for part in (entry.state.value, reason) if part)) + warm
    path = home_path(entry.path)
    named = with_contents(path) if isinstance(entry, FileEntry) and entry.is_folder else path
    return Content.assemble(
        safe(named, "bold", single_line=True, most=400), "\n", safe(said, single_line=True, most=600)
    )


def _folder_state(entry: FolderEntry) -> str:
    if entry.note and not entry.indexed:
        return entry.note
    parts = [f"{entry.indexed:,} read"]
    parts += [f"{entry.failed:,} failed"] if entry.failed else []
    parts += [f"{entry.skipped:,} left out"] if entry.skipped else []
    parts += ["pinned"] if entry.pinned else []
    parts += [entry.note] if entry.note else []
    return " · ".join(parts)


def _file_state(entry: FileEntry) -> str:
    if entry.state is EntryState.READ:
        said = f"{count(entry.chunks, 'chunk')}, {percent(entry.warm, entry.chunks)}% warm"
        return f"{said}; {entry.reason}" if entry.reason else said
    return in_words(entry.reason, entry.path) or entry.state.value


def in_words(reason: str, path: Path) -> str:
    """Return the reason why a file was not read, without its path, and with what a rule of desk-rag's own is about."""
    return rule_in_words(reason.partition(SECRET_COMMAND)[0].replace(GONE_COMMAND, _GONE_HERE), path)


def explained(explanation: Explanation, path: Path) -> str:
    """Return the state of a file with the reason for it, in words."""
    reason = in_words(explanation.reason, path)
    return f"{explanation.state}: {reason}" if reason else explanation.state


def _below(path: Path, base: Path | None) -> str:
    shown = path.relative_to(base) if base is not None and path.is_relative_to(base) else path
    return clean_name(str(shown))
