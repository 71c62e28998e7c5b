"""Run the commands `index`, `watch` and `open` and return their exit codes; what `ask` shares with them.

`cli.main` parses the arguments; `cli.output` lays out what is printed.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from desk_rag.cli import output as out
from desk_rag.cli.signals import INTERRUPTED, STOPPED, ending_by_itself, stoppable
from desk_rag.cli.store_access import exists, indexed_before, open_store
from desk_rag.config import Settings, default_path
from desk_rag.errors import (
    UNWRITABLE,
    ConfigError,
    ForeignPlace,
    StoreFull,
    StoreLocked,
)
from desk_rag.indexer.resident.client import ResidentError
from desk_rag.indexer.resident.protocol import NoResident
from desk_rag.ingest import deletions, unread
from desk_rag.ingest.events import IndexFinished
from desk_rag.ingest.progress import Tally
from desk_rag.ingest.unread import UnreadFiles
from desk_rag.sanitize import shown_path

if TYPE_CHECKING:
    from desk_rag.answering.engine import AnswerEngine
    from desk_rag.cli.checks.finding import Finding
    from desk_rag.indexer.once import WarmPending
    from desk_rag.store.types import Counts

SOME_UNREADABLE = 3


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


def open_ui(settings: Settings, folders: Sequence[Path], settings_file: Path | None = None) -> int:
    """Open the UI and return its exit code."""
    # A folder that was indexed may be on a drive that is not connected; what was read of it still answers.
    chosen = [folder.expanduser().absolute() for folder in settings.folders]
    if folders:
        chosen = indexed_roots(settings, folders, files=False)
        check_not_excluded(settings, chosen, settings_file)
    chosen = chosen or indexed_before(settings)
    remedy = 'Without one: desk-rag ask "…" --folder FOLDER'
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise ConfigError("The UI needs a terminal.", remedy=remedy)
    if not sys.stderr.isatty():
        raise ConfigError("The UI draws on standard error, which is redirected.", remedy="Start it without `2>`.")
    if os.environ.get("TERM") == "dumb":
        raise ConfigError("This terminal (TERM=dumb) cannot show the UI.", remedy=remedy)
    from desk_rag.tui.terminal.first_frame import FirstFrame

    frame = FirstFrame()
    frame.draw(chosen, settings.ui.theme, plain=settings.ui.ascii)
    try:
        from desk_rag.tui.management.session import Session
        from desk_rag.tui.opening import run

        run(Session(settings, chosen, settings_file, _findings), frame)
    except BaseException:
        frame.give_back()
        raise


def _findings(settings: Settings) -> Iterator[Finding]:
    """Yield the findings of `doctor`, whose checks are imported only once the UI asks for them."""
    from desk_rag.cli.doctor import examine
    from desk_rag.tui.management import aside

    return aside.each(examine, settings)


def index(
    settings: Settings,
    folders: Sequence[Path],
    settings_file: Path | None = None,
    *,
    warm: bool,
    dry_run: bool,
    as_json: bool,
    ray: str = "",
) -> int:
    """Bring the index of `folders` or files up to date; 3 if some files could not be read.

    `ray` is the address of the cluster that fills the caches, if one does.
    """
    tally = Tally()  # starts the clock before the imports, so that the reported time includes them
    roots = _roots(settings, folders, files=True)
    if folders:
        check_not_excluded(settings, roots, settings_file)
    if dry_run:
        from desk_rag.cli.folders.listing import print_preview

        return print_preview(settings, roots, as_json=as_json)
    from desk_rag.indexer import models

    models.check(settings)
    progress = out.Progress(sys.stderr, roots)
    with stoppable_with(progress) as stop:
        done = _index(settings, roots, stop, progress, tally, warm=warm, ray=ray)
        stopped = stop()
    with open_store(settings, writer=False) as store:
        skipped, counts = unread.skipped_files(store, roots), store.counts(under=roots)
        gone = deletions.count_missing(store, roots)
    progress.clear()
    if as_json:
        names = [str(root) for root in roots]
        report = {**_finished_json(done), "not_read": out.unread_json(skipped)}
        out.print_json(sys.stdout, {**report, "folders": names, "stopped": stopped})
    else:
        if done.indexed or not stopped:
            say_summary(progress, done, skipped, counts, gone)
        if stopped:
            progress.say(STOPPED)
    if stopped:
        return INTERRUPTED
    if done.disk_full:
        return StoreFull.exit_code
    return SOME_UNREADABLE if done.failed else 0


def _index(
    settings: Settings,
    roots: Sequence[Path],
    stop: Callable[[], bool],
    progress: out.Progress,
    tally: Tally,
    *,
    warm: bool,
    ray: str,
) -> IndexFinished:
    """Have the process that indexes in the background do it, or do it here if there is none or a cluster is named."""
    from desk_rag.indexer.resident import handover

    try:
        if not ray:
            return handover.index(settings, roots, warm=warm, progress=progress, stop=stop)
    except NoResident:
        pass
    except ResidentError:
        if not stop():
            raise
        return tally.finished()
    from desk_rag.indexer.models import Models
    from desk_rag.indexer.once import Published, Run
    from desk_rag.indexer.parts import lazy_parts

    filling = _filling(settings, ray)
    with open_store(settings, writer=True) as store:
        if store.kv_away:
            progress.say(store.kv_away)
        published = Published(progress, store)
        try:
            models = Models(store, settings, progress.passing, stop)
            parts = lazy_parts(store, settings, models)
            return Run(parts, settings, stop, published, tally, *filling).run(roots, warm=warm)
        finally:
            published.end()


def _filling(settings: Settings, ray: str) -> list[WarmPending]:
    """Return what fills the caches instead of this process, if a cluster is named. Raises ConfigError without Ray."""
    if not ray:
        return []
    from desk_rag.indexer.bulk.prefill import RayPrefill

    return [RayPrefill(settings, ray).warm_pending]


def index_with(
    engine: AnswerEngine,
    roots: Sequence[Path],
    settings: Settings,
    stop: Callable[[], bool],
    progress: out.Progress,
    warm_pending: WarmPending | None = None,
) -> IndexFinished:
    """Index `roots` with the model that `engine` has loaded; `warm_pending` as for `Run`."""
    from desk_rag.indexer.once import Run
    from desk_rag.indexer.parts import parts_of

    return Run(parts_of(engine), settings, stop, progress, warm_pending=warm_pending).run(roots, loaded=True)


def say_summary(
    progress: out.Progress, done: IndexFinished, skipped: UnreadFiles, counts: Counts, gone: int = 0
) -> None:
    """Say what a run did, how the files that were found add up, and which kinds of them were left out.

    `gone` documents are kept although their files are gone.
    """
    progress.say(out.index_summary(done))
    if skipped.files or gone:
        files = out.plural(counts.files - gone + counts.failed + skipped.files, "file")
        failed = f" + {counts.failed:,} that could not be read" if counts.failed else ""
        as_before = done.failed - counts.failed
        failed += f" + {as_before:,} kept as read before" if as_before > 0 else ""
        read = counts.files - gone - max(0, as_before)
        progress.say(f"{files} found = {read:,} read{failed} + {skipped.files:,} left out")
    if gone:
        progress.say(f"{out.plural(gone, 'file')} gone from the disk, but kept in the index (desk-rag deletions)")
    if skipped:
        progress.say(f"{out.unread_line(skipped)}.")


def watch(settings: Settings, folders: Sequence[Path], settings_file: Path | None = None) -> int:
    """Keep `folders` indexed until stopped by a signal; waits for folders on drives that are not connected."""
    from desk_rag.indexer.daemon import run_watch
    from desk_rag.indexer.resident.keeping import make_way

    named = indexed_roots(settings, folders or settings.folders, files=False)  # says what is missing before all else
    if folders:
        check_not_excluded(settings, named, settings_file)
    make_way(settings.data_dir)
    roots = [folder.expanduser().resolve() for folder in folders or settings.folders]
    with ending_by_itself():
        return run_watch(settings, roots, sys.stdout, settings_file=settings_file or default_path())


def check_not_excluded(settings: Settings, paths: Sequence[Path], settings_file: Path | None = None) -> None:
    """Raise ConfigError if the user's own rules leave one of `paths` out: the next sweep would drop it again."""
    from desk_rag.indexer.resident.exclusion import own_rule_for

    if not settings.index.exclude:
        return
    around = [folder.expanduser().resolve() for folder in settings.folders]
    if exists(settings):
        with open_store(settings, writer=False) as store:
            around += store.volumes.roots()
    for path in paths:
        if rule := own_rule_for(path, around, settings):
            file = shown_path(settings_file or default_path())
            raise ConfigError(
                f"{shown_path(path)} is excluded by “{rule}” (`exclude` under [index] in {file}).",
                remedy="Take that rule out there to have it read again.",
            )


