"""Find the lines of a folder that a question about the whole of it is about, by their words.

Names, numbers and quoted words of the question must stand in a line, or in the file's name or heading; of its other
words as many as in the best line. Lines with names that only begin alike ('Petersen' for 'Peterson') are kept apart.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from desk_rag.answering.events import PassagesRead
from desk_rag.answering.questions import narrowing
from desk_rag.answering.questions.narrowing import distinct, indexed
from desk_rag.answering.requirements import amounts
from desk_rag.answering.requirements.dates import dates, without_dates
from desk_rag.answering.requirements.stems import content_stems
from desk_rag.documents.sentences import quotable
from desk_rag.store.catalog.words import name_words

if TYPE_CHECKING:
    from desk_rag.documents.chunking import ChunkId
    from desk_rag.store.store import Store
    from desk_rag.store.types import Passage

_REPORT_EVERY = 200
_PREFIX = 5
_MOST_WORDS = 3
_LIGHT = content_stems(
    "go goes went gone have has had make made give gave given get got come came happen happened exist there total sum"
    " amount amounts altogether list all any every each file files document documents line lines entry entries row rows"
    " sent send written wrote mention mentions mentioned contain contains year month"
)
"""Words that say nothing about a line."""
_NAME = re.compile(r"[A-Z][\w'’&-]*|\S*\d\S*")
_QUOTED = re.compile(r"[\"“”«»]([^\"“”«»]+)[\"“”«»]")


@dataclass(frozen=True, slots=True)
class Row:
    """A line or sentence that the question is about."""

    passage: Passage
    text: str


@dataclass(slots=True)
class Matches:
    """The rows that match a question, and what was read to find them."""

    rows: list[Row]
    passages: int
    files: int
    near: tuple[Row, ...] = ()
    """Further rows, whose names are only spelled nearly as in the question."""
    words_near: tuple[str, ...] = ()
    """Those names, as the documents spell them."""
    only_near: bool = False
    """True if `rows` have no other than such names."""
    copies: Mapping[Path, tuple[Path, ...]] = field(default_factory=dict)
    """Files of the same content as one that was read in their place."""


@dataclass(frozen=True, slots=True)
class _Score:
    named: bool
    """The line itself holds all names."""
    exact: bool
    """The names are spelled as in the question."""
    share: float
    """Share of the other words."""
    of_file: bool
    """Only file or heading has the names."""


@dataclass(frozen=True, slots=True)
class _Wanted:
    names: frozenset[str]
    others: frozenset[str]
    files: frozenset[Path] | None
    """Files of the question's date; None for all."""


def quotable_rows(passages: Iterable[Passage]) -> list[Row]:
    """The lines and sentences of some passages that can be quoted."""
    return [Row(passage, unit) for passage in passages for unit in quotable(passage.chunk.text)]


def match(
    store: Store, subject: str, under: Sequence[Path], *, whole_tables: bool = False
) -> Generator[PassagesRead, None, Matches]:
    """Read every passage; yield progress and return the matches in the order of the files.

    With `whole_tables`, rows of a table match by the name of their file or section alone.
    """
    copies = distinct(indexed(store, under))
    rows = list(copies)
    wanted = _wanted(store, subject, under, [row.path for row in rows])
    total = sum(row.num_chunks for row in rows)
    read, files = 0, 0
    scored_rows: list[tuple[_Score, Row]] = []
    chunks: set[ChunkId] = set()
    for document in rows:
        if wanted.files is not None and document.path not in wanted.files:
            continue
        files += 1
        passages = store.passages_of(document.path)
        headings = _heading_rows(passages)
        for passage in passages:
            chunks.add(passage.chunk.chunk_id)
            read += 1
            if read % _REPORT_EVERY == 0:
                yield PassagesRead(read, total)
            scored = _scored(passage, wanted, whole_tables=whole_tables)
            scored_rows += [(score, row) for score, row in scored if row.text not in headings]
    exact = [(score, row) for score, row in scored_rows if score.exact]
    best = _best(exact or scored_rows, wanted)
    near = _best([(score, row) for score, row in scored_rows if not score.exact], wanted) if exact else []
    only_near = not exact and bool(scored_rows)
    words = _words_near(wanted.names, best if only_near else near)
    of_file = {document.path: others for document, others in copies.items() if others}
    return Matches(best, len(chunks), files, tuple(near), words, only_near, of_file)


