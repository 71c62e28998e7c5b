"""Folders and files as the library shows them: what is known of each, in lists that are read a part at a time.

`Library` looks; `library_changes` holds what it can change.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

from desk_rag.answering.conversation.scope import outermost
from desk_rag.documents.status import FileState
from desk_rag.ingest.deletions import missing_files
from desk_rag.ingest.explanation import OWN_RULE, Explanation, explain, is_as_read
from desk_rag.ingest.unread import skipped_files
from desk_rag.sanitize import home_path
from desk_rag.store.catalog.deletion_rows import Decision
from desk_rag.store.presence import absent_folders
from desk_rag.tui.wording import about

if TYPE_CHECKING:
    from desk_rag.store.listing import FolderCounts
    from desk_rag.store.store import Store
    from desk_rag.tui.management.session import Session

_RULE_FILES = frozenset((b".gitignore", b".deskragignore"))
_MOST_LOOKED_AT = 200_000
"""Number of directory entries that are searched for files not yet read."""
_MOST_TEXT = 200_000
"""Characters of a file's text that are shown; more would take seconds to wrap."""


class Shown(Enum):
    """The files that are listed."""

    ALL = "all files"
    READ = "read"
    FAILED = "failed"
    LEFT_OUT = "left out"

    @property
    def states(self) -> tuple[FileState, ...]:
        """The states in the catalog; empty for all."""
        return _STATES[self]


_STATES: dict[Shown, tuple[FileState, ...]] = {
    Shown.ALL: (),
    Shown.READ: (FileState.INDEXED,),
    Shown.FAILED: (FileState.FAILED,),
    Shown.LEFT_OUT: (FileState.SKIPPED,),
}


class EntryState(Enum):
    """Everything known of a file."""

    READ = "read"
    CHANGED = "changed"
    GONE = "gone"
    FAILED = "failed"
    LEFT_OUT = "left out"
    WAITING = "waiting"


@dataclass(frozen=True, slots=True)
class FileEntry:
    """A file in the list."""

    path: Path
    state: EntryState
    reason: str = ""
    chunks: int = 0
    warm: int = 0
    is_folder: bool = False
    """A folder that is left out as a whole."""


@dataclass(frozen=True, slots=True)
class FolderEntry:
    """A folder in the list."""

    path: Path
    indexed: int = 0
    failed: int = 0
    skipped: int = 0
    note: str = ""
    """Why it is not there now, or that nothing is known of it yet; '' otherwise."""
    pinned: bool = False


Entry = FileEntry | FolderEntry


@dataclass(frozen=True, slots=True)
class Listed:
    """Contents of a folder, or what matches the filter below it. Its parts are read by `Library.entries`."""

    folder: Path | None
    """None for the list of all indexed folders."""
    folders: tuple[FolderEntry, ...] = ()
    documents: array[int] = field(default_factory=lambda: array("q"))
    waiting: tuple[Path, ...] = ()
    """Files on disk that are not in the catalog, and folders there that the user excluded."""

    @property
    def total(self) -> int:
        """Number of entries."""
        return len(self.folders) + len(self.documents) + len(self.waiting)

    def nothing(self, shown: Shown, words: str, key: str) -> str:
        """Return what stands in the list if it is empty; `key` lists files of another state."""
        if words and shown is not Shown.ALL:
            return f"No path in the list “{shown.value}” holds these words; {key} shows other files."
        if words:
            return "No path holds these words."
        if self.folder is None:
            return "No folder is indexed yet."
        if shown is Shown.ALL:
            return "Nothing in this folder."
        return f"No file in this folder is in the list “{shown.value}”."


@dataclass(frozen=True, slots=True)
class Summary:
    """Numbers over one folder, or over all."""

    indexed: int = 0
    failed: int = 0
    not_read: str = ""
    """'46 files not read: 25 images, …'; '' if there are none."""
    absent: str = ""
    """Why the folder, or the one around it, is not there now; '' if it is."""


