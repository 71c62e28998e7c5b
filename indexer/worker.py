"""Run index jobs in one thread and emit events; between jobs, embed and prefill.

The order of work is: changed files, whole folders, vectors, chunk KV. While another thread loads a model for a stage,
files are read. Failures of a file or a stage are logged and reported, and the thread continues. The log holds kinds of
errors and places in the program, never a message, because a parser's message may quote the document.
"""

from __future__ import annotations

import logging
import time
import traceback
from collections.abc import Callable, Generator, Iterator
from concurrent import futures
from pathlib import Path
from typing import TypeVar

from desk_rag.config import IndexSettings
from desk_rag.documents.discovery import FoundFile
from desk_rag.documents.status import FileState, IndexStage
from desk_rag.errors import Cancelled, told_to_user
from desk_rag.indexer.jobs import Change, FileJob, FileSnapshot, Job, JobQueue, SweepJob, Task, look, settle_wait
from desk_rag.indexer.parts import Loader, Parts
from desk_rag.ingest.background_prefill import warm_pending
from desk_rag.ingest.deletions import HANDFUL, remove_single_files
from desk_rag.ingest.events import FileEvent, IndexEvent, IndexFinished, Notice, StageProgress
from desk_rag.ingest.file_update import CHANGED_MEANWHILE
from desk_rag.ingest.pipeline import add_token_vectors, embed_pending, index_path, sync_folder
from desk_rag.ingest.progress import ProgressRate, Tally
from desk_rag.model.memory.heap import trim_memory
from desk_rag.store.maintenance.scrubbing import Scrubber

_log = logging.getLogger(__name__)
T = TypeVar("T")

_TOGETHER_SECONDS = 60.0
"""Seconds within which vanished files count as deleted together."""
_SOON = 10.0
_LOOK_SECONDS = 30.0
_FULL_SECONDS = 600.0
AT_REST = StageProgress(IndexStage.SCAN, 0, 0, "files", 0.0, None)
"""Event of an indexer that has nothing to do."""
_LOAD_SECONDS = 0.2
"""Seconds between two looks for changed files while a model is being loaded."""
_RETRY_SECONDS = 60.0
"""Seconds until a sweep or a stage that failed as a whole is tried again."""
STOPPED = "stopped: "
"""Prefix of a reason to wait that is a failure; a notice says the same with its remedy."""
_WORK = {
    IndexStage.SCAN: "Looking through a folder",
    IndexStage.WORDS: "Reading files",
    IndexStage.VECTORS: "Making vectors",
    IndexStage.WARM: "Filling caches",
}


