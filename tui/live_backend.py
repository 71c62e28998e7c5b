"""Implement Backend with an engine in a process of its own, or one that another process has loaded already.

This process loads no model and imports no torch, so that keys are drawn at once whatever the engine does. Where the
system has no Unix sockets, the engine runs in this process.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from desk_rag.answering.conversation.turns import Request, Turn
from desk_rag.answering.events import AnswerEvent, AnswerMode, FilesWaiting, Finished
from desk_rag.config import Settings
from desk_rag.documents.chunking import Chunk
from desk_rag.errors import Cancelled, ModelError
from desk_rag.indexer.resident.facts import IndexingState, Started
from desk_rag.indexer.resident.protocol import NoResident, has_unix_sockets
from desk_rag.ingest.events import IndexEvent
from desk_rag.tui.backend import Status, Wanted
from desk_rag.tui.conversation.keeper import Keeper
from desk_rag.tui.index_state import status_of
from desk_rag.tui.management.session import Session

if TYPE_CHECKING:
    from desk_rag.answering.conversation.saved import Change
    from desk_rag.answering.conversation.scope import Names
    from desk_rag.indexer.resident.attended import Attended
    from desk_rag.indexer.resident.attending import AttendedProcess
    from desk_rag.ingest.freshness import Backlog
    from desk_rag.store.chats.records import SavedSource
    from desk_rag.store.store import Store
    from desk_rag.store.types import PurgeReport
    from desk_rag.tui.turns.other_process import OtherProcess
    from desk_rag.tui.turns.together import Answering

_LOOK_SECONDS = 0.1
_DECLINED_SECONDS = 12.0
"""Seconds in which another process may decline, such as while it begins to index other folders."""
_EMBEDDED = "embedded reader"
_MOST_ENDS, _ENDS_SECONDS = 3, 120.0
"""Ends of the process that answers within these seconds after which it is not started again."""


class LiveBackend:
    """Answers from the store of `settings`, indexing `folders` when no other process does."""

    def __init__(self, session: Session, *, in_process: bool = not has_unix_sockets()) -> None:
        self.session = session
        self._in_process = in_process
        self._own: Attended | AttendedProcess | None = None
        self._launched: AttendedProcess | None = None
        """The engine that was launched before the UI was there; None once it is waited for."""
        self._other: OtherProcess | None = None
        """Answers in place of an engine of this UI."""
        self._kept: OtherProcess | None = None
        """Answers until the engine of this UI is loaded: `loading` holds that, or why it failed, once it is done."""
        self._loading: Future[Started] | None = None
        self._started: Started | None = None
        """None while no engine can answer."""
        self._started_at = 0.0
        self._is_starting = False
        self._ends: list[float] = []
        self._indexed: frozenset[Path] = frozenset()
        """Chosen folders that were in the index; one that no longer is was purged, and another engine leaves it out."""
        self._together: frozenset[str] = frozenset()
        """Questions that were asked together last."""
        self.keeper = Keeper(session.settings.data_dir, save=session.settings.chats.save)
        self._stopping = threading.Event()

    def start(self, report: Callable[[str], None], listen: Callable[[IndexEvent], None]) -> Started:
        """Find or start an engine; also once the one before has ended. Raises ModelError, StoreError, ConfigError."""
        self._is_starting, self._started = True, None
        try:
            started = self._start(report, listen)
            self._started, self._started_at = started, time.monotonic()
            self.session.attach(self)
        finally:
            self._is_starting = False
        return started

    def launch(self) -> None:
        """Start the process that answers, if one will be needed, so that it loads while the UI is imported."""
        from desk_rag.indexer.resident.attending import AttendedProcess
        from desk_rag.tui.turns.other_process import OtherProcess

        engine = None if self._in_process or not self.session.folders else self._new_engine()
        if isinstance(engine, AttendedProcess) and OtherProcess.of(self.session.settings) is None:
            engine.launch()
            self._own = self._launched = engine

    def _start(self, report: Callable[[str], None], listen: Callable[[IndexEvent], None]) -> Started:
        from desk_rag.tui.turns.other_process import OtherProcess

        settings = self.session.settings
        if self._loading is not None:  # a kept process has answered until now
            started = self._loading.result()
            self._loading = self._kept = None
            return started
        has_ended, own = self.has_ended(), self._own
        if self._launched is None:
            self._own = self._other = None
            if own is not None:
                own.stop()
            self._check_ends(has_ended=has_ended)
        if (kept := self._kept_process()) is not None:
            self._kept, self._loading = kept, Future()
            threading.Thread(target=self._load, args=(listen,), name="load", daemon=True).start()
            return Started(_EMBEDDED, f"process {kept.pid}")
        if self._launched is not None:
            return self._begin_engine(report, listen)
        self._other = OtherProcess.of(settings)
        if self._other is not None and self.session.store() is not None:
            name = settings.model.name
            title = _EMBEDDED if name == "embedded" else Path(name).name
            return Started(title, f"process {self._other.pid}", markdown=name != "embedded")
        self._other = None
        return self._begin_engine(report, listen)

    def _kept_process(self) -> OtherProcess | None:
        """Return the process that `ask --keep` left, if it can answer about the chosen folders; None without one."""
        from desk_rag.indexer.resident.keeping import answers_meanwhile
        from desk_rag.tui.turns.other_process import OtherProcess

        if self._in_process or not answers_meanwhile(self.session.settings):
            return None
        kept = OtherProcess.of(self.session.settings, kept=True)
        store = None if kept is None else self.session.store()
        roots = [] if store is None else store.volumes.roots()
        return kept if store is not None and all(folder in roots for folder in self.session.folders) else None

    def _load(self, listen: Callable[[IndexEvent], None]) -> None:
        """Load the engine of this UI while a kept process answers."""
        loading = self._loading
        assert loading is not None
        try:
            loading.set_result(self._begin_engine(lambda _: None, listen))
        except BaseException as error:
            loading.set_exception(error)

    def _begin_engine(self, report: Callable[[str], None], listen: Callable[[IndexEvent], None]) -> Started:
        """Start an engine, and another one if that ends before it can answer."""
        from desk_rag.indexer.resident.attending import EndedAtStart

        for is_last in (False, True):
            engine = self._own = self._launched or self._new_engine()
            self._launched = None
            if self._stopping.is_set():  # `stop` may not have seen it
                raise Cancelled("The start was stopped.")
            try:
                return engine.start(report, listen)
            except EndedAtStart:
                if is_last:
                    raise
                report("starting again")
        raise AssertionError("one of both has returned")

    def _new_engine(self) -> Attended | AttendedProcess:
        from desk_rag.indexer.resident.attended import Attended
        from desk_rag.indexer.resident.attending import AttendedProcess

        kind = Attended if self._in_process else AttendedProcess
        folders = self.session.folders
        if self._indexed and (store := self.session.store()) is not None:
            purged = self._indexed.difference(store.volumes.roots())
            folders = tuple(folder for folder in folders if folder not in purged)
        return kind(self.session.settings, folders, self.session.file.path)

    def _check_ends(self, *, has_ended: bool) -> None:
        now = time.monotonic()
        if has_ended:
            self._ends = [*(end for end in self._ends if now - end < _ENDS_SECONDS), now]
        if len(self._ends) >= _MOST_ENDS:
            self._ends.clear()
            raise ModelError(
                "The process that answers has ended again and again.",
                remedy="See logs/indexer.log in the data directory, or choose a smaller model.",
            )

    def has_ended(self) -> bool:
        """Return whether the process that answers has ended by itself, so that another start is due."""
        if self._kept is not None and self._loading is not None:
            return self._loading.done() or self._kept.has_ended
        engine = self._own or self._other
        return engine is not None and engine.has_ended

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
        from desk_rag.answering.conversation.plain_search import is_search, search
        if is_search(question):
            self._await_rules(stop)
            return search(self.store, question, self.session.folders)
        self._engine()
        request = Request(question, tuple(earlier), self.session.folders, mode=mode)
        events = self._asked(request, stop, wait)
        return events if turn is None else self._saving(events, turn)

    def ask_all(
        self, wanted: Sequence[Wanted], stop: Callable[[], bool], *, wait: Callable[[], bool], earlier: Sequence[Turn]
    ) -> Generator[Answering, None, None]:
        """Answer the first question, and those behind it that the engine answers together with it."""
        from desk_rag.tui.turns import together

        def alone(one: Wanted, turns: Sequence[Turn]) -> Iterator[AnswerEvent]:
            return self.ask(one.question, stop, wait=wait, earlier=turns)

        first = Request(wanted[0].question, tuple(earlier), self.session.folders)
        may_wait = len(wanted) == 1 or self.has_ended() or self._is_starting or not wait()
        requests = [first] if may_wait else together.asked_together(wanted, first, self.store)
        if len(requests) == 1:
            yield together.Answering(wanted[0].turn, self._saving(alone(wanted[0], earlier), wanted[0].turn))
            return
        self._together = frozenset(request.question for request in requests)
        several = self._engine().ask_all(requests, stop)
        with closing(together.answers(wanted, requests, several, alone, self.store)) as answers:
            for turn, events in answers:
                yield together.Answering(turn, self._saving(events, turn))

    def _await_rules(self, stop: Callable[[], bool]) -> None:
        """Wait until the engine has taken out what the settings exclude by now. Raises StoreError if it does not."""
        from desk_rag.ingest import deletions, freshness

        excluded = freshness.look(self.store, self.session.folders, self.session.settings.index).excluded
        deletions.wait_until_taken_out(self.store, excluded, stop)

    def _asked(self, request: Request, stop: Callable[[], bool], wait: Callable[[], bool]) -> Iterator[AnswerEvent]:
        """Ask the engine; if it ends before it has told anything, ask the next one, but only one."""
        from desk_rag.indexer.resident.client import ResidentEnded

        until = time.monotonic() + _DECLINED_SECONDS
        may_ask_again = True
        while not (stop() or self._stopping.is_set()):
            if not (self.has_ended() or self._is_starting):
                try:
                    for event in self._engine().ask(request, stop, wait):
                        may_ask_again = may_ask_again and isinstance(event, FilesWaiting)
                        yield event
                    return
                except ResidentEnded as error:
                    if not may_ask_again:
                        remedy = "Ask again once it has started anew, which it does by itself."
                        raise ModelError("The process that answers has ended.", remedy=remedy) from error
                    may_ask_again = False
                except NoResident:
                    if self._other is not None and time.monotonic() > until:
                        self._other.give_up()
            time.sleep(_LOOK_SECONDS)

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

        hints = self._state().changed_files
        return freshness.look(self.store, self.session.folders, self.session.settings.index, hints=hints)

    def prefetch(self, question: str) -> None:
        """Bring nearer what the next question in the queue will need, unless the engine has that question already."""
        if question not in self._together:
            self._engine().prefetch(question)

    def status(self) -> Status:
        """Return counts below the chosen folders and the writer's progress."""
        from desk_rag.indexer import names
        from desk_rag.indexer.resident.facts import is_young

        store, started, state = self.store, self._started, self._state()
        namespace = self.namespace if started is not None else store.fullest_namespace()
        embedder = (started.embedder if started is not None else "") or names.kept_embedder(self.session.settings)
        counts = store.counts(namespace, embedder, self.session.folders)  # type: ignore[arg-type]
        if self.indexes:
            self._indexed |= frozenset(self.session.folders).intersection(store.volumes.roots())
        return status_of(store, counts, self.session, state, is_young=is_young(self._started_at))

    def _state(self) -> IndexingState:
        from desk_rag.indexer.resident.facts import is_being_read

        if self._own is not None and self._started is not None:
            try:
                return self._own.state()
            except NoResident:
                pass  # it has ended
        return IndexingState(is_reading=is_being_read(self.store, self._started_at))

    def document(self, path: Path) -> Sequence[Chunk]:
        """Return all chunks of one document in order."""
        return [passage.chunk for passage in self.store.passages_of(path)]

    def pause(self, seconds: float | None) -> None:
        """Pause the indexing of whichever process is the writer."""
        self.store.request_pause(None if seconds is None else time.time() + seconds)

    def decide_deletions(self, *, keep: bool) -> int:
        """Note the decision for the chosen folders; whichever process is the writer obeys it."""
        from desk_rag.store.catalog.deletion_rows import Decision

        decision = Decision.KEPT if keep else Decision.CONFIRMED
        return sum(self.store.deletions.decide(folder, decision) for folder in self.session.folders)

    def stop(self) -> bool:
        """End indexing and close the store. False if a step that cannot be interrupted still runs."""
        self._stopping.set()
        self.session.detach()
        ended = self._own is None or self._own.stop()
        self.keeper.close()
        return ended

    # What the screens beside the chat direct: `management.session.Indexing` ---------------------------------------

    @property
    def store(self) -> Store:
        """The store, open for reading. Raises ModelError while nothing was ever indexed."""
        store = self.session.store()
        if store is None:
            raise _not_loaded()
        return store

    @property
    def namespace(self) -> str:
        """The namespace of the loaded model's chunk KV."""
        known = self._started.namespace if self._started is not None else ""
        return known or str(self.store.fullest_namespace())

    @property
    def indexes(self) -> bool:
        """True if the engine of this UI is the one that indexes."""
        return self._state().pid != 0

    def sweep(self) -> None:
        """Look through the folders now, if this UI's engine indexes."""
        if self._own is not None:
            self._own.sweep()

    def halt(self) -> bool:
        """Stop indexing; False if another process indexes or a step that cannot be interrupted still runs."""
        return self._own is not None and self._own.halt()

    def resume(self, settings: Settings, folders: Sequence[Path]) -> None:
        """Index these folders with these settings from now on, after `halt`."""
        self.session.settings, self.session.folders = settings, tuple(folders)
        if self._own is not None:
            self._own.resume(settings, folders)

    def forget(self, path: Path, *, keep_caches: bool) -> PurgeReport:
        """Remove what was derived from `path`, after `halt`."""
        if self._own is None:
            raise _not_loaded()
        return self._own.forget(path, keep_caches=keep_caches)

    def remove_excluded(self, paths: Iterable[Path]) -> None:
        """Remove the documents at and below `paths`, which a rule leaves out."""
        if self._own is not None:
            self._own.remove_excluded(paths)

    def _engine(self) -> Attended | AttendedProcess | OtherProcess:
        engine = self._kept or self._own or self._other
        if engine is None or (self._started is None and not self._is_starting):
            raise _not_loaded()
        return engine


def _not_loaded() -> ModelError:
    return ModelError("The model is not loaded yet.", remedy="Wait until the title line names it.")
