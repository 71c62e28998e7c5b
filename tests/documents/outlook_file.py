"""Outlook's files written by hand: messages (.msg, MS-CFB and MS-OXMSG), and a winmail.dat (MS-OXTNEF)."""

from __future__ import annotations

import struct
from datetime import UTC, datetime

_SECTOR, _MINI = 512, 64
_FREE, _END, _FAT = 0xFFFFFFFF, 0xFFFFFFFE, 0xFFFFFFFD
_STORAGE, _STREAM, _ROOT = 1, 2, 5
_STRING, _TIME, _INTEGER, _BINARY, _OBJECT = 0x001F, 0x0040, 0x0003, 0x0102, 0x000D


def outlook_message(
    subject: str,
    body: str,
    *,
    sender: tuple[str, str],
    to: tuple[str, str],
    sent: datetime,
    rich_text: bytes = b"",
    files: dict[str, bytes] | None = None,
    attached: dict[str, bytes] | None = None,
) -> bytes:
    """Return a message as Outlook saves it; `sender` and `to` are a name and an address, `rich_text` is compressed.

    `attached` are streams of `message_streams`, of a message that is attached to this one.
    """
    streams = message_streams(subject, body, sender=sender, to=to, sent=sent, rich_text=rich_text, files=files,
                              attached=attached, reserved=bytes(8))  # fmt: skip
    return _compound_file(streams)


def message_streams(
    subject: str,
    body: str,
    *,
    sender: tuple[str, str],
    to: tuple[str, str],
    sent: datetime,
    rich_text: bytes = b"",
    files: dict[str, bytes] | None = None,
    attached: dict[str, bytes] | None = None,
    reserved: bytes = b"",
) -> dict[str, bytes]:
    """Return the streams of a message by their paths; only the head of a whole file has bytes `reserved`."""
    root = {0x0037: subject, 0x0C1A: sender[0], 0x0C1F: sender[1], 0x001A: "IPM.Note"}
    root |= {0x1000: body} if body else {}
    files = files or {}
    count = len(files) + bool(attached)
    header = bytes(8) + struct.pack("<4I", 1, count, 1, count) + reserved
    streams = _properties("", root, {0x1009: rich_text} if rich_text else {}, header, sent)
    streams |= _properties("__recip_version1.0_#00000000/", {0x3001: to[0], 0x3003: to[1]}, {}, bytes(8), None)
    for number, (name, content) in enumerate(files.items()):
        place = f"__attach_version1.0_#{number:08X}/"
        streams |= _properties(place, {0x3707: name}, {0x3701: content}, bytes(8), None)
    if attached:
        place = f"__attach_version1.0_#{len(files):08X}/"
        method = struct.pack("<HHIII", _INTEGER, 0x3705, 6, 5, 0) + struct.pack("<HHIII", _OBJECT, 0x3701, 6, 0, 4)
        streams |= _properties(place, {0x3001: "A message"}, {}, bytes(8) + method, None)
        streams |= {f"{place}__substg1.0_3701000D/{path}": content for path, content in attached.items()}
    return streams


def _properties(
    place: str, strings: dict[int, str], binaries: dict[int, bytes], header: bytes, sent: datetime | None
) -> dict[str, bytes]:
    """Return the streams of an object's properties."""
    table, streams = header, dict[str, bytes]()
    for number, text in strings.items():
        value = text.encode("utf-16-le")
        table += struct.pack("<HHIII", _STRING, number, 6, len(value) + 2, 0)
        streams[f"{place}__substg1.0_{number:04X}{_STRING:04X}"] = value
    for number, content in binaries.items():
        table += struct.pack("<HHIII", _BINARY, number, 6, len(content), 0)
        streams[f"{place}__substg1.0_{number:04X}{_BINARY:04X}"] = content
    table += struct.pack("<HHIII", _INTEGER, 0x340D, 6, 0x40000, 0)  # strings are Unicode
    if sent is not None:
        ticks = int((sent - datetime(1601, 1, 1, tzinfo=UTC)).total_seconds()) * 10_000_000
        table += struct.pack("<HHIQ", _TIME, 0x0039, 6, ticks)
    return {f"{place}__properties_version1.0": table, **streams}


