"""Rich Text Format (.rtf): the text of its paragraphs, numbered, as if all changes were accepted.

Also the compressed RTF in which Outlook keeps the text of messages.
"""

from __future__ import annotations

import itertools
import re
import struct

from desk_rag.documents.document import BlockKind
from desk_rag.documents.parsers.building import Builder, Parsed, table_rows
from desk_rag.errors import BrokenDocument

_HEADER = struct.Struct("<4I")
_PACKED, _STORED = 0x75465A4C, 0x414C454D
_WINDOW = 4096
_DICTIONARY = (
    b"{\\rtf1\\ansi\\mac\\deff0\\deftab720{\\fonttbl;}{\\f0\\fnil \\froman \\fswiss \\fmodern \\fscript \\fdecor "
    b"MS Sans SerifSymbolArialTimes New RomanCourier{\\colortbl\\red0\\green0\\blue0\r\n\\par "
    b"\\pard\\plain\\f0\\fs20\\b\\i\\u\\tab\\tx"
)
_MOST_UNPACKED = 16 * 1024 * 1024
_TOKEN = re.compile(r"\\(?:bin(?P<length>\d+) ?|[a-z]+-?\d* ?|.)|[{}]", re.DOTALL)


def parse(data: bytes) -> Parsed:
    """Paragraphs; table rows as words, numbered as one paragraph. Raises BrokenDocument for RTF that cannot be read."""
    builder = Builder()
    lines_of_text = _text(data).split("\n")
    for is_row, lines in itertools.groupby(lines_of_text, key=lambda line: line.count("|") >= 2):
        if is_row:
            builder.next_paragraph()
            for words in table_rows([[cell.strip() for cell in line.strip().strip("|").split("|")] for line in lines]):
                builder.add(words, BlockKind.TABLE)
        else:
            for line in lines:
                builder.next_paragraph()
                builder.add(line, BlockKind.PARAGRAPH)
    return builder.done()


def plain_text(data: bytes) -> str:
    """Return the text of RTF inside another file; '' for RTF that cannot be read."""
    try:
        return _text(data)
    except BrokenDocument:
        return ""


def decompressed(data: bytes) -> bytes:
    """Return compressed RTF of Outlook (MS-OXRTFCP) as RTF; of damaged data what stands before the damage."""
    if len(data) < _HEADER.size:
        return b""
    _, size, kind, _ = _HEADER.unpack_from(data)
    body, most = data[_HEADER.size :], min(size, _MOST_UNPACKED)
    if kind == _STORED:
        return body[:most]
    if kind != _PACKED:
        return b""
    window = bytearray(_DICTIONARY.ljust(_WINDOW, b"\0"))
    write, position, unpacked = len(_DICTIONARY), 0, bytearray()
    while position < len(body) and len(unpacked) < most:
        flags = body[position]
        position += 1
        for bit in range(8):
            run: bytes | bytearray
            if flags >> bit & 1:
                reference = int.from_bytes(body[position : position + 2], "big")
                position += 2
                start, length = reference >> 4, (reference & 15) + 2
                if start == write or position > len(body):  # the mark of the end
                    return bytes(unpacked[:most])
                run = bytearray()
                for offset in range(length):
                    byte = window[(start + offset) % _WINDOW]
                    window[(write + offset) % _WINDOW] = byte
                    run.append(byte)
            else:
                run = body[position : position + 1]
                position += 1
                window[write : write + len(run)] = run
            write = (write + len(run)) % _WINDOW
            unpacked += run
    return bytes(unpacked[:most])


def _text(data: bytes) -> str:
    from striprtf.striprtf import rtf_to_text

    try:
        source = _with_notes(_without_deletions(data.decode("latin-1")))
        return str(rtf_to_text(_with_cells_in_one_line(source), errors="replace"))
    except Exception as error:  # striprtf lets IndexError, LookupError and ValueError through
        raise BrokenDocument("is not an RTF file that can be read (damaged?)") from error


def _with_cells_in_one_line(source: str) -> str:
    """Return RTF with spaces in the place of line ends in the cells of tables."""
    if "\\intbl" not in source:
        return source
    parts: list[str] = []
    begin = position = 0
    in_cell = False
    while token := _TOKEN.search(source, position):
        position = token.end() + int(token["length"] or 0)
        word = token[0].rstrip()
        if word in ("\\pard", "\\intbl"):
            in_cell = word == "\\intbl"
        elif in_cell and word in ("\\par", "\\line"):
            parts += [source[begin : token.start()], " "]
            begin = token.end()
    return "".join(parts) + source[begin:]


def _with_notes(source: str) -> str:
    """Return RTF with the text of footnotes in parentheses where their marks stand."""
    if "\\footnote" not in source:
        return source
    parts: list[str] = []
    depth = begin = position = 0
    note_depth: int | None = None
    while token := _TOKEN.search(source, position):
        position = token.end() + int(token["length"] or 0)
        word = token[0].rstrip()
        if word == "{":
            depth += 1
        elif word == "}":
            depth -= 1
            if note_depth is not None and depth < note_depth:
                parts += [source[begin : token.start()].rstrip(), ")"]
                begin, note_depth = token.start(), None
        elif note_depth is None and word == "\\footnote":
            parts += [source[begin : token.start()].removesuffix("\\*"), " ("]
            begin, note_depth = token.end(), depth
        elif note_depth is not None and word in ("\\par", "\\line"):
            parts += [source[begin : token.start()], " "]
            begin = token.end()
    return "".join(parts) + source[begin:]


def _without_deletions(source: str) -> str:
    """Return RTF without the text that tracked changes deleted, from its mark to the end of the mark's group."""
    if "\\deleted" not in source:
        return source
    kept: list[str] = []
    depth = begin = position = 0
    deleted_depth: int | None = None
    while token := _TOKEN.search(source, position):
        position = token.end() + int(token["length"] or 0)
        if token[0] == "{":
            depth += 1
        elif token[0] == "}":
            depth -= 1
            if deleted_depth is not None and depth < deleted_depth:
                begin, deleted_depth = token.start(), None
        elif deleted_depth is None and token[0].rstrip() in ("\\deleted", "\\deleted1"):
            kept.append(source[begin : token.start()])
            deleted_depth = depth
    return "".join(kept) + (source[begin:] if deleted_depth is None else "")
