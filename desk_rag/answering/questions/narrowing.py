"""Narrow a question to the files that it names by date, kind or person, as in 'mails from Ana in May'."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from desk_rag.answering.questions.folder.reading.kinds import MAIL_FORMATS
from desk_rag.answering.questions.folder.reading.naming import mentioned, suggestions
from desk_rag.answering.requirements.dates import dates
from desk_rag.answering.requirements.places import place_of_source
from desk_rag.answering.requirements.requirements import Fit, Requirements
from desk_rag.documents.formats import Format, format_of_name
from desk_rag.documents.status import FileState, plural
from desk_rag.ingest import unread
from desk_rag.sanitize import shown_path
from desk_rag.store.catalog.paths import plainest

if TYPE_CHECKING:
    from desk_rag.answering.events import Answer
    from desk_rag.store.store import Store
    from desk_rag.store.types import DocumentRow

_KINDS = (
    (re.compile(r"\b(?:e-?)?mails?\b", re.I), MAIL_FORMATS, "mail"),
    (re.compile(r"\b(?:slide|presentation)s?\b", re.I), frozenset({Format.SLIDES, Format.OPEN_SLIDES}), "presentation"),
    (re.compile(r"\bspreadsheets?\b", re.I), frozenset({Format.SHEETS, Format.TABLE}), "spreadsheet"),
    (re.compile(r"\bPDFs?\b", re.I), frozenset({Format.PDF}), "PDF file"),
)
"""Words of a question for a kind of file, its formats, and its name."""
_FILE_NAME = re.compile(r"(?<![\w@/.:-])[\w()-]+(?:\.[\w()-]+)*\.(?P<suffix>[A-Za-z][A-Za-z0-9]{1,5})(?![\w/@-])")
_DOMAINS = frozenset("com org net edu gov de uk fr eu io example local".split())  # noqa: SIM905
_LOOKED_AT = 5
"""Passages in which a name that is no file's is looked for."""
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
    words: str
    """The files in words: 'the 8 mails', 'the 2 files of that date'."""


@dataclass(frozen=True, slots=True)
class NamedFiles:
    """The files whose names stand in a question."""

    indexed: tuple[Path, ...]
    faults: tuple[str, ...]
    """Sentences about those that cannot be searched."""


def named_files(store: Store, question: str, under: Sequence[Path]) -> NamedFiles:
    """The files that a question names with their endings, as in 'What does lease.pdf say?'.

    A name that is no file's counts as a word of the documents if one of them has it.
    """
    if not _file_names(question):
        return NamedFiles((), ())
    folders: Sequence[Path | None] = under or [None]
    rows = [row for folder in folders for row in store.documents(folder)]
    whole = mentioned((row.path.name for row in rows if " " in row.path.name), question)
    rest = question
    for _, begin, end in whole:
        rest = f"{rest[:begin]}{' ' * (end - begin)}{rest[end:]}"
    names = [*(name for name, _, _ in whole), *_file_names(rest)]
    known, faults = [], []
    for name in dict.fromkeys(names):
        named = [row for row in rows if row.path.name.casefold() == name.casefold()]
        known += [row.path for row in named if row.state is FileState.INDEXED]
        if named and not any(row.state is FileState.INDEXED for row in named):
            faults.append(unread.said_of(named[0].path, named[0].reason))
        elif not named and not is_mentioned(store, name, under):
            near = suggestions(name, (row.path.name for row in rows))
            hint = f"; did you mean {' or '.join(sorted(near))}?" if near else "."
            faults.append(f"No file called {name} is among those that were searched{hint}")
    return NamedFiles(tuple(known), tuple(faults))


def _file_names(question: str) -> list[str]:
    return [match.group() for match in _FILE_NAME.finditer(question) if match["suffix"].lower() not in _DOMAINS]


def without_file_names(question: str, files: Sequence[Path] = ()) -> str:
    """The question without names of files, and without a preposition before them.

    Names with blanks are only known if their files are given.
    """
    before = r"(?:\b(?:in|of|from|within|according\s+to|by|the\s+file)\s+)*"
    for path in files:
        question = re.sub(before + r"[\"“]?" + re.escape(path.name) + r"[\"”]?", " ", question, flags=re.I)
    plain = re.sub(before + _FILE_NAME.pattern, " ", question, flags=re.I)
    return re.sub(r"\s+([?.,!])", r"\1", " ".join(plain.split()))


