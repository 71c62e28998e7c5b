"""Run as the parser process: read files' bytes from stdin, one after the other, and answer with their chunks on stdout.

Opens no file and no socket. Its address space is limited, and an alarm ends it when one file takes too long, even if
the parent is gone. Frame: 4-byte header length, 8-byte body length, JSON header, body. If a request names no chunk
sizes, the answer holds the parsed blocks instead.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import math
import os
import re
import signal
import sys
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from desk_rag.documents.formats import Format, format_of_content, format_of_name
from desk_rag.documents.ocr import is_picture
from desk_rag.documents.parser_process import read_frame, write_frame
from desk_rag.documents.parsers.building import Parsed, first_bytes, first_lines
from desk_rag.documents.parsers.encoding import decode
from desk_rag.documents.rules.sensitive import secret_in
from desk_rag.documents.status import beginning_only
from desk_rag.errors import BrokenDocument, DocumentError, EmptyDocument, SecretDocument

if TYPE_CHECKING:
    from desk_rag.documents.document import Block
    from desk_rag.documents.parsers.records.enclosed import Enclosed
    from desk_rag.documents.token_counter import TextCounter

_PARSERS = {
    Format.MARKDOWN: "markup.markdown:parse",
    Format.TEXT: "markup.text:parse",
    Format.RST: "markup.rst:parse",
    Format.CODE: "markup.code:parse",
    Format.HTML: "markup.html:parse",
    Format.PDF: "office.pdf:parse",
    Format.DOCX: "office.word:parse",
    Format.TABLE: "records.table:parse",
    Format.MAIL: "records.mail:parse",
    Format.MAILBOX: "records.mail:parse_mailbox",
    Format.OUTLOOK: "records.outlook:parse",
    Format.WEB_ARCHIVE: "records.mail:parse_web_archive",
    Format.SLIDES: "office.slides:parse",
    Format.SHEETS: "office.sheets:parse",
    Format.OPEN_DOCUMENT: "office.opendocument:parse",
    Format.OPEN_SLIDES: "office.opendocument:parse",
    Format.RICH_TEXT: "office.rich_text:parse",
    Format.EBOOK: "markup.ebook:parse",
    Format.NOTEBOOK: "records.notebook:parse",
    Format.CALENDAR: "records.calendar:parse",
    Format.CONTACTS: "records.calendar:parse_contacts",
    Format.ORG: "markup.outline:parse",
    Format.LATEX: "latex.document:parse",
    Format.SUBTITLES: "records.subtitles:parse",
    Format.BIBLIOGRAPHY: "records.bibliography:parse",
    Format.CANVAS: "records.canvas:parse",
    Format.ASCIIDOC: "markup.asciidoc:parse",
    Format.TEXTILE: "markup.textile:parse",
    Format.PICTURE: "office.scans:parse",
    Format.JSON: "structured.json_text:parse",
    Format.YAML: "structured.yaml_text:parse",
    Format.TOML: "structured.toml_text:parse",
    Format.XML: "structured.xml_text:parse",
    Format.ARCHIVE: "records.archive:parse",
}
_FROM_BYTES = frozenset(
    {Format.HTML, Format.PDF, Format.DOCX, Format.MAIL, Format.MAILBOX, Format.OUTLOOK, Format.WEB_ARCHIVE,
     Format.SLIDES, Format.SHEETS, Format.OPEN_DOCUMENT, Format.OPEN_SLIDES, Format.RICH_TEXT, Format.EBOOK,
     Format.PICTURE, Format.ARCHIVE}
)  # fmt: skip
_XML_ENCODING = re.compile(rb"\s*<\?xml[^>]*?\sencoding\s*=\s*[\"']([\w.:-]{2,40})")
_WHOLE = frozenset({Format.NOTEBOOK, Format.CANVAS, Format.CALENDAR, Format.CONTACTS})
"""Text formats whose beginning alone cannot be parsed."""
_ENCLOSING = frozenset({Format.MAIL, Format.MAILBOX, Format.OUTLOOK, Format.ARCHIVE})
"""Formats that hold other files."""
_MOST_DEPTH = 2
_TIME_SHARE = 3
"""Files in a mail are opened in the first third of its time: the mail itself must not be lost for them."""
_SAVE_AGAIN = "It may be damaged. If a program still opens it, save it again from there."
_BY_ENTRY = frozenset({Format.MAILBOX, Format.SHEETS, Format.CALENDAR, Format.CONTACTS})
"""Formats whose parsers stop by themselves once they have enough text."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits on time and text for one file."""

    text_bytes: int
    """Bytes of text to keep; the rest is cut off."""
    seconds: float
    ocr_seconds: float = 0.0
    """Time for recognising text, in addition; 0: none is recognised."""
    as_archive: bool = False
    """Read the files inside an archive."""
    inside: int = 0
    """Depth of files inside files that are read: attachments, and those of attached mails."""
    until: float = 0.0
    """Time of `time.monotonic` after which no other file inside is opened."""


