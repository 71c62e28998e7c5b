"""Run the commands `index`, `ask`, `watch`, `open` and `bench`, and return their exit codes.

`cli.main` parses the arguments; `cli.output` lays out what is printed.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from desk_rag.answering.events import AnswerMode, Finished
from desk_rag.cli import output as out
from desk_rag.cli.signals import stoppable
from desk_rag.config import Settings
from desk_rag.documents.status import FileState
from desk_rag.errors import (
    UNWRITABLE,
    ConfigError,
    DeskRagError,
    ForeignPlace,
    StoreFull,
    StoreLocked,
    catalog_lost,
)
from desk_rag.ingest import unread
from desk_rag.ingest.events import IndexFinished
from desk_rag.ingest.progress import Tally
from desk_rag.ingest.unread import UnreadFiles
from desk_rag.sanitize import shown_path

if TYPE_CHECKING:
    from desk_rag.answering.conversation.asking import Request
    from desk_rag.answering.engine import AnswerEngine
    from desk_rag.cli.questions.session import ChatSession
    from desk_rag.store.store import Store

SOME_UNREADABLE = 3
INTERRUPTED = 130
_ASK_REMEDY = 'Name a folder: desk-rag ask "…" --folder ~/Documents'


@dataclass(frozen=True, slots=True)
class AskOptions:
    """A question and its options from the command line."""

    question: str
    folders: tuple[Path, ...]
    mode: str
    top_k: int | None
    index_first: bool
    as_json: bool
    continued: str | None = None
    """Number of the chat that the question continues; '0' for the latest."""
    private: bool = False
    """Save nothing."""


def with_answer_options(
    settings: Settings, attention: str | None, recompute: str | None, selector: str | None
) -> Settings:
    """Return the settings with these options of answers; None leaves a setting as it is. Raises ConfigError."""
    from desk_rag.kv.recompute.policy import RecomputeChoice

    old = settings.answer
    choice = RecomputeChoice.parse(str(old.recompute if recompute is None else recompute), selector or old.selector)
    changes = {"attention": attention or old.attention, "recompute": choice.ratio, "selector": choice.selector.value}
    return settings.model_copy(update={"answer": old.model_copy(update=changes)})


def open_ui(settings: Settings, folders: Sequence[Path], settings_file: Path | None = None) -> int:
    """Open the UI and return its exit code."""
    chosen = _roots(settings, folders) if folders else [folder.expanduser().absolute() for folder in settings.folders]
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise ConfigError("The UI needs a terminal.", remedy='Without one: desk-rag ask "…" --folder FOLDER')
    from desk_rag.cli.doctor import examine
    from desk_rag.tui.app import run
    from desk_rag.tui.management.session import Session

    run(Session(settings, chosen, settings_file, examine))


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
    roots = indexed_roots(settings, options.folders)
    _check_model(settings)
    request, session = _request(settings, options, roots)
    progress = out.Progress(sys.stderr, roots)
    failed = 0
    with _engine(settings, progress) as engine, _stoppable(progress) as stop:
        if options.index_first:
            failed = _index_new_folders(engine, roots, settings, stop, progress)
        progress.end()
        if stop():
            return INTERRUPTED
        check_not_empty(engine.store, roots, _ASK_REMEDY)
        away = engine.store.kv_away
        if away:
            progress.say(away)
        _print_answer(engine, request, session, stop, as_json=options.as_json)
        for notice in session.notices(terminal=sys.stderr.isatty() and not options.as_json):
            progress.say(notice)
        if stop():
            return INTERRUPTED
    return SOME_UNREADABLE if failed else 0


def _request(settings: Settings, options: AskOptions, roots: Sequence[Path]) -> tuple[Request, ChatSession]:
    """Return the question with the chat it belongs to.

    Checks catalog, chat and '@' names first, because loading the model takes seconds.
    """
    from desk_rag.answering.conversation import asking
    from desk_rag.cli.questions.session import ChatSession
    from desk_rag.store.store import Store

    with Store.open(settings.data_dir, settings.store, writer=False) as store:
        session = ChatSession.begin(settings, options.continued, private=options.private)
        request = asking.Request(
            options.question, session.earlier, limit=tuple(roots), mode=AnswerMode(options.mode), top_k=options.top_k
        )
        if not (options.index_first and _new_folders(store, roots)):
            check_not_empty(store, roots, _ASK_REMEDY)
            asking.understand(request, store)
    return request, session


def _print_answer(
    engine: AnswerEngine, request: Request, session: ChatSession, stop: Callable[[], bool], *, as_json: bool
) -> None:
    from desk_rag.answering.conversation import asking

    printer = out.AnswerPrinter(sys.stdout, request.limit)
    for event in asking.ask(engine, request, stop):
        if isinstance(event, Finished):
            session.save(event.answer)
        if not as_json:
            printer.show(event)
        elif isinstance(event, Finished):
            away: dict[str, object] = {"kv_away": engine.store.kv_away} if engine.store.kv_away else {}
            out.print_json(sys.stdout, out.answer_json(event.answer) | away | session.as_json())


def _index_new_folders(
    engine: AnswerEngine, roots: Sequence[Path], settings: Settings, stop: Callable[[], bool], progress: out.Progress
) -> int:
    """Index those of `roots` that were never indexed; returns how many files could not be read."""
    new = _new_folders(engine.store, roots)
    if not new:
        return 0
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


def _new_folders(store: Store, roots: Sequence[Path]) -> list[Path]:
    """Return the folders of which nothing is in the catalog."""
    return [root for root in roots if root.is_dir() and not store.documents(root)]


def _check_model(settings: Settings) -> None:
    """Check the model as far as possible without loading it. Raises ModelError subclasses."""
    from desk_rag.model import adapters, weights

    weights.resolve(settings.model.name, allow_download=settings.model.allow_download)
    if settings.model.adapter:
        adapters.inspect(Path(settings.model.adapter))


def check_not_empty(store: Store, roots: Sequence[Path], remedy: str) -> None:
    """Raise DeskRagError if nothing is indexed below one of `roots`, or nothing at all."""
    if store.is_lost:
        raise catalog_lost(store.root)
    if roots and not any(row.state is FileState.INDEXED for root in roots for row in store.documents(root)):
        if len(roots) == 1 and roots[0].is_file():
            raise DeskRagError(
                f"{shown_path(roots[0])} is not indexed.",
                remedy=f"desk-rag index {shown_path(roots[0].parent)} reads its folder; "
                f"desk-rag why {shown_path(roots[0])} says whether the file can be read.",
            )
        names = ", ".join(shown_path(root) for root in roots)
        raise DeskRagError(
            f"There is nothing indexed under {names}.",
            remedy="`desk-rag why FOLDER` says why files were not read; `desk-rag index FOLDER` reads what changed.",
        )
    if not roots and not store.counts(None, None).files:
        raise DeskRagError("Nothing is indexed yet.", remedy=remedy)


def watch(settings: Settings, folders: Sequence[Path]) -> int:
    """Keep `folders` indexed until stopped by a signal; waits for folders on drives that are not connected."""
    from desk_rag.indexer.daemon import run_watch

    roots = [folder.expanduser().resolve() for folder in folders or settings.folders]
    return run_watch(settings, roots, sys.stdout)


def bench(name: str, arguments: Sequence[str]) -> int:
    """Run desk_rag.bench.NAME with `arguments`: any module there that has a `main(argv)`."""
    known = benchmarks()
    chosen = name.replace("_", "-")
    if name in ("-h", "--help"):
        sys.stdout.write("Usage: desk-rag bench NAME [OPTIONS]\n\nNAME is one of\n")
        for benchmark, summary in known.items():
            sys.stdout.write(f"  {benchmark:<12} {summary}\n")
        sys.stdout.write("desk-rag bench NAME --help lists the options of a benchmark.\n")
        return 0
    if chosen not in known:
        raise ConfigError(
            f"There is no benchmark '{name}'." if name else "Name a benchmark.",
            remedy=f"Benchmarks: {', '.join(known)}. For example: desk-rag bench ttft",
        )
    file = _benchmark_files()[chosen]
    suffix = ".__main__" if file.stem == "__main__" else ""
    module = importlib.import_module(f"desk_rag.bench.{chosen.replace('-', '_')}{suffix}")
    return int(module.main(list(arguments)) or 0)


def benchmarks() -> dict[str, str]:
    """Return the summary of every benchmark by name, taken from the docstrings without importing the modules."""
    summaries = {}
    for name, file in _benchmark_files().items():
        first = (ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or "").split("\n\n")[0]
        summaries[name] = out.shorten(first.split(". ")[0].rstrip("."), 160)
    return summaries


def _benchmark_files() -> dict[str, Path]:
    """Return the files with a `main(argv)`, by name of the benchmark: modules, and rooms with a `__main__`."""
    folder = Path(__file__).parent.parent / "bench"
    files = {file.stem: file for file in folder.glob("*.py")} | {f.parent.name: f for f in folder.glob("*/__main__.py")}
    runnable = (item for item in files.items() if "\ndef main(argv" in item[1].read_text(encoding="utf-8"))
    return {name.replace("_", "-"): file for name, file in sorted(runnable)}


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


def indexed_roots(settings: Settings, folders: Sequence[Path]) -> list[Path]:
    """Return readable folders and files, but accept a folder that is absent now if the index holds documents of it."""
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