def naming_unmet(done: Answer, store: Store, under: Sequence[Path]) -> Answer:
    """Say on a refusal which years, dates and numbers of the question no passage had that was read."""
    if done.found or not done.sources:
        return done
    question = done.question
    for path in under:  # '@contracts/lease_2019.txt' limits the search and asks for no 2019
        question = re.sub(rf"[\w./~-]*{re.escape(path.name)}", " ", question)
    requirements = Requirements(without_file_names(question, named_files(store, question, under).indexed))
    fits = [requirements.chunk_fits(place_of_source(source)) for source in done.sources]
    missing = [asked for asked, *of_all in zip(requirements.asked, *fits, strict=True) if min(of_all) > Fit.NEARBY]
    notice = f"None of the passages nearest to the question has “{'”, “'.join(missing)}”"
    return replace(done, notices=(*done.notices, notice)) if missing else done


def within_files(question: str, files: Sequence[Path]) -> str:
    """The question without the names of files, if it asks for something in, of or from each of them; '' otherwise.

    'What is the total in ledger 2023.csv?' asks so, 'Is ledger 2023.csv paid?' and 'Which mails name it?' do not.
    """
    limits = r"\b(?:in|of|from|within|inside|according\s+to)\s+(?:the\s+file\s+)?[\"“]?"
    names = {path.name for path in files}
    all_limit = all(re.search(limits + re.escape(name), question, re.I) for name in names)
    return without_file_names(question, files) if names and all_limit else ""


def is_mentioned(store: Store, name: str, under: Sequence[Path]) -> bool:
    """Return whether one of the passages nearest to a name by its words has it."""
    passages = (store.passage(hit.chunk_id, under) for hit in store.search_words(name, _LOOKED_AT, under))
    return any(passage is not None and name.casefold() in passage.chunk.text.casefold() for passage in passages)


def indexed(store: Store, under: Sequence[Path]) -> list[DocumentRow]:
    """The indexed documents below the folders `under` (all, if empty)."""
    folders: Sequence[Path | None] = under or [None]
    rows = (row for folder in folders for row in store.documents(folder))
    return [row for row in rows if row.state is FileState.INDEXED]


def distinct(rows: Iterable[DocumentRow]) -> dict[DocumentRow, tuple[Path, ...]]:
    """Return each content once, by its plainest document, with the copies and links that are the same.

    So nothing is counted or added up twice.
    """
    by_digest: dict[str, dict[Path, DocumentRow]] = {}
    for row in rows:
        by_digest.setdefault(row.digest or str(row.path), {})[row.path] = row
    plain: dict[DocumentRow, tuple[Path, ...]] = {}
    for alike in by_digest.values():
        chosen = plainest([(path, row.stamp.mtime_ns) for path, row in alike.items()], "") if len(alike) > 1 else None
        row = alike[chosen] if chosen is not None else next(iter(alike.values()))
        plain[row] = tuple(path for path in alike if path != row.path)
    return dict(sorted(plain.items(), key=lambda item: item[0].path))


def also_as(path: Path, copies: Sequence[Path], roots: Sequence[Path]) -> str:
    """Return a sentence that names the copies of a file: 'a.txt is also there as old/a.txt.'; '' without any."""
    if not copies:
        return ""
    return f"{shown_path(path, roots)} is also there as {some_of([shown_path(copy, roots) for copy in copies])}."


def some_of(names: Sequence[str], most: int = 5) -> str:
    """The first of some names, and how many more there are."""
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def narrow(store: Store, question: str, under: Sequence[Path]) -> Narrowed | None:
    """The files that the question names by a kind of file, or by a date in their names; None if it names none.

    A mail counts by its sender and date too.
    """
    named = named_files(store, question, under).indexed
    if named:
        words = "the file" if len(named) == 1 else f"the {len(named):,} files"
        return Narrowed(named, strict=True, of_date=False, words=f"{words} that the question names")
    dates_asked = dates(question)
    of_kind = ((formats, noun) for pattern, formats, noun in _KINDS if pattern.search(question))
    kind, noun = next(of_kind, (None, "file"))
    if not dates_asked and kind is None:
        return None
    files = [row.path for row in indexed(store, under)]
    chosen = [path for path in files if kind is None or format_of_name(path.name) in kind]
    of_person = _by_person(store, chosen, question) if kind is not None else []
    chosen = of_person or chosen
    dated = [path for path in chosen if any(date.stands_in(dated_text(store, path)) for date in dates_asked)]
    chosen = dated or (chosen if kind is not None else [])
    if not 0 < len(chosen) <= _MOST_FILES or len(chosen) == len(files):
        return None
    one_day = bool(dated) and all(date.day for date in dates_asked)
    count = f"the {noun}" if len(chosen) == 1 else f"the {plural(len(chosen), noun)}"
    by = " and ".join([*(["person"] if of_person else []), *(["date"] if dated else [])])
    return Narrowed(tuple(chosen), kind is not None or one_day, bool(dated), f"{count}{f' of that {by}' if by else ''}")


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
