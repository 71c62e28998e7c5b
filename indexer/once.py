"""Index some folders once, in the foreground: words, then vectors, then chunk KV.

`desk-rag index` does this, and `ask` before it answers. Embedder and model are loaded only if there is work for them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from desk_rag.config import GIB, Settings
from desk_rag.documents.status import FileState, IndexStage, plural
from desk_rag.errors import Cancelled
from desk_rag.indexer.names import (
    EVERYTHING,
    MissingWork,
    keep_embedder,
    keep_namespaces,
    kept_embedder,
    missing_work,
)
from desk_rag.ingest import background_prefill, deletions, pipeline
from desk_rag.ingest.events import DeletionsWaiting, FileEvent, IndexEvent, IndexFinished, RootAbsent, StageProgress
from desk_rag.ingest.progress import Tally, activity_of
from desk_rag.sanitize import clean_name, shown_path

if TYPE_CHECKING:
    from desk_rag.device_lock import DeviceLock
    from desk_rag.indexer.parts import Parts
    from desk_rag.ingest.progress import ProgressDisplay
    from desk_rag.kv.serving import ServingModel
    from desk_rag.store.store import Store

WarmPending = Callable[["Store", "ServingModel", "DeviceLock", Callable[[], bool]], Iterator[StageProgress]]
_PUBLISH_SECONDS = 1.0
_FILL_SECONDS = 60.0
"""Time for which caches are made before a question about a new folder is answered."""
_CODED_SHARE = 0.52
"""Size of int8 chunk KV with scales and header, as a share of fp16; used before there is any to measure."""


def fill_before_question(
    store: Store, serving: ServingModel, turn: DeviceLock, stop: Callable[[], bool], seconds: float = _FILL_SECONDS
) -> Iterator[StageProgress]:
    """Prefill chunks for some time: a large model would let a question wait for hours."""
    end = time.monotonic() + seconds
    last = None
    for last in background_prefill.warm_pending(store, serving, turn, lambda: stop() or time.monotonic() >= end):
        yield last
    if last is not None and last.done < last.total and time.monotonic() >= end and not stop():
        yield replace(last, waiting="the question comes first; `desk-rag index` or `watch` makes the rest")


class Published:
    """A display that also tells other processes through the store what this one does."""

    def __init__(self, progress: ProgressDisplay, store: Store) -> None:
        self._progress, self._store = progress, store
        self._latest, self._published_at = StageProgress(IndexStage.SCAN, 0, 0, "files", 0.0, None, ""), 0.0
        self._publish(self._latest, "")

    def passing(self, text: str) -> None:
        self._progress.passing(text)

    def say(self, text: str) -> None:
        self._progress.say(text)

    def show(self, event: IndexEvent) -> None:
        """Show an event; other processes hear of it at most once a second."""
        self._progress.show(event)
        if isinstance(event, StageProgress):
            self._latest = event
        if time.monotonic() > self._published_at + _PUBLISH_SECONDS:
            name = clean_name(event.path.name) if isinstance(event, FileEvent) else ""
            self._publish(self._latest, name)

    def end(self) -> None:
        """Tell that this run is over."""
        self._publish(replace(self._latest, waiting="stopped"), "")

    def _publish(self, progress: StageProgress, current: str) -> None:
        self._published_at = time.monotonic()
        self._store.publish_activity(activity_of(progress, current, once=True))


class Run:
    """The state of one run."""

    def __init__(
        self,
        parts: Parts,
        settings: Settings,
        stop: Callable[[], bool],
        progress: ProgressDisplay,
        tally: Tally | None = None,
        warm_pending: WarmPending | None = None,
    ) -> None:
        """`stop` is asked between two items. `tally` is an empty one that has been measuring time since before.

        `warm_pending` fills the caches, of all folders.
        """
        self._warm_pending = warm_pending
        self._parts, self._settings, self._stop, self._progress = parts, settings, stop, progress
        self._tally = tally or Tally()
        self._only: tuple[Path, ...] = ()
        """The files that were named, if no folder was: the rest of the index waits."""

    def run(self, roots: Sequence[Path], *, warm: bool = True, loaded: bool = False) -> IndexFinished:
        """Bring `roots` up to date, with chunk KV if `warm`.

        Args:
            loaded: model and embedder are in memory already.

        Raises StoreError; ModelError or ConfigError if work needs the model and it cannot be loaded.
        """
        self._only = tuple(roots) if all(root.is_file() for root in roots) else ()
        for root in roots:
            self._read(root)
        if not self._stop():
            for event in deletions.remove_single_files(self._parts.store, self._settings.index.deletion_grace_hours):
                self._tally.add(event)
                self._progress.show(event)
        missing = EVERYTHING if loaded or self._stop() else missing_work(self._parts.store, self._settings)
        if (missing.vectors or (warm and missing.token_vectors)) and not self._stop():
            self._embed(token_vectors=warm)
        if warm and not self._stop():
            self._prefill(missing)
        self._say_what_waits()
        return self._tally.finished()

    def _read(self, root: Path) -> None:
        parts, any_files = self._parts, False
        for event in self._sync(root):
            self._tally.add(event)
            if isinstance(event, FileEvent) and event.state is FileState.INDEXED:
                self._tally.texts.update(passage.chunk.chunk_id for passage in parts.store.passages_of(event.path))
            self._progress.show(event)
            any_files = any_files or isinstance(event, FileEvent | RootAbsent | DeletionsWaiting)
        if not any_files and not self._stop():
            self._progress.say(f"{shown_path(root)} holds no files: nothing to index there.")

    def _sync(self, root: Path) -> Iterator[IndexEvent]:
        """Compare a folder with the catalog and read what changed, or one file."""
        parts, settings = self._parts, self._settings.index
        if not root.is_file():
            yield from pipeline.sync_folder(parts.store, root, parts.counter, parts.size, settings, self._stop)
            return
        folder = next((each for each in parts.store.volumes.roots() if each in root.parents), root.parent)
        with suppress(Cancelled):
            event = pipeline.index_path(
                parts.store, root, folder, parts.counter, parts.size, settings, self._stop, by_name=True
            )
            yield event
            if event.state is FileState.SKIPPED:
                self._progress.say(f"{shown_path(root)} is left out: {event.reason}")

    def _embed(self, *, token_vectors: bool) -> None:
        """Make missing vectors; with `token_vectors`, also those that an earlier version did not make."""
        self._progress.passing("loading the embedder …")
        embedder = self._parts.load_embedder()
        keep_embedder(self._settings, embedder.fingerprint)
        store, under = self._parts.store, self._only
        stages = [pipeline.embed_pending(store, embedder, self._stop, under=under)]
        if token_vectors:
            stages.append(pipeline.add_token_vectors(store, embedder, self._stop, under=under))
        for stage in stages:
            before = self._tally.vectors
            for event in stage:
                self._tally.add(event)
                self._progress.show(event)
                if event.waiting:
                    self._progress.say(f"Vectors: {event.waiting}")
                else:
                    self._tally.vectors = before + event.done

    def _prefill(self, missing: MissingWork) -> None:
        if not missing.kv:
            if missing.no_room:
                self._say_no_room()
            return
        self._progress.passing("loading the model …")
        store = self._parts.store
        try:
            serving = self._parts.load_model()
        except Cancelled:
            return
        keep_namespaces(self._settings, serving.prefix_variants.namespaces, serving.auxiliary_namespace)
        outlook = store.outlook(serving.namespace, _CODED_SHARE * serving.model.spec.fp16_bytes_per_token)
        if outlook is not None and not self._stop():
            self._progress.say(outlook.sentence)
        last = None
        warm_pending = self._warm_pending or partial(background_prefill.warm_pending, under=self._only)
        for last in warm_pending(store, serving, self._parts.turn, self._stop):
            self._tally.add(last)
            self._progress.show(last)
        if last is None or not last.waiting or self._stop():
            return
        counts = store.counts()
        if not last.disk_full and counts.kv_bytes >= counts.budget_bytes:
            self._say_no_room()
        else:
            self._progress.say(f"Caches: {last.waiting}")

    def _say_what_waits(self) -> None:
        """Say how many passages of files that were not named still have no vector."""
        store, embedder = self._parts.store, kept_embedder(self._settings)
        if self._only and embedder and (waiting := store.missing_vectors(embedder)):
            self._progress.say(
                f"{plural(waiting, 'chunk')} of other files can be found by words only so far: `desk-rag index FOLDER` "
                "does the rest."
            )

    def _say_no_room(self) -> None:
        """Say that chunk KV is missing because of a limit: the user's own budget, or the free space of the drive."""
        limits = self._settings.store
        if self._parts.store.counts().budget_bytes < int(limits.budget_gib * GIB):
            self._tally.disk_full = True
            self._progress.say(
                f"Caches: the drive has no room for more besides the {limits.reserve_gib:g} GiB that stay free "
                "(`reserve_gib` under [store])."
            )
        else:
            self._progress.say("Caches: there is no room for more (`budget_gib` under [store]).")
