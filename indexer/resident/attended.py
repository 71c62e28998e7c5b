"""Answer and index for one UI, usually in a process of its own (`attending`), which ends with the UI.

While another process writes to the store, it reads; once that process has ended, it becomes the writer and indexes.
"""

from __future__ import annotations

import logging
import math
import os
import queue
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from itertools import chain, repeat
from pathlib import Path
from typing import TYPE_CHECKING, cast

from desk_rag.config import Settings
from desk_rag.errors import UNWRITABLE, CorruptCatalog, GpuLost, ModelError, StoreLocked, told_to_user
from desk_rag.indexer.resident import values
from desk_rag.indexer.resident.exclusion import FollowedRules
from desk_rag.indexer.resident.facts import IndexingState, Started, is_being_read
from desk_rag.indexer.resident.protocol import Message, NoResident
from desk_rag.ingest.events import IndexEvent

if TYPE_CHECKING:
    from desk_rag.answering.conversation.turns import Request
    from desk_rag.answering.engine import AnswerEngine
    from desk_rag.answering.events import AnswerEvent
    from desk_rag.indexer.models import Models
    from desk_rag.indexer.resident.server import Server
    from desk_rag.indexer.service import Service
    from desk_rag.store.store import Store
    from desk_rag.store.types import PurgeReport

_log = logging.getLogger(__name__)

_HALT_SECONDS = 10.0
"""Seconds to wait for the indexing to stop before it begins with other settings."""
_STOP_SECONDS = 10.0
_TRY_SECONDS = 3.0
"""Seconds between two attempts to become the writer."""
_TELL_SECONDS = 0.5
"""Seconds in which an error reaches the UI before the process ends."""
_NEWS_SECONDS = 1.0
"""Seconds between two looks whether the UI has left."""


