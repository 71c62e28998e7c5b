"""Build what every parser returns: blocks with uniform headings and white space, free of terminal codes.

Line convention of blocks: in CODE a newline is a newline; in every other kind it is a soft wrap (chunking shows a
space), kept because the k-th line of the text is then line `line_start + k` of the file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from desk_rag.documents.document import Block, BlockKind
from desk_rag.sanitize import without_terminal_codes

_TYPESETTING = str.maketrans(
    {"\u00ad": "", "\u200b": "", "\u2060": "", "\ufeff": "", "\uf0b7": "•", "\uf0a7": "▪",
     "\ufb00": "ff", "\ufb01": "fi", "\ufb02": "fl", "\ufb03": "ffi", "\ufb04": "ffl"}
)  # fmt: skip
"""Soft hyphens, zero-width marks and ligatures, which are not typed in questions; bullets of symbol fonts."""


@dataclass(frozen=True, slots=True)
class Parsed:
    """A parser's result."""

    title: str
    blocks: tuple[Block, ...]
    note: str = ""


@dataclass(frozen=True, slots=True)
class Lines:
    """Lines of a block: 1-based first and last, both None where the format has none."""

    start: int | None = None
    end: int | None = None


NOWHERE = Lines()
_LEAST_BLOCK_BYTES = 64
"""Bytes that any block counts for at least: each costs time, and a file may hold a million one-letter blocks."""
_TITLE_CHARS = 160
_LARGE_PART = 16
"""A block larger than a sixteenth of what may be kept is itself cut."""


class Builder:
    """Collects blocks in reading order and keeps track of the headings above them."""

    def __init__(self) -> None:
        self.title = ""
        self._blocks: list[Block] = []
        self._headings: list[tuple[int, str]] = []
        self._weight = 0
        self._opens_chunk = False
        self._paragraph, self._is_paragraph_used = 0, True

    def exceeds(self, most: int) -> bool:
        """True if more than `most` bytes of text are collected, so that `first_bytes` would cut off any more."""
        return self._weight > most

    @property
    def empty(self) -> bool:
        """True as long as no block was added."""
        return not self._blocks

    @property
    def path(self) -> tuple[str, ...]:
        """The headings in force, outermost first."""
        return tuple(text for _, text in self._headings)

    def add(
        self,
        text: str,
        kind: BlockKind,
        lines: Lines = NOWHERE,
        page: int | None = None,
        *,
        opens_chunk: bool = False,
    ) -> None:
        """Append a block unless it is blank; white space is normalised within lines, but not in code.

        Terminal codes are removed. Program code may quote them without the escape character, so only whole ones are
        removed there.
        """
        code = kind is BlockKind.CODE
        text = without_terminal_codes(text, bare=not code)
        encoded = (text if code else text.translate(_TYPESETTING)).encode("utf-8", "replace")
        text = encoded.decode("utf-8")
        text = text.expandtabs(4).strip("\n") if code else squeeze(text)
        if text.strip():
            opens_chunk, self._opens_chunk = opens_chunk or self._opens_chunk, False
            if self._paragraph and lines is NOWHERE:
                lines, self._is_paragraph_used = Lines(self._paragraph, self._paragraph), True
            self._blocks.append(Block(text, kind, self.path, page, lines.start, lines.end, opens_chunk))
            self._weight += max(len(encoded), _LEAST_BLOCK_BYTES)

    def heading(
        self, level: int, text: str, lines: Lines = NOWHERE, page: int | None = None, *, opens_chunk: bool = False
    ) -> None:
        """Open a section of `level` (1 is outermost); the heading's own block carries its own path."""
        text = _name(text)
        if not text:
            return
        self._headings = [(depth, name) for depth, name in self._headings if depth < level]
        self._headings.append((level, text))
        self.add(text, BlockKind.HEADING, lines, page, opens_chunk=opens_chunk)

    def append_below(self, blocks: Sequence[Block], page: int | None) -> None:
        """Append blocks of a file inside this one below the headings in force.

        `page` is their page; None keeps the pages of their own file.
        """
        for block in blocks:
            moved = replace(block, heading=(*self.path, *block.heading), page=block.page if page is None else page)
            self._blocks.append(moved if page is None else replace(moved, line_start=None, line_end=None))
            self._weight += max(len(block.text.encode("utf-8")), _LEAST_BLOCK_BYTES)

    def next_paragraph(self) -> None:
        """Number what is added from here on as the next paragraph, if the last one was not blank."""
        if self._is_paragraph_used:
            self._paragraph, self._is_paragraph_used = self._paragraph + 1, False

    def end_paragraphs(self) -> None:
        """Number nothing that is added from here on: footers stand in no paragraph."""
        self._paragraph = 0

    def open_chunk(self) -> None:
        """Let the next block open a chunk, as the first one of a chapter does."""
        self._opens_chunk = True

    def section(self, path: Sequence[str]) -> None:
        """Replace the headings in force without a block of their own: keys above values, which the values repeat."""
        self._headings = [(level, name) for level, name in enumerate(map(_name, path), start=1) if name]

    def set_title(self, text: str) -> None:
        """Name the document; the first name given stays."""
        self.title = self.title or _name(text)[:_TITLE_CHARS]

    def done(self, note: str = "", *, first_heading_is_title: bool = True) -> Parsed:
        """Return the result. A heading that opens it names the document if nothing else did.

        In a workbook or a mailbox, the first heading names one sheet or message of several, and not the document.
        """
        if first_heading_is_title and self._blocks and self._blocks[0].kind is BlockKind.HEADING:
            self.set_title(self._blocks[0].text)
        return Parsed(self.title, tuple(self._blocks), note)


