"""Turn a file on disk into a Document: text in blocks that carry heading, page and line.

Each file is read once and hashed; the parsers see only those bytes, in a child process with limits on time and memory.
Of plain text and tables larger than the limit on indexed text, only the beginning is read. User files are never
written.
"""

from __future__ import annotations

import atexit
import errno
import functools
import hashlib
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from desk_rag.documents import archives, ocr
from desk_rag.documents.formats import format_of_name, may_have_attachments, readable_in_part, unread_kind
from desk_rag.documents.parser_process import TRY_AGAIN, Cutting, ParserProcess, Request
from desk_rag.errors import (
    BrokenDocument,
    Cancelled,
    DocumentError,
    EmptyDocument,
    SecretDocument,
    UnreadableDocument,
    UnsupportedDocument,
)

if TYPE_CHECKING:
    from desk_rag.config import IndexSettings

PARSER_VERSION = "14"
"""Changes whenever any parser's output may change: files parsed by another version are read again."""

_ERRORS: dict[str, type[DocumentError]] = {
    kind.__name__: kind
    for kind in (BrokenDocument, EmptyDocument, SecretDocument, UnreadableDocument, UnsupportedDocument)
}
_MIB = 1024 * 1024
_MOST_BYTES_PER_TEXT = 4
"""Bytes of a file per byte of UTF-8, in UTF-32."""


class BlockKind(Enum):
    """Kinds of blocks; chunking never cuts a heading from what it heads."""

    HEADING = "heading"
    PARAGRAPH = "paragraph"
    LIST = "list"
    TABLE = "table"
    CODE = "code"


@dataclass(frozen=True, slots=True)
class SourceFile:
    """Identity of the bytes a Document was made from."""

    path: Path
    """Absolute, not resolved through symbolic links."""
    size: int
    mtime_ns: int
    digest: str
    """blake2b-256 of the content, in hex; of its beginning and its size if only the beginning is read."""


@dataclass(frozen=True, slots=True)
class Block:
    """A run of text that belongs together."""

    text: str
    kind: BlockKind
    heading: tuple[str, ...] = ()
    """The headings in force, outermost first."""
    page: int | None = None
    """1-based; None where the format has no pages."""
    line_start: int | None = None
    """1-based line in the file, or number of the paragraph (.docx), card or row; None where there are none (pdf)."""
    line_end: int | None = None
    opens_chunk: bool = False
    """True at the beginning of a sheet, slide, chapter or message, which shares no chunk with what stands before it."""


@dataclass(frozen=True, slots=True)
class Document:
    """The text of one file, as its parser returned it."""

    source: SourceFile
    title: str
    """Taken from the content (first heading, title property); empty if it names none. Never the file name, so that a
    renamed file keeps its chunks."""
    blocks: tuple[Block, ...]
    """Empty where the parser process cut the text into chunks (file_chunks.py)."""
    parser: str
    """Name and version of the parser, 'markdown/1'; part of what decides whether a file must be read again."""
    note: str = ""
    """Something the user should know: encoding guessed, pages without a text layer, only the beginning indexed."""


def never() -> bool:
    """Return False: the `stop` callback of work that must not be interrupted."""
    return False


def supported(path: Path, settings: IndexSettings) -> bool:
    """Return whether `parse` may be able to read a file of this name.

    A name of an unknown kind is accepted: the content decides.
    """
    if format_of_name(path.name) is not None or not unread_kind(path.name):
        return True
    return ocr.reads(path.name, settings) or archives.reads(path.name, settings)


def parse(path: Path, settings: IndexSettings) -> Document:
    """Read and parse one file.

    Raises UnreadableDocument (gone, not permitted, changed while it was read), UnsupportedDocument (not text we read),
    EmptyDocument (nothing but white space) or BrokenDocument (damaged, locked, too slow, too large in memory).
    """
    source, reply = ask_parser(path, settings, None, never, allow_secrets=True)
    with sound_reply(source.path):
        return _document(source, reply)