class Library:
    """Read-only views of the folders and files. Every method may take a while."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def roots(self) -> list[Path]:
        """Return the folders of this run, then the other indexed ones."""
        store = self._session.store()
        known = [] if store is None else store.volumes.roots()
        return list(dict.fromkeys([*self._session.folders, *known]))

    def start(self) -> Path | None:
        """Return the folder to begin in: the only one, or None for the list of them."""
        roots = self.roots()
        return roots[0] if len(roots) == 1 else None

    def parent(self, folder: Path) -> Path | None:
        """Return the folder above; None, for the list of folders, above an indexed folder."""
        return None if folder in self.roots() else folder.parent

    def browse(
        self,
        folder: Path | None,
        words: str = "",
        shown: Shown = Shown.ALL,
        stop: Callable[[], bool] | None = None,
    ) -> Listed:
        """Return what is directly in `folder`; with `words`, the folders and files below it whose path holds them.

        Raises Cancelled once `stop` returns True, unless the list is there by then.
        """
        store = self._session.store()
        terms = words.split()
        if folder is None and not terms:
            return Listed(None, tuple(self._root(store, root) for root in self.roots()))
        if store is None:
            return Listed(folder, waiting=() if folder is None or terms else tuple(_files_in(folder, set())))
        if terms or folder is None:
            around = outermost(self.roots()) if folder is None else [folder]
            by_name = (one for root in around for one in store.listing.folders_matching(root, terms, stop))
            matching = tuple(_folder(counts, set(store.pins())) for counts in by_name if _shows(counts, shown))
            return Listed(folder, matching, store.listing.matching(folder, terms, shown.states, stop))
        pins = set(store.pins())
        counted = {counts.path: counts for counts in store.listing.subfolders(folder)}
        folders = [_folder(counts, pins) for counts in counted.values() if _shows(counts, shown)]
        waiting: list[Path] = []
        if shown is Shown.ALL:
            known = store.listing.names_in(folder)
            waiting = list(_files_in(folder, known))
            new = (path for path in _folders_in(folder) if os.fsencode(path.name) not in known)
            for path in new:
                if explain(store, path, self._session.settings).reason.startswith(OWN_RULE):
                    waiting.append(path)  # no scan has met it since the user excluded it
                else:
                    folders.append(FolderEntry(path, note="nothing read from it yet", pinned=path in pins))
            folders.sort(key=lambda entry: entry.path.name)
        return Listed(folder, tuple(folders), store.listing.in_folder(folder, shown.states), tuple(waiting))

    def entries(self, listed: Listed, first: int, number: int) -> list[Entry]:
        """Return `number` entries from the one numbered `first` on, looking at the files themselves."""
        entries: list[Entry] = list(listed.folders[first : first + number])
        first = max(0, first - len(listed.folders))
        store = self._session.store()
        if store is not None and len(entries) < number:
            some = listed.documents[first : first + number - len(entries)]
            entries += self._documents(store, some)
        first = max(0, first - len(listed.documents))
        for path in listed.waiting[first : first + number - len(entries)]:
            entries.append(self._waiting(store, path))
        return entries

    def summary(self, folder: Path | None) -> Summary:
        """Count what was read, what failed and what was left out, by kind."""
        store = self._session.store()
        if store is None:
            return Summary()
        under = [folder] if folder is not None else outermost(self.roots())
        counts = [store.listing.count(one) for one in under]
        skipped = skipped_files(store, under)
        away = [one for one in absent_folders(store) if folder is not None and one.path in (folder, *folder.parents)]
        return Summary(
            sum(one.indexed for one in counts),
            sum(one.failed for one in counts),
            skipped.summary if skipped else "",
            away[0].reason if away else "",
        )

    def changes(self) -> int:
        """Return a number that differs after every change of what is indexed."""
        store = self._session.store()
        return 0 if store is None else store.listing.changes()

    def why(self, path: Path) -> Explanation:
        """Return the state of a file or folder and the rule or reason behind it."""
        return explain(self._session.store(), path, self._session.settings, self._session.file.path)

    def text(self, path: Path) -> str:
        """Return the text that was read from a file, about `_MOST_TEXT` characters of it at most; '' without text."""
        store = self._session.store()
        parts: list[str] = []
        size = 0
        for passage in store.passages_of(path) if store is not None else ():
            if size > _MOST_TEXT:
                parts.append(f"[The text goes on; only its first {size:,} characters are shown here.]")
                break
            parts.append(passage.chunk.text)
            size += len(passage.chunk.text)
        return "\n\n".join(parts).strip()

    def titled_text(self, path: Path) -> tuple[str, str]:
        """Return the text that was read from a file with its title, or else why there is none."""
        text = self.text(path)
        if text:
            return f"{home_path(path)} · as desk-rag read it", text
        known = self.why(path)
        why = ": ".join(part for part in (known.state, known.reason.removeprefix(f"{path} ")) if part)
        return home_path(path), f"There is no text of this file in the index.\n\n{why}"

    def _root(self, store: Store | None, root: Path) -> FolderEntry:
        if store is None:
            return FolderEntry(root, note="nothing read from it yet")
        counts = store.listing.count(root)
        absent = next((folder for folder in absent_folders(store) if folder.path == root), None)
        note = f"not there now: {absent.reason}" if absent is not None else ""
        gone = sum(deletion.root == root for deletion in store.deletions.all())
        note = note or (f"{gone:,} of them gone from the disk" if gone else "")
        if not note and not (counts.indexed or counts.failed or counts.skipped):
            note = "nothing read from it yet"
        entry = _folder(counts, set(store.pins()))
        return FolderEntry(root, entry.indexed, entry.failed, entry.skipped, note, entry.pinned)

    def _documents(self, store: Store, documents: Sequence[int]) -> list[Entry]:
        gone: _Gone | None = None
        entries: list[Entry] = []
        for listed in store.listing.rows(documents, self._session.namespace()):
            if listed is None:
                entries.append(FileEntry(Path("…"), EntryState.GONE, "it has left the index meanwhile"))
                continue
            row = listed.row
            if row.state is FileState.FAILED:
                entries.append(FileEntry(row.path, EntryState.FAILED, row.reason))
            elif row.state is FileState.SKIPPED:
                entries.append(FileEntry(row.path, EntryState.LEFT_OUT, row.reason, is_folder=row.is_folder))
            elif is_as_read(row, row.path):
                entries.append(FileEntry(row.path, EntryState.READ, row.reason, row.num_chunks, listed.warm))
            elif os.path.lexists(row.path):
                reason = "it has changed since it was read"
                entries.append(FileEntry(row.path, EntryState.CHANGED, reason, row.num_chunks, listed.warm))
            else:
                gone = _Gone(store, self._session.settings.index.deletion_grace_hours) if gone is None else gone
                reason = gone.why(row.path)
                entries.append(FileEntry(row.path, EntryState.GONE, reason, row.num_chunks, listed.warm))
        return entries

    def _waiting(self, store: Store | None, path: Path) -> FileEntry:
        known = explain(store, path, self._session.settings, self._session.file.path)
        if known.state == "left out":
            return FileEntry(path, EntryState.LEFT_OUT, known.reason, is_folder=path.is_dir())
        if known.state == "indexed":  # a moment ago
            return FileEntry(path, EntryState.READ)
        return FileEntry(path, EntryState.WAITING, "waits to be read")


class _Gone:
    """What becomes of documents whose files are gone, as it is known at one moment."""

    def __init__(self, store: Store, grace_hours: float) -> None:
        self._absent = absent_folders(store)
        self._missing = missing_files(store, grace_hours)
        self._kept = {deletion.path for deletion in store.deletions.all(decision=Decision.KEPT)}

    def why(self, path: Path) -> str:
        """Return why the document of `path` is still there, and how long."""
        for folder in self._absent:
            if folder.path in path.parents:
                return f"kept: {folder.reason}"
        if path in self._kept:
            return "its file is gone; kept, as you decided"
        for missing in self._missing:
            if missing.root in path.parents and missing.waiting and missing.seconds_left:
                return f"its file is gone; kept for {about(missing.seconds_left)} more"
        return "its file is gone; it leaves the index at the next look"


def _folder(counts: FolderCounts, pins: set[Path]) -> FolderEntry:
    return FolderEntry(counts.path, counts.indexed, counts.failed, counts.skipped, pinned=counts.path in pins)


def _shows(counts: FolderCounts, shown: Shown) -> bool:
    number = {Shown.READ: counts.indexed, Shown.FAILED: counts.failed, Shown.LEFT_OUT: counts.skipped}
    return shown is Shown.ALL or number[shown] > 0


def _files_in(folder: Path, known: set[bytes]) -> list[Path]:
    """Return the files directly in `folder` whose names are not known, without files of rules."""
    names = [name for name, is_folder in _scan(folder) if not is_folder]
    return [folder / os.fsdecode(name) for name in sorted(names) if name not in known and name not in _RULE_FILES]


def _folders_in(folder: Path) -> list[Path]:
    return [folder / os.fsdecode(name) for name, is_folder in sorted(_scan(folder)) if is_folder]


def _scan(folder: Path) -> list[tuple[bytes, bool]]:
    """Return names in a directory and whether they are folders; nothing if it cannot be listed."""
    entries: list[tuple[bytes, bool]] = []
    try:
        with os.scandir(os.fsencode(folder)) as scanned:
            for entry in scanned:
                if len(entries) >= _MOST_LOOKED_AT:
                    break
                entries.append((entry.name, entry.is_dir(follow_symlinks=False)))
    except OSError:
        return []
    return entries
