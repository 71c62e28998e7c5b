"""Narrow a question to the files that it names by date, kind or person, as in 'mails from Ana in May'."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from desk_rag.answering.requirements.dates import dates
from desk_rag.documents.formats import Format, format_of_name
from desk_rag.documents.status import FileState

if TYPE_CHECKING:
    from desk_rag.store.store import Store
    from desk_rag.store.types import DocumentRow

_KINDS = {
    re.compile(r"\b(?:e-?)?mails?\b", re.I): frozenset({Format.MAIL, Format.MAILBOX, Format.OUTLOOK}),
    re.compile(r"\bslides?\b|\bpresentations?\b", re.I): frozenset({Format.SLIDES, Format.OPEN_SLIDES}),
    re.compile(r"\bspreadsheets?\b", re.I): frozenset({Format.SHEETS, Format.TABLE}),
    re.compile(r"\bPDFs?\b", re.I): frozenset({Format.PDF}),
}
_MOST_FILES = 200
"""Files that a search can be limited to; SQLite takes a bounded number of values."""


@dataclass(frozen=True, slots=True)
class Narrowed:
    """The files that a question names by kind, person or date."""

    files: tuple[Path, ...]
    strict: bool
    """True if the question names a kind of file or a day: then the other files are searched only if these fail."""
    of_date: bool
    """True if the question names a date, and all these files have it."""
    notice: str
    """A sentence about which files were searched."""


def indexed(store: Store, under: Sequence[Path]) -> list[DocumentRow]:
    """The indexed documents below the folders `under` (all, if empty)."""
    folders: Sequence[Path | None] = under or [None]
    rows = (row for folder in folders for row in store.documents(folder))
    return [row for row in rows if row.state is FileState.INDEXED]


def narrow(store: Store, question: str, under: Sequence[Path]) -> Narrowed | None:
    """The files that the question names by a kind of file, or by a date in their names; None if it names none.

    A mail counts by its sender and date too.
    """
    asked = dates(question)
    kind = next((formats for pattern, formats in _KINDS.items() if pattern.search(question)), None)
    if not asked and kind is None:
        return None
    files = [row.path for row in indexed(store, under)]
    chosen = [path for path in files if kind is None or format_of_name(path.name) in kind]
    if kind is not None:
        chosen = _by_person(store, chosen, question) or chosen
    dated = [path for path in chosen if any(date.stands_in(dated_text(store, path)) for date in asked)]
    chosen = dated or (chosen if kind is not None else [])
    if not 0 < len(chosen) <= _MOST_FILES or len(chosen) == len(files):
        return None
    searched = "file that the question names was" if len(chosen) == 1 else "files that the question names were"
    notice = f"Only the {len(chosen):,} {searched} searched"
    one_day = bool(dated) and all(date.day for date in asked)
    return Narrowed(tuple(chosen), kind is not None or one_day, bool(dated), notice)


def dated_text(store: Store, path: Path) -> str:
    """Texts that carry the date of a file: its name, and the heading of a mail."""
    if format_of_name(path.name) not in (Format.MAIL, Format.OUTLOOK):
        return path.stem
    passages = store.passages_of(path)
    return f"{path.stem} {passages[0].chunk.location.heading}" if passages else path.stem


def _by_person(store: Store, files: Sequence[Path], question: str) -> list[Path]:
    """The mails whose sender or recipient the question names; nothing if it names none."""
    names = {word.lower().removesuffix("'s") for word in re.findall(r"\b[A-Z][\w'’]+", question.replace("’", "'"))}
    chosen = []
    for path in files:
        passages = store.passages_of(path)
        sender = passages[0].chunk.location.heading.split(" › ")[-1].split(",")[0] if passages else ""
        if names & {word.lower() for word in re.findall(r"\w+", sender)}:
            chosen.append(path)
    return chosen