def ask_parser(
    path: Path,
    settings: IndexSettings,
    cutting: Cutting | None,
    stop: Callable[[], bool],
    *,
    allow_secrets: bool = False,
) -> tuple[SourceFile, dict[str, object]]:
    """Read one file and have it parsed, and cut into chunks if `cutting` is given.

    Raises what `parse` raises; Cancelled; and SecretDocument for a private key or an access token, unless allowed.
    """
    path = path.absolute()
    if not supported(path, settings):
        raise UnsupportedDocument(f"{path} is of a kind that is not read ({unread_kind(path.name)}).")
    source, data = _read(path, settings, stop, keep=True)
    ocr_seconds = settings.ocr_seconds if ocr.reads(path.name, settings) else 0.0
    request = Request(
        path.name, data, settings.parser_seconds, _most_text(settings), allow_secrets, cutting, ocr_seconds,
        archives.reads(path.name, settings),
    )  # fmt: skip
    try:
        reply = _reply(_parser(settings.parser_mib), request, stop)
    except DocumentError as error:
        raise type(error)(f"{path} {error.message}.", remedy=error.remedy) from error
    if "error" in reply:
        kind = _ERRORS.get(str(reply["error"]), BrokenDocument)
        raise kind(f"{path} {reply.get('message')}.", remedy=str(reply.get("remedy") or ""))
    return source, reply


def _reply(parser: ParserProcess, request: Request, stop: Callable[[], bool]) -> dict[str, object]:
    """Have a file parsed; a mail whose attachments take too much time or memory, without them."""
    may_retry = may_have_attachments(request.name)
    try:
        reply = parser.parse(request, stop)
        if not (may_retry and reply.get("last")):
            return reply
    except BrokenDocument:
        if not may_retry:
            raise
    reply = parser.parse(replace(request, attachments=False), stop)
    if "error" not in reply:
        reply["note"] = "; ".join(filter(None, [str(reply["note"]), "attachments took too much time or memory"]))
    return reply


@contextmanager
def sound_reply(path: Path) -> Iterator[None]:
    """Raise BrokenDocument if the block finds the parser's reply malformed."""
    try:
        yield
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise BrokenDocument(f"{path} made its parser return a malformed reply.") from error


def read_file(path: Path, most: int) -> tuple[SourceFile, bytes]:
    """Read a whole file of at most `most` bytes, with its identity. Raises UnreadableDocument."""
    return _read_up_to(path.absolute(), most, never, in_part=False, keep=True)


def digest_file(path: Path, settings: IndexSettings, stop: Callable[[], bool] = never) -> SourceFile:
    """Hash a file's content without keeping it. Raises UnreadableDocument or Cancelled."""
    source, _ = _read(path.absolute(), settings, stop, keep=False)
    return source


def reader_version(name: str, settings: IndexSettings) -> str:
    """Return the version of parsers and limits; a file read under another version is read again."""
    with_ocr = f"/ocr-{settings.ocr_seconds:g}" if ocr.reads(name, settings) else ""
    opened = f"/{archives.MARK}" if archives.reads(name, settings) else ""
    return f"{PARSER_VERSION}/{settings.max_text_mib:g}{with_ocr}{opened}"


def _most_text(settings: IndexSettings) -> int:
    return max(1, int(settings.max_text_mib * _MIB))


def _read(path: Path, settings: IndexSettings, stop: Callable[[], bool], *, keep: bool) -> tuple[SourceFile, bytes]:
    """Read a file, or its beginning, with its identity; unless `keep`, the bytes are only hashed."""
    in_part = readable_in_part(path.name)
    most = _MOST_BYTES_PER_TEXT * _most_text(settings) + _MIB if in_part else int(settings.max_file_mib * _MIB)
    return _read_up_to(path, most, stop, in_part=in_part, keep=keep)


def _read_up_to(
    path: Path, most: int, stop: Callable[[], bool], *, in_part: bool, keep: bool
) -> tuple[SourceFile, bytes]:
    """Read at most `most` bytes of a file; a larger file raises UnreadableDocument unless `in_part`.

    Size, time and inode are compared before and after, so that no document mixes two versions of its file. Of a file
    `in_part` that only grew meanwhile, what was there before is returned.
    """
    try:
        if is_online_only(path.stat()):
            raise UnreadableDocument(
                f"{path} is online-only: its content is in the cloud, and reading it would download it.",
                remedy="Keep it on this computer, and it is read at the next look.",
            )
        # O_NONBLOCK: opening a FIFO that took a file's place must not wait for a writer.
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from error
    try:
        before = os.fstat(descriptor)
        if not stat.S_ISREG(before.st_mode):
            raise UnreadableDocument(f"{path} is not a regular file.")
        if before.st_size > most and not in_part:
            raise UnreadableDocument(
                f"{path} is larger than {most / _MIB:g} MiB.",
                remedy="Raise max_file_mib in the settings to read it.",
            )
        digest, data = _drain(descriptor, before.st_size, most, stop, keep=keep)
        after = os.fstat(descriptor)
        if in_part and has_grown(before, after):  # a log: what was there is still there
            os.lseek(descriptor, 0, os.SEEK_SET)
            is_same = _drain(descriptor, before.st_size, most, stop, keep=False)[0] == digest
            after = before if is_same else after
    except OSError as error:
        raise _unreadable(path, error) from error
    finally:
        os.close(descriptor)
    if _stamp(before) != _stamp(after):
        raise UnreadableDocument(f"{path} changed while it was read.", remedy=TRY_AGAIN)
    return SourceFile(path, before.st_size, before.st_mtime_ns, digest), data


