"""Find the files that are new or have changed since they were read, and read small ones, before a question is answered.

A look takes a bounded time: it compares names, sizes and times with the catalog and opens no document. What it cannot
reach in that time is reported as not looked at, never as unchanged.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from desk_rag.documents.status import FileState, IndexStage
from desk_rag.errors import Cancelled, StoreError
from desk_rag.sanitize import shown_path

if TYPE_CHECKING:
    from desk_rag.config import IndexSettings
    from desk_rag.documents.chunking import ChunkSize
    from desk_rag.documents.token_counter import PortableCounter
    from desk_rag.store.store import Store

LOOK_SECONDS = 0.15
"""Seconds that an answer spends on looking for changes."""
_MORE_SECONDS = 0.6
"""Seconds that a look may take longer where other programs, and not the number of files, held it up."""
_MOST_ROWS = 15_000
"""Maximum catalog rows that are read at once in `LOOK_SECONDS`; a look that may take longer reads more."""
_ALL_ROWS = 1 << 40
"""Rows that are read where the rules of the user have changed: nothing that they leave out may be quoted."""
_MOST_FILES = 16
_MOST_BYTES = 4 << 20
"""Size of all the files that an answer waits for."""
_READ_SECONDS = 2.0
_MOST_HINTS = 500
_MOST_NAMES = 3
_MOST_MISSING = 200
"""Files not met in any folder of which it is asked whether they are there."""
_TICK = 0.05
"""Seconds by which the time of a file may lag behind the clock."""
_RULE_FILES = (b".gitignore", b".deskragignore")


@dataclass(frozen=True, slots=True)
class Backlog:
    """Files below the asked folders that are not in the index as they are now."""

    read: int = 0
    """Files that are in the index, as they are or as they were."""
    new: tuple[Path, ...] = ()
    """Files that were never read."""
    changed: tuple[Path, ...] = ()
    """Files that have changed since they were read."""
    complete: bool = True
    """False if there was no time to scan every folder, so that there may be more."""
    gone: tuple[Path, ...] = ()
    """Files that are no longer there, if they are so few that nothing is kept for them."""

    excluded: tuple[Path, ...] = ()
    """Documents that the user's rules leave out since they were read."""
    other_rules: tuple[Path, ...] = ()
    """Folders that were last looked through by other rules of the user."""

    @property
    def waiting(self) -> int:
        """Return the number of files to be read."""
        return len(self.new) + len(self.changed)

    @property
    def files(self) -> int:
        """Return the number of new or changed files that were noticed."""
        return self.read + len(self.new)

    @property
    def is_small(self) -> bool:
        """Return whether there are files, and so few and small that an answer can wait until they are read."""
        files = (*self.new, *self.changed)
        return 0 < len(files) <= _MOST_FILES and sum(_sizes(files)) <= _MOST_BYTES

    @property
    def is_due(self) -> bool:
        """Return whether the writer has anything to do before a question is answered."""
        return self.is_small or bool(self.gone or self.excluded or self.other_rules)

    @property
    def share(self) -> str:
        """Return '12 of 40 files', or '' if every file was read at least once."""
        more = "" if self.complete else "at least "
        return f"{self.read:,} of {more}{self.files:,} files" if self.new else ""

    @property
    def notices(self) -> tuple[str, ...]:
        """Return sentences about what an answer from this index may lack."""
        sentences = []
        if self.new:
            count = len(self.new)
            sentences.append(f"From {self.share}; {count:,} {'is' if count == 1 else 'are'} not read yet")
        if self.changed:
            count = len(self.changed)
            names = ", ".join(shown_path(path) for path in self.changed[:_MOST_NAMES])
            names += f" and {count - _MOST_NAMES:,} more" if count > _MOST_NAMES else ""
            beginning = "1 file changed since it was" if count == 1 else f"{count:,} files changed since they were"
            locked = sum(path.exists() and not os.access(path, os.R_OK) for path in self.changed)
            addition = " and cannot be read any more" if locked else ""
            if locked < len(self.changed):
                addition = f" ({locked:,} of them cannot be read any more)" if locked else ""
            sentences.append(f"{beginning} read{addition}: {names}")
        if not (self.complete or sentences) and self.read < _MOST_ROWS:
            sentences.append("The folders could not be looked through for changes in time; the newest may be missing")
        return tuple(sentences)

    def report(self) -> dict[str, object]:
        """Return the fields as `ask --json` prints them."""
        new, changed = [str(path) for path in self.new], [str(path) for path in self.changed]
        return {"files": self.files, "read": self.read, "new": new, "changed": changed, "complete": self.complete}


