"""Find the files and folders that a question names, with or without blanks, quotes, ending or the whole name."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from desk_rag.answering.requirements.mentions import is_time
from desk_rag.answering.requirements.stems import content_stems
from desk_rag.sanitize import clean_name
from desk_rag.store.catalog.words import STOP_WORDS

if TYPE_CHECKING:
    from desk_rag.store.store import Store
    from desk_rag.store.types import DocumentRow

_WORD = re.compile(r"[^\W_]+")
_BEFORE = re.compile(
    r"^(?:(?:the|this|my|our|all|of|file|files|document|documents|folder|directory|in|called|named)\s+)+", re.I
)
_AFTER = re.compile(r"\s+(?:file|document|folder|directory)$", re.I)
_IS_FOLDER = re.compile(r"\b(?:folder|directory)\b|/\W*$", re.I)
_ENDING = re.compile(r"\.[A-Za-z][A-Za-z0-9]{1,5}$")
_NEAR = 0.75
"""Least similarity of a name that is suggested for another."""
_MOST_SUGGESTED = 3
_LONGEST_NAME = 5
"""Words of a line that may be the name of a party."""


@dataclass(frozen=True, slots=True)
class NamedThings:
    """The documents that a name means."""

    documents: tuple[DocumentRow, ...]
    folder: str = ""
    """Name of the folder, if the documents are those of a folder."""


def things_named(rows: Sequence[DocumentRow], name: str, bases: Sequence[Path]) -> NamedThings:
    """The document with a name, the documents of a folder, or those whose names hold all words of it."""
    plain = plain_name(name)
    if not plain:
        return NamedThings(())
    wants_folder = bool(_IS_FOLDER.search(name))
    wanted = plain.casefold()
    if not wants_folder:
        exact = [row for row in rows if str(row.path).casefold().endswith(f"/{wanted}")]
        exact = exact or [row for row in rows if row.path.stem.casefold() == wanted]
        if exact:
            return NamedThings(tuple(exact[:1] if _ENDING.search(plain) else exact))
    inside = [row for row in rows if is_inside(row.path, plain, bases)]
    if inside:
        return NamedThings(tuple(inside), plain)
    words = _words(plain)
    if wants_folder or _ENDING.search(plain) or not words:
        return NamedThings(())
    holding = [row for row in rows if words <= _words(row.path.stem)]
    return NamedThings(tuple(holding))


def plain_name(name: str) -> str:
    """A name without quotes, '@', a slash at the end, and words such as 'the folder'."""
    plain = re.sub(r"[\"“”«»]|(?<!\w)'|'(?!\w)", "", name).strip().lstrip("@").strip()
    plain = _AFTER.sub("", _BEFORE.sub("", plain))
    return plain.rstrip("/ ").strip()


def folders_named(store: Store, name: str, under: Sequence[Path]) -> list[Path]:
    """The folders below `under` (all, if empty) with this name."""
    folders: Sequence[Path | None] = under or [None]
    parents = {row.path.parent for folder in folders for row in store.documents(folder)}
    every = {above for parent in parents for above in (parent, *parent.parents)}
    wanted = plain_name(name).casefold().split("/")
    named = [path for path in every if [part.casefold() for part in path.parts[-len(wanted) :]] == wanted]
    inside = [path for path in named if not under or any(path.is_relative_to(base) for base in under)]
    return sorted(path for path in inside if not any(other != path and path.is_relative_to(other) for other in inside))


def with_capitals(question: str, names: Iterable[str]) -> str:
    """Return the question with known names in lower case ('ana ruiz') spelled with their capitals."""
    known = {word.casefold(): word for name in names if len(name.split()) <= _LONGEST_NAME for word in name.split()
             if re.fullmatch(r"[^\W\d_]{3,}", word) and word[0].isupper()}  # fmt: skip
    known = {word: name for word, name in known.items() if not is_time(word) and word not in STOP_WORDS}
    return re.sub(r"(?<![\w.@/-])[^\W\d_]{3,}(?![\w@/-])", lambda match: known.get(match[0], match[0]), question)


def is_inside(path: Path, folder: str, bases: Sequence[Path]) -> bool:
    """True if a folder of this name, perhaps with the folders above it, stands above the file and below the bases."""
    wanted = [part.casefold() for part in folder.split("/") if part]
    base = next((base for base in bases if path.is_relative_to(base)), None)
    above = path.parts[:-1] if base is None or base == path else (base.name, *path.relative_to(base).parts[:-1])
    parts = [part.casefold() for part in above]
    return any(parts[begin : begin + len(wanted)] == wanted for begin in range(len(parts) - len(wanted) + 1))


def mentioned(names: Iterable[str], text: str) -> list[tuple[str, int, int]]:
    """The names that stand whole in a text, with their places; of overlapping ones the longest."""
    places: list[tuple[str, int, int]] = []
    folded = text.casefold()
    for name in sorted(set(names), key=len, reverse=True):
        for match in re.finditer(rf"(?<![\w.]){re.escape(name.casefold())}(?![\w-])", folded):
            if not any(begin < match.end() and match.start() < end for _, begin, end in places):
                places.append((name, match.start(), match.end()))
    return sorted(places, key=lambda place: place[1])


def suggestions(name: str, names: Iterable[str]) -> list[str]:
    """Return names that contain all words of a name or are spelled much like it; empty if none is close."""
    wanted, known = _words(plain_name(name).rpartition(".")[0] or plain_name(name)), list(dict.fromkeys(names))
    holding = [one for one in known if wanted and wanted <= _words(one)]
    stem = plain_name(name).casefold()
    by_folded = {one.casefold(): one for one in known}
    near = [by_folded[one] for one in difflib.get_close_matches(stem, by_folded, n=_MOST_SUGGESTED, cutoff=_NEAR)]
    return [clean_name(one) for one in dict.fromkeys([*near, *holding])][:_MOST_SUGGESTED]


def share_of_words(name: str, row: DocumentRow) -> float:
    """Share of the words of a name that stand in the name or title of a document."""
    wanted = content_stems(name)
    stems = content_stems(f"{row.path.name} {row.path.parent.name} {row.title}")
    return len(wanted & stems) / len(wanted) if wanted else 0.0


def _words(text: str) -> set[str]:
    return {word.casefold() for word in _WORD.findall(text)}
