"""Run `desk-rag why`: print the state of a file or folder, and the rule or reason behind it."""

from __future__ import annotations

import os
import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from desk_rag.cli import output as out
from desk_rag.cli.store_access import exists, open_store, print_lines
from desk_rag.config import Settings, default_path
from desk_rag.documents.status import FileState
from desk_rag.errors import ConfigError
from desk_rag.ingest.explanation import OWN_RULE, STATE_WORDS, explain, locked_parent
from desk_rag.ingest.unread import is_no_document, with_contents
from desk_rag.sanitize import clean, shown_path

if TYPE_CHECKING:
    from desk_rag.store.types import DocumentRow

TAKE_BACK = "excluded by you: take that line out, or choose “Read it from now on” in the UI (F3), to have it read again"
_MOST_LISTED = 20
"""File names shown for one reason; `--json` lists all."""


def why(settings: Settings, file: Path, config_file: Path | None, *, as_json: bool) -> int:
    """Print the state of a file and the rule or reason behind it; for a folder, of all files in it.

    Raises ConfigError if there is no such file or folder and nothing from there is indexed.
    """
    path = as_met(file)
    rows = []
    row = None
    if exists(settings):
        with open_store(settings, writer=False) as store:
            row, rows = store.document(path), store.documents(path)
            known = explain(store, path, settings, config_file)
            if known.state == "unknown":  # perhaps behind a link to a folder, which was resolved
                known = explain(store, Path(os.path.abspath(file.expanduser())), settings, config_file)  # noqa: PTH100
    else:
        known = explain(None, path, settings, config_file)
    is_own_rule = known.state == "left out" and known.reason.startswith(OWN_RULE)
    reason = known.reason + (_where_rule_is(config_file) if is_own_rule else "")
    if row is None and (os.path.isdir(path) or rows):  # noqa: PTH112 - a folder left out as a whole has a row
        return _why_folder(path, rows, reason if is_own_rule else "", config_file, as_json=as_json)
    if row is None and not os.path.lexists(path) and locked_parent(path) is None:
        raise ConfigError(
            f"There is no file or folder {path}, and nothing from there is indexed.",
            remedy="Check the spelling; desk-rag why FOLDER lists the files that were not read.",
        )
    state, is_folder = known.state, row is not None and row.is_folder
    if as_json:
        chunks = row.num_chunks if row else 0
        entry = {"path": str(path), "state": state, "reason": reason, "chunks": chunks, "is_folder": is_folder}
        out.print_json(sys.stdout, entry)
    else:
        named = _named(path, is_folder=is_folder)
        print_lines([f"{named}: {state}" + _and(reason.removeprefix(f"{path} "))])
    return 0


def as_met(file: Path) -> Path:
    """Return the path as the catalog holds it: folders resolved, but a link to a file kept as a link."""
    path = Path(os.path.abspath(file.expanduser()))  # noqa: PTH100 - resolve() would follow the link
    if os.path.isdir(path):  # noqa: PTH112 - it never raises
        return Path(os.path.realpath(path))
    return Path(os.path.realpath(path.parent)) / path.name


def _where_rule_is(config_file: Path | None) -> str:
    """Return where a rule of the user's own settings stands."""
    file = shown_path(config_file or default_path())
    return f" (`exclude` under [index] in {file}; {TAKE_BACK})"


def _why_folder(path: Path, rows: Sequence[DocumentRow], rule: str, config_file: Path | None, *, as_json: bool) -> int:
    """Print the number of files by state, then the files that have a reason, grouped by it."""
    counts = Counter(row.state.value for row in rows if not row.is_folder)
    folders = sum(row.is_folder for row in rows)
    states = {state.value: counts[state.value] for state in FileState if counts[state.value]}
    if as_json:
        files = [
            {"path": str(row.path), "state": row.state.value, "reason": row.reason, "chunks": row.num_chunks,
             "is_folder": row.is_folder}
            for row in rows
        ]  # fmt: skip
        left_out = {"state": "left out", "reason": rule} if rule else {}
        out.print_json(
            sys.stdout, {"path": str(path), **left_out, "states": states, "folders": folders, "files": files}
        )
        return 0
    no_documents = sum(row.state is FileState.SKIPPED and is_no_document(row.reason) for row in rows)
    numbers = Counter({STATE_WORDS.get(state, state): count for state, count in states.items()})
    numbers["left out"] -= no_documents
    summary = ", ".join(f"{count:,} {word}" for word, count in numbers.items() if count > 0)
    if folders:
        summary += f"{', ' if summary else ''}{out.plural(folders, 'folder')} left out as a whole"
    if no_documents:
        entries = "1 link or special file" if no_documents == 1 else f"{no_documents:,} links or special files"
        summary += f"{', ' if summary else ''}{entries} not counted"
    nothing = f"left out; {rule}" if rule else "nothing in it was ever looked at"
    lines = [f"{shown_path(path)}: {summary or nothing}"]
    groups: defaultdict[tuple[str, str], list[DocumentRow]] = defaultdict(list)
    for row in rows:
        if row.reason:
            groups[row.state.value, _group_reason(row)].append(row)
    for (state, reason), in_group in sorted(groups.items(), key=lambda group: -len(group[1])):
        where = _where_rule_is(config_file) if reason.startswith(OWN_RULE) else ""
        lines.append(f"{len(in_group):,} {STATE_WORDS.get(state, state)}: {reason}{where}")
        lines += [f"  {_named(row.path, [path], is_folder=row.is_folder)}" for row in in_group[:_MOST_LISTED]]
        if len(in_group) > _MOST_LISTED:
            lines.append(f"  … and {len(in_group) - _MOST_LISTED:,} more; --json lists every file")
    print_lines(lines)
    return 0


def _group_reason(row: DocumentRow) -> str:
    """Return the recorded reason without the file's path; kinds that are not read share one reason per kind."""
    from desk_rag.documents.formats import KIND_NOT_READ
    from desk_rag.ingest.unread import help_for, kind_of

    if row.state is FileState.SKIPPED and row.reason.startswith(KIND_NOT_READ):
        kind = kind_of(row.reason)
        return "; ".join(filter(None, [f"{kind}, {KIND_NOT_READ}", help_for(kind)]))
    return clean(row.reason.removeprefix(str(row.path)).strip(), single_line=True)


def _named(path: Path, bases: Sequence[Path] = (), *, is_folder: bool) -> str:
    return with_contents(shown_path(path, bases)) if is_folder else shown_path(path, bases)


def _and(reason: str) -> str:
    return f"; {reason}" if reason else ""
