"""Read what Outlook packs into winmail.dat (TNEF): the files attached to a message, its text, subject and sender.

Attributes that cannot be followed end the reading; what stands before them is kept.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

from desk_rag.documents.parsers.office import rich_text

SIGNATURE = b"\x78\x9f\x3e\x22"
_SUBJECT, _BODY, _CODE_PAGE, _PROPERTIES = 0x8004, 0x800C, 0x9007, 0x9003
_NEW_FILE, _FILE_NAME, _FILE_DATA, _FILE_PROPERTIES = 0x9002, 0x8010, 0x800F, 0x9005
_SENDER_PROPERTY, _SUBJECT_PROPERTY, _BODY_PROPERTY, _HTML_PROPERTY, _LONG_NAME = 0x0C1A, 0x0037, 0x1000, 0x1013, 0x3707
_RICH_TEXT_PROPERTY = 0x1009
_FIXED_SIZES = {0x02: 4, 0x03: 4, 0x04: 4, 0x05: 8, 0x06: 8, 0x07: 8, 0x0A: 4, 0x0B: 4, 0x14: 8, 0x40: 8, 0x48: 16}
_TEXT, _UNICODE, _OBJECT, _BINARY = 0x1E, 0x1F, 0x0D, 0x102
_SEVERAL = 0x1000
_MOST_FILES = 1000


@dataclass(slots=True)
class PackedFile:
    """A file attached to the message."""

    name: str = ""
    content: bytes = b""


@dataclass(slots=True)
class PackedMessage:
    """A message as a winmail.dat holds it."""

    sender: str = ""
    subject: str = ""
    body: str = ""
    html: str = ""
    rich_text: bytes = b""
    """Compressed RTF."""
    files: list[PackedFile] = field(default_factory=list)

    @property
    def text(self) -> tuple[str, bool]:
        """The text of the message, and whether it is HTML."""
        if self.body.strip() or self.html.strip():
            return (self.body, False) if self.body.strip() else (self.html, True)
        return rich_text.plain_text(rich_text.decompressed(self.rich_text)) if self.rich_text else "", False


def read(data: bytes) -> PackedMessage | None:
    """Return the packed message; None for bytes that are none or that hold nothing."""
    if not data.startswith(SIGNATURE):
        return None
    message = PackedMessage()
    encoding = "cp1252"
    for kind, content in _attributes(data):
        if kind == _CODE_PAGE and len(content) >= 4:
            encoding = _encoding(struct.unpack_from("<I", content)[0])
        elif kind == _SUBJECT:
            message.subject = message.subject or _words(content, encoding)
        elif kind == _BODY:
            message.body = message.body or _words(content, encoding)
        elif kind == _PROPERTIES:
            _take_properties(message, content, encoding)
        elif kind == _NEW_FILE and len(message.files) < _MOST_FILES:
            message.files.append(PackedFile())
        elif message.files:
            _take_file(message.files[-1], kind, content, encoding)
    holds_something = message.files or message.body or message.html or message.rich_text or message.subject
    return message if holds_something else None


def _take_file(file: PackedFile, kind: int, content: bytes, encoding: str) -> None:
    if kind == _FILE_NAME:
        file.name = file.name or _words(content, encoding)
    elif kind == _FILE_DATA:
        file.content = content
    elif kind == _FILE_PROPERTIES:
        names = (_words(value, named) for number, value, named in _values(content, encoding) if number == _LONG_NAME)
        file.name = next(filter(None, names), file.name)


def _take_properties(message: PackedMessage, content: bytes, encoding: str) -> None:
    for number, value, value_encoding in _values(content, encoding):
        if number == _SENDER_PROPERTY:
            message.sender = _words(value, value_encoding)
        elif number == _SUBJECT_PROPERTY:
            message.subject = _words(value, value_encoding)
        elif number == _BODY_PROPERTY:
            message.body = _words(value, value_encoding)
        elif number == _HTML_PROPERTY:
            message.html = _words(value, value_encoding)
        elif number == _RICH_TEXT_PROPERTY:
            message.rich_text = value


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the number and content of each attribute."""
    position = 6
    while position + 11 <= len(data):
        kind, length = struct.unpack_from("<xHxxI", data, position)
        position += 9
        if position + length > len(data):
            return
        yield kind, data[position : position + length]
        position += length + 2  # a checksum


def _values(content: bytes, encoding: str) -> Iterator[tuple[int, bytes, str]]:
    """Yield the number, bytes and encoding of each MAPI property that is text or binary."""
    position = 4
    try:
        for _ in range(struct.unpack_from("<I", content)[0]):
            kind, number = struct.unpack_from("<HH", content, position)
            position += 4
            if number >= 0x8000:  # named: a GUID, then a number or a name
                by_name, length = struct.unpack_from("<II", content, position + 16)
                position += 24 + (_padded(length) if by_name else 0)
            values, kind = bool(kind & _SEVERAL), kind & ~_SEVERAL
            is_long = kind in (_TEXT, _UNICODE, _OBJECT, _BINARY)
            count = 1
            if values or is_long:
                (count,) = struct.unpack_from("<I", content, position)
                position += 4
            if not is_long:
                position += count * _FIXED_SIZES[kind]
                continue
            for _ in range(count):
                (length,) = struct.unpack_from("<I", content, position)
                value = content[position + 4 : position + 4 + length]
                position += 4 + _padded(length)
                if kind != _OBJECT:
                    yield number, value, "utf-16-le" if kind == _UNICODE else encoding
                if position > len(content):
                    return
    except (struct.error, KeyError):
        return


def _padded(length: int) -> int:
    return -(-length // 4) * 4


def _words(content: bytes, encoding: str) -> str:
    return content.decode(encoding, "replace").rstrip("\0").replace("\r\n", "\n")


def _encoding(code_page: int) -> str:
    name = "utf-8" if code_page == 65001 else f"cp{code_page}"
    try:
        b"".decode(name)
    except LookupError:
        return "cp1252"
    return name
