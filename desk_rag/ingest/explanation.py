"""Say of one path whether it was read, and the rule or reason if it was not."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from desk_rag.config import default_path
from desk_rag.documents import archives
from desk_rag.documents.formats import KIND_NOT_READ, Format, format_of_name
from desk_rag.documents.status import FileState
from desk_rag.sanitize import clean_name, shown_path

if TYPE_CHECKING:
    from desk_rag.config import Settings
    from desk_rag.documents.discovery import FoundFile, LeftOut
    from desk_rag.store.store import Store
    from desk_rag.store.types import DocumentRow

STATE_WORDS = {FileState.SKIPPED.value: "left out"}
"""States that a person calls otherwise than the catalog does."""
LOCKED = "its permissions do not allow it to be read any more, so answers quote what it held then"
"""Reason of an indexed file that changed and cannot be read."""
OWN_RULE = "exclude: "
"""Beginning of a reason that names a rule of the user's settings."""
_RULES = {"secret": "may hold secrets", "default": "belongs to tools", "exclude": "excluded by you"}
"""Kinds of rules by the beginning of the reasons that they give."""
SECRET = "secret: "
"""Beginning of the reason of a file or folder that may hold secrets."""
SECRET_COMMAND = "; what may be a secret is not read. To have it read all the same"
"""Beginning of what follows that reason; the UI names its own way to have it read."""
GONE_COMMAND = "desk-rag deletions says how long"
"""End of the reason of a document whose file is gone; the UI names its own way to decide."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """The state of a path and the reason for it, in words."""

    state: str
    """'indexed', 'left out', 'failed', 'not indexed yet' or 'unknown'."""
    reason: str


def rule_in_words(reason: str, path: Path) -> str:
    """Return a recorded reason without its path, and with what a rule of desk-rag's own is about."""
    begin, separator, rest = reason.removeprefix(str(path)).strip().partition(": ")
    return f"{_RULES.get(begin, begin)}{separator}{rest}"


def explain(store: Store | None, path: Path, settings: Settings, settings_file: Path | None = None) -> Explanation:
    """Return what is known of `path`, or what the rules would do with it; without a store nothing is indexed yet.

    `settings_file` is named where a line in it would help; None names the default one.
    """
    from desk_rag.documents import document, ocr
    from desk_rag.documents.discovery import LeftOut
    from desk_rag.documents.formats import unread_kind
    from desk_rag.store.presence import absent_folders

    row = store.document(path) if store is not None else None
    if store is not None and row is not None and row.state is FileState.INDEXED:
        return Explanation("indexed", _how_read(store, row, path))
    if row is not None and not _is_lifted(store, row, path, settings):
        return _outcome(row, path, settings_file)
    verdict = _verdict(path, list(_bases(store, settings, path)), settings)
    if isinstance(verdict, LeftOut):
        return Explanation("left out", verdict.reason + _allowing(verdict.path, verdict.reason, settings_file))
    if not path.exists():
        return Explanation("unknown", "it is a link to a file that is not there")
    if not document.supported(path, settings.index):
        remedy = f"; {ocr.PICTURE_REMEDY}" if ocr.is_picture(path.name) else ""
        reason = f"{KIND_NOT_READ} ({unread_kind(path.name) or 'binary'})"
        return Explanation("left out", f"{reason}{remedy or _allowing(path, reason, settings_file)}")
    if store is not None and (away := next((one for one in absent_folders(store) if one.path in path.parents), None)):
        return Explanation("not indexed yet", away.unread)
    if row is not None:
        return Explanation("not indexed yet", f"it was left out ({row.reason}) and no longer is: the next run reads it")
    bases = list(_bases(store, settings, path))
    if link := next((parent for parent in path.parents if parent.is_symlink() and _is_below(parent, bases)), None):
        return Explanation("left out", f"behind the link {clean_name(link.name)}, which is not followed")
    if verdict is None:
        return Explanation("unknown", "it is in no folder that was indexed")
    return Explanation("not indexed yet", "the next run reads it")


def _outcome(row: DocumentRow, path: Path, settings_file: Path | None) -> Explanation:
    """Return the recorded outcome of a file that was not indexed, unless it was locked then and no longer is."""
    if row.state is FileState.FAILED and os.strerror(errno.EACCES) in row.reason and os.access(path, os.R_OK):
        return Explanation("not indexed yet", "its permissions did not allow it before; the next run reads it")
    help_with_it = _allowing(path, row.reason, settings_file)
    return Explanation(STATE_WORDS.get(row.state.value, row.state.value), row.reason + help_with_it)


def locked_parent(path: Path) -> Path | None:
    """Return the outermost folder above `path` whose permissions hide what is in it."""
    closed = next((parent for parent in reversed(path.parents) if not os.access(parent, os.X_OK)), None)
    return closed if closed is not None and os.path.isdir(closed) else None  # noqa: PTH112 - it never raises