def main() -> None:
    """Serve until stdin ends."""
    # Whatever a library prints must not get between the frames.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    _limit_memory(int(sys.argv[1]))
    write_frame(answers, {"ready": True}, b"")
    counter: TextCounter | None = None
    while (request := read_frame(sys.stdin.buffer)) is not None:
        header, data = request
        if header.get("tokenizer"):
            counter = _counter(data)
            write_frame(answers, {}, b"{}")
            continue
        seconds, ocr_seconds = float(str(header["seconds"])), float(str(header["ocr_seconds"]))
        _set_alarm(seconds)
        sizes = header.get("sizes")
        cutter = _Cutter(counter, sizes) if counter is not None and isinstance(sizes, list) else None
        guarded = not header.get("allow_secrets")
        limits = Limits(
            int(str(header["most_text"])), seconds, ocr_seconds, bool(header.get("as_archive")),
            _MOST_DEPTH if header.get("attachments") else 0, time.monotonic() + seconds / _TIME_SHARE,
        )  # fmt: skip
        reply = _answer(str(header["name"]), data, limits, cutter, guarded=guarded)
        _set_alarm(0)
        write_frame(answers, {}, json.dumps(reply, ensure_ascii=True).encode("ascii"))


def parse_bytes(name: str, data: bytes, allowed: Limits, *, guarded: bool) -> tuple[Format, Parsed]:
    """Parse the content of a file called `name`, at most so much of its text; the note says if that is less.

    Raises SecretDocument where `guarded` and the content is a private key or an access token.
    Raises DocumentError whose message is a predicate ('is empty').
    """
    if not data.strip(b" \t\r\n\x00\xef\xbb\xbf"):
        raise EmptyDocument("is empty")
    most_text = allowed.text_bytes
    if allowed.ocr_seconds and is_picture(name):
        file_format = Format.PICTURE
    elif allowed.as_archive:
        file_format = Format.ARCHIVE
    else:
        file_format = format_of_content(data, format_of_name(name))
    module, _, function = _PARSERS[file_format].partition(":")
    parse = getattr(importlib.import_module(f"desk_rag.documents.parsers.{module}"), function)
    cut = False
    limits: tuple[object, ...] = (most_text,) if file_format in _BY_ENTRY else ()
    if allowed.ocr_seconds and file_format in (Format.PDF, Format.PICTURE):
        limits = (_text_recognition(allowed),)
    if file_format in _ENCLOSING:
        limits += (_enclosed(allowed, file_format, guarded),)
    if file_format in _FROM_BYTES:
        parsed: Parsed = parse(data, *limits)
    else:
        text, note = _text(data, file_format)
        if file_format not in _WHOLE:
            text, cut = first_lines(text, most_text)
        _refuse_secret(text, guarded)
        parsed = parse(text, note, *limits)
    if not parsed.blocks:
        raise BrokenDocument("holds no text")
    parsed, kept = first_bytes(parsed, most_text)
    _refuse_secret("\n".join(block.text for block in parsed.blocks), guarded and file_format in _FROM_BYTES)
    if cut or kept is not None:
        kept = kept or sum(len(block.text.encode("utf-8")) for block in parsed.blocks)
        parsed = replace(parsed, note="; ".join(filter(None, [beginning_only(kept), parsed.note])))
    return file_format, parsed


