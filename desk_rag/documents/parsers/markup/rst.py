"""reStructuredText: headings by underline, literal blocks, lists, tables, field lists; each block with its lines.

Reads what people write in READMEs and handbooks, without running directives: nothing is included, nothing evaluated.
"""

from __future__ import annotations

import csv
import re

from desk_rag.documents.document import BlockKind
from desk_rag.documents.parsers.building import Builder, Lines, Parsed, table_rows
from desk_rag.documents.parsers.markup.prose import add_lines, indent

_ADORNMENT = re.compile(r"([!-/:-@\[-`{-~])\1{2,}\s*$")
_SIMPLE_RULE = re.compile(r"=+(?:\s+=+)+\s*$")
_GRID_RULE = re.compile(r"\+(?:[-=]+\+)+\s*$")
_DIRECTIVE = re.compile(r"\s*\.\. (?:\|[^|]*\| )?(?P<name>[\w:-]+)::(?: (?P<argument>.*))?$")
_COMMENT = re.compile(r"\s*\.\.(?:\s|$)")
_FOOTNOTE = re.compile(r"\s*\.\. (?P<mark>\[[^\]\n]+\])(?:\s+(?P<text>.*))?$")
_LIST_TABLE_CELL = re.compile(r"\s*(?P<row>\*\s+)?-(?:\s+(?P<text>.*))?$")
_HEADER_ROWS = re.compile(r"\s*:header-rows:\s*[1-9]")
_HEADER = re.compile(r"\s*:header:\s*(?P<cells>.+)$")
_OPTION = re.compile(r"\s+:[\w-]+:")
_FIELD = re.compile(r"^(\s*):(?P<name>[^:`]+):(?:\s+(?P<value>.*))?$")
_NOTE_MARK = re.compile(r"\s?(\[(?:\d+|#[\w-]*|\*)\])_(?!\w)")
_VERBATIM = frozenset({"code", "code-block", "sourcecode", "literalinclude", "parsed-literal", "math"})
_SILENT = frozenset({"image", "figure", "toctree", "contents", "include", "highlight", "index", "raw", "default-role"})
_MARKUP = (
    (re.compile(r"``(.+?)``"), r"\1"),
    (re.compile(r":[\w:+.-]+:`([^`<]+?)(?:\s*<[^`>]*>)?`"), r"\1"),
    (re.compile(r"`([^`<]+?)\s*<[^`>]*>`__?"), r"\1"),
    (re.compile(r"`([^`]+)`_{0,2}"), r"\1"),
    (re.compile(r"\*\*(\S.*?)\*\*"), r"\1"),
    (re.compile(r"(?<![\w*])\*(\S[^*]*)\*(?![\w*])"), r"\1"),
)


def parse(text: str, note: str = "") -> Parsed:
    """Blocks of the document; the title is the heading that opens it."""
    return _Reader(text.split("\n")).read(note)