@contextlib.contextmanager
def engine_of(settings: Settings, progress: out.Progress) -> Iterator[AnswerEngine]:
    """Load the engine and close it at the end; it writes to the store unless another process does."""
    progress.passing("loading the model …")
    try:
        engine = _load_engine(settings, progress.passing)
    finally:
        progress.clear()
    for notice in filter(None, (engine.model.prompt.reasoning.notice, engine.serving.gate.notice)):
        progress.say(notice)
    try:
        yield engine
    finally:
        engine.close()


def _load_engine(settings: Settings, say: Callable[[str], None]) -> AnswerEngine:
    from desk_rag.answering.opening import open_engine

    try:
        return open_engine(settings, writer=True, say=say)
    except (StoreLocked, ForeignPlace, *UNWRITABLE):
        return open_engine(settings, writer=False, say=say)


def stoppable_with(progress: out.Progress) -> AbstractContextManager[Callable[[], bool]]:
    """Turn the first Ctrl+C or SIGTERM into a request to stop after the work in flight."""
    return stoppable(lambda: progress.passing("stopping; press Ctrl+C again to end at once …"))


def _roots(settings: Settings, folders: Sequence[Path], *, files: bool = False) -> list[Path]:
    chosen = list(folders) or list(settings.folders)
    if not chosen:
        raise ConfigError("Name a folder.", remedy="Or set `folders` in the settings file (desk-rag help settings).")
    return _folders(chosen, files=files)


def _folders(folders: Sequence[Path], *, files: bool = True) -> list[Path]:
    """Return absolute paths of readable folders, and of files if `files` is true. Raises DeskRagError."""
    if not folders:
        return []
    from desk_rag.documents.discovery import check_root

    checked = []
    for folder in folders:
        path = folder.expanduser().absolute()
        if not (files and path.is_file()):
            check_root(path)
        checked.append(path.resolve())
    return checked


def indexed_roots(settings: Settings, folders: Sequence[Path], *, files: bool = True) -> list[Path]:
    """Return readable folders, and files if `files`; a folder that is absent now must be in the index."""
    try:
        return _folders(folders, files=files)
    except ConfigError:
        if not (settings.data_dir / "catalog.sqlite").is_file():
            raise
    from desk_rag.store.store import Store

    checked = []
    with Store.open(settings.data_dir, settings.store, writer=False) as store:
        for folder in folders:
            path = folder.expanduser().resolve()
            checked += [path] if not path.exists() and store.documents(path) else _folders([folder], files=files)
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


def say_alone(progress: out.Progress, reason: NoResident) -> None:
    """Say why a running desk-rag was not asked, if there is one."""
    if str(reason):
        progress.say(f"Answering without the desk-rag that is running: {reason}.")