def _compound_file(streams: dict[str, bytes]) -> bytes:
    """Return a compound file of streams below 4,096 bytes, which all lie in the stream of small sectors."""
    names = ["", *sorted({path.rpartition("/")[0] for path in streams} - {""}), *streams]
    small, chain, starts = b"", list[int](), dict[str, int]()
    for path, content in streams.items():
        starts[path] = len(chain)
        count = -(-len(content) // _MINI)
        chain += [*range(len(chain) + 1, len(chain) + count), _END]
        small += content.ljust(count * _MINI, b"\0")
    directory = b"".join(_entry(names, path, starts, streams, len(small)) for path in names)
    parts = [directory.ljust(-(-len(directory) // _SECTOR) * _SECTOR, b"\0")]
    parts += [part.ljust(-(-len(part) // _SECTOR) * _SECTOR, filler) for part, filler in (
        (struct.pack(f"<{len(chain)}I", *chain), b"\xff"), (small, b"\0"))]  # fmt: skip
    table, first = [_FAT], list[int]()
    for part in parts:
        first.append(len(table))
        table += [*range(len(table) + 1, len(table) + len(part) // _SECTOR), _END]
    # The root's first sector is that of the small stream, which is known only now.
    parts[0] = parts[0][:116] + struct.pack("<I", first[2]) + parts[0][120:]
    header = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(16) + struct.pack("<5H6x", 0x3E, 3, 0xFFFE, 9, 6)
    header += struct.pack("<3I4x5I", 0, 1, first[0], 4096, first[1], len(parts[1]) // _SECTOR, _END, 0)
    header += struct.pack("<109I", 0, *[_FREE] * 108)
    return header + struct.pack("<128I", *table, *[_FREE] * (128 - len(table))) + b"".join(parts)


def _entry(names: list[str], path: str, starts: dict[str, int], streams: dict[str, bytes], small: int) -> bytes:
    """Return the directory entry of a storage or stream; siblings form a tree that leans to the right."""

    def siblings(folder: str) -> list[str]:
        inside = [name for name in names[1:] if name.rpartition("/")[0] == folder]
        return sorted(inside, key=lambda name: (len(name), name.upper()))

    kind = _STREAM if path in streams else _STORAGE if path else _ROOT
    name = (path.rpartition("/")[2] or "Root Entry").encode("utf-16-le") + b"\0\0"
    beside = siblings(path.rpartition("/")[0]) if path else []
    following = beside[beside.index(path) + 1 :] if path else []
    below = [] if path in streams else siblings(path)
    right, child = (names.index(some[0]) if some else _FREE for some in (following, below))
    start, size = (starts[path], len(streams[path])) if path in streams else (0, 0 if path else small)
    entry = name.ljust(64, b"\0") + struct.pack("<HBB3I", len(name), kind, 1, _FREE, right, child)
    return entry + bytes(36) + struct.pack("<IQ", start, size)


def winmail(
    files: dict[str, bytes], *, subject: str = "", body: str = "", sender: str = "", rich_text: bytes = b""
) -> bytes:
    """Return a stream with files under their long names; what Outlook calls them in old systems is 'FILE~1.DAT'."""
    texts = {0x0037: subject, 0x1000: body, 0x0C1A: sender}
    stream = struct.pack("<IH", 0x223E9F78, 1)
    stream += _attribute(1, 0x00069007, struct.pack("<II", 1252, 0))
    stream += _attribute(1, 0x00069003, _packed_properties(texts, rich_text))
    for name, content in files.items():
        stream += _attribute(2, 0x00069002, bytes(14))
        stream += _attribute(2, 0x00018010, b"FILE~1.DAT\0")
        stream += _attribute(2, 0x0006800F, content)
        stream += _attribute(2, 0x00069005, _packed_properties({0x3707: name}))
    return stream


def _attribute(level: int, kind: int, content: bytes) -> bytes:
    return struct.pack("<BII", level, kind, len(content)) + content + struct.pack("<H", sum(content) & 0xFFFF)


def _packed_properties(texts: dict[int, str], rich_text: bytes = b"") -> bytes:
    """MAPI properties: a number, a named one and a list, which a reader has to step over, and then the texts."""
    named = struct.pack("<HH16sIIH2x", _INTEGER, 0x8001, bytes(16), 1, 4, 0x41) + struct.pack("<I", 7)
    listed = struct.pack("<HHI", 0x1000 | 0x102, 0x4001, 2) + 2 * (struct.pack("<I", 3) + b"abc\0")
    parts = [struct.pack("<HHI", _INTEGER, 0x0E08, 99), named, listed]
    for number, text in texts.items():
        if text:
            value = (text + "\0").encode("utf-16-le")
            parts.append(struct.pack("<HHII", _STRING, number, 1, len(value)) + value + bytes(-len(value) % 4))
    if rich_text:
        value = rich_text + bytes(-len(rich_text) % 4)
        parts.append(struct.pack("<HHII", _BINARY, 0x1009, 1, len(rich_text)) + value)
    return struct.pack("<I", len(parts)) + b"".join(parts)