class _Reader:
    """Walks the lines once; `at` is the 0-based line it looks at."""

    def __init__(self, lines: list[str]) -> None:
        self._lines = lines
        self._at = 0
        self._builder = Builder()
        self._styles: list[str] = []
        """Adornments in the order of first use: their place is their level."""

    def read(self, note: str) -> Parsed:
        while self._at < len(self._lines):
            line = self._lines[self._at]
            if not line.strip():
                self._at += 1
            elif not (self._heading() or self._table() or self._explicit(line)):
                self._prose()
        return self._builder.done(note)

    def _line(self, offset: int) -> str:
        index = self._at + offset
        return self._lines[index] if index < len(self._lines) else ""

    def _heading(self) -> bool:
        over = bool(_ADORNMENT.match(self._line(0))) and self._line(1).strip() != ""
        rule = self._line(2) if over else self._line(1)
        title = self._line(1) if over else self._line(0)
        if not _ADORNMENT.match(rule) or _SIMPLE_RULE.match(rule) or _GRID_RULE.match(rule):
            return False
        if len(rule.rstrip()) + 1 < len(title.rstrip()) or (over and rule.rstrip() != self._line(0).rstrip()):
            return False
        style = rule[0] * (2 if over else 1)
        if style not in self._styles:
            self._styles.append(style)
        taken = 3 if over else 2
        line = self._at + (2 if over else 1)
        self._builder.heading(self._styles.index(style) + 1, _plain(title), Lines(line, line))
        self._at += taken
        return True

    def _table(self) -> bool:
        line = self._line(0)
        grid = bool(_GRID_RULE.match(line))
        if not grid and not _SIMPLE_RULE.match(line):
            return False
        start = self._at
        while self._line(0).strip():
            self._at += 1
        block = self._lines[start : self._at]
        rows = _grid_rows(block) if grid else _simple_rows(block)
        texts = [[_plain(cell) for cell in cells] for _, cells in rows]
        if texts:
            headed = sum(bool(_SIMPLE_RULE.match(part)) for part in block) > 2 or any("=+" in part for part in block)
            for (offset, _), words in zip(rows, table_rows(texts, True if headed else None), strict=True):
                self._builder.add(words, BlockKind.TABLE, Lines(start + offset + 1, start + offset + 1))
        return True

    def _explicit(self, line: str) -> bool:
        """Directives, comments and targets."""
        directive = _DIRECTIVE.match(line)
        if not directive and not _COMMENT.match(line):
            return False
        margin = indent(line)
        self._at += 1
        if footnote := _FOOTNOTE.match(line):
            self._footnote(footnote, margin)
            return True
        name = directive["name"] if directive else ""
        if not directive or name in _SILENT:
            self._skip_indented(margin)
        elif name in ("list-table", "csv-table"):
            self._listed_table(name, directive["argument"] if directive else None, margin)
        elif name in _VERBATIM:
            self._options()
            self._literal(margin)
        else:
            self._options()
            if directive["argument"]:
                self._builder.add(_plain(directive["argument"]), BlockKind.PARAGRAPH, Lines(self._at, self._at))
        return True

    def _footnote(self, footnote: re.Match[str], margin: int) -> None:
        start = self._at
        self._skip_indented(margin)
        while self._at > start and not self._lines[self._at - 1].strip():
            self._at -= 1
        parts = [f"{footnote['mark']} {footnote['text'] or ''}", *self._lines[start : self._at]]
        self._builder.add(
            "\n".join(_plain(part.strip()) for part in parts), BlockKind.PARAGRAPH, Lines(start, self._at)
        )

    def _listed_table(self, name: str, caption: str | None, margin: int) -> None:
        """A table whose cells are items of lists, or lines of comma-separated values."""
        if caption:
            self._builder.add(_plain(caption), BlockKind.PARAGRAPH, Lines(self._at, self._at))
        start = self._at
        self._options()
        options = self._lines[start : self._at]
        start = self._at
        self._skip_indented(margin)
        body = self._lines[start : self._at]
        rows = _listed_rows(body) if name == "list-table" else _comma_rows(body)
        if header := next(filter(None, map(_HEADER.match, options)), None):
            rows.insert(0, (0, _comma_cells(header["cells"])))
        if rows:
            headed = bool(header) or any(map(_HEADER_ROWS.match, options))
            texts = [[_plain(cell) for cell in cells] for _, cells in rows]
            for (offset, _), words in zip(rows, table_rows(texts, headed or None), strict=True):
                self._builder.add(words, BlockKind.TABLE, Lines(start + offset + 1, start + offset + 1))

    def _options(self) -> None:
        while _OPTION.match(self._line(0)):
            self._at += 1

    def _skip_indented(self, margin: int) -> None:
        while self._at < len(self._lines) and (not self._line(0).strip() or indent(self._line(0)) > margin):
            self._at += 1

    def _literal(self, margin: int) -> None:
        start = self._at
        self._skip_indented(margin)
        body = self._lines[start : self._at]
        while body and not body[0].strip():
            body, start = body[1:], start + 1
        while body and not body[-1].strip():
            body = body[:-1]
        if body:
            cut = min(indent(part) for part in body if part.strip())
            text = "\n".join(part.expandtabs(4)[cut:].rstrip() for part in body)
            self._builder.add(text, BlockKind.CODE, Lines(start + 1, start + len(body)))

    def _prose(self) -> None:
        start = self._at
        while self._line(0).strip() and not (self._at > start and _COMMENT.match(self._line(0))):
            self._at += 1
        run = self._lines[start : self._at]
        margin = indent(run[-1])
        literal = run[-1].rstrip().endswith("::")
        if literal:
            run = [*run[:-1], run[-1].rstrip()[:-2].rstrip() + ":"]
        if run != [":"]:
            fields = [_FIELD.sub(r"\1\g<name>: \g<value>", part) for part in run]
            add_lines(self._builder, [_plain(part) for part in fields], start + 1)
        if literal:
            self._literal(margin)


def _plain(text: str) -> str:
    text = _NOTE_MARK.sub(r" \1", text)
    for pattern, replacement in _MARKUP:
        text = pattern.sub(replacement, text)
    return text


def _simple_rows(block: list[str]) -> list[tuple[int, list[str]]]:
    """(line offset, cells) per row of a simple table; a row with an empty first cell goes on with the row above."""
    starts = [match.start() for match in re.finditer("=+", block[0])]
    ends: list[int | None] = [*starts[1:], None]
    rows: list[tuple[int, list[str]]] = []
    for offset, line in enumerate(block):
        if _SIMPLE_RULE.match(line) or _ADORNMENT.match(line):
            continue
        cells = [line[first:last].strip() for first, last in zip(starts, ends, strict=True)]
        if rows and not cells[0]:
            rows[-1] = (rows[-1][0], [f"{old} {new}".strip() for old, new in zip(rows[-1][1], cells, strict=True)])
        else:
            rows.append((offset, cells))
    return rows


def _listed_rows(body: list[str]) -> list[tuple[int, list[str]]]:
    """(line offset, cells) per row of a list-table."""
    rows: list[tuple[int, list[str]]] = []
    for offset, line in enumerate(body):
        cell = _LIST_TABLE_CELL.match(line)
        if cell and cell["row"]:
            rows.append((offset, [cell["text"] or ""]))
        elif cell and rows:
            rows[-1][1].append(cell["text"] or "")
        elif rows and line.strip():
            rows[-1][1][-1] = f"{rows[-1][1][-1]} {line.strip()}".strip()
    return rows


def _comma_rows(body: list[str]) -> list[tuple[int, list[str]]]:
    """(line offset, cells) per row of a csv-table; a row is one line."""
    return [(offset, _comma_cells(line)) for offset, line in enumerate(body) if line.strip()]


def _comma_cells(line: str) -> list[str]:
    try:
        return [cell.strip() for cell in next(csv.reader([line.strip()], skipinitialspace=True))]
    except csv.Error:
        return [line.strip()]


def _grid_rows(block: list[str]) -> list[tuple[int, list[str]]]:
    """(line offset, cells) per row of a grid table."""
    rows: list[tuple[int, list[str]]] = []
    fresh = True
    for offset, line in enumerate(block):
        if line.lstrip().startswith("+"):
            fresh = True
            continue
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if fresh or len(cells) != len(rows[-1][1]):
            rows.append((offset, cells))
        else:
            rows[-1] = (rows[-1][0], [f"{old} {new}".strip() for old, new in zip(rows[-1][1], cells, strict=True)])
        fresh = False
    return rows