def _is_lifted(store: Store | None, row: DocumentRow, path: Path, settings: Settings) -> bool:
    """Return whether a rule of the user excluded this at the last scan, and none does now."""
    from desk_rag.documents.discovery import LeftOut

    if row.state is not FileState.SKIPPED or not row.reason.startswith(OWN_RULE):
        return False
    return not isinstance(_verdict(path, list(_bases(store, settings, path)), settings), LeftOut)


def is_as_read(row: DocumentRow, path: Path) -> bool:
    """Return whether the file at `path` has the size and time that it had when it was read."""
    try:
        now = path.stat()
    except OSError:
        return False
    return (now.st_size, now.st_mtime_ns) == (row.stamp.size, row.stamp.mtime_ns)


def _how_read(store: Store, row: DocumentRow, path: Path) -> str:
    chunks = "1 chunk" if row.num_chunks == 1 else f"{row.num_chunks:,} chunks"
    different = store.counts(under=[path]).chunks
    chunks += f" ({different:,} different)" if different < row.num_chunks else ""
    if format_of_name(path.name) is Format.MAILBOX:
        messages = max((passage.chunk.location.page_end or 1 for passage in store.passages_of(path)), default=0)
        chunks = f"{'1 message' if messages == 1 else f'{messages:,} messages'}, {chunks}"
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(row.indexed_at))
    changed = "" if is_as_read(row, path) else "; it has changed since, and is read again at the next run"
    if changed and not os.access(path, os.R_OK):
        changed = f"; {LOCKED}"
    if not path.exists():
        changed = f"; it is not there now{_outlook(store, path)}"
    return f"{chunks}, read {when}{changed}" + (f"; {row.reason}" if row.reason else "")


def _outlook(store: Store, path: Path) -> str:
    """Return what becomes of the document of a file that is not there, and how to decide otherwise."""
    from desk_rag.ingest.file_update import is_gone
    from desk_rag.store.catalog.deletion_rows import Decision
    from desk_rag.store.presence import Presence, covers

    deletion = next((each for each in store.deletions.all() if each.path == path), None)
    if deletion is not None and deletion.decision is Decision.KEPT:
        return ", and kept in the index as you wished (desk-rag deletions)"
    root = next((each for each in store.volumes.roots() if each in path.parents), path.parent)
    if covers(Presence(store, root).absent(), path):
        kept = ", nor is its folder or anything in it, as without its drive, so it is kept"
        return f"{kept}: desk-rag purge FILE forgets it"
    if deletion is not None:
        return f", and kept for a while, since many went at once: {GONE_COMMAND}"
    if not is_gone(path):
        return ""
    return ": the next run forgets it, desk-rag purge FILE does so now"


def _allowing(path: Path, reason: str, settings_file: Path | None) -> str:
    """Return how to index a file that was taken for a secret or is of a kind that is not read; '' if nothing helps."""
    from desk_rag.documents.formats import unread_kind
    from desk_rag.ingest.unread import help_for

    if reason.startswith(KIND_NOT_READ):
        remedy = archives.REMEDY if archives.is_archive(path.name) else help_for(unread_kind(path.name))
        return f"; {remedy}" if remedy else ""
    if not reason.startswith(SECRET):
        return ""
    name = path.name + ("/" if os.path.isdir(path) else "")  # noqa: PTH112 - it never raises
    file = shown_path(settings_file or default_path())
    return (
        f'{SECRET_COMMAND}, write exclude = ["!{name}"]'
        f" under [index] in {file}, beside what is in that list already (the ! makes an exception)"
    )


def _verdict(path: Path, bases: Sequence[Path], settings: Settings) -> FoundFile | LeftOut | None:
    """Return what the rules say about `path`; the first folder whose rules leave it out decides."""
    from desk_rag.documents.discovery import LeftOut, examine

    if (locked := locked_parent(path)) is not None:
        return LeftOut(locked, f"the folder {clean_name(locked.name)} may not be opened: permission denied")
    accepted: FoundFile | None = None
    inside = path / "any" if path.is_dir() else path  # a rule for a folder names no file
    for base in bases:
        verdict = examine(base, inside, settings.index)
        if isinstance(verdict, LeftOut):
            return verdict
        accepted = accepted or verdict
    return accepted


def _is_below(path: Path, bases: Sequence[Path]) -> bool:
    return any(base in path.parents for base in bases)


def _bases(store: Store | None, settings: Settings, path: Path) -> Iterator[Path]:
    """Yield the indexed folders around `path`, those of the settings first; without a store, all of the settings."""
    known = [folder.expanduser().resolve() for folder in settings.folders]
    if store is None:
        yield from known
    else:
        yield from (root for root in dict.fromkeys([*known, *store.volumes.roots()]) if root in path.parents)
