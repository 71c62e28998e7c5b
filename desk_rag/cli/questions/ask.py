"""Run `desk-rag ask`: a process that has the models loaded answers, or this one does."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from desk_rag.answering.conversation.turns import Request
from desk_rag.answering.events import AnswerEvent, AnswerMode, FilesWaiting, Finished
from desk_rag.cli import output as out
from desk_rag.cli import work
from desk_rag.cli.questions import new_folders
from desk_rag.cli.questions.early import EarlyQuestion, Question
from desk_rag.cli.questions.session import ChatSession
from desk_rag.cli.signals import INTERRUPTED
from desk_rag.cli.store_access import exists
from desk_rag.config import Settings, default_path
from desk_rag.errors import ConfigError
from desk_rag.indexer.resident.protocol import NEW_FOLDER, NoResident
from desk_rag.ingest import contents


@dataclass(frozen=True, slots=True)
class AskOptions:
    """A question and its options from the command line."""

    question: str
    folders: tuple[Path, ...]
    mode: str
    top_k: int | None
    index_first: bool
    wait: bool
    """Wait until another process has read all files; otherwise answer from what it has read so far."""
    as_json: bool
    continued: str | None = None
    """Number of the chat that the question continues; '0' for the latest."""
    private: bool = False
    """Save nothing."""
    keep: bool = False
    """Leave a process behind that answers the next questions sooner."""
    settings_file: Path | None = None
    """The settings file that the command line names; None for the default one."""


def ask(settings: Settings, options: AskOptions, early: EarlyQuestion | None = None) -> int:
    """Answer one question on stdout; a folder that was never indexed is indexed first.

    `early` is the question as it was sent to the process that answers for others, if it was.
    """
    if not options.question:
        raise ConfigError("The question is empty.", remedy='desk-rag ask "When does the warranty end?"')
    roots = work.indexed_roots(settings, options.folders)
    session = ChatSession.begin(settings, options.continued, private=options.private)
    request = Request(
        options.question, session.earlier, limit=tuple(roots), mode=AnswerMode(options.mode), top_k=options.top_k
    )
    progress = out.Progress(sys.stderr, roots)
    if session.continues:
        progress.say(session.continues)
    keeps = options.keep or settings.resident.keep
    sent = _fitting(early, options, request)
    if keeps and sent is None:
        keep_process(settings, options, progress)
    try:
        return ask_resident(settings, options, request, session, progress, sent)
    except NoResident as reason:
        if str(reason) != NEW_FOLDER:
            work.say_alone(progress, reason)
        else:
            with suppress(NoResident):  # it has ended since
                return index_and_ask_resident(settings, options, request, session, progress)
    if not keeps:
        return _ask_alone(settings, options, request, session, progress)
    from desk_rag.indexer.resident import keeping

    keeping.make_way(settings.data_dir)  # it declined a folder that must be indexed first
    code = _ask_alone(settings, options, request, session, progress)
    keeping.start(settings, options.settings_file or default_path())
    return code


def keep_process(settings: Settings, options: AskOptions, progress: out.Progress) -> None:
    """Start the process that answers, unless there is one or nothing is indexed."""
    from desk_rag.indexer.resident import keeping

    if not exists(settings):
        return
    progress.passing("starting a process that keeps the models loaded …")
    reason = keeping.ensure(settings, options.settings_file or default_path())
    progress.clear()
    if reason:
        progress.say(f"No process could be kept for the next question: {reason}")


def _fitting(early: EarlyQuestion | None, options: AskOptions, request: Request) -> EarlyQuestion | None:
    """Return the question that was sent already if it is the one to ask; otherwise forget it."""
    if early is None:
        return None
    fields = (request.question, request.limit, options.mode, options.top_k, options.index_first, options.wait)
    if request.earlier or early.question != Question(*fields):
        early.connection.close()
        return None
    return early


def ask_resident(
    settings: Settings,
    options: AskOptions,
    request: Request,
    session: ChatSession,
    progress: out.Progress,
    sent: EarlyQuestion | None = None,
) -> int:
    """Have the question answered by a process that has the models loaded. Raises NoResident if there is none."""
    from desk_rag.indexer.resident import client, values

    message: dict[str, object] = {"do": "ask", "request": values.plain(request), "wait": options.wait}
    message |= {"index_first": options.index_first, "settings": values.settings_key(settings)}
    with work.stoppable_with(progress) as stop:
        if sent is not None:
            messages = client.answer(sent.connection, stop)
        else:
            messages = client.request(settings.data_dir, message, stop)
        away = str(next(iter(messages), {}).get("kv_away", ""))
        progress.end()
        if away:
            progress.say(away)
        events = map(values.to_event, messages)
        print_answer(events, request, session, progress, away, as_json=options.as_json)
        return INTERRUPTED if stop() else 0


def index_and_ask_resident(
    settings: Settings, options: AskOptions, request: Request, session: ChatSession, progress: out.Progress
) -> int:
    """Have the folders of the question indexed by the process that indexes, then the question answered by it."""
    with work.stoppable_with(progress) as stop:
        failed = new_folders.index_in_background_process(settings, request.limit, stop, progress)
        if stop():
            return INTERRUPTED
    code = ask_resident(settings, replace(options, index_first=False), request, session, progress)
    return code or (work.SOME_UNREADABLE if failed else 0)


def _ask_alone(
    settings: Settings, options: AskOptions, request: Request, session: ChatSession, progress: out.Progress
) -> int:
    from desk_rag.answering.conversation import asking
    from desk_rag.indexer import fresh_answer, models
    from desk_rag.store.store import Store

    models.check(settings)
    roots = request.limit
    # Check catalog and '@' names first: loading the model takes seconds.
    with Store.open(settings.data_dir, settings.store, writer=False) as store:
        if not (options.index_first and contents.new_folders(store, roots)):
            contents.check_not_empty(store, roots, contents.ask_remedy(settings))
            asking.understand(request, store)
    failed = 0
    with work.engine_of(settings, progress) as engine, work.stoppable_with(progress) as stop:
        if options.index_first:
            failed = new_folders.index_new_folders(engine, roots, settings, stop, progress)
        progress.end()
        if stop():
            return INTERRUPTED
        contents.check_not_empty(engine.store, roots, contents.ask_remedy(settings))
        away = engine.store.kv_away
        for notice in filter(None, (away, engine.model.prompt.reasoning.notice)):
            progress.say(notice)
        events = fresh_answer.ask(engine, request, stop, wait=lambda: options.wait)
        print_answer(events, request, session, progress, away, as_json=options.as_json)
        if stop():
            return INTERRUPTED
    return work.SOME_UNREADABLE if failed else 0


def print_answer(
    events: Iterable[AnswerEvent],
    request: Request,
    session: ChatSession,
    progress: out.Progress,
    away: str,
    *,
    as_json: bool,
) -> None:
    """Print the events of an answer and save it in its chat."""
    printer = out.AnswerPrinter(sys.stdout, request.shown_from)
    for event in _saying_once(events, progress.say):
        if isinstance(event, Finished):
            session.save(event.answer)
        if not as_json:
            printer.show(event)
        elif isinstance(event, Finished):
            extra: dict[str, object] = {"kv_away": away} if away else {}
            out.print_json(sys.stdout, out.answer_json(event.answer) | extra | session.as_json())
    for notice in session.notices(terminal=sys.stderr.isatty() and not as_json):
        progress.say(notice)


def _saying_once(events: Iterable[AnswerEvent], say: Callable[[str], None]) -> Iterator[AnswerEvent]:
    """Pass on the events of the answer itself; say once that it waits for another process that reads files."""
    waiting = False
    for event in events:
        if not isinstance(event, FilesWaiting):
            yield event
        elif not waiting:
            waiting = True
            say(f"Waiting until all files are read ({event.backlog.share}); ask --no-wait does not wait.")
