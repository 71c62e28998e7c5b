"""Data of the cache screen: space, use, what is evicted next; and the check of everything stored."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from desk_rag.config import GIB
from desk_rag.documents.status import plural
from desk_rag.errors import Cancelled, StoreError
from desk_rag.store.kv.budget import EAGER_BELOW

if TYPE_CHECKING:
    from desk_rag.store.kv.contents import CacheContents
    from desk_rag.store.store import Store
    from desk_rag.store.types import Counts, VerifyReport
    from desk_rag.tui.management.session import Session


@dataclass(frozen=True, slots=True)
class CacheReport:
    """State of the caches at one moment."""

    used: int
    limit: int
    """Bytes that the caches may take now."""
    cap: int
    """`budget_gib` in bytes; the limit is lower where the drive has less room."""
    reserve: int
    """Bytes of the drive that caches leave alone."""
    warm: int
    chunks: int
    outlook: str
    """Disk space that caches of all passages would take; '' if all have one."""
    place: Path
    away: str
    """Why the caches cannot be reached; '' if they can."""
    full: str
    """What the drive has no room for; '' if it has."""
    contents: CacheContents
    auxiliary_bytes: int = 0
    """Part of `used` that is of the auxiliary model."""
    auxiliary_chunks: int = 0
    """Chunks that have a cache of it."""

    @property
    def text_mb_per_gib(self) -> float | None:
        """Megabytes of text whose caches fill a GiB; None while there are none."""
        kept = self.contents
        return kept.text_bytes / 1e6 / (kept.kv_bytes / GIB) if kept.kv_bytes and kept.text_bytes else None


def caches_missing(store: Store, counts: Counts, budget_gib: float) -> str:
    """Return why caches cannot be kept or read now, and what follows; '' if they can. F5 says more."""
    if store.kv_away:
        return "the caches are not there now, so answers are slower"
    return room_missing(counts, budget_gib)


def room_missing(counts: Counts, budget_gib: float) -> str:
    """Return for what the disk has no room; '' if caches are limited by their budget alone."""
    limited = counts.budget_bytes < int(budget_gib * GIB)
    if not limited or counts.warm >= counts.chunks or not counts.chunks:
        return ""
    per_chunk = counts.kv_bytes / counts.warm if counts.warm else 0.0
    if EAGER_BELOW * counts.budget_bytes - counts.kv_bytes > max(per_chunk, counts.budget_bytes / 100):
        return ""
    return f"disk full: {plural(counts.chunks - counts.warm, 'chunk')} without cache, so answers are slower"


class CacheView:
    """View of the caches, and their check. Every method may take a while."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def report(self) -> CacheReport | None:
        """Return the sizes and what is evicted next; None if nothing was ever indexed."""
        store, settings = self._session.store(), self._session.settings
        if store is None:
            return None
        counts = store.counts(self._session.namespace())  # type: ignore[arg-type]
        outlook = store.outlook(None, 0.0)
        auxiliary_bytes, auxiliary_chunks = store.auxiliary_share() or (0, 0)
        return CacheReport(
            used=counts.kv_bytes,
            limit=counts.budget_bytes,
            cap=int(settings.store.budget_gib * GIB),
            reserve=int(settings.store.reserve_gib * GIB),
            warm=counts.warm,
            chunks=counts.chunks,
            outlook=outlook.sentence if outlook is not None else "",
            place=settings.store.kv_place or settings.data_dir / "kv",
            away=store.kv_away,
            full="" if store.kv_away else room_missing(counts, settings.store.budget_gib),
            contents=store.cache_contents(),
            auxiliary_bytes=auxiliary_bytes,
            auxiliary_chunks=auxiliary_chunks,
        )

    def verify(self, progress: Callable[[int, int], None], stop: Callable[[], bool]) -> VerifyReport:
        """Check everything that is stored against its checksum, repairing nothing. Raises Cancelled after `stop`."""
        store = self._session.store()
        if store is None:
            raise StoreError("Nothing is indexed yet.", remedy="There is nothing to check.")

        def heard(done: int, total: int) -> None:
            if stop():
                raise Cancelled("The check was ended.")
            progress(done, total)

        return store.verify(progress=heard)
