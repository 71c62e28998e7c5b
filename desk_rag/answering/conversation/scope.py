"""Folders and files named in a question: '@letters/ when does the lease end?' searches only there.

A name follows '@' at the beginning of a word, in quotes or with '\\' before blanks if it has any: `@"my lease.md"`,
`@my\\ lease.md`. It may be the end of a path (`@letters/lease.md`), a path from the root or from the home directory.
`\\@` stands for a plain '@'. Command line and UI use this parser.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

from desk_rag.documents.status import FileState
from desk_rag.errors import ConfigError
from desk_rag.ingest import unread
from desk_rag.sanitize import clean

if TYPE_CHECKING:
    from desk_rag.store.store import Store

_TOKEN = re.compile(
    r"""(?<![^\s(\[])@(?:"(?P<double>[^"]+)"|'(?P<single>[^']+)'|(?P<plain>(?:\\.|[^\s\\@])+))(?=$|\W)"""
)
_LEADING = re.compile(r"^(?:in|from|within|under|of)?\s*$", re.IGNORECASE)
_TRAILING = re.compile(r"[\s,]*(?:\b(?:in|from|within|under|of|according to|and|or)|,)\s*$", re.IGNORECASE)
_PUNCTUATION = ".,;:!?)]}'\""
_MOST_COMPARED = 20_000
"""Names among which the nearest ones are looked for."""
_NEEDS_QUOTES = re.compile(r"[\s\\'\"@]|[.,;:!?)\]}]$")

_SPECIAL = re.compile(r"[\s\\'\"@]")


class UnknownName(ConfigError):
    """No indexed folder or file has the name given after '@'."""


@dataclass(frozen=True, slots=True)
class Mention:
    """A name after '@' and its place in the question."""

    name: str
    start: int
    end: int
    quoted: bool


@dataclass(frozen=True, slots=True)
class Scope:
    """A question without its '@' names, and where to search."""

    question: str
    paths: tuple[Path, ...]
    """Empty for everything."""
    named: bool
    """The question itself named the paths."""


def mentions(question: str) -> list[Mention]:
    """Return the '@' names of a question in order."""
    in_order = []
    for match in _TOKEN.finditer(question):
        if match.start() and question[match.start() - 1] == "\\":
            continue
        quoted = match["double"] or match["single"]
        name = quoted or re.sub(r"\\(.)", r"\1", match["plain"])
        in_order.append(Mention(name, match.start(), match.end(), quoted is not None))
    return in_order


def resolve(question: str, files: Callable[[], Iterable[Path]], under: Sequence[Path] = ()) -> Scope:
    """Limit a question to the folders and files it names; `under` if it names none.

    `files` returns the indexed files, among which names are looked for, and is called if there is a name. Raises
    UnknownName.
    """
    named = mentions(question)
    if not named:
        return Scope(question.replace("\\@", "@"), tuple(under), named=False)
    known = Names(files(), under)
    paths: list[Path] = []
    text, done = "", 0
    for mention in named:
        matched, name = _matched(mention, known)
        paths += matched
        rest = "" if mention.quoted else mention.name[len(name) :]
        text = _joined(text + question[done : mention.start], name, question[mention.end - len(rest) :])
        done = mention.end - len(rest)
    text += question[done:]
    return Scope(_tidy(text), tuple(outermost(paths)), named=True)


def without_names(question: str) -> str:
    """Return a question without its '@' names, whatever they may mean."""
    text, done = "", 0
    for mention in mentions(question):
        name = mention.name if mention.quoted else mention.name.rstrip(_PUNCTUATION)
        end = mention.end - (0 if mention.quoted else len(mention.name) - len(name))
        text, done = _joined(text + question[done : mention.start], name, question[end:]), end
    return _tidy(text + question[done:])


def token(path: Path, *, is_folder: bool, bases: Sequence[Path] = ()) -> str:
    """Return what to write in a question for `path`: '@letters/lease.md', '@"my notes/"'."""
    base = next((base for base in bases if path.is_relative_to(base)), None)
    inner = path.relative_to(base).as_posix() if base is not None and base != path else path.name or str(path)
    name = f"{inner}/" if is_folder else inner
    if not _NEEDS_QUOTES.search(name):
        return f"@{name}"
    return f'@"{name}"' if '"' not in name else "@" + _SPECIAL.sub(r"\\\g<0>", name)


