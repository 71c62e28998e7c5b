"""Run `desk-rag deletions`: list documents whose files are gone, and keep or remove them."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from desk_rag.cli import output as out
from desk_rag.cli.store_access import exists, nothing_indexed, print_lines
from desk_rag.config import Settings
from desk_rag.errors import ConfigError, StoreLocked
from desk_rag.indexer.resident.protocol import NoResident
from desk_rag.sanitize import shown_path

if TYPE_CHECKING:
    from desk_rag.ingest.deletions import MissingFiles
    from desk_rag.store.store import Store

_MOST_LISTED = 20


def run(settings: Settings, confirm: Path | None, keep: Path | None, *, as_json: bool) -> int:
    """Remove (`confirm`) or keep (`keep`) the missing documents of a folder, or list all of them."""
    if confirm is not None and keep is not None:
        raise ConfigError("--confirm and --keep contradict each other.", remedy="Give one of them.")
    if confirm is not None:
        return _decide(settings, confirm, keep=False, as_json=as_json)
    if keep is not None:
        return _decide(settings, keep, keep=True, as_json=as_json)
    return _list(settings, as_json=as_json)


def _list(settings: Settings, *, as_json: bool) -> int:
    from desk_rag.ingest import deletions as removals
    from desk_rag.store.store import Store

    if not exists(settings):
        return nothing_indexed(settings, as_json=as_json)
    with Store.open(settings.data_dir, settings.store, writer=False) as store:
        folders = removals.missing_files(store, settings.index.deletion_grace_hours)
        deletions = store.deletions.all()
    if as_json:
        rows = [
            {
                "path": str(row.path),
                "folder": str(row.root),
                "missing_seconds": row.age,
                "decision": row.decision.value or None,
            }
            for row in deletions
        ]
        out.print_json(sys.stdout, {"documents": rows, "seconds_left": {str(f.root): f.seconds_left for f in folders}})
        return 0
    lines: list[str] = []
    for folder in folders:
        paths = [row.path for row in deletions if row.root == folder.root]
        lines += [*([""] if lines else []), *_explained(folder, paths, settings.index.deletion_grace_hours)]
    print_lines(lines or ["No documents are kept whose files are gone: nothing waits for you."])
    return 0


def _explained(folder: MissingFiles, paths: Sequence[Path], longest_hours: float) -> list[str]:
    """Say what is missing in a folder, what happens to it, and what the user can do."""
    files = out.plural(len(paths), "file")
    lines = [f"{shown_path(folder.root)}: {files} that desk-rag had read cannot be found any more."]
    if folder.waiting:
        when = f"in {roughly(folder.seconds_left)}" if folder.seconds_left else "at the next look at the folder"
        kept = f"; {folder.kept:,} you chose to keep" if folder.kept else ""
        which = "them" if folder.waiting == len(paths) else f"{folder.waiting:,} of them"
        lines.append(f"desk-rag still finds and quotes them, and forgets {which} {when}{kept}.")
        if folder.seconds_left:
            longest = roughly(longest_hours * 3600)
            lines.append(f"The larger the part of the folder that is gone, the longer it is kept: at most {longest}.")
    else:
        lines.append("desk-rag still finds and quotes them, because you chose to keep them.")
    lines += [f"  {shown_path(path, [folder.root])}" for path in paths[:_MOST_LISTED]]
    if len(paths) > _MOST_LISTED:
        lines.append(f"  … and {len(paths) - _MOST_LISTED:,} more; --json lists them all")
    name = shlex.quote(str(folder.root))
    lines += [
        "If a drive is not connected, or they were moved away by mistake, bring them back: nothing is read again then.",
        f"To forget them now:  desk-rag deletions --confirm {name}",
    ]
    if folder.waiting:
        lines.append(f"To keep them:        desk-rag deletions --keep {name}")
    return lines


def _decide(settings: Settings, folder: Path, *, keep: bool, as_json: bool) -> int:
    """Keep the documents below `folder` whose files are gone, or remove them from the index."""
    from desk_rag.indexer.resident import handover
    from desk_rag.ingest import deletions as removals
    from desk_rag.store.catalog.deletion_rows import Decision

    path = Path(os.path.realpath(folder.expanduser()))
    try:
        count, removed = handover.decide(settings, path, keep=keep, progress=out.Progress(sys.stderr))
    except NoResident:
        with _open(settings) as store:
            if store.writer:
                removals.note_missing(store, path)
            count = store.deletions.decide(path, Decision.KEPT if keep else Decision.CONFIRMED)
            removed = removals.remove_confirmed(store) if count and store.writer and not keep else 0
            if removed:
                store.checkpoint()
    if not count:
        raise ConfigError(
            f"No indexed file below {path} is missing.",
            remedy="desk-rag deletions lists missing files; desk-rag purge FOLDER forgets files that are there.",
        )
    if as_json:
        out.print_json(sys.stdout, {"folder": str(path), "documents": count, "keep": keep, "removed": removed})
    elif keep:
        print_lines([f"Kept: {out.plural(count, 'document')}. Answers quote them, and say that the files are gone."])
    elif removed:
        print_lines([f"Forgot {out.plural(removed, 'document')} whose files are gone."])
    else:
        print_lines([f"Another desk-rag is writing; it forgets {out.plural(count, 'document')} at its next look."])
    return 0


def _open(settings: Settings) -> Store:
    """Open the store as the writer, or as a reader if another process writes; that process obeys the decision."""
    from desk_rag.indexer.resident.keeping import make_way
    from desk_rag.store.store import Store

    make_way(settings.data_dir)
    try:
        return Store.open(settings.data_dir, settings.store, writer=True)
    except StoreLocked:
        return Store.open(settings.data_dir, settings.store, writer=False)


def missing_line(root: Path, waiting: int, kept: int, seconds_left: float) -> str:
    """Return '~/docs: the files of 60 documents are gone; they leave the index in 2 days (desk-rag deletions)'."""
    parts = []
    if waiting:
        when = f"in {roughly(seconds_left)}" if seconds_left else "at the next look"
        parts.append(f"the files of {out.plural(waiting, 'document')} are gone; they leave the index {when}")
    if kept:
        parts.append(f"{out.plural(kept, 'document')} without a file kept as you wished")
    return f"{shown_path(root)}: {', '.join(parts)} (desk-rag deletions)"


def roughly(seconds: float) -> str:
    """Return a rough duration: '5 minutes', '7 hours', '3 days'."""
    for length, unit in ((172_800, 86_400), (7_200, 3_600)):
        if seconds >= length:
            return f"{seconds / unit:.0f} {'days' if unit == 86_400 else 'hours'}"
    return out.plural(max(1, round(seconds / 60)), "minute")
