"""Implement Backend with an AnswerEngine and, if this process is the writer, background indexing.

Imports torch only in `start`. While another process is the writer, it answers from the same store and shows that
process's progress; once that process has ended, it becomes the writer and indexes.
"""

from __future__ import annotations

import logging
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
from desk_rag.errors import ModelError, StoreLocked
from desk_rag.ingest.events import IndexEvent
from desk_rag.tui.backend import Started, Status
from desk_rag.tui.conversation.keeper import Keeper
from desk_rag.tui.index_state import status_of
from desk_rag.tui.management.session import Session
from desk_rag.tui.turns.other_process import OtherProcess

if TYPE_CHECKING:
    from desk_rag.answering.conversation.asking import Request
    from desk_rag.answering.conversation.saved import Change
    from desk_rag.answering.conversation.scope import Names
    from desk_rag.answering.engine import AnswerEngine
    from desk_rag.config import IndexSettings
    from desk_rag.indexer.resident.server import Server
    from desk_rag.indexer.service import Service
    from desk_rag.ingest.freshness import Backlog
    from desk_rag.store.chats.records import SavedSource
    from desk_rag.store.store import Store

_log = logging.getLogger(__name__)

_SOON = 20.0
"""Seconds that a writer may take to start; without activity after that, nobody is watching."""
_HALT_SECONDS = 10.0
"""Seconds to wait for the indexing to stop before it begins with other settings."""
_LOOK_SECONDS = 0.1
_EMBEDDED = "embedded reader"
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
        self._other: OtherProcess | None = None
        """Answers until the engine is there."""
        self._stopping = threading.Event()
        self._changing = threading.Lock()

    def borrow(self) -> Started | None:
        """Answer through the process that watches, if it has the same settings. Raises StoreError."""
        other, name = OtherProcess.of(self.session.settings), self.session.settings.model.name
        if other is None or self.session.store() is None:
            return None
        self._other, self._started_at = other, time.monotonic()
        title = _EMBEDDED if name == "embedded" else Path(name).name
        return Started(title, f"process {other.pid} answers while this one loads", markdown=name != "embedded")

    def start(self, report: Callable[[str], None], listen: Callable[[IndexEvent], None]) -> Started:
        """Load model and store and begin indexing. Raises ModelError, StoreError, ConfigError."""
        try:
            return self._start(report, listen)
        finally:
            self._other = None

    def _start(self, report: Callable[[str], None], listen: Callable[[IndexEvent], None]) -> Started:
        self._listen = listen
        while self._other is not None and not self._other.rests and not self._stopping.wait(_LOOK_SECONDS):
            pass  # loading holds Python's lock, and would slow down what the other process answers
        report("checking the model")
        self._check_model()
        report("loading the libraries")
        from desk_rag.answering.serving_model import stored_gates
        from desk_rag.indexer.resident.keeping import make_way
        from desk_rag.model.reasoning import Thinking
        from desk_rag.store.opening import INDEX_AGAIN
        from desk_rag.tui.engine_opening import open_engine

        make_way(self.session.settings.data_dir)
        first = "" if stored_gates(self.session.settings.data_dir) else " and checking it, once"
        report(f"loading the model{first}")
        engine = open_engine(self.session.settings, self.session.folders)
        self._engine, self._started_at = engine, time.monotonic()
        if engine.store.writer:
            self._begin_indexing(engine, listen)
        else:
            takeover = threading.Thread(target=self._take_over, args=(engine, listen), name="takeover", daemon=True)
            takeover.start()
        self.session.attach(self)
        prompt, spec = engine.model.prompt, engine.model.spec
        title = _EMBEDDED if self.session.settings.model.name == "embedded" else spec.name
        title += " (always reasons first)" if prompt.reasoning.thinking is Thinking.ALWAYS else ""
        notices = engine.store.notices
        if self._service is not None:
            notices = tuple(said.replace(INDEX_AGAIN, "Your folders are being read again.") for said in notices)
        return Started(title, _device(engine), prompt.writes, notices)

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

        if is_search(question):
            return search(self.store, question, self.session.folders)
        request = Request(question, tuple(earlier), self.session.folders, mode=mode)
        other = self._other if self._engine is None else None
        if other is None:
            events = self._asked(request, stop, wait)
        else:
            events = self._asked_elsewhere(other, request, stop, wait)
        return events if turn is None else self._saving(events, turn)

    def _asked(self, request: Request, stop: Callable[[], bool], wait: Callable[[], bool]) -> Iterator[AnswerEvent]:
        from desk_rag.indexer import fresh_answer

        engine, service = self._ready(), self._service
        hints = service.changed_files() if service is not None else ()
        index, is_reading = self._index_settings(), self._is_reading
        return fresh_answer.ask(engine, request, stop, wait=wait, is_reading=is_reading, hints=hints, index=index)

    def _index_settings(self) -> IndexSettings:
        """Return the settings by which files are read now; what any process excludes changes them."""
        service = self._service
        return (self.session.settings if service is None else service.settings).index

    def _asked_elsewhere(
        self, other: OtherProcess, request: Request, stop: Callable[[], bool], wait: Callable[[], bool]
    ) -> Iterator[AnswerEvent]:
        """Let the other process answer; if it has ended, answer here once that is possible."""
        from desk_rag.indexer.resident.protocol import NoResident

        try:
            yield from other.ask(request, stop, wait)
        except NoResident:
            other.end()
            while self._other is not None and not stop():
                time.sleep(_LOOK_SECONDS)
            yield from self._asked(request, stop, wait)

    def _saving(self, events: Iterator[AnswerEvent], turn: int) -> Iterator[AnswerEvent]:
        for event in events:
            if isinstance(event, Finished):
                self.keeper.save(turn, event.answer)
            yield event

    def names(self) -> Names:
        """Return the indexed folders and files below the chosen folders."""
        from desk_rag.answering.conversation.scope import Names, indexed_files

        return Names(indexed_files(self.store), self.session.folders)

    def change_of(self, source: SavedSource) -> Change:
        """Compare a saved source with the index."""
        from desk_rag.answering.conversation.saved import change_of

        return change_of(source, self.store.document)

    def backlog(self) -> Backlog:
        """Return the files below the chosen folders that were not read yet, after a look of at most 0.15 s."""
        from desk_rag.ingest import freshness

        hints = self._service.changed_files() if self._service is not None else ()
        return freshness.look(self.store, self.session.folders, self._index_settings(), hints=hints)

    def prefetch(self, question: str) -> None:
        """Bring nearer what the next question in the queue will need, while the present answer is written."""
        if self._engine is not None:
            self._engine.prefetch(question, under=self.session.folders)

    def status(self) -> Status:
        """Return counts below the chosen folders and the writer's progress."""
        from desk_rag.indexer import names

        engine, store = self._engine, self.store
        if engine is not None:
            counts = store.counts(engine.namespace, engine.embedder.fingerprint, self.session.folders)
        else:
            embedder = names.kept_embedder(self.session.settings)
            counts = store.counts(store.fullest_namespace(), embedder, self.session.folders)  # type: ignore[arg-type]
        return status_of(
            store,
            counts,
            self.session,
            indexes=self._service is not None,
            is_reading=self._is_reading(),
            is_young=self._is_young(),
        )

    def _is_reading(self) -> bool:
        """Return whether this or another process reads files; one that has just started has not said so yet."""
        from desk_rag.ingest import freshness

        service, store = self._service, self.store
        if service is not None:
            return bool(service.folders) and service.is_reading()
        return freshness.is_reading(store) or (self._is_young() and store.activity() is None)

    def document(self, path: Path) -> Sequence[Chunk]:
        """Return all chunks of one document in order."""
        return [passage.chunk for passage in self.store.passages_of(path)]

    def pause(self, seconds: float | None) -> None:
        """Pause the indexing of whichever process is the writer."""
        until = None if seconds is None else time.time() + seconds
        if self._service is not None:
            self._service.pause(until)
        else:
            self.store.request_pause(until)

    def decide_deletions(self, *, keep: bool) -> int:
        """Note the decision for the chosen folders; whichever process is the writer obeys it."""
        from desk_rag.store.catalog.deletion_rows import Decision

        decision = Decision.KEPT if keep else Decision.CONFIRMED
        return sum(self.store.deletions.decide(folder, decision) for folder in self.session.folders)

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
        """The store of the engine, or a reader's while another process answers."""
        reader = self.session.store() if self._engine is None and self._other is not None else None
        return self._ready().store if reader is None else reader

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


def _device(engine: AnswerEngine) -> str:
    device = engine.model.device
    if device.type != "cuda":
        return "CPU"
    import torch

    return torch.cuda.get_device_name(device)
