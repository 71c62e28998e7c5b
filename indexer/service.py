"""Index folders in the background: start, stop, pause. Owns the watcher, the job queue, the worker and the timer.

Each folder is swept at the start, every `sweep_seconds`, and after the computer was suspended; in between, the watcher
reports changed files. One thread works and one keeps time; both sleep when there is nothing to do. Other processes see
the progress in the store's activity, and may request a pause there.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from desk_rag.config import GIB, IndexSettings, Settings
from desk_rag.documents.rules.ignore_rules import pattern_of
from desk_rag.documents.status import FileState, IndexStage
from desk_rag.errors import StoreError
from desk_rag.indexer.jobs import Change, FileJob, JobQueue, SweepJob, look, settle_wait
from desk_rag.indexer.log import logging_to
from desk_rag.indexer.machine.clock import ClockJump
from desk_rag.indexer.machine.idle import IdleGate, describe_pause
from desk_rag.indexer.notices import FOLDER, FolderCheck, NoticeBoard, without_numbers
from desk_rag.indexer.parts import Parts
from desk_rag.indexer.resident.exclusion import FollowedRules
from desk_rag.indexer.root_watch import WatchState
from desk_rag.indexer.watcher import Batch, Watcher
from desk_rag.indexer.worker import AT_REST, Worker
from desk_rag.ingest.events import FileEvent, IndexEvent, IndexFinished, Notice, RootAbsent, StageProgress
from desk_rag.ingest.progress import activity_of
from desk_rag.sanitize import clean_name, shown_path
from desk_rag.store.catalog.deletion_rows import Decision

_log = logging.getLogger(__name__)

TICK_SECONDS = 1.0
_HEARTBEAT_SECONDS = 15.0
"""Seconds between publications of an unchanged activity; readers treat a minute of silence as the end."""
_IGNORE_FILES = (".gitignore", ".deskragignore")
_REMEMBERED = 50_000
_FOLDERS_SECONDS = 2.0
"""Seconds between two checks that the folders are present."""
_SOON = 10.0
T = TypeVar("T")


class Service:
    """Indexes `folders` in the background until stopped. Callbacks run in its threads and must return at once."""

    def __init__(
        self,
        parts: Parts,
        folders: Sequence[Path],
        settings: Settings,
        *,
        settings_file: Path | None = None,
        gate: IdleGate | None = None,
        tick_seconds: float = TICK_SECONDS,
    ) -> None:
        """`parts.store` must be open as the writer; the caller closes it after `stop`. Rules follow `settings_file`."""
        self.parts = parts
        self._store, self._settings, self._tick = parts.store, settings, tick_seconds
        self.folders = self._folders = outermost(folders)
        """The folders that are indexed now, and all that were given."""
        self._callbacks: list[Callable[[IndexEvent], None]] = []
        self._watch_callbacks: list[Callable[[WatchState], None]] = []
        self._stopping = threading.Event()
        self._pause_until: float | None = None
        self._jobs = JobQueue()
        self._gate = gate or IdleGate(settings.idle)
        self._worker = Worker(
            parts,
            settings.index,
            self._jobs,
            self._emit,
            may_run=self._may_fill,
            stopping=self._stopping.is_set,
            paused=self._paused,
        )
        self._watcher = Watcher(self.folders, self._take_batch, ignore=(settings.data_dir.absolute(),))
        self._board = NoticeBoard()
        self._folder_check, self._is_watched = FolderCheck(parts.store, self.folders), True
        self._activity = AT_REST
        self._current = ""
        self._left_out: dict[Path, str] = {}
        """Paths given to `leave_out`, with the rule for each; '' where no folder around it is indexed."""
        self._rules = FollowedRules(settings_file, settings.index.exclude)
        self._rules_for_answers = FollowedRules(settings_file, settings.index.exclude)
        """The same rules, read whenever a question comes; `_rules` notes when a change has to be swept for."""
        self._emitted: set[int] = set()
        self._confirmed: set[Path] = set()
        """Folders whose deletions the user had confirmed when the store was last read."""
        self._last_waiting: dict[IndexStage, str] = {}
        works: dict[str, Callable[[], None]] = {"worker": self._worker.run, "timer": self._keep_time}
        works["rules"] = partial(self._rules.keep_on, self, self._stopping)
        works["scrub"] = partial(self._worker.scrubber.keep_on, self._stopping.wait)
        self._threads = [threading.Thread(target=works[name], name=f"index-{name}", daemon=True) for name in works]
        self._log = contextlib.ExitStack()

    def subscribe(self, callback: Callable[[IndexEvent], None]) -> None:
        """Call `callback` with every event from now on. Unchanged files and repeated outcomes are left out."""
        self._callbacks.append(callback)

    def subscribe_watching(self, callback: Callable[[WatchState], None]) -> None:
        """Call `callback` whenever the way a folder is watched becomes known or changes."""
        self._watch_callbacks.append(callback)

    def start(self) -> None:
        """Start the threads, and sweep all folders in the given order."""
        self._log.enter_context(logging_to(self._settings.data_dir))
        self._rules.heed(self)
        self.sweep()
        if not self.folders:
            self._worker.begin_stages()
        self._pause_until = self._store.pause_requested()
        for thread in self._threads:
            thread.start()

    def stop(self, timeout: float = 2.0) -> bool:
        """Stop within `timeout` seconds; return whether all threads have ended.

        A step that cannot be interrupted (loading a model) may take longer: its thread then ends by itself, and the
        store may be closed meanwhile.
        """
        self._stopping.set()
        self._jobs.wake()
        end = time.monotonic() + timeout
        for thread in self._threads:
            if thread.is_alive() and thread is not threading.current_thread():
                thread.join(max(0.0, end - time.monotonic()))
        self._gate.close()
        self._log.close()
        return not (self._worker.is_loading or any(thread.is_alive() for thread in self._threads))

    def pause(self, until: float | None) -> None:
        """Interrupt all work until the Unix time `until` (math.inf: until resumed); None resumes."""
        self._pause_until = until
        self._store.request_pause(until)
        self._jobs.wake()

    def sweep(self) -> None:
        """Sweep all folders now, in the given order."""
        now = time.monotonic()
        for number, folder in enumerate(self.folders):
            self._jobs.put(SweepJob(folder, now + number / 1000))

    def changed_files(self) -> list[Path]:
        """Return the files that changed and were not read yet, as far as the system reported them."""
        return [*self._watcher.pending(), *self._jobs.paths()]

    def notices(self) -> tuple[Notice, ...]:
        """Return the states that need the user's attention now."""
        return self._board.current()

    def is_reading(self) -> bool:
        """Return whether files are being read or will be within seconds."""
        return not self._paused() and (self._worker.is_sweeping or self._jobs.due(within=_SOON))

    def is_working(self) -> bool:
        """Return whether files, vectors or chunk KV are being worked on."""
        return self.is_reading() or self._worker.is_in_stages

    # What users ask of the process

    @property
    def parts_in_task(self) -> Parts:
        """The parts for work that `perform` runs: files that change are read while one of them is loaded."""
        parts, load = self.parts, self._worker.load
        embedder, model = partial(load, parts.load_embedder), partial(load, parts.load_model)
        return replace(parts, load_embedder=embedder, load_model=model)

    @property
    def settings(self) -> Settings:
        """The settings by which folders are indexed now."""
        return self._settings

    def perform(self, work: Callable[[Callable[[T], None]], None], stop: Callable[[], bool]) -> Iterator[T]:
        """Run `work` in the thread that indexes, before all other jobs; yield what it hands to its argument.

        Raises what `work` raises, and Cancelled if `stop()` turns true or this service ends before it has begun.
        """
        return self._jobs.perform(work, lambda: stop() or self._stopping.is_set())

    def report(self, event: IndexEvent) -> None:
        """Pass on an event of work that `perform` runs; read files that changed."""
        self._emit(event)
        self._worker.read_due_files()

    def use_index_settings(
        self, settings: IndexSettings, wanted: Sequence[Path] = (), lifted: Collection[str] = ()
    ) -> None:
        """Read files by these settings; what was left out stays so, but for what is `wanted` or its rule `lifted`."""
        for path, rule in list(self._left_out.items()):
            if rule in lifted or any(path == one or path in one.parents or one in path.parents for one in wanted):
                del self._left_out[path]
        self._watch_only(folder for folder in self._folders if not self._is_left_out(folder))
        settings = self._with_left_out(settings)
        if settings != self._settings.index:
            self._settings = self._settings.model_copy(update={"index": settings})
            self._worker.use_settings(settings)

    def rules_in_force(self) -> IndexSettings:
        """Return the settings by which an answer is given: with the rules in the settings file as it is now."""
        return self._with_left_out(self._rules_for_answers.in_force(self.settings.index))

    def _with_left_out(self, settings: IndexSettings) -> IndexSettings:
        rules = (rule for rule in self._left_out.values() if rule and rule not in settings.exclude)
        return settings.model_copy(update={"exclude": (*settings.exclude, *rules)})

    def leave_out(self, path: Path) -> bool:
        """Index nothing at or below `path` until it is wanted again; return whether anything was indexed there.

        Folders at or below it are watched no longer; inside a folder that is watched, a rule leaves it out.
        """
        before = self.folders
        around = [folder for folder in before if folder in path.parents]
        self._left_out[path] = pattern_of(path, is_folder=not path.is_file()) if around else ""
        self.use_index_settings(self._settings.index)
        self._jobs.drop(lambda waiting: waiting == path or path in waiting.parents)
        return bool(around) or self.folders != before

    def _is_left_out(self, folder: Path) -> bool:
        return any(folder == path or path in folder.parents for path in self._left_out)

    def _watch_only(self, folders: Iterable[Path]) -> None:
        folders = tuple(folders)
        if folders != self.folders:
            self.folders, self._is_watched = folders, False
            self._watcher.watch_only(folders)
            self._folder_check = FolderCheck(self._store, folders)

    # Pauses

    def _paused(self) -> str:
        until = self._pause_until
        left = 0.0 if until is None else until - time.time()
        return describe_pause(left) if left > 0 else ""

    def _may_fill(self) -> str:
        """Return why no cache may be written now: the computer is busy, or enough was written today; '' if it may."""
        limit = self._settings.idle.write_gib_per_day
        is_over = not limit or self._store.written_today() < limit * GIB
        reason = f"caches of {limit:g} GiB were written today"
        remedy = "Raise `write_gib_per_day` under [idle] to go on now."
        self._emit(Notice("writes", f"Filling caches waits until midnight: {reason}.", remedy, is_over=is_over))
        return self._gate.may_run() if is_over else reason

    # Hints from the watcher

    def _take_batch(self, batch: Batch) -> None:
        if batch.sweep or any(path.name in _IGNORE_FILES for path in batch.changes):
            self._jobs.put(SweepJob(batch.root, self._worker.next_sweep_of(batch.root)))
        now, index = time.monotonic(), self._settings.index
        for path, change in batch.changes.items():
            seen = look(path)
            # A file that exists again was saved by deleting and creating it; one that is gone again was renamed.
            change = Change.GONE if seen is None else Change.CHANGED
            self._jobs.put(FileJob(path, batch.root, change, now + settle_wait(index, change), seen))

    # Time

    def _keep_time(self) -> None:
        self._check_watches(start=True)
        jump = ClockJump(time.time(), time.monotonic())
        next_sweep = time.monotonic() + self._settings.index.sweep_seconds
        published: tuple[StageProgress, str, float | None, tuple[Notice, ...]] | None = None
        published_at = next_folders = 0.0
        while not self._stopping.wait(self._tick):
            now = time.monotonic()
            try:
                if jump.jumped(time.time(), now):
                    self._gate.after_sleep()
                    next_sweep = now
                if now >= next_sweep:
                    next_sweep = now + self._settings.index.sweep_seconds
                    self.sweep()
                    self._check_watches()
                if now >= next_folders:
                    next_folders = now + _FOLDERS_SECONDS
                    self._check_folders()
                self._heed_pause()
                self._heed_confirmed()
                state = (*self._present_work(), self.notices())
                if state != published or now - published_at >= _HEARTBEAT_SECONDS:
                    self._publish(*state[:3])
                    published, published_at = state, now
            except Exception as error:
                _log.error("the timer failed: %s", type(error).__name__)
        self._watcher.stop()
        with contextlib.suppress(StoreError):
            self._publish(replace(self._activity, waiting="stopped"), "", None)

    def _check_watches(self, *, start: bool = False) -> None:
        try:
            states = self._watcher.start() if start else self._watcher.check()
        except Exception as error:  # sweeps continue without hints
            _log.error("watching failed: %s", type(error).__name__)
            return
        for state in states:
            subject = f"watching {state.root}"
            sentence = f"{shown_path(state.root)} is checked at intervals: {state.polling}."
            self._board.post(Notice(subject, sentence, state.remedy, is_over=not state.remedy))
            for callback in self._watch_callbacks:
                callback(state)

    def _check_folders(self) -> None:
        """Say which folders went away or came back, and look through the latter and those that are wanted again."""
        notices = self._folder_check.check()
        for notice in notices:
            self._emit(notice)
        is_back = any(notice.is_over and notice.subject.startswith(FOLDER) for notice in notices)
        if is_back or not self._is_watched:
            self._is_watched = True
            self._check_watches()
            self.sweep()

    def _heed_pause(self) -> None:
        self._gate.full_speed(self._store.full_speed_requested() is not None)
        until = self._store.pause_requested()
        if until != self._pause_until:
            self._pause_until = until
            self._jobs.wake()

    def _heed_confirmed(self) -> None:
        """Sweep folders whose deletions were confirmed, in this or another process."""
        confirmed = {deletion.root for deletion in self._store.deletions.all(decision=Decision.CONFIRMED)}
        for root in confirmed - self._confirmed:
            if root in self.folders:
                self._jobs.put(SweepJob(root, time.monotonic()))
        self._confirmed = confirmed

    def _present_work(self) -> tuple[StageProgress, str, float | None]:
        """Return the progress, the name of the file read last, and when the work ended, if it has."""
        idle_since, progress = self._worker.idle_since, self._activity
        if idle_since is None or progress.waiting or self.is_working():
            return progress, self._current, None
        return AT_REST, "", idle_since

    def _publish(self, progress: StageProgress, current: str, idle_since: float | None) -> None:
        notices = tuple((notice.subject, notice.sentence, notice.remedy) for notice in self.notices())
        self._store.publish_activity(activity_of(progress, current, notices=notices, idle_since=idle_since))

    # Events

    def _emit(self, event: IndexEvent) -> None:
        if isinstance(event, FileEvent) and event.state is FileState.INDEXED:
            self._current = clean_name(event.path.name)
        elif isinstance(event, StageProgress):
            self._activity = event
        elif isinstance(event, IndexFinished):
            self._activity, self._current = AT_REST, ""
        if self._repeats(event):
            return
        for callback in self._callbacks:
            try:
                callback(event)
            except Exception as error:
                _log.error("a listener failed: %s", type(error).__name__)

    def _repeats(self, event: IndexEvent) -> bool:
        """Return whether an event was emitted before: every sweep finds the same broken files and reasons to wait."""
        if isinstance(event, RootAbsent):
            return True  # the check of the folders has said so, or will within seconds
        if isinstance(event, Notice):
            return not self._board.post(event)
        if isinstance(event, StageProgress):
            before = self._last_waiting.get(event.stage, "")
            self._last_waiting[event.stage] = without_numbers(event.waiting)
            return bool(event.waiting) and before == without_numbers(event.waiting)
        if isinstance(event, IndexFinished):
            return False
        if isinstance(event, FileEvent):
            if event.state is FileState.UNCHANGED:
                return True
            if event.state not in (FileState.FAILED, FileState.SKIPPED):
                return False
        if len(self._emitted) >= _REMEMBERED:
            self._emitted.clear()
        event_hash = hash(event)
        repeated = event_hash in self._emitted
        self._emitted.add(event_hash)
        return repeated


def outermost(folders: Sequence[Path]) -> tuple[Path, ...]:
    """Return the folders as absolute paths, without duplicates and without folders inside another."""
    absolute = list(dict.fromkeys(folder.absolute() for folder in folders))
    return tuple(folder for folder in absolute if not any(other in folder.parents for other in absolute))
