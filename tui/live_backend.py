"""Implement Backend with an AnswerEngine and, if this process is the writer, background indexing.

Imports torch only in `start`. While another process is the writer, it answers from the same store and shows that
process's progress; once that process has ended, it becomes the writer and indexes.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from desk_rag.answering.conversation.turns import Turn
from desk_rag.answering.events import AnswerEvent, AnswerMode, Finished
from desk_rag.config import Settings
from desk_rag.documents.chunking import Chunk
from desk_rag.documents.status import IndexStage
from desk_rag.errors import UNWRITABLE, ModelError, StoreLocked
from desk_rag.ingest.events import IndexEvent
from desk_rag.tui.backend import Freshness, Started, Status
from desk_rag.tui.conversation.keeper import Keeper
from desk_rag.tui.management.cache import room_missing
from desk_rag.tui.management.session import Session

if TYPE_CHECKING:
    from desk_rag.answering.conversation.saved import Change
    from desk_rag.answering.conversation.scope import Names
    from desk_rag.answering.engine import AnswerEngine
    from desk_rag.indexer.resident.server import Server
    from desk_rag.indexer.service import Service
    from desk_rag.ingest.freshness import Backlog
    from desk_rag.store.chats.records import SavedSource
    from desk_rag.store.store import Store
    from desk_rag.store.types import Activity

_log = logging.getLogger(__name__)

_SOON = 20.0
"""Seconds that a writer may take to start; without activity after that, nobody is watching."""
_HALT_SECONDS = 10.0
"""Seconds to wait for the indexing to stop before it begins with other settings."""
_TRY_SECONDS = 3.0
"""Seconds between two attempts to become the writer."""


class LiveBackend:
    """Answers from the store of `settings`, indexing `folders` when no other process does."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self._engine: AnswerEngine | None = None
        self._service: Service | None = None
        self._server: Server | None = None
        self._listen: Callable[[IndexEvent], None] = lambda _: None
        self._started_at = 0.0
        self.keeper = Keeper(session.settings.data_dir, save=session.settings.chats.save)
        self._stopping = threading.Event()
        self._changing = threading.Lock()

    def start(self, report: Callable[[str], None], listen: Callable[[IndexEvent], None]) -> Started:
        """Load model and store and begin indexing. Raises ModelError, StoreError, ConfigError."""
        self._listen = listen
        report("checking the model")
        self._check_model()
        report("loading the libraries")
        from desk_rag.answering.opening import open_engine
        from desk_rag.indexer.resident.keeping import make_way
        from desk_rag.model.reasoning import Thinking

        make_way(self.session.settings.data_dir)
        report("loading the model")
        try:
            engine = open_engine(self.session.settings, writer=True)
        except (StoreLocked, *UNWRITABLE):
            engine = open_engine(self.session.settings, writer=False)
        self._engine, self._started_at = engine, time.monotonic()
        if engine.store.writer:
            if engine.store.pause_requested() == math.inf:  # it lasted until this start
                engine.store.request_pause(None)
            self._begin_indexing(engine, listen)
        else:
            takeover = threading.Thread(target=self._take_over, args=(engine, listen), name="takeover", daemon=True)
            takeover.start()
        self.session.attach(self)
        prompt, spec = engine.model.prompt, engine.model.spec
        title = "embedded reader" if self.session.settings.model.name == "embedded" else spec.name
        title += " (always reasons first)" if prompt.reasoning.thinking is Thinking.ALWAYS else ""
        return Started(title, _device(engine), prompt.writes, engine.store.notices)

    def ask(
        self,
        question: str,
        stop: Callable[[], bool],
        mode: AnswerMode = AnswerMode.CACHED,
        *,
        wait: Callable[[], bool] = lambda: True,
        turn: int | None = None,
        earlier: Sequence[Turn] = (),
    ) -> Iterator[AnswerEvent]:
        """Answer from the chosen folders only (the store may hold others), as their files are now.

        An answer with a turn is saved.
        """
        from desk_rag.answering.conversation.asking import Request
        from desk_rag.answering.conversation.plain_search import is_search, search
        from desk_rag.indexer import fresh_answer

        engine, service = self._ready(), self._service
        if is_search(question):
            return search(engine.store, question, self.session.folders)
        request = Request(question, tuple(earlier), self.session.folders, mode=mode)
        hints = service.changed_files() if service is not None else ()
        events = fresh_answer.ask(engine, request, stop, wait=wait, is_reading=self._is_reading, hints=hints)
        return events if turn is None else self._saving(events, turn)

    def _saving(self, events: Iterator[AnswerEvent], turn: int) -> Iterator[AnswerEvent]:
        for event in events:
            if isinstance(event, Finished):
                self.keeper.save(turn, event.answer)
            yield event

    def names(self) -> Names:
        """Return the indexed folders and files below the chosen folders."""
        from desk_rag.answering.conversation.scope import Names, indexed_files

        return Names(indexed_files(self._ready().store), self.session.folders)

    def change_of(self, source: SavedSource) -> Change:
        """Compare a saved source with the index."""
        from desk_rag.answering.conversation.saved import change_of

        return change_of(source, self._ready().store.document)

    def backlog(self) -> Backlog:
        """Return the files below the chosen folders that were not read yet, after a look of at most 0.15 s."""
        from desk_rag.ingest import freshness

        hints = self._service.changed_files() if self._service is not None else ()
        return freshness.look(self._ready().store, self.session.folders, self.session.settings.index, hints=hints)

    def prefetch(self, question: str) -> None:
        """Bring nearer what the next question in the queue will need, while the present answer is written."""
        self._ready().prefetch(question, under=self.session.folders)

    def status(self) -> Status:
        """Return counts below the chosen folders and the writer's progress."""
        from desk_rag.ingest.deletions import missing_files
        from desk_rag.store.presence import absent_folders

        engine = self._ready()
        store = engine.store
        counts = store.counts(engine.namespace, engine.embedder.fingerprint, self.session.folders)
        activity = store.activity()
        paused = _left(store.pause_requested())
        freshness, stage = self._freshness(activity, paused)
        absent = [folder.path for folder in absent_folders(store) if self._is_chosen(folder.path)]
        missing = [
            folder
            for folder in missing_files(store, self.session.settings.index.deletion_grace_hours)
            if folder.waiting and self._is_chosen(folder.root)
        ]
        return Status(
            freshness=freshness,
            files=counts.files,
            failed=counts.failed,
            chunks=counts.chunks,
            with_vectors=counts.with_vectors,
            warm=counts.warm,
            kv_bytes=counts.kv_bytes,
            budget_bytes=counts.budget_bytes,
            stage=stage,
            done=activity.done if activity else 0,
            total=activity.total if activity else 0,
            eta_seconds=activity.eta_seconds if activity else None,
            waiting=_reason(activity),
            paused_seconds=None if paused == math.inf else paused,
            absent=tuple(absent),
            missing=sum(folder.waiting for folder in missing),
            missing_seconds=min((folder.seconds_left for folder in missing), default=0.0),
            writer=0 if self._service is not None or activity is None else activity.pid,
            is_reading=self._is_reading(),
            disk_full=store.kv_away or room_missing(counts, self.session.settings.store.budget_gib),
        )

    def _is_reading(self) -> bool:
        """Return whether this or another process reads files; one that has just started has not said so yet."""
        from desk_rag.ingest import freshness

        service, store = self._service, self._ready().store
        if service is not None:
            return bool(service.folders) and service.is_reading()
        return freshness.is_reading(store) or (self._is_young() and store.activity() is None)

    def document(self, path: Path) -> Sequence[Chunk]:
        """Return all chunks of one document in order."""
        return [passage.chunk for passage in self._ready().store.passages_of(path)]

    def pause(self, seconds: float | None) -> None:
        """Pause the indexing of whichever process is the writer."""
        until = None if seconds is None else time.time() + seconds
        if self._service is not None:
            self._service.pause(until)
        else:
            self._ready().store.request_pause(until)

    def decide_deletions(self, *, keep: bool) -> int:
        """Note the decision for the chosen folders; whichever process is the writer obeys it."""
        from desk_rag.store.catalog.deletion_rows import Decision

        decision = Decision.KEPT if keep else Decision.CONFIRMED
        return sum(self._ready().store.deletions.decide(folder, decision) for folder in self.session.folders)

    def stop(self) -> bool:
        """End indexing and close the store. False if a step that cannot be interrupted still runs."""
        self.session.detach()
        with self._changing:
            self._stopping.set()
            service, engine = self._service, self._engine
            self._service = self._engine = None
        if self._server is not None:
            self._server.stop()
        ended = service.stop() if service is not None else True
        if engine is not None:
            engine.close()
        self.keeper.close()
        return ended

    def _check_model(self) -> None:
        """Find out in a moment, not after the libraries, that there is no such model. Raises ModelError."""
        from desk_rag.model import adapters, weights

        model = self.session.settings.model
        weights.resolve(model.name, allow_download=model.allow_download)
        if model.adapter:
            adapters.inspect(Path(model.adapter))

    # What the screens beside the chat direct: `management.session.Indexing` ---------------------------------------

    @property
    def store(self) -> Store:
        """The store of the engine."""
        return self._ready().store

    @property
    def namespace(self) -> str:
        """The namespace of the loaded model's chunk KV."""
        return str(self._ready().namespace)

    @property
    def indexes(self) -> bool:
        """True if this process is the one that indexes."""
        return self._service is not None

    def sweep(self) -> None:
        """Look through the folders now, if this process indexes."""
        if self._service is not None:
            self._service.sweep()

    def halt(self) -> bool:
        """Stop indexing; False if another process indexes or a step that cannot be interrupted still runs."""
        with self._changing:
            if self._server is not None:
                self._server.stop()
            return self._service is not None and self._service.stop(_HALT_SECONDS)

    def resume(self, settings: Settings, folders: Sequence[Path]) -> None:
        """Index these folders with these settings from now on, after `halt`."""
        with self._changing:
            if not self._stopping.is_set():
                self.session.settings, self.session.folders = settings, tuple(folders)
                self._begin_indexing(self._ready(), self._listen)

    def _is_chosen(self, path: Path) -> bool:
        return not self.session.folders or any(
            path == folder or folder in path.parents for folder in self.session.folders
        )

    def _begin_indexing(self, engine: AnswerEngine, listen: Callable[[IndexEvent], None]) -> None:
        from desk_rag.indexer.parts import parts_of
        from desk_rag.indexer.resident.answers import Resident
        from desk_rag.indexer.resident.server import Server
        from desk_rag.indexer.service import Service

        self._started_at = time.monotonic()
        service = Service(parts_of(engine), self.session.folders, self.session.settings)
        service.subscribe(listen)
        service.start()
        self._service = service
        resident = Resident(
            self.session.settings,
            lambda: parts_of(engine),
            lambda: nullcontext(engine),
            service.is_reading,
            service.changed_files,
            service=lambda: self._service,
        )
        self._server = Server(self.session.settings.data_dir, resident.handle)
        if reason := self._server.start():
            _log.warning("other processes must answer by themselves: %s", reason)

    def _take_over(self, engine: AnswerEngine, listen: Callable[[IndexEvent], None]) -> None:
        """Try until this process becomes the writer; then index, and store caches that answers computed."""
        while not self._stopping.wait(_TRY_SECONDS):
            store = None if engine.store.writer else self._open_for_writing()
            if store is None and not engine.store.writer:
                continue
            with self._changing:
                if self._stopping.is_set():
                    if store is not None:
                        store.close()
                    return
                try:
                    if store is not None:
                        engine.become_writer(store)
                    self._begin_indexing(engine, listen)
                except Exception:
                    _log.exception("indexing cannot be taken over yet")
                    continue
            return

    def _open_for_writing(self) -> Store | None:
        """Open the store as its writer; None while that is not possible."""
        from desk_rag.store.store import Store

        if not (self.session.settings.data_dir / "catalog.sqlite").is_file():
            return None  # it is being purged; a reader must not create it again
        try:
            return Store.open(self.session.settings.data_dir, self.session.settings.store, writer=True)
        except StoreLocked:
            return None
        except Exception:
            _log.exception("the store cannot be opened for writing")
            return None

    def _ready(self) -> AnswerEngine:
        if self._engine is None:
            raise ModelError("The model is not loaded yet.", remedy="Wait until the title line names it.")
        return self._engine

    def _is_young(self) -> bool:
        """Return whether the start is so recent that a writer may not have said anything yet."""
        return time.monotonic() - self._started_at < _SOON

    def _freshness(self, activity: Activity | None, paused: float | None) -> tuple[Freshness, IndexStage | None]:
        if paused is not None:
            return Freshness.PAUSED, None
        if self._service is not None and (activity is None or activity.pid != os.getpid()):
            return (Freshness.STARTING if self._is_young() else Freshness.UNATTENDED), None
        if activity is None or activity.waiting == "stopped":
            return (Freshness.STARTING if self._is_young() else Freshness.UNATTENDED), None
        if activity.stage is IndexStage.SCAN and not activity.done and not activity.total and not activity.waiting:
            return Freshness.WATCHING, None
        return Freshness.INDEXING, activity.stage


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


def _device(engine: AnswerEngine) -> str:
    device = engine.model.device
    if device.type != "cuda":
        return "CPU"
    import torch

    return torch.cuda.get_device_name(device)