def look(
    store: Store,
    under: Sequence[Path],
    settings: IndexSettings,
    *,
    hints: Iterable[Path] = (),
    seconds: float = LOOK_SECONDS,
) -> Backlog:
    """Compare the folders or files `under` (all indexed folders, if empty) with the catalog for at most `seconds`.

    `hints` are paths that are known to have changed; they are looked at first.
    """
    return _Look(store, under, settings, seconds).run(hints)


def read_small(
    store: Store,
    backlog: Backlog,
    counter: PortableCounter,
    size: ChunkSize,
    settings: IndexSettings,
    stop: Callable[[], bool],
) -> Backlog:
    """Read the files of a backlog if they are few and small, remove those gone or excluded, and return what is left.

    `store` is the writer.
    """
    from desk_rag.ingest import deletions
    from desk_rag.ingest.pipeline import index_path

    if not backlog.is_due:
        return backlog
    deletions.take_out(store, backlog.excluded, settings)
    roots = store.volumes.roots()
    end, done, added = time.monotonic() + _READ_SECONDS, set[Path](), 0
    waiting = (*backlog.new, *backlog.changed) if backlog.is_small else ()
    for path in (*waiting, *backlog.gone):  # a file that was renamed takes over the chunks of the one that is gone
        root = _root_of(path, roots)
        if root is None or stop() or time.monotonic() > end:
            continue
        before = store.document(path)
        was_read = before is not None and before.state is FileState.INDEXED
        try:
            event = index_path(store, path, root, counter, size, settings, stop)
        except (StoreError, Cancelled):  # a full disk, or the question was withdrawn: the file stays in the backlog
            break
        if event.state is FileState.REMOVED:
            added -= 1
        elif event.state in (FileState.INDEXED, FileState.RENAMED, FileState.UNCHANGED):
            added += path in waiting and not was_read
            done.add(path)
        elif (row := store.document(path)) is not None and row.state is FileState.INDEXED:
            continue  # it cannot be read now, and answers quote what it held before
        elif event.state is FileState.FAILED or path in backlog.changed or row is not None:
            done.add(path)  # its reason is in the catalog
    new = tuple(path for path in backlog.new if path not in done)
    changed = tuple(path for path in backlog.changed if path not in done)
    if backlog.complete and not (new or changed):
        deletions.note_obeyed(store, backlog.other_rules, settings)
    return replace(backlog, read=backlog.read + added, new=new, changed=changed, gone=(), excluded=(), other_rules=())


def is_reading(store: Store) -> bool:
    """Return whether the writer is looking through folders or reading files now."""
    activity = store.activity()
    if activity is None or activity.waiting or store.pause_requested() is not None:
        return False
    return bool(activity.done or activity.total) and activity.stage in (IndexStage.SCAN, IndexStage.WORDS)


