"""Run the commands `status`, `verify` and `pin`, none of which loads a model."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from desk_rag.cli import output as out
from desk_rag.cli.deletions import missing_line
from desk_rag.cli.store_access import exists, nothing_indexed, open_store, print_lines
from desk_rag.config import Settings
from desk_rag.documents.status import FileState, is_beginning_only
from desk_rag.errors import ConfigError, CorruptCatalog, StoreError, catalog_lost
from desk_rag.indexer.resident import keeping
from desk_rag.indexer.resident.protocol import NoResident
from desk_rag.sanitize import home_path, shown_path
from desk_rag.store.opening import CATALOG_RESET

if TYPE_CHECKING:
    from desk_rag.store.types import Activity, Counts, DocumentRow, VerifyReport

_MOST_LISTED = 20


def status(settings: Settings, *, as_json: bool) -> int:
    """Print what is indexed, how much space it takes, and what the indexing process is doing."""
    from desk_rag.indexer.names import kept_embedder
    from desk_rag.ingest import damage, deletions, unread
    from desk_rag.retrieval.embedding import EMBEDDED
    from desk_rag.store import presence

    if not exists(settings):
        return nothing_indexed(settings, as_json=as_json)
    with open_store(settings, writer=False) as store:
        if store.is_lost:
            raise catalog_lost(settings.data_dir)
        is_room = store.has_spare_room()
        counts, activity, pause = store.coverage(kept_embedder(settings)), store.activity(), store.pause_requested()
        notices = damage.notices(store, (), ())
        outlook = store.outlook(None, 0.0)
        skipped = unread.skipped_files(store, ())
        rows = store.documents()
        failed = [row for row in rows if row.state is FileState.FAILED or unread.may_not_be_opened(row)]
        beginnings = [row for row in rows if row.state is FileState.INDEXED and is_beginning_only(row.reason)]
        auxiliary_bytes, auxiliary_chunks = store.auxiliary_share() or (0, 0)
        pins, away, written = store.pins(), store.kv_away, store.written_today()
        absent, folders = presence.absent_folders(store), store.volumes.roots()
        missing = deletions.missing_files(store, settings.index.deletion_grace_hours)
    resident, is_embedded = keeping.status(settings.data_dir), settings.model.embedder == EMBEDDED
    kept = resident if resident is not None and resident.get("kept") else None
    if as_json:
        out.print_json(
            sys.stdout,
            {
                "data_dir": str(settings.data_dir),
                "folders": [str(folder) for folder in folders],
                "files": counts.files,
                "failed": counts.failed,
                "skipped": counts.skipped - sum(group.number for group in skipped.folders),
                "not_read": out.unread_json(skipped),
                "chunks": counts.chunks,
                "with_vectors": counts.with_vectors,
                "with_token_vectors": counts.with_tokens,
                "token_vector_bytes": counts.token_bytes,
                "warm": counts.warm,
                "kv_dir": str(settings.store.kv_place or settings.data_dir / "kv"),
                "kv_away": away,
                "kv_bytes": counts.kv_bytes,
                "budget_bytes": counts.budget_bytes,
                "auxiliary_kv_bytes": auxiliary_bytes,
                "written_today_bytes": written,
                "planned_bytes": outlook.kv_bytes if outlook else counts.kv_bytes,
                "pinned": [str(path) for path in pins],
                "absent": [{**asdict(folder), "path": str(folder.path)} for folder in absent],
                "missing_files": [{**asdict(folder), "root": str(folder.root)} for folder in missing],
                "pause_until": pause,
                "activity": _activity_json(activity),
                "kept_process": kept["pid"] if kept is not None else None,
                "notices": list(notices),
                "beginning_only": [{"path": str(row.path), "reason": row.reason} for row in beginnings],
                "unreadable": [{"path": str(row.path), "reason": row.reason} for row in failed],
            },
        )
        return 0
    lines = [
        f"data      {home_path(settings.data_dir)}",
        f"indexed   {out.plural(counts.files, 'file')}, {_chunks(rows, counts)}",
        *(f"folder    {home_path(folder)}" for folder in folders),
        f"findable  by words {_share(counts.chunks, counts.chunks)},"
        f" by meaning {_share(counts.with_vectors, counts.chunks)}, warm {_share(counts.warm, counts.chunks)}",
        *([_tokens_line(counts, is_room=is_room)] if is_embedded and counts.with_tokens < counts.with_vectors else []),
        f"caches    {out.size(counts.kv_bytes)} of at most {out.size(counts.budget_bytes)}",
        *(
            [
                f"          {out.size(auxiliary_bytes)} of it of the auxiliary model, for"
                f" {_share(auxiliary_chunks, counts.chunks)} of the chunks"
            ]
            if auxiliary_bytes
            else []
        ),
        *([f"written   {out.size(written)} of caches today{_daily_limit(settings)}"] if written else []),
        *([f"caches    in {home_path(settings.store.kv_place)}"] if settings.store.kv_place else []),
        *([f"away      {away}"] if away else []),
        f"left out  {out.unread_line(skipped) if skipped else 'nothing'}",
        f"now       {_activity_text(activity, pause, counts.files)}",
    ]
    if kept is not None:
        minutes = settings.resident.exit_minutes
        lines.append(
            f"answers   process {kept.get('pid')} keeps the models loaded for `ask` and `search`; it ends after "
            f"{minutes:g} minutes without a question"
        )
    if outlook is not None:
        lines.append(f"planned   {outlook.sentence}")
    lines += [f"fault     {notice}" for notice in notices]
    for subject, sentence, remedy in activity.notices if activity is not None else ():
        if not subject.startswith(("folder ", "caches")):  # said below and above, also while no process watches
            lines += [f"notice    {sentence}", *([f"          {remedy}"] if remedy else [])]
    lines += [f"absent    {out.reason_line(folder.path, folder.sentence)}" for folder in absent]
    lines += [f"missing   {missing_line(folder.root, folder.waiting, folder.kept, folder.seconds_left)}"
              for folder in missing]  # fmt: skip
    lines += [f"pinned    {shown_path(path)}" for path in pins]
    print_lines([*lines, *_listed("cut off ", beginnings), *_listed("not read", failed)])
    return 0


def _tokens_line(counts: Counts, *, is_room: bool) -> str:
    share = _share(counts.with_tokens, counts.chunks)
    line = f"          compared word by word with a question {share}, so that the best come first"
    if is_room:
        return f"{line}; the rest is made when there is nothing else to do"
    return f"{line}; the drive has no room for more besides its reserve (`reserve_gib` under [store])"


def _chunks(rows: Sequence[DocumentRow], counts: Counts) -> str:
    """Return '10,595 chunks (128 different)': equal text is one chunk, wherever it stands."""
    total = sum(row.num_chunks for row in rows)
    return out.plural(total, "chunk") + (f" ({counts.chunks:,} different)" if counts.chunks < total else "")


def _daily_limit(settings: Settings) -> str:
    limit = settings.idle.write_gib_per_day
    return f", of at most {limit:g} GiB a day" if limit else ""


def _listed(label: str, rows: Sequence[DocumentRow]) -> list[str]:
    lines = [f"{label}  {out.reason_line(row.path, row.reason)}" for row in rows[:_MOST_LISTED]]
    more = len(rows) - _MOST_LISTED
    return [*lines, f"{label}  … and {more:,} more; --json lists them all"] if more > 0 else lines


def _share(part: int, whole: int) -> str:
    return f"{100 * part // whole} %" if whole else "-"


def verify(settings: Settings, *, repair: bool, subset: str, as_json: bool) -> int:
    """Check the store; 4 if something is wrong and was not repaired."""
    part = _subset(subset)
    if not exists(settings):
        return nothing_indexed(settings, as_json=as_json)
    report, notices, away = _verified(settings, part, repair=repair)
    if repair and report.unusable:
        report, notices, away = _replace_catalog(settings, part, report)
    unrepaired = [problem for problem in report.problems if not problem.repaired]
    foreign = [f"not desk-rag's, left alone: {path}" for path in report.foreign]
    if as_json:
        shown = asdict(report) | {"foreign": [str(path) for path in report.foreign], "kv_away": away}
        out.print_json(sys.stdout, shown | {"clean": report.clean, "notices": list(notices)})
    else:
        lines = [f"{'repaired' if problem.repaired else 'wrong'}: {problem.what}" for problem in report.problems]
        read = f"{report.kv_files:,} KV files ({out.size(report.kv_bytes)})"
        contents = f"{out.plural(report.documents, 'document')} and {out.plural(report.chunks, 'chunk')}"
        outcome = "nothing wrong" if report.clean else f"{out.plural(len(report.problems), 'problem')}"
        notices += (away,) if away and away not in notices else ()
        print_lines([*notices, *lines, *foreign, f"Checked {read}, {contents}: {outcome}."])
        if unrepaired and not repair:
            print_lines(["desk-rag verify --repair removes what is damaged; it is made again when needed."])
    return StoreError.exit_code if unrepaired else 0


def _verified(
    settings: Settings, part: tuple[int, int] | None, *, repair: bool
) -> tuple[VerifyReport, tuple[str, ...], str]:
    """Return the report, the store's notices, and why its chunk KV cannot be reached ('' if it can)."""
    from desk_rag.store.types import Problem, VerifyReport

    if repair:
        from desk_rag.indexer.resident import handover

        with suppress(NoResident):
            return handover.repair(settings, part, out.Progress(sys.stderr))
    try:
        with open_store(settings, writer=repair) as store:
            report = store.verify(repair=repair, subset=part)
            if store.is_lost and CATALOG_RESET not in store.notices:  # chunk KV without rows is no damage then
                raise catalog_lost(settings.data_dir)
            return report, store.notices, store.kv_away
    except CorruptCatalog as error:
        return VerifyReport(0, 0, 0, 0, (Problem(error.message, repaired=False),), unusable=True), (), ""


