"""Say what a set of files holds: kinds, dates and the names that stand in most of them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from desk_rag.answering.questions.folder.reading.kinds import Kind
from desk_rag.answering.questions.folder.reading.periods import merged
from desk_rag.answering.questions.folder.reading.records import all_dates, records_of
from desk_rag.answering.requirements.dates import Date, without_dates
from desk_rag.answering.requirements.mentions import is_time
from desk_rag.documents.status import plural
from desk_rag.store.catalog.words import STOP_WORDS

if TYPE_CHECKING:
    from desk_rag.store.types import DocumentRow, Passage

_NAME = re.compile(r"(?<![\w'’-])[A-ZÄÖÜ][\w'’-]+(?:[ \t]+(?:(?:of|the|de|van|von|and|&)[ \t]+)?[A-ZÄÖÜ][\w'’-]+)+")
_LABEL_FOLLOWS = re.compile(r"(?:[ \t]+[a-z]+){0,3}:")
_LABEL_END = re.compile(r"[ \t]+[\w'’-]+$")
_FEW_FILES = 2
_MOST_NAMES, _MOST_KINDS = 5, 4
_TITLES = frozenset("dear mr mrs ms dr prof kind regards best hello from to date subject please the re fwd".split())  # noqa: SIM905


def overview(rows: Sequence[DocumentRow], by_file: Sequence[Sequence[Passage]]) -> str:
    """Return '13 files (5 .txt, 4 .md), of 1 February 2021 to 29 December 2024; named most: Kessler (6 files)'."""
    count = len(rows)
    suffixes = Counter(row.path.suffix.lower() or "without ending" for row in rows).most_common()
    kinds = ", ".join(f"{number:,} {suffix}" for suffix, number in suffixes[:_MOST_KINDS])
    kinds += ", …" if len(suffixes) > _MOST_KINDS else ""
    days = []
    names: Counter[str] = Counter()
    for row, passages in zip(rows, by_file, strict=True):
        records = records_of(Kind("file", "files"), row, tuple(passages))
        days += [record.date for record in records if record.date is not None]
        lines = (line for passage in passages for line in passage.chunk.text.split("\n"))
        alone = [day for line in lines if (day := _only_date(line)) is not None]  # as above the entries of a diary
        days += alone if len(alone) > 1 else []
        names.update(set(names_in("\n".join(passage.chunk.text for passage in passages))))
    span = merged(days)
    frequent = [(name, files) for name, files in names.most_common(_MOST_NAMES) if files >= _FEW_FILES]
    text = f"{plural(count, 'file')} ({kinds})"
    text += f", dated {span}" if span else ""
    return text + (
        f"; named most: {', '.join(f'{name} ({files:,} files)' for name, files in frequent)}" if frequent else ""
    )


def _only_date(line: str) -> Date | None:
    """The date that is all of a line; None if something else stands in it."""
    if not line or without_dates(line).strip(" .,:#*-"):
        return None
    return next((day for day in all_dates(line) if day.year and day.month), None)


def names_in(text: str) -> list[str]:
    """The names of two or more words with capitals in a text, in order; headings and labels are no names."""
    names: dict[str, None] = {}
    for match in _NAME.finditer(text):
        name, end = match.group(), match.end()
        if _LABEL_FOLLOWS.match(text, end):  # the last word begins a label: 'Gregor Holm Monthly rent:'
            name = _LABEL_END.sub("", name)
        words = name.split()
        while words and (words[0].lower() in _TITLES or words[0].lower() in STOP_WORDS or is_time(words[0])):
            words.pop(0)
        if len(words) > 1 and not any(is_time(word) for word in words):
            names.setdefault(" ".join(words).removesuffix("'s").removesuffix("’s"))
    return list(names)
