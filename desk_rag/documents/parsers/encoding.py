"""Decode a file's bytes into text with uniform line ends.

Tried in order: a byte order mark, UTF-16 without a mark, ISO-2022-JP, strict UTF-8, the declared encoding, the code
page whose languages explain the letters (code_pages.py), and charset-normalizer's best guess on a sample. Any encoding
other than UTF-8 is named in the note, because a wrong guess garbles names.
"""

from __future__ import annotations

import codecs
import re

from desk_rag.documents.formats import looks_binary, utf16_without_mark
from desk_rag.documents.parsers.code_pages import LATIN, OTHERS, code_page
from desk_rag.errors import UnsupportedDocument

_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_GUESS_BYTES = 128 * 1024
_SOUND_TO_LOST = 8
_CONTROLS = re.compile(r"[\x00-\x08\x0e-\x1a\x1c-\x1f\x7f]")


def decode(data: bytes, declared: str = "") -> tuple[str, str]:
    """Text with '\\n' line ends and without NULs, and a note that is empty for plain UTF-8.

    Raises UnsupportedDocument for binary content.
    """
    padded, data = data, data.rstrip(b"\0")
    if b"\0" in data:  # no padding behind text, but letters of two bytes, or what is no text
        data = padded
    if looks_binary(data):
        raise UnsupportedDocument("is a binary file")
    text, note = _decode(data, declared)
    sample = text[:20_000]
    if len(_CONTROLS.findall(sample)) * 10 > len(sample):
        raise UnsupportedDocument("is a binary file")
    return text.replace("\r\n", "\n").replace("\r", "\n").replace("\x00", ""), note


def _decode(data: bytes, declared: str) -> tuple[str, str]:
    for mark, encoding in _MARKS:
        if data.startswith(mark):
            text = data.decode(encoding, "replace")
            return text, "" if encoding == "utf-8-sig" else f"read as {encoding}"
    # ASCII text in UTF-16 or ISO-2022-JP is valid UTF-8, so these two are tried first.
    for encoding in (utf16_without_mark(data), _iso2022(data), "utf-8", declared):
        try:
            if encoding:
                return data.decode(encoding), "" if encoding == "utf-8" else f"read as {encoding}"
        except (UnicodeDecodeError, LookupError):
            continue
    text = data.decode("utf-8", "replace")
    lost = text.count("\ufffd")
    # Other pages hardly ever make valid sequences of UTF-8: many of them and a few bad bytes is a damaged file.
    if sum(char > "\x7f" for char in text) - lost >= _SOUND_TO_LOST * lost:
        return text, "read as utf-8, some characters could not be read"
    return _guess(data)


def _iso2022(data: bytes) -> str:
    """The Japanese mail encoding, by the escape sequences that switch to its character sets."""
    return "iso2022_jp" if data.isascii() and (b"\x1b$B" in data or b"\x1b$@" in data) else ""


def _guess(data: bytes) -> tuple[str, str]:
    encoding = code_page(data) or _statistical(data)
    text = data.decode(encoding, "replace")
    lost = ", some characters could not be read" if "\ufffd" in text else ""
    return text, f"encoding guessed: {encoding}{lost}"


def _statistical(data: bytes) -> str:
    """charset-normalizer's guess; where it says no more than 'some Latin page', the commonest."""
    from charset_normalizer import from_bytes

    # The sample starts where the first byte beyond ASCII is: a guess from ASCII alone says nothing.
    first = next(index for index, byte in enumerate(data) if byte > 127)
    start = data.rfind(b"\n", 0, first) + 1 if first > _GUESS_BYTES else 0
    best = from_bytes(data[start : start + _GUESS_BYTES], cp_isolation=list(OTHERS)).best()
    return "cp1252" if best is None or best.encoding in LATIN else best.encoding
