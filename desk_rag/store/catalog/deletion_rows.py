"""Documents that are kept for a while after their files were deleted, and the user's decisions."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from desk_rag.store.catalog.clock import StoreClock
from desk_rag.store.catalog.database import Database
from desk_rag.store.catalog.paths import Scope, from_blob, to_blob


class Decision(Enum):
    """The user's decision about a document without a file."""

    NONE = ""
    """Removed when the grace period is over."""
    CONFIRMED = "confirmed"
    """Removed at the next scan."""
    KEPT = "kept"
    """Kept until the user decides otherwise."""


def stays(chunk: str) -> str:
    """Return the condition that the chunk in this row is in a document that is not about to be removed."""
    waits = f"x.decision <> '{Decision.KEPT.value}'"
    return (
        f"(NOT EXISTS (SELECT 1 FROM deletions x WHERE {waits}) OR EXISTS (SELECT 1 FROM places s"
        f" LEFT JOIN deletions x ON x.document = s.document AND {waits}"
        f" WHERE s.chunk = {chunk} AND x.document IS NULL))"
    )


@dataclass(frozen=True, slots=True)
class Deletion:
    """A document whose file is gone."""

    path: Path
    root: Path
    """The indexed folder it was in."""
    age: float
    """Seconds since it was first missed, in store time."""
    decision: Decision


class DeletionRows:
    """The table `deletions`."""

    def __init__(self, database: Database, clock: StoreClock) -> None:
        self._database = database
        self._clock = clock

    def all(self, root: Path | None = None, decision: Decision | None = None) -> list[Deletion]:
        """Return the kept documents in path order, optionally of one indexed folder or with one decision."""
        now = self._clock.now()
        where, values = " WHERE 1", list[object]()
        if root is not None:
            where, values = where + " AND x.root = ?", [*values, to_blob(root)]
        if decision is not None:
            where, values = where + " AND x.decision = ?", [*values, decision.value]
        with self._database.read() as connection:
            rows = connection.execute(
                "SELECT d.path, x.root, x.since, x.decision FROM deletions x JOIN documents d ON d.id = x.document"
                f"{where} ORDER BY d.path",
                values,
            ).fetchall()
        return [
            Deletion(from_blob(path), from_blob(folder), max(0.0, now - since), Decision(decision))
            for path, folder, since, decision in rows
        ]

    def put(self, root: Path, missing: Collection[Path]) -> None:
        """Set the kept documents of an indexed folder; ages and decisions of known ones stay."""
        known = {deletion.path for deletion in self.all(root)}
        back, new = known - set(missing), set(missing) - known
        if not back and not new:
            return
        now = self._clock.now()
        with self._database.write() as connection:
            connection.executemany(
                "DELETE FROM deletions WHERE document = (SELECT id FROM documents WHERE path = ?)",
                [(to_blob(path),) for path in back],
            )
            connection.executemany(
                "INSERT OR REPLACE INTO deletions (document, root, since)"
                " SELECT id, ?, ? FROM documents WHERE path = ?",
                [(to_blob(root), now, to_blob(path)) for path in new],
            )

    def documents_in(self, root: Path) -> int:
        """Return how many documents are indexed at or below a path, including kept ones."""
        scope = Scope([root])
        with self._database.read() as connection:
            count: int = connection.execute(
                f"SELECT count(*) FROM documents WHERE state = 'indexed' AND {scope.path_condition('path')}",
                scope.values,
            ).fetchone()[0]
        return count

    def decide(self, under: Path, decision: Decision) -> int:
        """Record a decision for the documents at or below a path; return their number. Any process may call it."""
        scope = Scope([under])
        with self._database.write() as connection:
            return connection.execute(
                "UPDATE deletions SET decision = ? WHERE document IN"
                f" (SELECT id FROM documents WHERE {scope.path_condition('path')})",
                (decision.value, *scope.values),
            ).rowcount
