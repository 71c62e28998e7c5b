"""Run `desk-rag ls`: list the indexed folders, or the documents of one with their state."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from desk_rag.cli import output as out
from desk_rag.cli.store_access import exists, nothing_indexed, open_store, print_lines
from desk_rag.cli.why import as_met
from desk_rag.config import Settings
from desk_rag.documents.status import FileState, foreseen
from desk_rag.errors import DeskRagError
from desk_rag.ingest import freshness, unread
from desk_rag.ingest.explanation import LOCKED, OWN_RULE
from desk_rag.sanitize import clean, quoted_path, shown_path
from desk_rag.store.presence import absent_folders, covers

if TYPE_CHECKING:
    from desk_rag.ingest.freshness import Backlog
    from desk_rag.store.store import Store
    from desk_rag.store.types import DocumentRow

_LOOK_SECONDS = 5.0
"""Time for comparing the listed folders with the catalog; nobody waits for an answer."""
_MOST_NAMED = 20
"""Files of one kind that a preview names."""
_WORDS = {FileState.SKIPPED: "left out", FileState.FAILED: "not read"}


def ls(settings: Settings, folder: Path | None, *, as_json: bool) -> int:
    """Print the indexed folders, or every file below `folder`. Raises DeskRagError if nothing of it is indexed."""
    if not exists(settings):
        return nothing_indexed(settings, as_json=as_json)
    with open_store(settings, writer=False) as store:
        entries = _folders(store, settings) if folder is None else _files(store, settings, as_met(folder))
    if as_json:
        entries = [{**entry, "path": str(entry["path"])} for entry in entries]
        out.print_json(sys.stdout, {"folders" if folder is None else "files": entries})
        return 0
    print_lines([_folder_line(entry) for entry in entries] if folder is None else [_file_line(e) for e in entries])
    return 0


def _folders(store: Store, settings: Settings) -> list[dict[str, object]]:
    absent = {away.path: away.reason for away in absent_folders(store)}
    entries: list[dict[str, object]] = []
    roots = store.volumes.roots()
    for root in roots:
        counts = store.counts(under=[root])
        backlog = freshness.look(store, [root], settings.index, seconds=_LOOK_SECONDS)
        left_out = unread.skipped_files(store, [root])
        entries.append(
            {
                "path": root,
                "inside": str(next((other for other in roots if other in root.parents), "")),
                "absent": absent.get(root, ""),
                "files": counts.files,
                "chunks": counts.chunks,
                "failed": counts.failed,
                "left_out": out.unread_json(left_out),
                "new": len(backlog.new),
                "changed": len(backlog.changed),
                "complete": backlog.complete,
            }
        )
    entries += [_single_file(row) for row in store.single_files() if row.state is FileState.INDEXED]
    return entries


def _single_file(row: DocumentRow) -> dict[str, object]:
    """Return the entry of a file that was indexed without its folder."""
    left_out = out.unread_json(unread.UnreadFiles(0, ()))
    counts: dict[str, object] = {"files": 1, "chunks": row.num_chunks, "failed": 0, "left_out": left_out}
    absent = "" if row.path.exists() else "the file is gone"
    return {"path": row.path, "inside": "", "absent": absent, **counts, "new": 0, "changed": 0, "complete": True}


def _files(store: Store, settings: Settings, path: Path) -> list[dict[str, object]]:
    rows, roots = store.documents(path), store.volumes.roots()
    is_indexed = any(root in (path, *path.parents) or path in root.parents for root in roots)
    looks = path.exists() and (is_indexed or bool(rows))
    backlog = freshness.look(store, [path], settings.index, seconds=_LOOK_SECONDS) if looks else None
    if not rows and not (backlog and backlog.new):
        raise DeskRagError(
            f"Nothing of {shown_path(path)} is indexed.", remedy="desk-rag ls lists the indexed folders."
        )
    absent, changed = absent_folders(store), _changed(backlog)
    entries: list[dict[str, object]] = []
    for row in rows:
        state = _WORDS.get(row.state, "indexed")
        if covers(absent, row.path):
            state = "not connected"
        elif row.state is FileState.INDEXED and not os.path.exists(row.path):  # noqa: PTH110
            state = "gone"
        elif row.path in changed:
            state = "changed"
        reason = LOCKED if state == "changed" and not os.access(row.path, os.R_OK) else _reason(row)
        entry = {"path": row.path, "state": state, "chunks": row.num_chunks, "reason": reason}
        entries.append({**entry, "is_folder": row.is_folder})
    entries += _excluded(settings, path, {row.path for row in rows})
    for new in () if backlog is None else backlog.new:
        covered = any(root in new.parents for root in roots)
        away = next((folder for folder in absent if folder.path in new.parents), None)
        reason = "in no indexed folder" if not covered else away.unread if away else "the next run reads it"
        entries.append({"path": new, "state": "new", "chunks": 0, "reason": reason, "is_folder": False})
    return sorted(entries, key=lambda entry: str(entry["path"]))


def _excluded(settings: Settings, folder: Path, known: set[Path]) -> list[dict[str, object]]:
    """Return what rules of the user exclude by its path in `folder` and no scan has met since."""
    entries: list[dict[str, object]] = []
    for rule in settings.index.exclude:
        path = Path(rule).expanduser() if rule.startswith(("~/", "/")) else None
        if path is not None and folder in path.parents and path not in known and path.exists():
            entry = {"path": path, "state": "left out", "chunks": 0, "reason": f"{OWN_RULE}{rule}"}
            entries.append({**entry, "is_folder": path.is_dir()})
    return entries


def _reason(row: DocumentRow) -> str:
    return row.reason.removeprefix(str(row.path)).strip()


def _changed(backlog: Backlog | None) -> set[Path]:
    return set() if backlog is None else set(backlog.changed)


def _folder_line(entry: dict[str, object]) -> str:
    """Return '~/Documents: 120 files, 1,433 chunks; 3 not read; 11 left out; 2 changed'."""
    counts = Counter({key: int(str(entry[key])) for key in ("files", "chunks", "failed", "new", "changed")})
    left_out = entry["left_out"]
    assert isinstance(left_out, dict)
    counts["left_out"] = int(str(left_out["files"]))
    folders = left_out["folders"]
    assert isinstance(folders, dict)
    counts["folders"] = sum(folders.values())
    parts = [f"{out.plural(counts['files'], 'file')}, {out.plural(counts['chunks'], 'chunk')}"]
    words = {"failed": "could not be read", "left_out": "left out", "new": "new", "changed": "changed"}
    parts += [f"{counts[key]:,} {word}" for key, word in words.items() if counts[key]]
    parts += [f"{out.plural(counts['folders'], 'folder')} left out as a whole"] if counts["folders"] else []
    parts += [] if entry["complete"] else ["not looked through to the end"]
    away = [clean(str(entry["absent"]), single_line=True)] if entry["absent"] else []
    inside = f" (counted in {shown_path(Path(str(entry['inside'])))})" if entry.get("inside") else ""
    path = entry["path"]
    assert isinstance(path, Path)
    return f"{shown_path(path)}{inside}: {'; '.join([*parts, *away])}"


def _file_line(entry: dict[str, object]) -> str:
    """Return 'indexed      12 chunks  letters/lease.md', with the reason of a file that was not read."""
    path = entry["path"]
    assert isinstance(path, Path)
    chunks = out.plural(int(str(entry["chunks"])), "chunk") if entry["chunks"] else ""
    reason = clean(str(entry["reason"]).removeprefix(str(path)).strip(), single_line=True)
    if reason.startswith(OWN_RULE):
        reason = f"excluded by you (desk-rag why {quoted_path(path)} says how to take it back)"
    named = unread.with_contents(shown_path(path)) if entry["is_folder"] else shown_path(path)
    return f"{entry['state']:<13} {chunks:>12}  {named}{f': {reason}' if reason else ''}"


def print_preview(settings: Settings, roots: Sequence[Path], *, as_json: bool) -> int:
    """Print what `index` would do with these folders, changing nothing."""
    from desk_rag.ingest.preview import changes, giant_line

    if exists(settings):
        with open_store(settings, writer=False) as store:
            would_do = changes(store, roots, settings.index)
    else:
        would_do = changes(None, roots, settings.index)
    if as_json:
        paths = {name: [str(path) for path in getattr(would_do, name)] for name in ("new", "changed", "gone")}
        rest = {"unchanged": would_do.unchanged, "failed": would_do.failed, "bytes": would_do.bytes_to_read}
        times = {
            name: round(getattr(would_do.estimate, name), 1)
            for name in ("seconds_to_words", "seconds_to_meaning", "seconds_to_warm")
        }
        out.print_json(sys.stdout, {**paths, **rest, **times, "not_read": out.unread_json(would_do.left_out)})
        return 0
    to_read = len(would_do.new) + len(would_do.changed)
    lines = [
        f"{out.plural(would_do.files, 'file')} found = {to_read:,} to be read + {would_do.unchanged:,} unchanged"
        f" + {would_do.failed:,} that could not be read before + {would_do.left_out.files:,} left out"
    ]
    for name, word in (("new", "new"), ("changed", "changed"), ("gone", "gone, to be removed from the index")):
        paths_of = getattr(would_do, name)
        lines += [f"  {word}: {shown_path(path, roots)}" for path in paths_of[:_MOST_NAMED]]
        lines += [f"  … and {len(paths_of) - _MOST_NAMED:,} more {word}"] if len(paths_of) > _MOST_NAMED else []
    if would_do.left_out:
        lines.append(f"{would_do.left_out.summary}.")
    lines.append(f"{out.size(would_do.bytes_to_read)} would be read. Nothing was changed.")
    if to_read:
        cost = would_do.estimate
        lines.append(
            f"Roughly, with the embedded reader on two idle cores: by words after {foreseen(cost.seconds_to_words)}, "
            f"by meaning after {foreseen(cost.seconds_to_meaning)}, caches in {foreseen(cost.seconds_to_warm)} more; "
            f"{out.size(cost.index_bytes)} for the index, {out.size(cost.kv_bytes)} for the caches."
        )
    if would_do.giant is not None:
        lines.append(f"{giant_line(would_do.giant)}.")
    print_lines(lines)
    return 0