class Names:
    """The folders and files below some folders, to be found by the end of their path."""

    def __init__(self, files: Iterable[Path], under: Sequence[Path] = ()) -> None:
        self.files = [file for file in files if not under or is_below(file, under)]
        self.folders = sorted(set(_folders(self.files, under)))
        self._under = tuple(under)
        self._by_name: dict[str, list[tuple[Path, bool]]] = {}
        for path, is_folder in self.all():
            self._by_name.setdefault(path.name.casefold(), []).append((path, is_folder))

    def all(self) -> Iterator[tuple[Path, bool]]:
        """Yield every path, folders first, and whether it is a folder."""
        yield from ((folder, True) for folder in self.folders)
        yield from ((file, False) for file in self.files)

    def matching(self, name: str) -> list[Path]:
        """Return the paths that end in `name`; of several those directly below a base, or else of the same spelling."""
        only_folders = name.endswith("/")
        if name.startswith(("/", "~", "./", "../")):
            whole = Path(os.path.normpath(Path(name).expanduser().absolute()))
            return [path for path, is_folder in self.all() if path == whole and (is_folder or not only_folders)]
        parts = PurePath(name).parts
        if not parts:
            return []
        candidates = [
            path
            for path, is_folder in self._by_name.get(parts[-1].casefold(), [])
            if (is_folder or not only_folders)
            and [part.casefold() for part in path.parts[-len(parts) :]] == [part.casefold() for part in parts]
        ]
        topmost = [path for path in candidates if any(path == base / name for base in self._under)]
        return topmost or [path for path in candidates if path.parts[-len(parts) :] == parts] or candidates

    def nearest(self, name: str, count: int = 3) -> list[str]:
        """Return the '@' tokens that are spelled most like `name`."""
        wanted = PurePath(name).name.casefold()
        tokens: dict[str, str] = {}
        for path, is_folder in self.all():
            tokens.setdefault(path.name.casefold(), token(path, is_folder=is_folder))
            if len(tokens) >= _MOST_COMPARED:
                break
        near = difflib.get_close_matches(wanted, tokens, n=count, cutoff=0.5)
        near += [known for known in tokens if wanted and wanted in known and known not in near]
        return [tokens[known] for known in near[:count]]


def outermost(paths: Sequence[Path]) -> list[Path]:
    """Return the paths without repetition and without those inside another."""
    unique = list(dict.fromkeys(paths))
    return [path for path in unique if not any(other in path.parents for other in unique)]


def is_below(path: Path, bases: Sequence[Path]) -> bool:
    """Return whether a path is one of `bases` or inside one."""
    return any(path == base or base in path.parents for base in bases)


def _matched(mention: Mention, known: Names) -> tuple[list[Path], str]:
    """Return the paths of a name, and the name without punctuation that belongs to the sentence."""
    name = mention.name
    while name:
        if matched := known.matching(name):
            return matched, name
        if mention.quoted or name[-1] not in _PUNCTUATION:
            break
        name = name[:-1]
    raise _unknown(mention.name, known)


def _unknown(name: str, known: Names) -> UnknownName:
    shown = clean(name, single_line=True)
    near = [clean(one, single_line=True) for one in known.nearest(name.rstrip(_PUNCTUATION + "/"))]
    hint = f"Nearest: {', '.join(near)}. " if near else ""
    outside = Path(name).expanduser()
    if ("/" in name or outside.suffix) and outside.exists():
        hint = f"It exists but is not in the index: desk-rag index {shown} "
    return UnknownName(
        f"No indexed folder or file is called '{shown}'.",
        remedy=f"{hint}Write \\@{shown} for the word itself.",
    )


def _joined(before: str, name: str, after: str) -> str:
    """Return `before` with the last part of the name within a sentence, without it at the beginning or end."""
    if _LEADING.match(before):
        return ""
    if not re.search(r"\w", _TOKEN.sub("", re.sub(r"\b(?:and|or)\b", "", after))):
        return _TRAILING.sub("", before)
    return before + name.rstrip("/").rpartition("/")[2]


def _tidy(text: str) -> str:
    plain = re.sub(r"\s+([?.!,;:])", r"\1", " ".join(text.replace("\\@", "@").split()))
    return plain.lstrip(" ,;:")


def _folders(files: Iterable[Path], under: Sequence[Path]) -> Iterator[Path]:
    seen_paths: set[Path] = set()
    for file in files:
        for folder in file.parents:
            if folder in seen_paths or not folder.name:
                break
            seen_paths.add(folder)
            if not under or is_below(folder, under):
                yield folder


def among_indexed(question: str, store: Store, under: Sequence[Path]) -> Scope:
    """Resolve the '@' names in a question among the documents below `under`.

    Raises UnknownName, which says why if the file is there and was not read.
    """
    try:
        return resolve(question, lambda: indexed_files(store), under)
    except UnknownName:
        names = " ".join(mention.name for mention in mentions(question))
        if sentences := unread.named_in(names, store, under, by_kind=False):
            raise UnknownName(f"{sentences[0].rstrip('.')}.") from None
        raise


def indexed_files(store: Store) -> list[Path]:
    """Return the paths of all documents that can be searched."""
    return [row.path for row in store.documents() if row.state is FileState.INDEXED]
