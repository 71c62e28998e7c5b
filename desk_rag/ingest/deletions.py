"""Decide when documents whose files are gone are removed from the index.

The documents of a few deleted files are removed at the next sweep. Many deletions at once may also be an accident, a
cloud client that signed out or a drive that failed, and hours of prefill depend on them. So these documents are kept
for a grace period that grows with their share of the folder; until then the user can confirm or revoke the deletion.
Chunk KV of removed documents goes to the store's bin, so that files that return later are warm at once.

What a rule of the user leaves out is removed before the next answer: nothing that it names may be quoted any more.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from desk_rag.documents.rules.ignore_rules import OWN
from desk_rag.documents.rules.user_rules import UserRules
from desk_rag.documents.status import FileState, plural
from desk_rag.errors import StoreError
from desk_rag.ingest.events import DeletionsWaiting, FileEvent
from desk_rag.ingest.file_update import is_gone
from desk_rag.store.catalog.deletion_rows import Decision, Deletion
from desk_rag.store.presence import Presence, covers
from desk_rag.store.types import FOLDER

if TYPE_CHECKING:
    from desk_rag.config import IndexSettings
    from desk_rag.store.store import Store
    from desk_rag.store.types import DocumentRow

HANDFUL = 5
"""Documents that are removed without a grace period if their files vanish together."""
_SHORTEST_GRACE = 3600.0
_WAIT_SECONDS = 20.0
"""Seconds that the process that writes gets to take out what is excluded; it looks at the settings once a second."""
_EVERY = 0.1
_MOST_LEFT_OUT = 20_000


@dataclass(frozen=True, slots=True)
class MissingFiles:
    """The documents of one indexed folder whose files are gone."""

    root: Path
    waiting: int
    """Documents to be removed after the grace period, or at the next sweep if the user confirmed it."""
    kept: int
    """Documents that the user decided to keep."""
    seconds_left: float
    """Time until the first waiting document is removed."""


class DeletionGuard:
    """Decides which documents of one indexed folder may be removed now."""

    def __init__(self, store: Store, root: Path, grace_hours: float) -> None:
        self._store, self._root, self._hours = store, root, grace_hours

    def due(self, missing: Collection[Path], known: int) -> list[Path]:
        """Return those of `missing` to remove now, and record the others. `known` is the folder's document count."""
        rows = self._store.deletions
        kept = {deletion.path for deletion in rows.all(self._root, Decision.KEPT)}
        undecided = [path for path in missing if path not in kept]
        if len(undecided) <= HANDFUL:
            rows.put(self._root, kept & set(missing))
            return undecided
        rows.put(self._root, missing)
        grace = grace_seconds(self._hours, len(undecided), known)
        return [deletion.path for deletion in rows.all(self._root) if _is_due(deletion, grace)]


def grace_seconds(hours: float, missing: int, known: int) -> float:
    """Return how long `missing` of `known` documents are kept: at least one hour, `hours` if it is all of them."""
    longest = hours * 3600
    return max(min(_SHORTEST_GRACE, longest), longest * min(1.0, missing / max(1, known)))


def missing_files(store: Store, grace_hours: float) -> list[MissingFiles]:
    """Return the indexed folders that have documents whose files are gone."""
    by_root: dict[Path, list[Deletion]] = {}
    for deletion in store.deletions.all():
        by_root.setdefault(deletion.root, []).append(deletion)
    folders = []
    for root, deletions in by_root.items():
        waiting = [deletion for deletion in deletions if deletion.decision is not Decision.KEPT]
        grace = grace_seconds(grace_hours, len(waiting), store.deletions.documents_in(root))
        oldest = max((deletion.age for deletion in waiting), default=0.0)
        confirmed = any(deletion.decision is Decision.CONFIRMED for deletion in waiting)
        left = 0.0 if confirmed else max(0.0, grace - oldest)
        folders.append(MissingFiles(root, len(waiting), len(deletions) - len(waiting), left))
    return folders


def count_missing(store: Store, under: Sequence[Path]) -> int:
    """Count the documents at or below `under` that are kept although their files are gone."""
    return sum(any(deletion.path.is_relative_to(one) for one in under) for deletion in store.deletions.all())


