"""Progress of the first look at the folders since the start, and room on the disk for caches."""

from __future__ import annotations

from typing import TYPE_CHECKING

from desk_rag.documents.status import IndexStage
from desk_rag.ingest.events import IndexEvent, IndexFinished, StageProgress
from desk_rag.tui.backend import Reading

if TYPE_CHECKING:
    from desk_rag.store.types import Counts

_GIB = 1024**3


class FirstLook:
    """Follows the events of the indexer until every file's words are in the index. Safe across threads."""

    def __init__(self) -> None:
        self._over = False
        self._left: int | None = None
        """Files still to be read; None while the folders are being looked through."""

    def take(self, event: IndexEvent) -> None:
        """Note one event. Vectors are computed only when all folders have been read."""
        if isinstance(event, IndexFinished):
            self._over = True
        elif isinstance(event, StageProgress):
            if event.stage in (IndexStage.VECTORS, IndexStage.WARM):
                self._over = True
            elif event.stage is IndexStage.WORDS:
                self._left = event.total - event.done

    def reading(self, files: int) -> Reading | None:
        """Return how many files can be found, of how many; None once all can. `files` are those in the index."""
        if self._over:
            return None
        return Reading(files, files + self._left if self._left is not None else 0)


def room_missing(counts: Counts, budget_gib: float) -> str:
    """Return what the disk has no room for; '' if caches are limited by their budget alone."""
    limited = counts.budget_bytes < int(budget_gib * _GIB)
    if not limited or counts.warm >= counts.chunks or not counts.chunks:
        return ""
    per_chunk = counts.kv_bytes / counts.warm if counts.warm else 0.0
    if counts.budget_bytes - counts.kv_bytes > max(per_chunk, counts.budget_bytes / 100):
        return ""
    return f"no room for the caches of {counts.chunks - counts.warm:,} chunks, so answers from them are slower"
