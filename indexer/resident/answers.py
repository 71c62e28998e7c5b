"""Answer the requests that clients may make: `ask`, `ask_all`, `search`, `status`, and changes to the store."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

from desk_rag.answering.conversation.scope import among_indexed
from desk_rag.answering.conversation.turns import Request
from desk_rag.config import IndexSettings, Settings, load
from desk_rag.errors import ConfigError, told_to_user
from desk_rag.indexer.resident import changes, values
from desk_rag.indexer.resident.protocol import NEW_FOLDER, Message, NoResident, fault
from desk_rag.ingest import contents, damage, deletions, freshness
from desk_rag.retrieval.search import retrieve

if TYPE_CHECKING:
    from desk_rag.answering.engine import AnswerEngine
    from desk_rag.answering.events import AnswerEvent
    from desk_rag.indexer.parts import Parts
    from desk_rag.indexer.resident.exclusion import FollowedRules
    from desk_rag.indexer.service import Service


@dataclass(frozen=True, slots=True)
class Resident:
    """Models, store and state that a process lends to answers."""

    settings: Settings
    parts: Callable[[], Parts]
    engine: Callable[[], AbstractContextManager[AnswerEngine]]
    is_reading: Callable[[], bool]
    changed_files: Callable[[], Iterable[Path]]
    leave: Callable[[], None] | None = None
    """Ends a process that was kept for answers only; None if it does other work."""
    is_leaving: Callable[[], bool] = lambda: False
    service: Callable[[], Service | None] = lambda: None
    """Returns what indexes in this process, and makes changes; None if nothing does."""
    end: Callable[[], None] | None = None
    """Ends the process although it indexes; None if a person is using it."""
    rules: FollowedRules | None = None
    """Rules of the settings file where nothing indexes in this process; None for those of `settings`."""

    def handle(self, request: Message, stop: Callable[[], bool]) -> Iterator[Message]:
        """Answer one request. Raises NoResident for one that the client must see to itself, DeskRagError."""
        does = request.get("do")
        if does == "status":
            kept = self.leave is not None
            yield {"pid": os.getpid(), "kept": kept, "settings": values.settings_key(self.settings)}
            return
        if does == "leave":
            leave = self.leave or (self.end if request.get("watching") else None)
            if leave is None:
                raise NoResident("it does other work")
            leave()
            yield {"leaving": True}
            return
        if self.is_leaving():
            raise NoResident("")
        service = self.service() if does in changes.WORK else None
        if service is not None and does != "index":
            yield from changes.carry_out(service, request, stop)
            return
        if self._settings_key(request) != values.settings_key(self.settings):
            raise NoResident("it has other settings")
        answers = {"ask": self._ask, "ask_all": self._ask_all, "search": self._search}
        if (answer := answers.get(str(does))) is not None:
            yield from answer(request, stop)
        elif service is not None:
            yield from changes.carry_out(service, request, stop)
        else:
            raise NoResident("")

    def _settings_key(self, request: Message) -> object:
        """Return the key of the client's settings, made here if the client names only its settings file."""
        file = request.get("settings_file")
        if not isinstance(file, dict):
            return request.get("settings")
        try:
            settings = load(Path(str(file["path"]))) if file["path"] else Settings()
        except ConfigError as error:
            raise NoResident("") from error  # the client reads the same file, and says what is wrong with it
        settings = settings.model_copy(update={"data_dir": self.settings.data_dir})  # it found this socket
        return values.settings_key(settings, Path(str(file["cwd"])))

    def _index_settings(self) -> IndexSettings:
        """Return the settings by which files are read now; what a user excludes meanwhile changes them."""
        if (service := self.service()) is not None:
            return service.rules_in_force()
        return self.settings.index if self.rules is None else self.rules.in_force(self.settings.index)

    def _ask(self, request: Message, stop: Callable[[], bool]) -> Iterator[Message]:
        question = values.built(Request, request["request"])
        yield self._readiness(request, question)
        with self.engine() as engine:
            yield from map(values.of_event, self._ask_one(request, stop)(engine, question))

    def _ask_all(self, request: Message, stop: Callable[[], bool]) -> Iterator[Message]:
        """Answer several questions."""
        from desk_rag.indexer import fresh_answer

        questions = requests_in(request)
        yield self._readiness(request, questions[0])
        with self.engine() as engine:
            yield from told(fresh_answer.ask_all(engine, questions, stop, self._ask_one(request, stop)))

    def _readiness(self, request: Message, question: Request) -> Message:
        """Return the first message of an answer. Raises NoResident for a folder to be indexed first, DeskRagError."""
        store = self.parts().store
        if request.get("index_first") and contents.new_folders(store, question.limit):
            raise NoResident(NEW_FOLDER if self.service() is not None else "")  # to be indexed by another request
        contents.check_not_empty(store, question.limit, contents.ask_remedy(self.settings))
        return {"kv_away": store.kv_away}

    def _ask_one(
        self, request: Message, stop: Callable[[], bool]
    ) -> Callable[[AnswerEngine, Request], Iterator[AnswerEvent]]:
        """Return what asks a question of the request."""
        from desk_rag.indexer import fresh_answer

        return lambda engine, question: fresh_answer.ask(
            engine,
            question,
            stop,
            wait=lambda: bool(request.get("wait")),
            is_reading=self.is_reading,
            hints=self.changed_files(),
            index=self._index_settings(),
        )

    def _search(self, request: Message, stop: Callable[[], bool]) -> Iterator[Message]:
        parts, under = self.parts(), _paths(request["folders"])
        store, index = parts.store, self._index_settings()
        contents.check_not_empty(store, under, contents.SEARCH_REMEDY)
        yield {"searches": True}
        backlog = freshness.look(store, under, index, hints=self.changed_files())
        if store.writer:
            backlog = freshness.read_small(store, backlog, parts.counter, parts.size, index, stop)
        deletions.wait_until_taken_out(store, backlog.excluded, stop)
        scope = among_indexed(str(request["query"]), store, under)
        embedder, limit = None if request.get("words_only") else parts.load_embedder(), request["limit"]
        chunks = retrieve(store, embedder, scope.question, limit if isinstance(limit, int) else 10, scope.paths)
        notices = (*backlog.notices, *damage.notices(store, (), scope.paths))
        yield {"chunks": values.plain(chunks), "notices": list(notices)}


def requests_in(message: Message) -> list[Request]:
    """Return the questions of a message that asks several."""
    return [values.built(Request, each) for each in cast("list[object]", message["requests"])]


def told(answers: Generator[Iterator[AnswerEvent], None, None]) -> Iterator[Message]:
    """Yield the events of several answers, with a message at each one's end: `answered`, or `failed` with its error."""
    with closing(answers):
        for events in answers:
            try:
                yield from map(values.of_event, events)
                yield {"answered": True}
            except Exception as error:
                known = told_to_user(error)
                if known is None:
                    raise
                yield {"failed": fault(known)}


def _paths(folders: object) -> list[Path]:
    return [Path(str(folder)) for folder in folders] if isinstance(folders, list) else []