class Attended:
    """An engine over the store of `settings` that indexes `folders` when no other process does."""

    def __init__(self, settings: Settings, folders: Sequence[Path], settings_file: Path | None = None) -> None:
        self._settings, self._folders, self._settings_file = settings, tuple(folders), settings_file
        self._rules = FollowedRules(settings_file, settings.index.exclude)
        self._engine: AnswerEngine | None = None
        self._service: Service | None = None
        self._server: Server | None = None
        self._listen: Callable[[IndexEvent], None] = lambda _: None
        self._started_at = 0.0
        self._stopping = threading.Event()
        self._changing = threading.Lock()

    @property
    def has_ended(self) -> bool:
        """False: it lives as long as the UI's process."""
        return False

    def start(self, report: Callable[[str], None], listen: Callable[[IndexEvent], None]) -> Started:
        """Load model and store and begin indexing; `report` takes progress lines, `listen` events from any thread.

        Raises ModelError, StoreError, ConfigError.
        """
        self._listen = listen
        from desk_rag.indexer import models

        report("checking the model")
        models.check(self._settings)
        report("loading the libraries")
        from desk_rag.answering.serving_model import stored_gates
        from desk_rag.indexer.resident.keeping import answers_meanwhile, make_way
        from desk_rag.model.memory.device import shown_name
        from desk_rag.model.reasoning import Thinking
        from desk_rag.store.opening import CATALOG_RESET, INDEX_AGAIN
        from desk_rag.store.store import Store

        if not answers_meanwhile(self._settings):
            make_way(self._settings.data_dir)
        is_known = self._settings.model.name == "embedded" or stored_gates(self._settings.data_dir)
        first = "" if is_known else " and checking it, once"
        report(f"loading the model{first}")
        rebuilt: tuple[str, ...] = ()
        try:
            engine, self._folders = _open_engine(self._settings, self._folders, self._settings_file, report)
        except CorruptCatalog:
            report("replacing the damaged catalog")
            Store.reset_catalog(self._settings.data_dir, self._settings.store).close()
            rebuilt = (CATALOG_RESET,)
            engine, self._folders = _open_engine(self._settings, self._folders, self._settings_file, report)
        self._engine = engine
        self._started_at = time.monotonic()
        make_way(self._settings.data_dir)
        if engine.store.writer:
            self._begin_indexing(engine)
        else:
            threading.Thread(target=self._take_over, args=(engine,), name="takeover", daemon=True).start()
        prompt, spec = engine.model.prompt, engine.model.spec
        title = "embedded reader" if self._settings.model.name == "embedded" else spec.name
        title += " (always reasons first)" if prompt.reasoning.thinking is Thinking.ALWAYS else ""
        notices = rebuilt + engine.store.notices
        if self._service is not None:
            notices = tuple(said.replace(INDEX_AGAIN, "Your folders are being read again.") for said in notices)
        vectors = engine.embedder.fingerprint
        return Started(title, shown_name(engine.model.device), prompt.writes, notices, str(engine.namespace), vectors)

    def ask(self, request: Request, stop: Callable[[], bool], wait: Callable[[], bool]) -> Iterator[AnswerEvent]:
        """Answer from files as they are now; waits for new ones while `wait()` holds. Raises DeskRagError."""
        return self._ask_one(stop, wait)(self._ready(), request)

    def ask_all(
        self, requests: Sequence[Request], stop: Callable[[], bool]
    ) -> Generator[Iterator[AnswerEvent], None, None]:
        """Answer several questions, each as `ask` does; see `fresh_answer.ask_all`."""
        from desk_rag.indexer import fresh_answer

        return fresh_answer.ask_all(self._ready(), requests, stop, self._ask_one(stop, lambda: True))

    def _ask_one(
        self, stop: Callable[[], bool], wait: Callable[[], bool]
    ) -> Callable[[AnswerEngine, Request], Iterator[AnswerEvent]]:
        from desk_rag.indexer import fresh_answer

        service = self._service
        index = self._rules.in_force(self._settings.index) if service is None else service.rules_in_force()
        hints, is_reading = self.state().changed_files, lambda: self.state().is_reading
        return partial(fresh_answer.ask, stop=stop, wait=wait, is_reading=is_reading, hints=hints, index=index)

    def prefetch(self, question: str) -> None:
        """Bring nearer what `question` will need."""
        if self._engine is not None:
            self._engine.prefetch(question, under=self._folders)

    def state(self) -> IndexingState:
        """Return the state of the indexing."""
        service, engine = self._service, self._engine
        if service is not None:
            is_reading = bool(service.folders) and service.is_reading()
            return IndexingState(os.getpid(), is_reading, tuple(service.changed_files()))
        return IndexingState(is_reading=engine is not None and is_being_read(engine.store, self._started_at))

    def sweep(self) -> None:
        """Look through the folders now, if this engine indexes them."""
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
                self._settings, self._folders = settings, tuple(folders)
                self._begin_indexing(self._ready())

    def forget(self, path: Path, *, keep_caches: bool) -> PurgeReport:
        """Remove what was derived from `path`, after `halt`."""
        from desk_rag.indexer.resident.changes import forget

        return forget(self._ready().store, path, keep_caches=keep_caches)

    def remove_excluded(self, paths: Iterable[Path]) -> None:
        """Remove the documents at and below `paths`, which a rule leaves out, although indexing may be paused."""
        from desk_rag.indexer.resident.changes import remove_excluded

        remove_excluded(self._ready().store, paths)

    def stop(self) -> bool:
        """End indexing and close the store. False if a step that cannot be interrupted still runs."""
        with self._changing:
            self._stopping.set()
            service, engine = self._service, self._engine
            self._service = self._engine = None
        if self._server is not None:
            self._server.stop()
        ended = service.stop() if service is not None else True
        if engine is not None:
            engine.close()
        return ended

    def _begin_indexing(self, engine: AnswerEngine) -> None:
        from desk_rag.indexer.parts import parts_of
        from desk_rag.indexer.resident.answers import Resident
        from desk_rag.indexer.resident.server import Server
        from desk_rag.indexer.service import Service

        service = Service(parts_of(engine), self._folders, self._settings, settings_file=self._settings_file)
        service.subscribe(self._listen)
        service.start()
        self._service = service
        resident = Resident(
            self._settings,
            lambda: parts_of(engine),
            lambda: nullcontext(engine),
            service.is_reading,
            service.changed_files,
            service=lambda: self._service,
        )
        self._server = Server(self._settings.data_dir, resident.handle)
        if reason := self._server.start():
            _log.warning("other processes must answer by themselves: %s", reason)

    def _take_over(self, engine: AnswerEngine) -> None:
        """Try until this engine becomes the writer; then index, and store caches that answers computed."""
        for seconds in chain((0.0,), repeat(_TRY_SECONDS)):
            if self._stopping.wait(seconds):
                return
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
                    self._begin_indexing(engine)
                except Exception:
                    _log.exception("indexing cannot be taken over yet")
                    continue
            return

    def _open_for_writing(self) -> Store | None:
        """Open the store as its writer; None while that is not possible."""
        from desk_rag.store.store import Store

        if not (self._settings.data_dir / "catalog.sqlite").is_file():
            return None  # it is being purged; a reader must not create it again
        try:
            return Store.open(self._settings.data_dir, self._settings.store, writer=True)
        except StoreLocked:
            return None
        except Exception:
            _log.exception("the store cannot be opened for writing")
            return None

    def _ready(self) -> AnswerEngine:
        if self._engine is None:
            raise ModelError("The model is not loaded yet.", remedy="Wait until the title line names it.")
        return self._engine


