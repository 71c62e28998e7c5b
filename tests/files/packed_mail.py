"""A winmail.dat (TNEF) written by hand, as Outlook packs attachments for a receiver that knows only Outlook."""

from __future__ import annotations

import struct

_STRING, _BINARY, _INTEGER = 0x1F, 0x102, 0x03


def winmail(files: dict[str, bytes], *, subject: str = "", body: str = "", sender: str = "") -> bytes:
    """Return a stream with files under their long names; what Outlook calls them in old systems is 'FILE~1.DAT'."""
    texts = {0x0037: subject, 0x1000: body, 0x0C1A: sender}
    stream = struct.pack("<IH", 0x223E9F78, 1)
    stream += _attribute(1, 0x00069007, struct.pack("<II", 1252, 0))
    stream += _attribute(1, 0x00069003, _properties(texts))
    for name, content in files.items():
        stream += _attribute(2, 0x00069002, bytes(14))
        stream += _attribute(2, 0x00018010, b"FILE~1.DAT\0")
        stream += _attribute(2, 0x0006800F, content)
        stream += _attribute(2, 0x00069005, _properties({0x3707: name}))
    return stream


def _attribute(level: int, kind: int, content: bytes) -> bytes:
    return struct.pack("<BII", level, kind, len(content)) + content + struct.pack("<H", sum(content) & 0xFFFF)


def _properties(texts: dict[int, str]) -> bytes:
    """MAPI properties: a number, a named one and a list, which a reader has to step over, and then the texts."""
    named = struct.pack("<HH16sIIH2x", _INTEGER, 0x8001, bytes(16), 1, 4, 0x41) + struct.pack("<I", 7)
    listed = struct.pack("<HHI", 0x1000 | _BINARY, 0x4001, 2) + 2 * (struct.pack("<I", 3) + b"abc\0")
    parts = [struct.pack("<HHI", _INTEGER, 0x0E08, 99), named, listed]
    for number, text in texts.items():
        if text:
            value = (text + "\0").encode("utf-16-le")
            parts.append(struct.pack("<HHII", _STRING, number, 1, len(value)) + value + bytes(-len(value) % 4))
    return struct.pack("<I", len(parts)) + b"".join(parts)
