"""State of indexing for the activity screen, and requests to pause, resume or work now."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from desk_rag.documents.status import FileState, IndexStage
from desk_rag.tui.backend import Freshness
from desk_rag.tui.wording import gone

if TYPE_CHECKING:
    from desk_rag.store.store import Store
    from desk_rag.store.types import Activity
    from desk_rag.tui.backend import Status
    from desk_rag.tui.management.session import Session

UNTIL_RESTART = math.inf
FULL_SPEED_SECONDS = 3600.0
_MOST_REASONS = 8
_MOST_LOOKED_AT = 200
_MOST_NAMED = 3


@dataclass(frozen=True, slots=True)
class StageRow:
    """Progress of one stage."""

    stage: IndexStage
    done: int
    total: int
    rate: float = 0.0
    """Items per second; 0 while nothing is processed."""
    eta_seconds: float | None = None
    at_work: bool = False
    of_auxiliary: bool = False
    """True for the caches of the auxiliary model."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A reason why files could not be read."""

    reason: str
    files: int
    named: tuple[str, ...]
    """Names of some of them."""


@dataclass(frozen=True, slots=True)
class ActivityReport:
    """State of the indexing at one moment."""

    stages: tuple[StageRow, ...]
    current: str = ""
    """The file that was read last."""
    waiting: str = ""
    no_caches: str = ""
    """Why caches cannot be kept or read now; '' if they can."""
    paused_seconds: float | None = None
    """Seconds until the pause ends; `UNTIL_RESTART` for a pause without an end; None when not paused."""
    full_speed_seconds: float | None = None
    """Time for which caches are still filled although the computer is busy; None if they are not."""
    writer: str = ""
    """The process that indexes; '' if none does."""
    failures: tuple[Failure, ...] = ()
    gone: str = ""
    """How many files are gone and what becomes of their documents; '' if none is."""


class ActivityView:
    """View of the indexing, and its controls. Every method may take a while."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._failures_of: tuple[int, Sequence[Path]] | None = None
        """State of the index and folders that `_known_failures` are of."""
        self._known_failures: tuple[Failure, ...] = ()

    def report(self, status: Status) -> ActivityReport:
        """Return the state of the indexing; counts come from `status`."""
        store = self._session.store()
        if store is None:
            return ActivityReport(_rows(status, None))
        activity = store.activity()
        at_work = None if status.freshness is Freshness.WATCHING else activity
        return ActivityReport(
            _rows(status, at_work),
            current=activity.current if activity else "",
            waiting=at_work.waiting if at_work else "",
            no_caches=status.no_caches,
            paused_seconds=_left(store.pause_requested()),
            full_speed_seconds=_left(store.full_speed_requested()),
            writer=self._writer(activity),
            failures=self._failures(store),
            gone=gone(status),
        )

    def work_now(self, seconds: float | None) -> None:
        """Fill caches for `seconds` although the computer is busy; None ends that."""
        store = self._session.store()
        if store is not None:
            store.request_full_speed(None if seconds is None else time.time() + seconds)

    def _failures(self, store: Store) -> tuple[Failure, ...]:
        """Return the most frequent reasons of failures, read anew only if the index has changed."""
        state = store.listing.changes(), self._session.folders
        if state == self._failures_of:
            return self._known_failures
        files = Counter[str]()
        for group in store.listing.unread_groups(self._session.folders):
            if group.state is FileState.FAILED:
                files[group.reason] += group.number
        names: dict[str, list[str]] = {}
        for folder in self._session.folders if files else ():
            some = store.listing.matching(folder, (), (FileState.FAILED,))[:_MOST_LOOKED_AT]
            for one in store.listing.rows(some):
                if one is not None:
                    reason = one.row.reason.removeprefix(f"{one.row.path} ")
                    names.setdefault(reason, []).append(one.row.path.name)
        self._failures_of = state
        self._known_failures = tuple(
            Failure(reason, number, tuple(names.get(reason, ())[:_MOST_NAMED]))
            for reason, number in files.most_common(_MOST_REASONS)
        )
        return self._known_failures

    def _writer(self, activity: Activity | None) -> str:
        if activity is None:
            return ""
        indexing = self._session.indexing
        return "this desk-rag" if indexing is not None and indexing.indexes else f"process {activity.pid}"


def _rows(status: Status, activity: Activity | None) -> tuple[StageRow, ...]:
    rows = [
        StageRow(IndexStage.SCAN, 0, 0),
        StageRow(IndexStage.WORDS, status.files, status.files),
        StageRow(IndexStage.VECTORS, status.with_vectors, status.chunks),
        StageRow(IndexStage.WARM, status.warm, status.chunks),
    ]
    if status.auxiliary_warm is not None:
        rows.append(StageRow(IndexStage.WARM, status.auxiliary_warm, status.chunks, of_auxiliary=True))
    if activity is None or not (activity.total or activity.done):
        return tuple(rows)
    of_auxiliary = activity.stage is IndexStage.WARM and status.fills_auxiliary
    return tuple(
        _at_work(row, activity) if row.stage is activity.stage and row.of_auxiliary is of_auxiliary else row
        for row in rows
    )


def _at_work(row: StageRow, activity: Activity) -> StageRow:
    done, total = row.done, row.total
    if row.stage in (IndexStage.SCAN, IndexStage.WORDS):
        done, total = activity.done, activity.total
    rate = 0.0 if activity.waiting else activity.rate
    return replace(row, done=done, total=total, rate=rate, eta_seconds=activity.eta_seconds, at_work=True)


def _left(until: float | None) -> float | None:
    if until is None or until <= time.time():
        return None
    return until - time.time()