def _replace_catalog(
    settings: Settings, part: tuple[int, int] | None, damaged: VerifyReport
) -> tuple[VerifyReport, tuple[str, ...], str]:
    """Put an unusable catalog aside, begin a new one, and check what is left."""
    from desk_rag.store.store import Store

    with Store.reset_catalog(settings.data_dir, settings.store) as store:
        report, notices, away = store.verify(repair=True, subset=part), store.notices, store.kv_away
    problems = tuple(replace(problem, repaired=True) for problem in damaged.problems)
    return replace(report, problems=problems + report.problems), (CATALOG_RESET, *notices), away


def pin(settings: Settings, folder: Path, *, remove: bool) -> int:
    """Pin a folder, so that its caches are evicted last, or remove the pin."""
    path = Path(os.path.realpath(folder.expanduser()))
    # Check before opening the store, which would create an empty one.
    if not path.exists() and not exists(settings):
        raise _unknown_path(path)
    with open_store(settings, writer=False) as store:  # any process may pin; the one that writes obeys
        # A drive that is not connected is known by its documents or its pin.
        if not path.exists() and path not in store.pins() and not store.documents(path):
            raise _unknown_path(path)
        was_pinned = path in store.pins()
        if remove:
            store.unpin(path)
        else:
            store.pin(path)
    outcome = "pinned: its caches are evicted last"
    if remove:
        outcome = "no longer pinned" if was_pinned else "not pinned; desk-rag status lists what is"
    print_lines([f"{shown_path(path)} is {outcome}."])
    return 0