def _enclosed(allowed: Limits, file_format: Format, guarded: bool) -> Enclosed | None:
    """Return a reader of the files inside one; None where they are only named. Text is recognised in none."""
    from desk_rag.documents.parsers.records.enclosed import Enclosed

    if file_format is Format.ARCHIVE:
        inside, most_text = allowed.inside, allowed.text_bytes
    else:
        inside, most_text = allowed.inside - 1, allowed.text_bytes // (2 if file_format is Format.MAILBOX else 1)
        if inside < 0:
            return None

    def parse(name: str, data: bytes, most: int) -> tuple[Block, ...]:
        limits = Limits(most, allowed.seconds, inside=inside, until=allowed.until)
        return parse_bytes(name, data, limits, guarded=guarded)[1].blocks

    until = math.inf if file_format is Format.ARCHIVE else allowed.until
    return Enclosed(parse, most_text, until)


def _text_recognition(allowed: Limits) -> object:
    from desk_rag.documents.parsers.office.scans import TextRecognition

    return TextRecognition(allowed.ocr_seconds, lambda seconds: _set_alarm(allowed.seconds + seconds))


def _refuse_secret(text: str, guarded: bool) -> None:
    if guarded and (kind := secret_in(text)):
        raise SecretDocument(f"secret: the content is {kind}")


def _text(data: bytes, file_format: Format) -> tuple[str, str]:
    declared = _XML_ENCODING.match(data[:200]) if file_format is Format.XML else None
    text, note = decode(data, declared[1].decode("ascii") if declared else "")
    if not text.strip("\ufeff\u200b").strip():  # white space of other encodings, or beyond ASCII
        raise EmptyDocument("is empty")
    return text, note


def _answer(name: str, data: bytes, allowed: Limits, cutter: _Cutter | None, *, guarded: bool) -> dict[str, object]:
    """Return the reply as JSON-ready values; 'last' asks for a fresh process for the next file."""
    try:
        file_format, parsed = parse_bytes(name, data, allowed, guarded=guarded)
        content = {"chunks": cutter.chunks(parsed)} if cutter is not None else _blocks(parsed)
        return {"format": file_format.value, "title": parsed.title, "note": parsed.note, **content}
    except DocumentError as error:
        return {"error": type(error).__name__, "message": error.message, "remedy": error.remedy}
    except RecursionError:
        message, remedy = "has parts inside parts, too deep to be read", ""
    except MemoryError:
        message, remedy = f"needs more than {sys.argv[1]} MiB of memory to read", "Raise parser_mib in the settings."
    except Exception as error:  # a parser's own mistake on odd content must not end the index run
        kind = type(error).__name__
        message = f"cannot be read, damaged or unusual inside; save it again in its own program ({kind})"
        remedy = _SAVE_AGAIN
    return {"error": "BrokenDocument", "message": message, "remedy": remedy, "last": True}


class _Cutter:
    """Cuts parsed text into chunks of given sizes."""

    def __init__(self, counter: TextCounter, sizes: list[int]) -> None:
        self._counter = counter
        self._sizes = sizes

    def chunks(self, parsed: Parsed) -> list[list[object]]:
        """Return one row per chunk, in order."""
        from desk_rag.documents.chunking import ChunkSize, split

        rows: list[list[object]] = []
        for chunk in split(parsed, self._counter, ChunkSize(*self._sizes)):
            where = chunk.location
            place = (where.page_start, where.page_end, where.line_start, where.line_end)
            parts = [[part.begin, part.page, part.line_start, part.line_end, part.section] for part in where.parts]
            rows.append([chunk.text, chunk.num_tokens, where.heading, parts, *place])
        return rows


def _counter(tokenizer_json: bytes) -> TextCounter:
    from desk_rag.documents.token_counter import TextCounter

    return TextCounter(tokenizer_json.decode("utf-8"))


def _blocks(parsed: Parsed) -> dict[str, object]:
    headings: dict[tuple[str, ...], int] = {}
    blocks = []
    for block in parsed.blocks:
        place = headings.setdefault(block.heading, len(headings))
        lines = (block.line_start, block.line_end)
        blocks.append([block.text, block.kind.value, place, block.page, *lines, block.opens_chunk])
    return {"headings": list(headings), "blocks": blocks}


def _limit_memory(mebibytes: int) -> None:
    with contextlib.suppress(ImportError, ValueError, OSError):  # no such limits on Windows; macOS may refuse
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (mebibytes * 1024 * 1024,) * 2)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _set_alarm(seconds: float) -> None:
    if hasattr(signal, "setitimer"):
        # The parent's own limit comes first; five seconds later nobody is left to enforce it.
        signal.setitimer(signal.ITIMER_REAL, seconds + 5 if seconds else 0)


if __name__ == "__main__":
    main()