class Worker:
    """Does one job at a time until `stopping` returns True; `run` is the thread's target."""

    def __init__(
        self,
        parts: Parts,
        settings: IndexSettings,
        jobs: JobQueue,
        emit: Callable[[IndexEvent], None],
        *,
        may_run: Callable[[], str],
        stopping: Callable[[], bool],
        paused: Callable[[], str],
    ) -> None:
        """`paused` returns '' or the reason for a pause, as the user reads it; `may_run` the same for chunk KV."""
        self._parts, self._settings, self._jobs, self._emit = parts, settings, jobs, emit
        self._may_run, self._stopping, self._paused = may_run, stopping, paused
        self.is_sweeping = False
        """True while a folder is compared with the catalog, or its files are read."""
        self._loader = Loader()
        self._stages: Iterator[None] | None = None
        self._stages_again = 0.0
        """Monotonic time at which the stages start again; 0 for never."""
        self._failing: set[IndexStage] = set()
        """Stages that stopped for a reason that was reported."""
        self._tally, self._not_read = Tally(), set[Path]()
        self._num_read, self._file_rate = 0, ProgressRate()
        """Files read since the last one that nothing waited behind, and their rate."""
        self._unfinished = True
        """True if a summary is due; at the start, it says that everything is up to date."""
        self._rests = False
        """True if the last event was a pause."""
        self._full_until = 0.0
        """Time until which prefill is suspended because the disk is full or prefill fails; new content ends that."""
        self._gone_at: list[float] = []
        """Monotonic times at which indexed files turned out to be gone, of the last minute."""
        self.scrubber = Scrubber(parts.store)
        self._sweeps: dict[Path, tuple[float, float]] = {}
        """End of the last sweep of each root, in monotonic time, and the seconds of its look at all files."""
        self.idle_since: float | None = None
        """Unix time at which everything was indexed; a sweep without changes does not change it."""

    def run(self) -> None:
        """Work until told to stop. Raises nothing."""
        while not self._stopping():
            try:
                self._step()
            except Exception as error:
                self._report(IndexStage.SCAN, error)
                self._jobs.wait(1.0, for_jobs=False)

    def next_sweep_of(self, root: Path) -> float:
        """Return when a sweep requested by events may start: sweeps take at most a tenth of the time."""
        ended, took = self._sweeps.get(root, (0.0, 0.0))
        return max(time.monotonic(), ended + max(5.0, 10 * took)) if ended else time.monotonic()

    def use_settings(self, settings: IndexSettings) -> None:
        """Read files by these settings from the next one on. May be called from any thread."""
        self._settings = settings

    @property
    def is_in_stages(self) -> bool:
        """Return whether vectors or chunk KV are being made."""
        return self._stages is not None

    @property
    def is_loading(self) -> bool:
        """Return whether a thread loads a model, which cannot be interrupted."""
        return self._loader.is_busy

    def begin_stages(self) -> None:
        """Check again for chunks without vector or KV. May be called from any thread."""
        self._stages_again = time.monotonic()
        self._jobs.wake()

    def load(self, load: Callable[[], T]) -> T:
        """Return what `load` returns, which takes long, and read files that change meanwhile. For use in a task."""
        part = self._loader.begin(load)
        while not part.done():
            self.read_due_files()
            futures.wait((part,), _LOAD_SECONDS)
        return part.result()

    def read_due_files(self) -> None:
        """Read the changed files whose time has come. For use in the midst of a sweep or a task."""
        # On a halt the current file goes back to the queue, so this loop would not end.
        while not self._halt() and (job := self._jobs.take_file()) is not None:
            self._do_file(job)

    def _step(self) -> None:
        if (task := self._jobs.take_task()) is not None:
            self._do_task(task)
            return
        if reason := self._paused():
            self._rests = True
            self._emit(StageProgress(IndexStage.SCAN, 0, 0, "files", 0.0, None, reason))
            self._jobs.wait(1.0, for_jobs=False)  # a job that is due would end it at once
            return
        if self._rests:
            self._rests = False
            self._emit(AT_REST)  # without work, no other event would end the pause
        job = self._jobs.take()
        if job is not None:
            self._do(job)
        elif not self._advance_stages():
            if self.idle_since is None and not self._unfinished:
                self.idle_since = time.time()
            # An answer in another process may request chunks at any time, and the store does not notify us.
            self._jobs.wait(_LOOK_SECONDS)
            if not self._stages_again:
                self._stages_again = time.monotonic()

    def _halt(self) -> bool:
        return self._stopping() or bool(self._paused()) or self._jobs.has_tasks()

    # Jobs

    def _do_task(self, task: Task) -> None:
        """Do a task that a user waits for, even while indexing is paused."""
        self.idle_since = None
        self.is_sweeping = True
        try:
            task()
        finally:
            self.is_sweeping = False
            self.begin_stages()

    def _do(self, job: Job) -> None:
        if isinstance(job, FileJob):
            self._do_file(job)
            return
        seconds = 0.0
        self.is_sweeping = True
        try:
            seconds = self._sweep(job.root)
            self._recovered(IndexStage.SCAN)
        except Exception as error:
            self._report(IndexStage.SCAN, error)
            self._jobs.put(SweepJob(job.root, time.monotonic() + _RETRY_SECONDS))
        finally:
            self.is_sweeping = False
        self._sweeps[job.root] = (time.monotonic(), seconds)

    def _sweep(self, root: Path) -> float:
        """Bring a folder up to date; return the seconds of the look at all its files, without reading them."""
        finished, began, seconds = False, time.monotonic(), 0.0
        events = sync_folder(
            self._parts.store,
            root,
            self._parts.counter,
            self._parts.size,
            self._settings,
            self._halt,
            defer=lambda file: self._put_off(file, root),
        )
        for event in events:
            finished = finished or isinstance(event, IndexFinished)
            if isinstance(event, StageProgress) and event.stage is IndexStage.SCAN:
                seconds = time.monotonic() - began
            self._tell(event)
            # The first look at a large folder takes long; a file that is saved meanwhile should not wait for its end.
            self.read_due_files()
        if finished:
            for removal in remove_single_files(self._parts.store, self._settings.deletion_grace_hours):
                self._tell(removal)
        if finished or not self._halt():
            self.begin_stages()
        else:
            self._jobs.put(SweepJob(root, time.monotonic()))
        return seconds

    def _put_off(self, file: FoundFile, root: Path) -> bool:
        """Queue a file written so recently that it may be incomplete; return whether it was."""
        age = time.time() - file.mtime_ns / 1e9
        if not 0 <= age < self._settings.settle_seconds:
            return False
        seen = FileSnapshot(file.size, file.mtime_ns)
        due = time.monotonic() + self._settings.settle_seconds
        self._jobs.put(FileJob(file.path, root, Change.CHANGED, due, seen))
        return True

    def _do_file(self, job: FileJob) -> None:
        now = look(job.path)
        if now is None and job.change is Change.CHANGED:
            self._again(job, None, Change.GONE)
        elif now is not None and not job.is_settled(now):
            self._again(job, now, Change.CHANGED)
        elif now is None and self._many_gone(job):
            self._jobs.put(SweepJob(job.root, self.next_sweep_of(job.root)))
        else:
            parts = self._parts
            try:
                event = index_path(
                    parts.store, job.path, job.root, parts.counter, parts.size, self._settings, self._halt
                )
            except Cancelled:
                self._jobs.put(job)
                return
            except Exception as error:
                self._report(IndexStage.WORDS, error)
                self._jobs.put(SweepJob(job.root, time.monotonic() + _RETRY_SECONDS))
                return
            self._recovered(IndexStage.WORDS)
            self._tell(event)
            self._report_file()
            if event.reason == CHANGED_MEANWHILE:
                self._again(job, look(job.path), Change.CHANGED)
            elif self._unfinished:
                self._stages_again = time.monotonic()

    def _report_file(self) -> None:
        """Emit how many of the files that changed together have been read."""
        self._num_read += 1
        if (total := self._num_read + self._jobs.num_files()) > 1:
            self._emit(self._file_rate.progress(IndexStage.WORDS, self._num_read, total, "files"))
        if total == self._num_read:
            self._num_read, self._file_rate = 0, ProgressRate()

    def _many_gone(self, job: FileJob) -> bool:
        """Return whether this file vanished together with many others, so that a sweep must decide."""
        if self._parts.store.document(job.path) is None:
            return False  # renamed, and dealt with under its new name
        now = time.monotonic()
        self._gone_at = [moment for moment in self._gone_at if moment > now - _TOGETHER_SECONDS] + [now]
        return len(self._gone_at) + self._jobs.gone_files(job.root) > HANDFUL

    def _again(self, job: FileJob, seen: FileSnapshot | None, change: Change) -> None:
        """Queue a job again until its file stops changing, with growing waits."""
        wait = settle_wait(self._settings, change, job.tries)
        self._jobs.put(FileJob(job.path, job.root, change, time.monotonic() + wait, seen, job.tries + 1))

    def _tell(self, event: IndexEvent) -> None:
        if isinstance(event, IndexFinished):
            return  # one folder's; the summary of all follows when the stages are done
        if isinstance(event, FileEvent):
            is_not_read = event.state in (FileState.FAILED, FileState.SKIPPED)
            if not (is_not_read and event.path in self._not_read):  # every sweep meets those again
                self._tally.add(event)
            if is_not_read:
                self._not_read.add(event.path)
            if event.state in (FileState.INDEXED, FileState.REMOVED, FileState.RENAMED):
                self._unfinished, self.idle_since = True, None
                self._full_until = 0.0
                self._stages_again = time.monotonic()
        self._emit(event)

    # Vectors and chunk KV

    def _advance_stages(self) -> bool:
        """Do one step of the stages; return False if there is nothing to do."""
        if self._stages_again and self._stages_again <= time.monotonic():
            self._stages, self._stages_again = self._run_stages(), 0.0
        if self._stages is None:
            return False
        if next(self._stages, self) is self:
            self._stages = None
        return True

    def _run_stages(self) -> Iterator[None]:
        for stage, work in ((IndexStage.VECTORS, self._embed), (IndexStage.WARM, self._prefill)):
            progress, is_suspended = None, time.monotonic() < self._full_until
            try:
                for progress in work():
                    if progress is None:  # a model is being loaded
                        yield
                        continue
                    self._unfinished, self.idle_since = True, None
                    self._tally.add(progress)
                    self._emit(progress)
                    yield
                    while self._parts.turn.answer_waits() and not self._halt():
                        self._jobs.wait(0.1)
                        yield
                self._note_end(stage, progress, is_suspended=is_suspended and stage is IndexStage.WARM)
            except Exception as error:
                self._report(stage, error)
                if not self._stages_again:  # else somebody asked for the next run during this one
                    self._stages_again = time.monotonic() + _RETRY_SECONDS
            if self._halt():
                self._stages_again = time.monotonic()
                return
        # Files that will soon stop changing belong to this run; one that never does must not delay its end for ever.
        if self._unfinished and not self._jobs.due(within=_SOON):
            self.scrubber.scrub(now=True)
            trim_memory()
            self._emit(self._tally.finished())
            self._tally, self._not_read, self._unfinished = Tally(), set(), False

    def _note_end(self, stage: IndexStage, last: StageProgress | None, *, is_suspended: bool) -> None:
        """Report that a stage ended because the disk is full, or that it works again."""
        if self._halt():
            return
        if last is not None and last.disk_full:
            remedy = "Free some space on that drive; desk-rag tries again every ten minutes."
            self._failing.add(stage)
            self._emit(Notice(stage.value, last.waiting, remedy))
        elif not is_suspended and (last is None or not last.waiting):
            self._recovered(stage)

    def _embed(self) -> Iterator[StageProgress | None]:
        missing, parts = self._parts.missing(), self._parts
        if not (missing.vectors or missing.token_vectors):
            return
        embedder = yield from self._loaded(self._loader.begin(parts.load_embedder))
        if missing.vectors:
            yield from embed_pending(parts.store, embedder, self._halt)
        if missing.token_vectors and not self._halt():
            yield from add_token_vectors(parts.store, embedder, self._halt, self._may_run)

    def _prefill(self) -> Iterator[StageProgress | None]:
        if time.monotonic() < self._full_until or not self._parts.missing().kv:
            return
        last, parts = None, self._parts
        serving = yield from self._loaded(self._loader.begin(parts.load_model))
        for last in warm_pending(parts.store, serving, parts.turn, self._halt, self._may_run):
            yield last
        if last is not None and last.waiting and not self._halt():
            self._full_until = time.monotonic() + _FULL_SECONDS

    def _loaded(self, part: futures.Future[T]) -> Generator[None, None, T]:
        """Return a part once it is loaded; yields meanwhile, so that files are read."""
        while not part.done():
            futures.wait((part,), _LOAD_SECONDS)
            if not part.done():
                yield
        return part.result()

    def _report(self, stage: IndexStage, error: Exception) -> None:
        if self._stopping():
            return  # the store may be closed already
        place = "".join(traceback.format_tb(error.__traceback__))
        _log.error("%s failed: %s at\n%s", stage.value, type(error).__name__, place)
        problem, remedy = f"an internal error ({type(error).__name__}).", "The log in the data directory has more."
        if (known := told_to_user(error)) is not None:
            problem, remedy = known.message, known.remedy
        self._failing.add(stage)
        self._emit(StageProgress(stage, 0, 0, "chunks", 0.0, None, f"{STOPPED}{problem}"))
        again = f"desk-rag tries again every {_RETRY_SECONDS:.0f} seconds."
        self._emit(Notice(stage.value, f"{_WORK[stage]} stopped: {problem}", f"{remedy} {again}".lstrip()))

    def _recovered(self, stage: IndexStage) -> None:
        if stage in self._failing:
            self._failing.discard(stage)
            self._emit(Notice(stage.value, f"{_WORK[stage]} goes on.", is_over=True))