def first_bytes(parsed: Parsed, most: int) -> tuple[Parsed, int | None]:
    """The beginning of what was parsed, at most `most` bytes of text, and its bytes; None where that is all of it.

    Ends between two blocks where the last ones are of ordinary size, else behind a line or a word.
    """
    text_bytes = weight = 0
    for number, block in enumerate(parsed.blocks):
        size = len(block.text.encode("utf-8"))
        if weight + max(size, _LEAST_BLOCK_BYTES) > most:
            kept = parsed.blocks[:number]
            if size > most // _LARGE_PART or not kept:
                beginning = _beginning(block, most - weight)
                kept += (beginning,) if beginning.text else ()
                text_bytes += len(beginning.text.encode("utf-8"))
            return replace(parsed, blocks=kept), text_bytes
        text_bytes += size
        weight += max(size, _LEAST_BLOCK_BYTES)
    return parsed, None


def first_lines(text: str, most: int) -> tuple[str, bool]:
    """The beginning of a file's text, cut behind a line or a word, and whether anything was cut off."""
    if len(text) <= most // 4 or len(data := text.encode("utf-8", "replace")) <= most:
        return text, False
    return _cut(data[:most].decode("utf-8", "ignore")), True


def _beginning(block: Block, most: int) -> Block:
    text = _cut(block.text.encode("utf-8")[:most].decode("utf-8", "ignore"))
    start, end = block.line_start, block.line_end
    in_lines = start is not None and end is not None and block.text.count("\n") == end - start
    return replace(block, text=text, line_end=start + text.count("\n") if in_lines and start is not None else end)


def _cut(text: str) -> str:
    """`text` without its last line, or else without its last word, where that leaves most of it."""
    for mark in ("\n", " "):
        end = text.rfind(mark, len(text) // 2)
        if end >= 0:
            return text[:end]
    return text


def _name(text: str) -> str:
    """Return a heading or a title in one line."""
    return " ".join(without_terminal_codes(text).translate(_TYPESETTING).split())


def squeeze(text: str) -> str:
    """`text` with runs of blanks as one space; its line count is kept."""
    return "\n".join(" ".join(line.split()) for line in text.split("\n")).rstrip("\n")


def row_text(headers: Sequence[str], cells: Sequence[str]) -> str:
    """One table row as words: 'Item: Door; Price: 40'; empty cells are left out. `headers` may be empty."""
    parts = []
    for index, cell in enumerate(cells):
        value = " ".join(cell.split())
        name = " ".join(headers[index].split()).rstrip(":") if index < len(headers) else ""
        if value:
            parts.append(f"{name}: {value}" if name else value)
    return "; ".join(parts)


def table_rows(rows: Sequence[Sequence[str]], has_header: bool | None = None) -> list[str]:
    """Rows as words, headers repeated in each; a two-column table of names and values reads 'name: value'.

    `has_header` None means: look. Returns one string per row of `rows`, '' for the header row when others follow it.
    """
    if has_header is None:
        # Two columns without a marked header are more often names and values.
        has_header = len(rows[0]) > 2 and looks_like_header(rows[0])
    if has_header and len(rows) > 1:
        return ["", *(row_text(rows[0], row) for row in rows[1:])]
    if all(len(row) == 2 for row in rows):
        return [row_text([row[0]], [row[1]]) or row[0] for row in rows]
    return [row_text((), row) for row in rows]


def looks_like_header(row: Sequence[str]) -> bool:
    """Every cell named, short, not beginning with a digit, and no name twice."""
    names = [cell.strip() for cell in row]
    plain = all(name and len(name) <= 40 and not name.lstrip("+-.(#").startswith(tuple("0123456789")) for name in names)
    return plain and len(set(names)) == len(names) and len(names) > 1