def note_missing(store: Store, under: Path) -> None:
    """Record which documents of the folders around and below `under` have no file now, as the next sweep would."""
    for root in store.volumes.roots():
        if root == under or root in under.parents or under in root.parents:
            rows = [row for row in store.documents(root) if row.state is FileState.INDEXED and is_gone(row.path)]
            absent = Presence(store, root).absent()  # after the files: a drive may have gone meanwhile
            store.deletions.put(root, [row.path for row in rows if not covers(absent, row.path)])


def remove_single_files(store: Store, grace_hours: float) -> Iterator[FileEvent | DeletionsWaiting]:
    """Remove files that were indexed by themselves and are gone; those of one folder as if it were indexed.

    If their folder is gone or empty, as without its drive, they are kept. Raises StoreError.
    """
    by_folder: defaultdict[Path, list[DocumentRow]] = defaultdict(list)
    for row in store.single_files():
        by_folder[row.path.parent].append(row)
    for folder, rows in by_folder.items():
        missing = {row.path: row for row in rows if is_gone(row.path)}
        if Presence(store, folder).absent():  # after the files: the drive may have gone meanwhile
            continue
        indexed = [path for path, row in missing.items() if row.state is FileState.INDEXED]
        due = DeletionGuard(store, folder, grace_hours).due(indexed, len(rows))
        store.remove_documents([*due, *(missing.keys() - set(indexed))], keep_kv=True)
        yield from (FileEvent(path, FileState.REMOVED) for path in due)
        if len(due) < len(indexed):
            yield DeletionsWaiting(folder, len(indexed) - len(due), len(rows))


def remove_confirmed(store: Store) -> int:
    """Remove the documents whose deletion the user confirmed, if their files are still gone; return how many."""
    confirmed = store.deletions.all(decision=Decision.CONFIRMED)
    return store.remove_documents([deletion.path for deletion in confirmed if is_gone(deletion.path)], keep_kv=True)[0]


def _is_due(deletion: Deletion, grace: float) -> bool:
    if deletion.decision is Decision.NONE:
        return deletion.age >= grace
    return deletion.decision is Decision.CONFIRMED


def take_out(store: Store, paths: Sequence[Path], settings: IndexSettings) -> None:
    """Remove documents that the rules leave out, and record why; their chunk KV stays for a while."""
    if not paths:
        return
    rules = UserRules(settings, store.volumes.roots())
    store.remove_documents(paths, keep_kv=True)
    for place, reason in dict(filter(None, map(rules.excluding, paths))).items():
        store.record_outcome(place, FileState.SKIPPED, reason, None if place in paths else FOLDER)


def note_obeyed(store: Store, roots: Sequence[Path], settings: IndexSettings) -> None:
    """Record that the index of `roots` obeys the rules, with no line left for a folder that is read again."""
    rules = UserRules(settings, roots)
    for path, state, reason, _ in store.listing.unread_files(roots, _MOST_LEFT_OUT) if roots else ():
        was_excluded = state is FileState.SKIPPED and reason.startswith(f"{OWN}: ")
        if was_excluded and path.is_dir() and rules.excluding(path / "any") is None:
            store.remove_document(path)
    for root in roots:
        store.note_rules(root, settings.exclude)


def wait_until_taken_out(store: Store, paths: Iterable[Path], stop: Callable[[], bool]) -> None:
    """Wait until the process that writes has removed these documents. Raises StoreError if it does not."""
    end = time.monotonic() + _WAIT_SECONDS
    while paths := [path for path in paths if _is_indexed(store, path)]:
        if stop():
            return
        if time.monotonic() > end:
            count = plural(len(paths), "file")
            raise StoreError(
                f"The index still holds {count} that `exclude` under [index] leaves out, and cannot be written now.",
                remedy="`desk-rag index` removes what is excluded; then ask again.",
            )
        time.sleep(_EVERY)


def _is_indexed(store: Store, path: Path) -> bool:
    row = store.document(path)
    return row is not None and row.state is FileState.INDEXED