def _unknown_path(path: Path) -> ConfigError:
    return ConfigError(
        f"There is nothing at {path}, and nothing from there is indexed.",
        remedy="Name a folder or file as it is now; desk-rag status lists what is pinned.",
    )


def _subset(text: str) -> tuple[int, int] | None:
    part, _, whole = text.partition("/")
    if not (part.isdecimal() and whole.isdecimal() and 1 <= int(part) <= int(whole)):
        raise ConfigError(f"--subset {text} is not a part.", remedy="Write it as 1/7: the first of seven parts.")
    return None if int(whole) == 1 else (int(part), int(whole))


def _activity_json(activity: Activity | None) -> dict[str, object] | None:
    if activity is None:
        return None
    return {**asdict(activity), "stage": activity.stage.value}


def _activity_text(activity: Activity | None, pause: float | None, files: int) -> str:
    if activity is not None and activity.waiting == "stopped":
        activity = None
    paused = " (a pause was requested)" if pause is not None and pause > time.time() else ""
    if activity is None:
        return "no process is watching; desk-rag watch FOLDER keeps the index fresh" + paused
    if activity.idle_since is not None:
        idle_since = _clock_time(activity.idle_since)
        return f"process {activity.pid}: watching, up to date since {idle_since} ({out.plural(files, 'file')}){paused}"
    if activity.waiting and not activity.total:
        return f"process {activity.pid}: {activity.waiting}"
    from desk_rag.ingest.events import StageProgress

    progress = StageProgress(
        activity.stage, activity.done, activity.total, activity.unit, activity.rate, activity.eta_seconds,
        activity.waiting,
    )  # fmt: skip
    if activity.once:
        return f"indexing now: process {activity.pid}, {progress.line}"
    return f"process {activity.pid}: {progress.line}" + paused


def _clock_time(moment: float) -> str:
    """'14:02', or '2026-11-22 14:02' if that was not today."""
    local = time.localtime(moment)
    is_today = local[:3] == time.localtime()[:3]
    return time.strftime("%H:%M" if is_today else "%Y-%m-%d %H:%M", local)
