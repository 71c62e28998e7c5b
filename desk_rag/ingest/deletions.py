"""Decide when documents whose files are gone are removed from the index.

A few deleted files are what people do all day: their documents go at the next look. Many at once may also be a slip of
the hand, a cloud client that signed out or a drive that failed, and hours of prefill depend on them. So they are kept
for a grace period, the longer the larger their share of the folder is, and the user can confirm or keep them before.
Their chunk KV then goes to the store's bin, so that what comes back later is warm.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from desk_rag.ingest.file_update import is_gone
from desk_rag.store.catalog.deletion_rows import Decision, Deletion

if TYPE_CHECKING:
    from desk_rag.store.store import Store

HANDFUL = 5
"""Documents whose files may vanish together without anybody being asked."""
_SHORTEST_GRACE = 3600.0


@dataclass(frozen=True, slots=True)
class MissingFiles:
    """The documents of one indexed folder whose files are gone."""

    root: Path
    waiting: int
    """Those that go when the grace period is over, or at the next look because the user confirmed it."""
    kept: int
    """Those that the user wants to keep."""
    seconds_left: float
    """Until the first of those that wait go."""


class Removals:
    """The missing files of one indexed folder, as the writer deals with them."""

    def __init__(self, store: Store, root: Path, grace_hours: float) -> None:
        self._store, self._root, self._hours = store, root, grace_hours

    def due(self, missing: Collection[Path], known: int) -> list[Path]:
        """Return those of `missing` that are to be removed now; the others are noted. `known`: documents in all."""
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
    """Return how long `missing` of `known` documents are kept: `hours` if that is all of them, at least one hour."""
    longest = hours * 3600
    return max(min(_SHORTEST_GRACE, longest), longest * min(1.0, missing / max(1, known)))


def missing_files(store: Store, grace_hours: float) -> list[MissingFiles]:
    """Return the folders with documents whose files are gone."""
    by_root: dict[Path, list[Deletion]] = {}
    for deletion in store.deletions.all():
        by_root.setdefault(deletion.root, []).append(deletion)
    found = []
    for root, deletions in by_root.items():
        waiting = [deletion for deletion in deletions if deletion.decision is not Decision.KEPT]
        grace = grace_seconds(grace_hours, len(waiting), store.deletions.documents_in(root))
        oldest = max((deletion.age for deletion in waiting), default=0.0)
        confirmed = any(deletion.decision is Decision.CONFIRMED for deletion in waiting)
        left = 0.0 if confirmed else max(0.0, grace - oldest)
        found.append(MissingFiles(root, len(waiting), len(deletions) - len(waiting), left))
    return found


def remove_confirmed(store: Store) -> int:
    """Remove the documents whose deletion the user confirmed, if their files are still gone; return how many."""
    confirmed = store.deletions.all(decision=Decision.CONFIRMED)
    return store.remove_documents([one.path for one in confirmed if is_gone(one.path)], keep_kv=True)[0]


def _is_due(deletion: Deletion, grace: float) -> bool:
    if deletion.decision is Decision.NONE:
        return deletion.age >= grace
    return deletion.decision is Decision.CONFIRMED