def _drain(descriptor: int, size: int, most: int, stop: Callable[[], bool], *, keep: bool) -> tuple[str, bytes]:
    """Return the digest of the next `size` bytes, and the bytes if `keep`; bytes appended meanwhile are ignored.

    Of more than `most` bytes only the beginning is read, and the size is hashed with it.
    """
    digest = hashlib.blake2b(digest_size=32)
    pieces, left = [], min(size, most)
    if size > most:
        digest.update(f"the first of {size} bytes:".encode())
    while left > 0 and (piece := os.read(descriptor, min(_MIB, left))):
        if stop():
            raise Cancelled("Reading was cancelled.")
        digest.update(piece)
        left -= len(piece)
        if keep:
            pieces.append(piece)
    return digest.hexdigest(), b"".join(pieces)


def has_grown(before: os.stat_result, after: os.stat_result) -> bool:
    """Return whether a file has become longer."""
    return before.st_ino == after.st_ino and before.st_size < after.st_size


def _stamp(status: os.stat_result) -> tuple[int, ...]:
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino


_IN_USE = (errno.EBUSY, errno.ETXTBSY, errno.EAGAIN, errno.EDEADLK)
_IN_USE_ON_WINDOWS = (32, 33)
"""A sharing violation, and a part of the file that is locked."""


_ONLINE_ONLY_ON_WINDOWS = stat.FILE_ATTRIBUTE_OFFLINE | 0x40000 | 0x400000
"""The last two are FILE_ATTRIBUTE_RECALL_ON_OPEN and FILE_ATTRIBUTE_RECALL_ON_DATA_ACCESS."""
_ONLINE_ONLY_ON_MACOS = 0x40000000
"""SF_DATALESS."""


def is_online_only(status: os.stat_result) -> bool:
    """Return whether OneDrive, iCloud or the like keep only the name of a file on this computer."""
    attributes, flags = getattr(status, "st_file_attributes", 0), getattr(status, "st_flags", 0)
    return bool(attributes & _ONLINE_ONLY_ON_WINDOWS or flags & _ONLINE_ONLY_ON_MACOS)


def _unreadable(path: Path, error: OSError | ValueError) -> UnreadableDocument:
    if getattr(error, "winerror", None) in _IN_USE_ON_WINDOWS or getattr(error, "errno", None) in _IN_USE:
        return UnreadableDocument(f"{path} is in use by another program.", remedy=TRY_AGAIN)
    reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
    remedy = "Check the file's permissions." if isinstance(error, PermissionError) else TRY_AGAIN
    return UnreadableDocument(f"{path} could not be read: {reason}.", remedy=remedy)


def _document(source: SourceFile, reply: dict[str, object]) -> Document:
    """Build a Document from the child's reply; a malformed one raises KeyError, TypeError, ValueError or IndexError."""
    headings = [tuple(str(name) for name in path) for path in _list(reply["headings"])]
    blocks = []
    for row in _list(reply["blocks"]):
        text, kind, place, page, first, last, opens_chunk = row
        lines = _number(first), _number(last)
        blocks.append(Block(str(text), BlockKind(kind), headings[place], _number(page), *lines, bool(opens_chunk)))
    return Document(source, str(reply["title"]), tuple(blocks), parser_of(reply), str(reply["note"]))


def parser_of(reply: dict[str, object]) -> str:
    """Return the name and version of the parser that made this reply."""
    return f"{reply['format']}/{PARSER_VERSION}"


def _list(value: object) -> list[list[Any]]:
    if not isinstance(value, list):
        raise TypeError("expected a list")
    return value


def _number(value: object) -> int | None:
    return None if value is None else int(str(value))


@functools.cache
def _parser(memory_mib: int) -> ParserProcess:
    """Return this process's one child for a memory limit: starting one costs more than parsing a small file."""
    process = ParserProcess(memory_mib)
    atexit.register(process.close)
    return process