def _best(kept: Sequence[tuple[_Score, Row]], wanted: _Wanted) -> list[Row]:
    """Return the lines with all other words, or else with all names and most of the other words."""
    whole = [(score, row) for score, row in kept if score.share == 1.0] if wanted.others else []
    kept = whole or [(score, row) for score, row in kept if not score.of_file]
    named = any(score.named for score, _ in kept)
    chosen = [(score, row) for score, row in kept if score.named or not named]
    best = max((score.share for score, _ in chosen), default=0.0)
    enough = best if wanted.names or best == 1.0 else 1.1
    return _distinct(row for score, row in chosen if score.share >= enough)


def _words_near(names: frozenset[str], rows: Sequence[Row]) -> tuple[str, ...]:
    """The words of the rows that are spelled nearly as the names, most frequent first."""
    beginnings = {name[:_PREFIX] for name in names if len(name) >= _PREFIX}
    words = Counter(
        word
        for row in rows
        for word in re.findall(r"[^\W_]+", f"{row.text} {row.passage.path.name}")
        if word.lower()[:_PREFIX] in beginnings and not content_stems(word) & names
    )
    return tuple(word for word, _ in words.most_common(_MOST_WORDS))


def stands_for_files(store: Store, noun: str, under: Sequence[Path]) -> bool:
    """True if a word such as 'invoices' names a kind of file here: a folder of several files."""
    stems = content_stems(noun)
    return bool(stems) and sum(stems == content_stems(row.path.parent.name) for row in indexed(store, under)) > 1


def _wanted(store: Store, subject: str, under: Sequence[Path], paths: Sequence[Path]) -> _Wanted:
    of_subject = dates(subject)
    dated = [path for path in paths if any(date.stands_in(narrowing.dated_text(store, path)) for date in of_subject)]
    if dated:
        subject = without_dates(subject)
    names = " ".join([*_NAME.findall(subject), *_QUOTED.findall(subject)])
    stems = content_stems(names)
    return _Wanted(frozenset(stems), frozenset(content_stems(subject) - stems - _LIGHT), frozenset(dated) or None)


def _heading_rows(passages: Sequence[Passage]) -> set[str]:
    """Lines that only name the columns of the rows below them."""
    lines = [unit for passage in passages for unit in quotable(passage.chunk.text)]
    columns = {key for line in lines for key in amounts.fields_of(line)}
    return {line for line in lines if "; " in line and columns.issuperset(line.split("; "))}


def _scored(passage: Passage, wanted: _Wanted, *, whole_tables: bool = False) -> Iterator[tuple[_Score, Row]]:
    """The lines of a passage that may match."""
    around = content_stems(f"{name_words(passage.path)} {passage.title} {passage.chunk.location.heading}")
    if _held(wanted.names, around | content_stems(passage.chunk.text)) != wanted.names:
        return
    for unit in quotable(passage.chunk.text):
        stems = content_stems(unit)
        inside = _held(wanted.names, stems)
        others = _held(wanted.others, stems)
        is_named = bool(inside or (others and others == wanted.others))
        if wanted.names and (not is_named or _held(wanted.names, stems | around) != wanted.names):
            continue
        if not wanted.names and not others and not (whole_tables and len(amounts.fields_of(unit)) > 1):
            continue
        share = len(_held(wanted.others, stems | around)) / len(wanted.others) if wanted.others else 1.0
        exact = wanted.names <= stems | around
        yield _Score(inside == wanted.names, exact, share, bool(wanted.names) and not inside), Row(passage, unit)


def _held(wanted: frozenset[str], stems: set[str]) -> frozenset[str]:
    """Those of the wanted stems that are among `stems`, or begin alike."""
    beginnings = {stem[:_PREFIX] for stem in stems if len(stem) >= _PREFIX}
    return frozenset(
        stem for stem in wanted if stem in stems or (len(stem) >= _PREFIX and stem[:_PREFIX] in beginnings)
    )


def _distinct(rows: Iterator[Row]) -> list[Row]:
    """Return the rows without repetitions within one file."""
    by_place: dict[tuple[Path, str], Row] = {}
    for row in rows:
        by_place.setdefault((row.passage.path, row.text), row)
    return list(by_place.values())
