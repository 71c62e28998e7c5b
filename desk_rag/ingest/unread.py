"""Count the files that were not read, by kind, so that an answer can say what it may have missed."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from desk_rag.documents import archives, ocr
from desk_rag.documents.formats import KIND_NOT_READ, unread_kind
from desk_rag.documents.status import FileState, plural
from desk_rag.sanitize import clean_name, shown_path

if TYPE_CHECKING:
    from desk_rag.store.store import Store
    from desk_rag.store.types import DocumentRow, UnreadGroup

UNREADABLE = "that could not be read"
_SCANNED = "scanned PDF files"
_LOCKED = "locked with a password"
_GROUP_BY_FAILURE = {"has no text layer": _SCANNED, "with a password": _LOCKED, "is encrypted": _LOCKED}
"""Group of a file that could not be read by words of its recorded reason."""
_FORBIDDEN = "permission denied"
"""Beginning of the recorded reason of a file or folder that may not be opened."""
_TOOLS = "of tools"
_EMPTY = "empty"
_GROUP_BY_RULE = {
    "secret": "that may hold secrets",
    "default": _TOOLS,
    "empty": _EMPTY,
    _FORBIDDEN: UNREADABLE,
    "hidden": "hidden",
    "cache folder": _TOOLS,
    **dict.fromkeys((".gitignore", ".deskragignore", "exclude"), "by your rules"),
}
"""Group of a skipped file by the beginning of its recorded reason."""
_NO_DOCUMENT = ("link", "not a regular file", "loop of mounts", "ignore file")
"""Beginnings of reasons of what is no document: a link is counted where it leads to."""
_BINARY = "binary files"
_TOO_LARGE = "too large"
_SINGULAR = {
    "images": "image",
    "archives": "archive",
    "old Office and iWork files": "old Office or iWork file",
    "other documents": "other document",
    "programs": "program",
    "databases and data files": "database or data file",
    "fonts": "font",
    "model weights": "file of model weights",
    _BINARY: "binary file",
    _SCANNED: "scanned PDF file",
    "others": "other",
}
_NAMED_KINDS = {
    "images": r"photos?|photographs?|pictures?|images?|screenshots?",
    "audio": r"recordings?|audio|voice (?:memos?|messages?)|podcasts?",
    "video": r"videos?",
    "archives": r"archives?|zip(?:ped)? files?|zips?",
    "old Office and iWork files": r"(?:old )?(?:word|powerpoint|office|pages|numbers|keynote) (?:documents?|files?)",
}
"""Words of a question for kinds of files that are not read."""
_SCANS = re.compile(r"\bscan(?:s|ned)?\b", re.IGNORECASE)
_MOST_COMPARED = 20_000
"""Unread files whose names are compared with a question."""
_MOST_NAMED = 3
_MOST_KINDS = 4
"""Kinds that the brief summary names; the rest are counted together."""
_FEWEST_LETTERS = 5
"""Letters of a name without its ending by which a question may name a file."""
_SHORT, _FEWEST_WORDS, _MOST_OF_NAME = 2, 2, 0.6
"""Length of words that do not count, and the words of a name that a question must have for a refusal to name it."""
_SUFFIX = re.compile(re.escape(KIND_NOT_READ) + r" \('(.*)'\)", re.DOTALL)


_HELP = {
    "images": ocr.PICTURE_REMEDY,
    "audio": "a text with what is said in it would be read",
    "video": "subtitles (.srt, .vtt) beside it would be read",
    "archives": f"unpack it, and its files are read ({archives.REMEDY}, too)",
    "old Office and iWork files": "save it as .docx, .xlsx, .pptx or PDF, and it is read",
}
_NO_HELP = "files of this kind are not read"


@dataclass(frozen=True, slots=True)
class UnreadFolders:
    """Folders of one kind that are left out with everything in them."""

    kind: str
    number: int
    path: Path
    """One of them."""

    @property
    def named(self) -> str:
        """Return 'letters/private/ and what is in it' for a single one, '2 folders of tools' for those of tools."""
        if self.number == 1 and self.kind != _TOOLS:
            return with_contents(shown_path(self.path))
        folders = plural(self.number, "folder")
        return folders.replace(" ", " hidden ") if self.kind == "hidden" else f"{folders} {self.kind}"


@dataclass(frozen=True, slots=True)
class UnreadFiles:
    """Number of files that were not read, in all and by kind."""

    files: int
    kinds: tuple[tuple[str, int], ...]
    """Kind and number of files, the largest number first."""
    word: str = "not read"
    """'left out' where those that could not be read are counted apart."""
    folders: tuple[UnreadFolders, ...] = ()
    """Folders left out as a whole; the files in them are not counted."""

    def __bool__(self) -> bool:
        """Return whether there are any."""
        return bool(self.files or self.folders)

    @property
    def amount(self) -> str:
        """Return '46 files and 2 folders'."""
        files, folders = plural(self.files, "file"), sum(group.number for group in self.folders)
        return " and ".join([*([files] if self.files or not folders else []), *_counted_folders(folders)])

    @property
    def by_kind(self) -> str:
        """Return '25 images, 20 archives, 1 too large, letters/private/ and what is in it'."""
        return ", ".join([*(of_kind(*kind) for kind in self.kinds), *(group.named for group in self.folders)])

    @property
    def summary(self) -> str:
        """Return '46 files not read: 25 images, 20 archives, 1 too large'."""
        return f"{self.amount} {self.word}: {self.by_kind}"

    @property
    def brief(self) -> str:
        """Return the summary with the most frequent kinds alone: '46 files not read: 25 images, 21 of other kinds'."""
        if len(self.kinds) <= _MOST_KINDS:
            return self.summary
        kept, others = self.kinds[: _MOST_KINDS - 1], self.kinds[_MOST_KINDS - 1 :]
        return replace(self, kinds=(*kept, ("of other kinds", sum(count for _, count in others)))).summary

    @property
    def hint(self) -> str:
        """Return the command that names the files."""
        is_one = self.files + sum(group.number for group in self.folders) == 1
        return f"desk-rag why FOLDER lists {'it' if is_one else 'them'}"


def _counted_folders(number: int) -> list[str]:
    return [plural(number, "folder")] if number else []


def with_contents(folder: str) -> str:
    """Return how a folder is named that is left out as a whole: 'letters/private/ and what is in it'."""
    return f"{folder.rstrip('/')}/ and what is in it"


class UnreadCounter:
    """Counts what was not read, by kind."""

    def __init__(self) -> None:
        self._kinds, self._folders, self._paths = Counter[str](), Counter[str](), dict[str, Path]()

    def add(self, kind: str, number: int = 1, folder: Path | None = None) -> None:
        """Count `number` files; if a folder is given, as many folders of which it is one."""
        if folder is None:
            self._kinds[kind] += number
        else:
            self._folders[kind] += number
            self._paths[kind] = folder

    def done(self, word: str) -> UnreadFiles:
        """Return what was counted, the largest numbers first."""
        folders = (UnreadFolders(kind, number, self._paths[kind]) for kind, number in self._folders.most_common())
        return UnreadFiles(self._kinds.total(), tuple(self._kinds.most_common()), word, tuple(folders))


def of_kind(kind: str, count: int) -> str:
    """Return '1 image', '120 images', '2 by your rules'."""
    return f"{count:,} {_SINGULAR.get(kind, kind) if count == 1 else kind}"


def skipped_files(store: Store, under: Sequence[Path]) -> UnreadFiles:
    """Count the files below the folders `under` (all, if empty) that a rule or their kind leaves out."""
    groups = store.listing.unread_groups(under)
    return _counted((group for group in groups if group.state is FileState.SKIPPED), "left out")


def may_hold_answer(store: Store, under: Sequence[Path]) -> UnreadFiles | None:
    """Count the files below the folders `under` (all, if empty) that were not read and may hold text of the user.

    Empty files and those of tools are not counted. Returns None if there are no others.
    """
    return _counted(store.listing.unread_groups(under), but=(_TOOLS, _EMPTY)) or None


def help_for(kind: str) -> str:
    """Return what would make files of a kind readable; '' if nothing would."""
    return _HELP.get(kind, "")


def _failure_of(reason: str) -> str:
    return next((group for words, group in _GROUP_BY_FAILURE.items() if words in reason), UNREADABLE)


def named_in(question: str, store: Store, under: Sequence[Path], *, by_kind: bool) -> list[str]:
    """Return sentences about the unread files below `under` that a question names.

    With `by_kind`, as after a refusal, also about those that it nearly names, or whose kind it names.
    """
    rows = store.listing.unread_files(under, _MOST_COMPARED)
    words = _words(question)
    named = [row for row in rows if _is_named(row[0].name, question, words)]
    if by_kind and not named:
        named = [row for row in rows if _is_nearly_named(row[0].name, words)]
    sentences = [said_of(path, reason, is_folder=is_folder) for path, _, reason, is_folder in named]
    if len(sentences) > _MOST_NAMED:
        more = len(sentences) - _MOST_NAMED
        sentences = [*sentences[:_MOST_NAMED], f"{more:,} more files with names from the question were not read"]
    if sentences or not by_kind:
        return sentences
    kinds = Counter(kind_of(reason) for _, state, reason, _ in rows if state is FileState.SKIPPED)
    for kind, pattern in _NAMED_KINDS.items():
        if kinds[kind] and re.search(rf"\b(?:{pattern})\b", question, re.IGNORECASE):
            sentences.append(f"{UnreadFiles(kinds[kind], ((kind, kinds[kind]),)).summary}; {_HELP.get(kind, _NO_HELP)}")
    scans = [path for path, _, reason, _ in rows if _failure_of(reason) == _SCANNED]
    if scans and _SCANS.search(question):
        count = f"{plural(len(scans), 'scanned PDF file')} not read"
        sentences.append(f"{count}: no text layer. {ocr.REMEDY}")
    return sentences


def counted_kind(words: str, store: Store, under: Sequence[Path]) -> tuple[str, int] | None:
    """Return the kind of unread files that words such as 'photos' name, and how many there are below `under`."""
    kind = next((kind for kind, pattern in _NAMED_KINDS.items() if re.fullmatch(pattern, words, re.IGNORECASE)), None)
    counts = dict(_counted(store.listing.unread_groups(under)).kinds)
    return None if kind is None else (_SINGULAR.get(kind, kind) if counts.get(kind) == 1 else kind, counts.get(kind, 0))


def said_of(path: Path, reason: str, *, is_folder: bool = False) -> str:
    """Return a sentence about one file or folder that was not read, with what helps if that is known."""
    kind = unread_kind(path.name)
    if kind and reason.startswith(KIND_NOT_READ):
        return f"{clean_name(path.name)} was not read: {_singular(kind)}; {_HELP.get(kind, _NO_HELP)}"
    shown_reason = reason.replace(f"{path} ", "it ", 1) or "it has not been looked at yet"
    named = clean_name(path.name)
    subject = f"{with_contents(named)} were" if is_folder else f"{named} was"
    return f"{subject} not read: {shown_reason}"


def _is_named(name: str, question: str, words: str) -> bool:
    """Return whether a question holds a file's name: as it is, or its words without the ending."""
    if re.search(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", question, re.IGNORECASE):
        return True
    stem = _words(name.rpartition(".")[0] or name)
    return len(stem.replace(" ", "")) >= _FEWEST_LETTERS and " " in stem and f" {stem} " in f" {words} "


def _is_nearly_named(name: str, words: str) -> bool:
    """Return whether a question has most words of a file's name, and at least two: 'old tax 2019.zip'."""
    of_name = {word for word in _words(name.rpartition(".")[0] or name).split() if len(word) > _SHORT}
    common = of_name & set(words.split())
    return len(common) >= _FEWEST_WORDS and len(common) >= _MOST_OF_NAME * len(of_name)


def _words(text: str) -> str:
    return " ".join(re.findall(r"[^\W_]+", text.lower()))


def _singular(kind: str) -> str:
    word = _SINGULAR.get(kind, kind)
    return f"an {word}" if word[:1] in "aeiou" else f"a {word}"


def may_not_be_opened(row: DocumentRow) -> bool:
    """Return whether a file or folder was left out because its permissions forbid to open it."""
    return row.state is FileState.SKIPPED and row.reason.startswith(_FORBIDDEN)


def is_no_document(reason: str) -> bool:
    """Return whether a skipped entry with this recorded reason is a link or special file, counted nowhere."""
    return reason.startswith(_NO_DOCUMENT)


def kind_of(reason: str) -> str:
    """Return the group in which a skipped file with this recorded reason is counted."""
    if reason.startswith(KIND_NOT_READ):
        named = _SUFFIX.match(reason)
        return unread_kind(f"name{named[1]}") or _BINARY if named else _BINARY
    if reason.startswith("larger than "):
        return _TOO_LARGE
    return _GROUP_BY_RULE.get(reason.partition(":")[0], "others")


def _counted(groups: Iterable[UnreadGroup], word: str = "not read", but: Collection[str] = ()) -> UnreadFiles:
    counter = UnreadCounter()
    for group in groups:
        is_skipped = group.state is FileState.SKIPPED
        kind = kind_of(group.reason) if is_skipped else _failure_of(group.reason)
        if kind not in but and not (is_skipped and is_no_document(group.reason)):
            counter.add(kind, group.number, group.folder)
    return counter.done(word)