def _open_engine(
    settings: Settings, folders: Sequence[Path], file: Path | None, report: Callable[[str], None]
) -> tuple[AnswerEngine, tuple[Path, ...]]:
    """Return an engine that writes unless another process does, and the folders that nobody purged while it loaded."""
    from desk_rag.answering.opening import engine_with
    from desk_rag.indexer.models import Models

    store = _open(settings)
    try:
        if store.writer and store.pause_requested() == math.inf:  # it lasted until this start
            store.request_pause(None)
        models = Models(store, settings, report)
        with _reading(store, settings, folders, models, file) as service:
            serving, embedder = models.serving(), models.embedder()
        engine = engine_with(serving, embedder, store, models.turn, settings)
        return engine, tuple(folders) if service is None else service.folders
    except BaseException:
        store.close()
        raise


def _open(settings: Settings) -> Store:
    from desk_rag.store.store import Store

    try:
        return Store.open(settings.data_dir, settings.store, writer=True)
    except (StoreLocked, *UNWRITABLE):
        return Store.open(settings.data_dir, settings.store, writer=False)


@contextmanager
def _reading(
    store: Store, settings: Settings, folders: Sequence[Path], models: Models, file: Path | None
) -> Iterator[Service | None]:
    """Read files during the block, which may take minutes; whoever indexes afterwards begins with a look of its own."""
    from desk_rag.indexer.parts import lazy_parts
    from desk_rag.indexer.resident.changes import taking_changes
    from desk_rag.indexer.service import Service

    if not (store.writer and folders):
        yield None
        return
    service = Service(lazy_parts(store, settings, models), folders, settings, settings_file=file)
    service.start()
    try:
        with taking_changes(service, settings.data_dir):
            yield service
    finally:
        service.stop(_STOP_SECONDS)


class Requests:
    """Answers the requests of the UI."""

    def __init__(self, attended: Attended, leave: Callable[[], object]) -> None:
        """`leave` ends this process, which can compute no more once the GPU failed; the UI then starts another."""
        self._attended, self._leave, self._leaves = attended, leave, False

    def handle(self, request: Message, stop: Callable[[], bool]) -> Iterator[Message]:
        """Answer one request. Raises DeskRagError."""
        if self._leaves:
            raise NoResident("it is ending")
        try:
            yield from self._answers(request, stop)
        except Exception as error:
            if isinstance(told_to_user(error), GpuLost):
                self._leaves = True
                threading.Timer(_TELL_SECONDS, self._leave).start()
            raise

    def _answers(self, request: Message, stop: Callable[[], bool]) -> Iterator[Message]:
        attended = self._attended
        match request.get("do"):
            case "attend":
                yield from self._attend(stop)
            case "ask" | "ask_all":
                yield from self._ask(request, stop)
            case "state":
                yield {"state": values.plain(attended.state())}
            case "prefetch":
                attended.prefetch(str(request["question"]))
                yield {"done": True}
            case "sweep":
                attended.sweep()
                yield {"done": True}
            case "halt":
                yield {"halted": attended.halt()}
            case "resume":
                attended.resume(*values.engine_arguments(request))
                yield {"done": True}
            case "forget":
                report = attended.forget(Path(str(request["path"])), keep_caches=bool(request["keep_caches"]))
                yield {"report": values.plain(report)}
            case "remove_excluded":
                attended.remove_excluded([Path(path) for path in cast("list[str]", request["paths"])])
                yield {"done": True}
            case _:
                raise NoResident("it does not know the request")

    def _ask(self, request: Message, stop: Callable[[], bool]) -> Iterator[Message]:
        from desk_rag.answering.conversation.turns import Request
        from desk_rag.indexer.resident import answers

        yield {"asked": True}
        if request["do"] == "ask_all":
            yield from answers.told(self._attended.ask_all(answers.requests_in(request), stop))
            return
        question, waits = values.built(Request, request["request"]), bool(request["wait"])
        yield from map(values.of_event, self._attended.ask(question, stop, lambda: waits))

    def _attend(self, stop: Callable[[], bool]) -> Iterator[Message]:
        """Start, and tell how that goes and what the indexing does, until the UI leaves."""
        news: queue.SimpleQueue[Message | Exception] = queue.SimpleQueue()

        def start() -> None:
            try:
                started = self._attended.start(
                    lambda text: news.put({"report": text}), lambda event: news.put(values.of_event(event))
                )
                news.put({"started": values.plain(started)})
            except Exception as error:
                news.put(error)

        threading.Thread(target=start, name="start", daemon=True).start()
        while not stop():
            try:
                message = news.get(timeout=_NEWS_SECONDS)
            except queue.Empty:
                continue
            if isinstance(message, Exception):
                raise message
            yield message
