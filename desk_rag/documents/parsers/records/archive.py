"""Parse archives (.zip, .tar and compressed .tar): each file inside is read as it would be outside, within limits.

One section per file, named by its path in the archive. Nothing is written to the disk. Left out and counted: files of
kinds that are not read, hidden ones, those that may hold secrets or need a password, archives in the archive, and
files that unpack to far more than they take.
"""

from __future__ import annotations

import io
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from lzma import LZMAError

from desk_rag.documents.document import Block
from desk_rag.documents.parsers.building import Parsed, squeeze
from desk_rag.documents.parsers.records.enclosed import MOST_FILE_BYTES, Enclosed, left_out
from desk_rag.errors import BrokenDocument
from desk_rag.sanitize import without_terminal_codes

_MOST_MEMBERS = 20_000
_MOST_RATIO, _RATIO_FROM = 200, 1 << 20
"""A file that grows more than that when it is unpacked is a bomb; smaller ones do no harm."""
_LONGEST_NAME = 400


@dataclass(frozen=True, slots=True)
class _Member:
    name: str
    size: int
    packed: int
    """Bytes in the archive; 0 if unknown."""
    is_locked: bool
    read: Callable[[int], bytes]
    """Returns at most so many bytes of the content."""


def parse(data: bytes, enclosed: Enclosed) -> Parsed:
    """Read the files of an archive in their order. Raises BrokenDocument for a damaged one."""
    blocks: list[Block] = []
    try:
        for number, member in enumerate(_members(data)):
            if number == _MOST_MEMBERS or enclosed.exhausted:
                enclosed.unread["files behind the first ones"] += 1
                break
            if why := _left_out(member):
                enclosed.unread[why] += 1
                continue
            try:
                content = member.read(min(MOST_FILE_BYTES, enclosed.bytes_left) + 1)
            except (RuntimeError, NotImplementedError, zipfile.BadZipFile, zlib.error, EOFError, LZMAError):
                enclosed.unread["damaged or packed in an unknown way"] += 1
                continue
            blocks += _under(member.name, enclosed.blocks(member.name.rpartition("/")[2], content))
    except (zipfile.BadZipFile, tarfile.TarError, zlib.error, EOFError, LZMAError, OSError, ValueError) as error:
        if not blocks:
            raise BrokenDocument("is not an archive that can be opened (damaged?)") from error
        enclosed.unread["behind damage"] += 1
    if not blocks:
        raise BrokenDocument("is an archive without a file that can be read")
    note = f"{enclosed.read:,} file{'s' * (enclosed.read != 1)} inside read"
    return Parsed("", tuple(blocks), f"{note}; not read: {enclosed.reasons()}" if enclosed.unread else note)


def _members(data: bytes) -> Iterator[_Member]:
    if zipfile.is_zipfile(io.BytesIO(data)):
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            for info in archive.infolist():
                if not info.is_dir():
                    yield _Member(
                        info.filename, info.file_size, info.compress_size, bool(info.flag_bits & 1),
                        lambda most, info=info: _beginning(archive, info, most),  # type: ignore[misc]
                    )  # fmt: skip
        return
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:*") as tape:
        for entry in tape:
            if entry.isreg():
                file = tape.extractfile(entry)
                assert file is not None
                yield _Member(entry.name, entry.size, 0, False, file.read)


def _beginning(archive: zipfile.ZipFile, info: zipfile.ZipInfo, most: int) -> bytes:
    with archive.open(info) as file:
        return file.read(most)


def _left_out(member: _Member) -> str:
    """Return why a file inside is not opened, in words; '' if it is."""
    if member.is_locked:
        return "locked with a password"
    if why := left_out(member.name):
        return why
    if not member.size:
        return "empty"
    if member.packed and member.size > _RATIO_FROM and member.size > _MOST_RATIO * member.packed:
        return "that unpack to far more than they take"
    return "too large" if member.size > MOST_FILE_BYTES else ""


def _under(name: str, blocks: tuple[Block, ...]) -> list[Block]:
    """Return blocks below a heading that is the path of their file; the first opens a chunk."""
    path = " ".join(squeeze(without_terminal_codes(name)).split()).strip("/")[:_LONGEST_NAME] or "file"
    moved = [replace(block, heading=(path, *block.heading)) for block in blocks]
    return [replace(block, opens_chunk=not number or block.opens_chunk) for number, block in enumerate(moved)]
