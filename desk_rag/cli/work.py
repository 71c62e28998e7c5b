"""Run the commands `index`, `ask`, `search`, `watch` and `open`, and return their exit codes.

`cli.main` parses the arguments; `cli.output` lays out what is printed.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from desk_rag.answering.events import AnswerMode, FilesWaiting, Finished
from desk_rag.cli import output as out
from desk_rag.cli.signals import stoppable
from desk_rag.config import Settings
from desk_rag.errors import (
    UNWRITABLE,
    ConfigError,
    ForeignPlace,
    ModelError,
    StoreFull,
    StoreLocked,
)
from desk_rag.indexer.resident.protocol import NoResident
from desk_rag.ingest import contents, freshness, unread
from desk_rag.ingest.events import IndexFinished
from desk_rag.ingest.progress import Tally
from desk_rag.ingest.unread import UnreadFiles
from desk_rag.sanitize import shown_path

if TYPE_CHECKING:
    from desk_rag.answering.engine import AnswerEngine
    from desk_rag.answering.events import AnswerEvent
    from desk_rag.ingest.freshness import Backlog
    from desk_rag.retrieval.search import RetrievedChunk

SOME_UNREADABLE = 3
INTERRUPTED = 130


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


def with_answer_options(
    settings: Settings, attention: str | None, recompute: str | None, selector: str | None
) -> Settings:
    """Return the settings with these options of answers; None leaves a setting as it is. Raises ConfigError."""
    old = settings.answer
    if attention is recompute is selector is None and not old.recompute:
        return settings
    from desk_rag.kv.recompute.policy import RecomputeChoice

    choice = RecomputeChoice.parse(str(old.recompute if recompute is None else recompute), selector or old.selector)
    changes = {"attention": attention or old.attention, "recompute": choice.ratio, "selector": choice.selector.value}
    return settings.model_copy(update={"answer": old.model_copy(update=changes)})


def open_ui(settings: Settings, folders: Sequence[Path]) -> int:
    """Open the UI and return its exit code."""
    chosen = _roots(settings, folders) if folders else [folder.expanduser().absolute() for folder in settings.folders]
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise ConfigError("The UI needs a terminal.", remedy='Without one: desk-rag ask "…" --folder FOLDER')
    from desk_rag.tui.app import run

    return run(settings, chosen)


def index(settings: Settings, folders: Sequence[Path], *, warm: bool, as_json: bool) -> int:
    """Bring the index of `folders` up to date; 3 if some files could not be read."""
    tally = Tally()  # starts the clock before the imports, so that the reported time includes them
    from desk_rag.indexer.once import Run
    from desk_rag.indexer.parts import lazy_parts
    from desk_rag.store.store import Store

    roots = _roots(settings, folders)
    _check_model(settings)
    progress = out.Progress(sys.stderr, roots)
    with Store.open(settings.data_dir, settings.store, writer=True) as store, _stoppable(progress) as stop:
        if store.kv_away:
            progress.say(store.kv_away)
        done = Run(lazy_parts(store, settings), settings, stop, progress, tally).run(roots, warm=warm)
        skipped, stopped = unread.skipped_files(store, roots), stop()
    progress.clear()
    if as_json:
        names = [str(root) for root in roots]
        report = {**_finished_json(done), "not_read": out.unread_json(skipped)}
        out.print_json(sys.stdout, {**report, "folders": names, "stopped": stopped})
    else:
        _say_summary(progress, done, skipped)
    if stopped:
        return INTERRUPTED
    if done.disk_full:
        return StoreFull.exit_code
    return SOME_UNREADABLE if done.failed else 0


def index_with(
    engine: AnswerEngine, roots: Sequence[Path], settings: Settings, stop: Callable[[], bool], progress: out.Progress
) -> IndexFinished:
    """Index `roots` with the model that `engine` has loaded."""
    from desk_rag.indexer.once import Run
    from desk_rag.indexer.parts import parts_of

    return Run(parts_of(engine), settings, stop, progress).run(roots, loaded=True)


def ask(settings: Settings, options: AskOptions) -> int:
    """Answer one question on stdout; a folder that was never indexed is indexed first."""
    if not options.question:
        raise ConfigError("The question is empty.", remedy='desk-rag ask "When does the warranty end?"')
    roots = _indexed(settings, options.folders)
    progress = out.Progress(sys.stderr, roots)
    try:
        return _ask_resident(settings, options, roots, progress)
    except NoResident as reason:
        _say_alone(progress, reason)
    from desk_rag.indexer import fresh_answer
    from desk_rag.store.store import Store

    _check_model(settings)
    # Check the catalog first: loading the model takes seconds.
    with Store.open(settings.data_dir, settings.store, writer=False) as store:
        if not (options.index_first and contents.new_folders(store, roots)):
            contents.check_not_empty(store, roots, contents.ASK_REMEDY)
    failed = 0
    with _engine(settings, progress) as engine, _stoppable(progress) as stop:
        if options.index_first:
            failed = _index_new_folders(engine, roots, settings, stop, progress)
        progress.end()
        if stop():
            return INTERRUPTED
        contents.check_not_empty(engine.store, roots, contents.ASK_REMEDY)
        away = engine.store.kv_away
        if away:
            progress.say(away)
        question = fresh_answer.Question(options.question, roots, AnswerMode(options.mode), options.top_k)
        events = fresh_answer.ask(engine, question, stop, wait=lambda: options.wait)
        _print_answer(_saying_once(events, progress), roots, away, as_json=options.as_json)
        if stop():
            return INTERRUPTED
    return SOME_UNREADABLE if failed else 0


def _ask_resident(settings: Settings, options: AskOptions, roots: Sequence[Path], progress: out.Progress) -> int:
    """Have the question answered by a process that has the models loaded. Raises NoResident if there is none."""
    from desk_rag.indexer.resident import client, values

    request: dict[str, object] = {"do": "ask", "question": options.question, "folders": [str(root) for root in roots]}
    request |= {"mode": options.mode, "top_k": options.top_k, "wait": options.wait}
    request |= {"index_first": options.index_first, "settings": values.settings_key(settings)}
    with _stoppable(progress) as stop:
        messages = client.request(settings.data_dir, request, stop)
        away = str(next(iter(messages), {}).get("kv_away", ""))
        progress.end()
        if away:
            progress.say(away)
        events = _saying_once(map(values.to_event, messages), progress)
        _print_answer(events, roots, away, as_json=options.as_json)
        return INTERRUPTED if stop() else 0


def _say_alone(progress: out.Progress, reason: NoResident) -> None:
    """Say why a running desk-rag was not asked, if there is one."""
    if str(reason):
        progress.say(f"Answering without the desk-rag that is running: {reason}.")


def _print_answer(events: Iterable[AnswerEvent], roots: Sequence[Path], away: str, *, as_json: bool) -> None:
    printer = out.AnswerPrinter(sys.stdout, roots)
    for event in events:
        if not as_json:
            printer.show(event)
        elif isinstance(event, Finished):
            out.print_json(sys.stdout, out.answer_json(event.answer) | ({"kv_away": away} if away else {}))


def _saying_once(events: Iterable[AnswerEvent], progress: out.Progress) -> Iterator[AnswerEvent]:
    """Pass on the events of the answer itself; say once that it waits for another process that reads files."""
    waiting = False
    for event in events:
        if not isinstance(event, FilesWaiting):
            yield event
        elif not waiting:
            waiting = True
            progress.say(f"Waiting until all files are read ({event.backlog.share}); ask --no-wait does not wait.")


def _index_new_folders(
    engine: AnswerEngine, roots: Sequence[Path], settings: Settings, stop: Callable[[], bool], progress: out.Progress
) -> int:
    """Index those of `roots` that were never indexed; returns how many files could not be read."""
    new = contents.new_folders(engine.store, roots)
    if not new:
        return 0
    if not engine.store.writer and freshness.is_reading(engine.store):
        return 0  # the other process reads them, and the answer waits for that
    if not engine.store.writer:
        raise StoreLocked(
            f"{shown_path(new[0])} was never indexed, and the index cannot be written: another desk-rag is writing "
            "to it, or its drive is full or read-only.",
            remedy="Run desk-rag index FOLDER to see the reason; once it succeeds, ask again.",
        )
    progress.say(f"Indexing {', '.join(shown_path(root) for root in new)} first, once.")
    done = index_with(engine, new, settings, stop, progress)
    _say_summary(progress, done, unread.skipped_files(engine.store, new))
    return done.failed


def _say_summary(progress: out.Progress, done: IndexFinished, skipped: UnreadFiles) -> None:
    """Say what a run did, then which kinds of files it left unread."""
    progress.say(out.index_summary(done))
    if skipped.files:
        progress.say(f"{out.unread_line(skipped)}.")


def _check_model(settings: Settings) -> None:
    """Check the model as far as possible without loading it. Raises ModelError subclasses."""
    from desk_rag.model import adapters, weights

    weights.resolve(settings.model.name, allow_download=settings.model.allow_download)
    if settings.model.adapter:
        adapters.inspect(Path(settings.model.adapter))


def search(
    settings: Settings, query: str, folders: Sequence[Path], limit: int, *, words_only: bool, as_json: bool
) -> int:
    """Print the chunks nearest to `query`, best first."""
    if not query.strip():
        raise ConfigError("The query is empty.", remedy="desk-rag search warranty")
    roots = _indexed(settings, folders)
    try:
        chunks, notices = _search_resident(settings, query, roots, limit, words_only=words_only)
    except NoResident as reason:
        _say_alone(out.Progress(sys.stderr), reason)
        chunks, notices = _search_alone(settings, query, roots, limit, words_only=words_only)
    out.Progress(sys.stderr).clear()
    if as_json:
        results = [out.retrieved_json(chunk) for chunk in chunks]
        out.print_json(sys.stdout, {"query": query, "results": results, "notices": list(notices)})
        return 0
    for notice in notices:
        out.Progress(sys.stderr).say(notice)
    for number, chunk in enumerate(chunks, start=1):
        sys.stdout.write(out.retrieved_line(number, chunk, roots) + "\n")
    if not chunks:
        sys.stdout.write("Nothing found.\n")
    return 0


def _search_resident(
    settings: Settings, query: str, roots: Sequence[Path], limit: int, *, words_only: bool
) -> tuple[list[RetrievedChunk], tuple[str, ...]]:
    """Have a process search that has the embedder loaded. Raises NoResident if there is none."""
    from desk_rag.indexer.resident import client, values
    from desk_rag.retrieval.search import RetrievedChunk

    request: dict[str, object] = {"do": "search", "query": query, "folders": [str(root) for root in roots]}
    request |= {"limit": limit, "words_only": words_only, "settings": values.settings_key(settings)}
    *_, found = client.request(settings.data_dir, request)
    chunks, notices = found["chunks"], found["notices"]
    assert isinstance(chunks, list) and isinstance(notices, list)
    return [values.built(RetrievedChunk, chunk) for chunk in chunks], tuple(map(str, notices))


def _search_alone(
    settings: Settings, query: str, roots: Sequence[Path], limit: int, *, words_only: bool
) -> tuple[list[RetrievedChunk], tuple[str, ...]]:
    from desk_rag.ingest import damage
    from desk_rag.retrieval.search import retrieve
    from desk_rag.store.store import Store

    backlog = _read_changed(settings, roots)
    with Store.open(settings.data_dir, settings.store, writer=False) as store:
        contents.check_not_empty(store, roots, contents.SEARCH_REMEDY)
        embedder = None
        if not words_only:
            from desk_rag.retrieval.embedding import load_embedder

            out.Progress(sys.stderr).passing("loading the embedder …")
            embedder = load_embedder(settings.model)
        chunks = retrieve(store, embedder, query, limit, roots)
        return chunks, (*backlog.notices, *damage.notices(store, (), roots))


def _read_changed(settings: Settings, roots: Sequence[Path]) -> Backlog:
    """Look for files that changed, read a few small ones, and return what is left unread."""
    from desk_rag.model import weights
    from desk_rag.model.prompt import load_prompt
    from desk_rag.store.store import Store

    with Store.open(settings.data_dir, settings.store, writer=False) as store:
        backlog = freshness.look(store, roots, settings.index)
    if not backlog.is_small:
        return backlog
    try:
        prompt = load_prompt(weights.resolve(settings.model.name, allow_download=False))
        with Store.open(settings.data_dir, settings.store, writer=True) as store:
            return freshness.read_small(store, backlog, prompt, prompt.chunk_size, settings.index, lambda: False)
    except (StoreLocked, ForeignPlace, ModelError, *UNWRITABLE):
        return backlog  # another process reads them, or none can


def watch(settings: Settings, folders: Sequence[Path]) -> int:
    """Keep `folders` indexed until stopped by a signal; waits for folders on drives that are not connected."""
    from desk_rag.indexer.daemon import run_watch

    roots = [folder.expanduser().resolve() for folder in folders or settings.folders]
    return run_watch(settings, roots, sys.stdout)


@contextlib.contextmanager
def _engine(settings: Settings, progress: out.Progress) -> Iterator[AnswerEngine]:
    """Load the engine and close it at the end; it writes to the store unless another process does."""
    progress.passing("loading the model …")
    try:
        engine = _load_engine(settings)
    finally:
        progress.clear()
    try:
        yield engine
    finally:
        engine.close()


def _load_engine(settings: Settings) -> AnswerEngine:
    from desk_rag.answering.opening import open_engine

    try:
        return open_engine(settings, writer=True)
    except (StoreLocked, ForeignPlace, *UNWRITABLE):
        return open_engine(settings, writer=False)


def _stoppable(progress: out.Progress) -> AbstractContextManager[Callable[[], bool]]:
    """Turn the first Ctrl+C or SIGTERM into a request to stop after the work in flight."""
    return stoppable(lambda: progress.passing("stopping; press Ctrl+C again to end at once …"))


def _roots(settings: Settings, folders: Sequence[Path]) -> list[Path]:
    chosen = list(folders) or list(settings.folders)
    if not chosen:
        raise ConfigError("Name a folder.", remedy="Or set `folders` in the settings file (desk-rag help settings).")
    return _folders(chosen, files=False)


def _folders(folders: Sequence[Path], *, files: bool = True) -> list[Path]:
    """Return absolute paths of readable folders, and of files if `files` is true. Raises DeskRagError."""
    from desk_rag.documents.discovery import check_root

    checked = []
    for folder in folders:
        path = folder.expanduser().absolute()
        if not (files and path.is_file()):
            check_root(path)
        checked.append(path.resolve())
    return checked


def _indexed(settings: Settings, folders: Sequence[Path]) -> list[Path]:
    """Like `_folders`, but accept a folder that is absent now if the index holds documents of it."""
    try:
        return _folders(folders)
    except ConfigError:
        if not (settings.data_dir / "catalog.sqlite").is_file():
            raise
    from desk_rag.store.store import Store

    checked = []
    with Store.open(settings.data_dir, settings.store, writer=False) as store:
        for folder in folders:
            path = folder.expanduser().resolve()
            checked += [path] if not path.exists() and store.documents(path) else _folders([folder])
    return checked


def _finished_json(done: IndexFinished) -> dict[str, object]:
    return {
        "indexed": done.indexed,
        "unchanged": done.unchanged,
        "removed": done.removed,
        "skipped": done.skipped,
        "beginning_only": done.beginnings,
        "failed": done.failed,
        "chunks": done.chunks,
        "warm": done.warm,
        "seconds": done.seconds,
        "different_chunks": done.different_chunks,
        "vectors": done.vectors,
        "chunk_kvs": done.chunk_kvs,
        "disk_full": done.disk_full,
    }
