"""Answer several questions in one run: `ask -` with several lines, `ask --batch FILE`.

Each is answered as if it were asked alone, in the order of the lines, by `fresh_answer.ask_all`: in the process that
has the models loaded, which gets them as one request, or in this one.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from desk_rag.answering.conversation.turns import Request
from desk_rag.answering.events import AnswerMode
from desk_rag.cli import output as out
from desk_rag.cli import work
from desk_rag.cli.questions import ask as single
from desk_rag.cli.questions import new_folders
from desk_rag.cli.questions.ask import AskOptions
from desk_rag.cli.questions.session import ChatSession
from desk_rag.cli.signals import INTERRUPTED
from desk_rag.config import Settings
from desk_rag.errors import ConfigError
from desk_rag.indexer.resident.client import ResidentError
from desk_rag.indexer.resident.protocol import MOST_REQUEST, NEW_FOLDER, NoResident, encode
from desk_rag.ingest import contents
from desk_rag.sanitize import clean

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from desk_rag.answering.engine import AnswerEngine
    from desk_rag.answering.events import AnswerEvent

_LARGEST = 16 << 20
"""Bytes of a file of questions."""
_MOST_PORTION = MOST_REQUEST - 16 * 1024
"""Bytes of the questions of one request to another process, without the greeting and the settings."""


def questions_of(question: str, batch: Path | None) -> list[str]:
    """Return the questions to answer: the argument, or the lines of standard input or of a file but for comments ('#').

    The argument itself may have line breaks. Raises ConfigError for a file that cannot be read or has no question.
    """
    if batch is None and question != "-":
        return [question.strip()]
    if batch is None:
        lines = sys.stdin.read(_LARGEST).splitlines()
    elif question:
        raise ConfigError("--batch FILE takes the place of the question.", remedy="Name one of them.")
    else:
        try:
            with batch.expanduser().open("rb") as file:
                lines = file.read(_LARGEST).decode("utf-8-sig").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
            raise ConfigError(f"{batch} cannot be read: {reason}.", remedy="Name a file of questions.") from error
    questions = [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]
    if not questions and batch is not None:
        raise ConfigError(f"{batch} holds no question.", remedy="One question a line.")
    return questions or [""]


def ask_all(settings: Settings, options: AskOptions, questions: Sequence[str]) -> int:
    """Answer the questions on stdout; returns the exit code of the first that was not answered, else 0."""
    if options.continued is not None:
        raise ConfigError(
            "Several questions cannot continue a chat: each is answered by itself.", remedy="Leave out --continue."
        )
    roots = tuple(work.indexed_roots(settings, options.folders))
    progress = out.Progress(sys.stderr, roots)
    requests = [
        Request(question, (), limit=roots, mode=AnswerMode(options.mode), top_k=options.top_k) for question in questions
    ]
    if options.keep or settings.resident.keep:
        single.keep_process(settings, options, progress)
    batch = _Batch(settings, options, progress)
    try:
        try:
            batch.by_resident(requests)
        except NoResident as reason:
            if str(reason) != NEW_FOLDER:
                raise
            batch.index_by_resident(roots)
            batch.by_resident(requests[batch.answered :])
    except NoResident as reason:
        work.say_alone(progress, reason)
        if not batch.is_stopped:
            batch.alone(requests[batch.answered :])
    return INTERRUPTED if batch.is_stopped else batch.code


def _portions(requests: Sequence[Request]) -> Iterator[list[Request]]:
    """Divide the questions into as many as fit into one request each."""
    from desk_rag.indexer.resident import values

    portion: list[Request] = []
    size = 0
    for request in requests:
        nbytes = len(encode({"": values.plain(request)}))
        if portion and size + nbytes > _MOST_PORTION:
            yield portion
            portion, size = [], 0
        portion.append(request)
        size += nbytes
    if portion:
        yield portion


class _Batch:
    """Questions being answered."""

    def __init__(self, settings: Settings, options: AskOptions, progress: out.Progress) -> None:
        self._settings, self._options, self._progress = settings, options, progress
        self.answered = 0
        self.code = 0
        self.is_stopped = False
        self._session: ChatSession | None = None
        """The question before; all are saved in one chat."""
        self._headed: Request | None = None
        """The question whose text was printed last."""

    def by_resident(self, requests: Sequence[Request]) -> None:
        """Have them answered by a process that has the models loaded. Raises NoResident where it cannot."""
        from desk_rag.indexer.resident import client, values

        options = self._options
        message: dict[str, object] = {"do": "ask_all", "wait": options.wait, "index_first": options.index_first}
        message |= {"settings": values.settings_key(self._settings)}
        for portion in _portions(requests):
            asked = message | {"requests": values.plain(portion)}
            with (
                work.stoppable_with(self._progress) as stop,
                closing(client.request(self._settings.data_dir, asked, stop)) as messages,
            ):
                away = str(next(messages, {}).get("kv_away", ""))
                self._progress.end()
                if away:
                    self._progress.say(away)
                for request, events in zip(portion, client.answers(messages, len(portion)), strict=True):
                    self.is_stopped = self.is_stopped or stop()
                    if self.is_stopped:
                        return
                    self._print(request, events, away, stop)

    def index_by_resident(self, roots: Sequence[Path]) -> None:
        """Have the folders indexed by the process that indexes. Raises NoResident where it cannot."""
        with work.stoppable_with(self._progress) as stop:
            failed = new_folders.index_in_background_process(self._settings, roots, stop, self._progress)
            self.is_stopped = stop()
        self.code = work.SOME_UNREADABLE if failed else 0
        self._options = replace(self._options, index_first=False)

    def alone(self, requests: Sequence[Request]) -> None:
        """Answer them in this process."""
        from desk_rag.indexer import fresh_answer, models

        models.check(self._settings)
        with work.engine_of(self._settings, self._progress) as engine, work.stoppable_with(self._progress) as stop:
            if self._options.index_first and requests:
                failed = new_folders.index_new_folders(engine, requests[0].limit, self._settings, stop, self._progress)
                self.code = work.SOME_UNREADABLE if failed else 0
            self._progress.end()
            contents.check_not_empty(engine.store, requests[0].limit, contents.ask_remedy(self._settings))
            for notice in filter(None, (engine.store.kv_away, engine.model.prompt.reasoning.notice)):
                self._progress.say(notice)
            with closing(fresh_answer.ask_all(engine, requests, stop, self._ask_one(stop))) as answers:
                for events, request in zip(answers, requests, strict=False):  # they end early if stopped
                    self._print(request, events, engine.store.kv_away, stop)
            self.is_stopped = stop()

    def _ask_one(self, stop: Callable[[], bool]) -> Callable[[AnswerEngine, Request], Iterator[AnswerEvent]]:
        from desk_rag.indexer import fresh_answer

        return lambda engine, request: fresh_answer.ask(engine, request, stop, wait=lambda: self._options.wait)

    def _print(
        self, request: Request, events: Iterator[AnswerEvent], away: str, stop: Callable[[], bool]
    ) -> None:
        def answer(request: Request, session: ChatSession) -> int:
            single.print_answer(events, request, session, self._progress, away, as_json=self._options.as_json)
            return INTERRUPTED if stop() else 0

        self._one(request, answer)

    def _one(self, request: Request, answer: Callable[[Request, ChatSession], int]) -> None:
        """Answer one question; one that cannot be asked is said, and the others follow."""
        session = ChatSession.begin(self._settings, None, private=self._options.private, beside=self._session)
        self._session = session
        if not self._options.as_json and request is not self._headed:
            self._headed = request
            gap = "\n" if self.answered else ""
            sys.stdout.write(f"{gap}> {clean(request.question, single_line=True)}\n")
        try:
            code = answer(request, session)
        except (ConfigError, ResidentError) as error:
            code = error.exit_code
            if self._options.as_json:
                out.print_json(sys.stdout, {"question": request.question, "error": error.message})
            else:
                sys.stdout.write(f"{clean(str(error))}\n")
        self.answered += 1
        self.is_stopped = code == INTERRUPTED
        self.code = self.code or code
