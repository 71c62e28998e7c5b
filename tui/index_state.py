"""State of the index as the status bar shows it, from the store and what the process that indexes says of itself."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from desk_rag.documents.status import IndexStage
from desk_rag.tui.backend import Freshness, Status
from desk_rag.tui.management.cache import caches_missing

if TYPE_CHECKING:
    from desk_rag.indexer.resident.facts import IndexingState
    from desk_rag.store.store import Store
    from desk_rag.store.types import Activity, Counts
    from desk_rag.tui.management.session import Session


def status_of(store: Store, counts: Counts, session: Session, state: IndexingState, *, is_young: bool) -> Status:
    """Return one look at the index below the chosen folders, by the state of the indexing that belongs to this UI.

    `is_young`: whoever indexes may have started so recently that it has not said anything yet.
    """
    from desk_rag.ingest.deletions import missing_files
    from desk_rag.store.presence import absent_folders

    folders = session.folders
    activity, paused = store.activity(), _left(store.pause_requested())
    auxiliary = store.auxiliary_share(folders)
    auxiliary_warm = None if auxiliary is None else auxiliary[1]
    if activity is not None and _all_warm(activity, counts, auxiliary_warm, session.settings.model.rungs):
        activity = replace(activity, stage=IndexStage.SCAN, done=0, total=0, waiting="")
    known = None if state.pid and activity is not None and activity.pid != state.pid else activity
    freshness = _freshness(known, paused, is_young=is_young)
    absent = [folder.path for folder in absent_folders(store)]
    missing = [
        folder
        for folder in missing_files(store, session.settings.index.deletion_grace_hours)
        if not folders or any(folder.root.is_relative_to(chosen) for chosen in folders)
    ]
    return Status(
        freshness=freshness,
        files=counts.files,
        failed=counts.failed,
        chunks=counts.chunks,
        with_vectors=counts.with_vectors,
        warm=counts.warm,
        auxiliary_warm=auxiliary_warm,
        kv_bytes=counts.kv_bytes,
        budget_bytes=counts.budget_bytes,
        stage=activity.stage if activity is not None and freshness is Freshness.INDEXING else None,
        done=activity.done if activity else 0,
        total=activity.total if activity else 0,
        eta_seconds=activity.eta_seconds if activity else None,
        waiting=_reason(activity),
        paused_seconds=None if paused == math.inf else paused,
        absent=tuple(path for path in absent if not folders or any(path.is_relative_to(chosen) for chosen in folders)),
        missing=sum(folder.waiting for folder in missing),
        missing_seconds=min((folder.seconds_left for folder in missing if folder.waiting), default=0.0),
        gone_and_kept=sum(folder.kept for folder in missing),
        writer=0 if state.pid or activity is None else activity.pid,
        is_reading=state.is_reading,
        no_caches=caches_missing(store, counts, session.settings.store.budget_gib),
    )


def _all_warm(activity: Activity, counts: Counts, auxiliary_warm: int | None, rungs: Sequence[int]) -> bool:
    """Return whether answers have made the caches that the writer still waits to make."""
    fewest = counts.warm if auxiliary_warm is None else min(counts.warm, auxiliary_warm)
    return activity.stage is IndexStage.WARM and len(rungs) == 1 and 0 < counts.chunks <= fewest


def _freshness(activity: Activity | None, paused: float | None, *, is_young: bool) -> Freshness:
    if paused is not None:
        return Freshness.PAUSED
    if activity is None or activity.waiting == "stopped":
        return Freshness.STARTING if is_young else Freshness.UNATTENDED
    if activity.stage is IndexStage.SCAN and not activity.done and not activity.total and not activity.waiting:
        return Freshness.WATCHING
    return Freshness.INDEXING


def _left(until: float | None) -> float | None:
    """Seconds a pause still lasts; None when there is none (any more)."""
    if until is None:
        return None
    left = until - time.time()
    return left if left > 0 or math.isinf(left) else None


def _reason(activity: Activity | None) -> str:
    """Return why the writer waits, without measured values: they change every second. '' for our own answers."""
    reason = activity.waiting if activity else ""
    return "" if reason == "an answer is being made" else reason.partition(" (")[0]