class _Look:
    """One comparison of folders with the catalog."""

    def __init__(self, store: Store, under: Sequence[Path], settings: IndexSettings, seconds: float) -> None:
        self._store, self._settings = store, settings
        self._end, self._seconds, self._began = time.monotonic() + seconds, seconds, time.thread_time()
        self._roots = store.volumes.roots()
        self._scope = [path.absolute() for path in under] or self._roots
        # A folder whose first index has not begun yet is in no table.
        self._roots += [path for path in self._scope if path not in self._roots and _root_of(path, self._roots) is None]
        self._other_rules = [root for root in self._roots if not store.obeys(root, settings.exclude)]
        self._excluded: dict[Path, None] = {}
        most = _ALL_ROWS if self._other_rules else round(_MOST_ROWS * max(1.0, seconds / LOOK_SECONDS))
        self._known = store.stamps(self._scope, most + 1)
        self._is_part = len(self._known) > most
        """True if the catalog knows more files than are read from it at once; the others are asked for one by one."""
        self._complete = True
        self._new: dict[Path, None] = {}
        self._changed: dict[Path, None] = {}
        self._left_out: set[Path] = set()
        self._met: set[bytes] = set()
        self._ruled: list[bytes] = []
        """Folders whose rules about what is left out are newer than the index."""

    def run(self, hints: Iterable[Path]) -> Backlog:
        for path in islice(hints, _MOST_HINTS):
            if any(path == place or place in path.parents for place in self._scope):
                self._compare(os.fsencode(path), lambda path=path: path.stat())  # type: ignore[misc]
        self._note_excluded()
        pending = [os.fsencode(place) for place in reversed(self._scope)]
        while pending:
            if not self._has_time():
                self._complete = False
                break
            pending += self._compare_folder(pending.pop())
        for folder in {*self._ruled, *map(os.fsencode, self._other_rules)}:
            self._compare_rules(folder, also_indexed=folder in self._ruled)
            self._complete &= not self._is_part
        changed = tuple(path for path in self._changed if path not in self._excluded)
        rules, new = tuple(root for root in self._other_rules if root in self._scope), tuple(self._new)
        return Backlog(self._read(), new, changed, self._complete, self._gone(), tuple(self._excluded), rules)

    def _read(self) -> int:
        """Return how many files are in the index; where nothing is new, of a large one as many as were compared."""
        if self._is_part and self._new:  # counting 100,000 takes 0.1 s
            return sum(self._store.listing.count(place).indexed for place in self._scope)
        return sum(row[-1] == FileState.INDEXED.value for row in self._known.values()) - len(self._excluded)

    def _row(self, place: bytes) -> tuple[int, int, int, int, str] | None:
        """Return what the catalog knows of a path."""
        row = self._known.get(place)
        if row is None and self._is_part and (known := self._store.document(Path(os.fsdecode(place)))) is not None:
            stamp = known.stamp
            row = stamp.size, stamp.mtime_ns, stamp.inode, stamp.ctime_ns, known.state.value
            self._known[place] = row
        return row

    def _gone(self) -> tuple[Path, ...]:
        """Return the indexed files that are not there; none if they are many or kept, which a sweep has to judge."""
        if not self._complete or not all(path.exists() for path in self._roots):
            return ()
        from desk_rag.ingest.deletions import HANDFUL  # here for the same reason as in `_examine`

        indexed = FileState.INDEXED.value
        missing = [place for place, row in self._known.items() if place not in self._met and row[-1] == indexed]
        missing = [place for place in missing if Path(os.fsdecode(place)) not in self._excluded]
        gone = [place for place in missing if self._is_gone(place)] if len(missing) <= _MOST_MISSING else []
        if not gone or len(gone) > HANDFUL:
            return ()
        kept = {deletion.path for deletion in self._store.deletions.all()}
        return tuple(path for path in (Path(os.fsdecode(place)) for place in gone) if path not in kept)

    def _is_gone(self, place: bytes) -> bool:
        """Return whether a file that was not met is not there, or only behind a link that took its folder's place."""
        from desk_rag.ingest.file_update import is_behind_link  # here for the same reason as in `_examine`

        path = Path(os.fsdecode(place))
        root = _root_of(path, self._roots)
        return not os.path.lexists(place) or (root is not None and is_behind_link(path, root))

    def _has_time(self) -> bool:
        """Return whether to look on; time that this thread did not get on a busy computer is given back."""
        over = time.monotonic() - self._end
        return over < 0 or (over < _MORE_SECONDS and time.thread_time() - self._began < self._seconds / 2)

    def _compare_folder(self, folder: bytes) -> list[bytes]:
        """Compare the files of a folder, or one file, and return the folders inside it."""
        inside: list[bytes] = []
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    self._met.add(entry.path)
                    if entry.name in _RULE_FILES and self._is_newer(entry):
                        self._ruled.append(folder)
                    if entry.is_dir(follow_symlinks=False):
                        if self._row(entry.path) is None or self._is_lifted(entry.path):
                            inside.append(entry.path)  # a folder in the catalog is left out as a whole
                    elif self._has_time():
                        self._compare(entry.path, entry.stat)
                    else:
                        self._complete = False
        except NotADirectoryError:
            self._met.add(folder)
            self._compare(folder, lambda: os.stat(folder))  # noqa: PTH116
        except OSError:  # gone, or its drive is: its documents are kept and marked where they are quoted
            return []
        return inside

    def _is_newer(self, entry: os.DirEntry[bytes]) -> bool:
        """Return whether a file is newer than all that the catalog says."""
        try:
            info = entry.stat(follow_symlinks=False)
        except OSError:
            return False
        return max(info.st_mtime, info.st_ctime) > self._store.listing.newest_outcome() - _TICK

    def _compare_rules(self, folder: bytes, *, also_indexed: bool) -> None:
        """Note the files below a folder that new rules no longer leave out, and those that its own now do."""
        from desk_rag.documents import discovery
        from desk_rag.documents.discovery import FoundFile

        below = [place for place in self._known if place.startswith(folder + b"/")]
        for place in below:
            path, (*stamp, state) = Path(os.fsdecode(place)), self._known[place]
            if state == FileState.INDEXED.value and not also_indexed:
                continue
            root = _root_of(path, self._roots)
            if root is None or not self._has_time():
                self._complete = False
                continue
            is_wanted = isinstance(discovery.examine(root, path, self._settings), FoundFile)
            was_left_out = state == FileState.SKIPPED.value and not any(stamp)
            if os.path.lexists(place) and (was_left_out if is_wanted else state == FileState.INDEXED.value):
                self._changed[path] = None

    def _note_excluded(self) -> None:
        """Note the documents that the user's rules leave out, where other rules held at the last look."""
        if self._other_rules:
            from desk_rag.documents.rules.user_rules import UserRules  # here for the same reason as in `_examine`

            rules, indexed = UserRules(self._settings, self._roots), FileState.INDEXED.value
            paths = (Path(os.fsdecode(place)) for place, row in self._known.items() if row[-1] == indexed)
            self._excluded = dict.fromkeys(filter(rules.excluding, paths))

    def _is_lifted(self, place: bytes) -> bool:
        """Return whether a folder in the catalog, left out by the rules before, is read by those that hold now."""
        from desk_rag.documents import discovery  # here for the same reason as in `_examine`

        path = Path(os.fsdecode(place))
        root = _root_of(path, self._other_rules)
        verdict = None if root is None else discovery.examine(root, path / "any", self._settings)
        return root is not None and not isinstance(verdict, discovery.LeftOut)

    def _compare(self, place: bytes, stat: Callable[[], os.stat_result]) -> None:
        known = self._row(place)
        if known is not None and known[-1] == FileState.FAILED.value and self._was_locked(place):
            self._examine(Path(os.fsdecode(place)), self._changed)
            return
        if known is not None and not any(known[:3]):
            return  # left out by a rule, or to be read again at the next sweep for a reason that the catalog knows
        try:
            info = stat()
        except OSError:
            return
        if known is not None:
            is_same = known[:3] == (info.st_size, info.st_mtime_ns, info.st_ino)
            if not is_same or known[3] not in (0, info.st_ctime_ns):
                self._examine(Path(os.fsdecode(place)), self._changed)
        elif not place.endswith(_RULE_FILES):
            self._examine(Path(os.fsdecode(place)), self._new)

    def _was_locked(self, place: bytes) -> bool:
        """Return whether this process could not read a file for its permissions, and now can."""
        row = self._store.document(Path(os.fsdecode(place))) if os.access(place, os.R_OK) else None
        return row is not None and os.strerror(errno.EACCES) in row.reason

    def _examine(self, path: Path, kind: dict[Path, None]) -> None:
        """Note a file that would be read."""
        from desk_rag.documents import discovery, document  # here, because clients of a resident process need neither
        from desk_rag.documents.discovery import FoundFile, LeftOut

        root = _root_of(path, self._roots)
        known = self._row(os.fsencode(path))
        is_read = known is not None and known[-1] == FileState.INDEXED.value  # also an archive that somebody named
        if root is None or not (is_read or document.supported(path, self._settings)):
            return
        if not self._left_out.isdisjoint(path.parents):
            return
        verdict = discovery.examine(root, path, self._settings)
        if isinstance(verdict, FoundFile) and (verdict.size or is_read):
            kind[path] = None
        elif isinstance(verdict, LeftOut) and verdict.path != path:
            self._left_out.add(verdict.path)


def _root_of(path: Path, roots: Sequence[Path]) -> Path | None:
    """Return the indexed folder that holds `path`."""
    return next((root for root in roots if root in path.parents), None)


def _sizes(paths: Iterable[Path]) -> Iterator[int]:
    for path in paths:
        try:
            yield path.stat().st_size
        except OSError:
            continue
