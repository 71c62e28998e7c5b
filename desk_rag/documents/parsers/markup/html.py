"""HTML: the text a reader of the page would see, in blocks. No script runs, nothing is fetched, hidden text is dropped.

The tree is walked without recursion, so that a page nested 100,000 deep is only slow to write, not to read.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass

from selectolax.lexbor import LexborHTMLParser, LexborNode

from desk_rag.documents.document import BlockKind
from desk_rag.documents.parsers.building import Builder, Parsed, row_text, table_rows
from desk_rag.documents.parsers.encoding import decode
from desk_rag.documents.parsers.markup.page_frame import INLINE_TAGS, nodes_below, remove_page_frame

_DROPPED = (
    "script, style, nav, noscript, template, svg, iframe, object, button, select, textarea, [hidden], "
    "[aria-hidden=true], [style*='display:none'], "
    "[style*='display: none'], [style*='visibility:hidden'], [style*='font-size:0']"
)
_HEADINGS = {f"h{level}": level for level in range(1, 7)}
_NOTE_LINK = re.compile(
    r"\b(?:noteref|footnote-ref|doc-backlink|backlink|footnote-back|sd(?:foot|end)note(?:anc|sym))\b", re.IGNORECASE
)
_MOST_SPAN = 50
"""Rows or columns over which a cell reaches at most."""
_CHARSET = re.compile(rb"<meta[^>]{0,200}charset\s*=\s*[\"']?\s*([\w:.-]{2,40})", re.IGNORECASE)


def parse(data: bytes) -> Parsed:
    """Blocks without line numbers; the title is the page's own, or its main heading where that is part of it."""
    declared = _CHARSET.search(data[:4096])
    text, note = decode(data, declared[1].decode("ascii") if declared else "")
    builder = Builder()
    add_html(builder, text, is_page=True)
    return builder.done(note)


def add_html(builder: Builder, text: str, page: int | None = None, *, is_page: bool = False) -> None:
    """Append the blocks of an HTML text, all of them on `page`; menus and the like are removed if it `is_page`."""
    tree = LexborHTMLParser(text)
    builder.set_title(_title(tree))
    if tree.body is not None:
        for node in tree.css(_DROPPED):
            if node.tag not in ("html", "body"):
                node.decompose()
        if is_page:
            remove_page_frame(tree.body)
        _Walker(builder, page).walk(tree.body)


def _title(tree: LexborHTMLParser) -> str:
    named, main = tree.css_first("title"), tree.css("h1")
    title = " ".join(named.text().split()) if named is not None else ""
    heading = " ".join(main[0].text().split()) if len(main) == 1 else ""
    return heading if heading and (not title or heading in title) else title


@dataclass(frozen=True, slots=True)
class _Cell:
    """A cell of a table; `is_wide` if it reaches over several columns."""

    text: str
    is_header: bool
    is_wide: bool = False


class _Walker:
    """Gathers inline text and files it as a block whenever a block-level element begins or ends."""

    def __init__(self, builder: Builder, page: int | None) -> None:
        self._builder = builder
        self._page = page
        self._text: list[str] = []
        self._lists: list[int | None] = []
        """One per open list: the next number, or None for bullets."""
        self._marker = ""

    def walk(self, root: LexborNode) -> None:
        events = nodes_below(root)
        skip: bool | None = None
        try:
            while True:
                entering, node = events.send(skip)
                skip = entering and self._enter(node)
                if not entering:
                    self._leave(node)
        except StopIteration:
            self._flush()

    def _enter(self, node: LexborNode) -> bool:
        """Returns True where the inside was dealt with here."""
        tag = node.tag or ""
        if node.is_text_node:
            self._text.append(node.text_content or "")
            return True
        if tag == "a" and _refers_to_note(node):
            self._text.append(_note_mark(node))
            return True
        if tag == "math":
            self._text.append(_formula(node))
            return True
        if tag in INLINE_TAGS or node.is_comment_node:
            return bool(node.is_comment_node)
        self._flush()
        if tag in _HEADINGS:
            self._builder.heading(_HEADINGS[tag], node.text(separator=" "), page=self._page)
            return True
        if tag == "pre":
            self._builder.add(node.text(), BlockKind.CODE, page=self._page)
            return True
        if tag == "table" and _holds_data(node):
            self._table(node)
            return True
        if tag in ("ul", "ol"):
            self._lists.append(1 if tag == "ol" else None)
        elif tag == "li":
            self._open_item()
        return False

    def _leave(self, node: LexborNode) -> None:
        tag = node.tag or ""
        if not node.is_text_node and tag not in INLINE_TAGS and tag != "math":
            self._flush()
            if tag in ("ul", "ol") and self._lists:
                self._lists.pop()

    def _open_item(self) -> None:
        number = self._lists[-1] if self._lists else None
        self._marker = "- " if number is None else f"{number}. "
        if number is not None:
            self._lists[-1] = number + 1

    def _flush(self) -> None:
        text = " ".join("".join(self._text).split())
        self._text.clear()
        if text:
            kind = BlockKind.LIST if self._lists else BlockKind.PARAGRAPH
            self._builder.add(self._marker + text, kind, page=self._page)
            self._marker = ""

    def _table(self, table: LexborNode) -> None:
        caption = table.css_first("caption")
        if caption is not None:
            self._builder.add(" ".join(caption.text().split()), BlockKind.PARAGRAPH, page=self._page)
        headers: list[str] = []
        for is_part, rows in itertools.groupby(_rows_of(table), key=lambda row: len(row) > 1):
            self._rows(_one_header(list(rows)), is_part, headers)

    def _rows(self, rows: list[list[_Cell]], is_part: bool, headers: list[str]) -> None:
        """Add the rows between two rows of one cell; `headers` are those of the table, filled by its first rows."""
        texts = [[cell.text for cell in row] for row in rows]
        marked = is_part and all(cell.is_header for cell in rows[0])
        if headers and not marked and all(len(row) == len(headers) for row in texts):
            lines = [row_text(headers, row) for row in texts]
        else:
            lines = table_rows(texts, marked or None)
            if is_part and len(lines) > 1 and not lines[0]:
                headers[:] = texts[0]
        for line in lines:
            self._builder.add(line, BlockKind.TABLE, page=self._page)


def _rows_of(table: LexborNode) -> Iterator[list[_Cell]]:
    """Yield the rows of a table; a cell that reaches over several rows or columns stands in each of them."""
    reaching: dict[int, tuple[int, _Cell]] = {}
    for row in table.css("tr"):
        nodes = row.css("th, td")
        if len(nodes) <= 1 and not reaching:
            yield from ([_Cell(_cell_text(node), node.tag == "th")] for node in nodes)
            continue
        cells: list[_Cell] = []
        for node in nodes:
            _fill(cells, reaching)
            width, height = (_span(node, name) for name in ("colspan", "rowspan"))
            cell = _Cell(_cell_text(node), node.tag == "th", width > 1)
            for _ in range(width):
                cells.append(cell)
                if height > 1:
                    reaching[len(cells) - 1] = height - 1, cell
        _fill(cells, reaching)
        if cells:
            yield cells


def _fill(cells: list[_Cell], reaching: dict[int, tuple[int, _Cell]]) -> None:
    """Append the cells of earlier rows that reach into this one."""
    while (entry := reaching.pop(len(cells), None)) is not None:
        rows_left, cell = entry
        if rows_left > 1:
            reaching[len(cells)] = rows_left - 1, cell
        cells.append(cell)


def _one_header(rows: list[list[_Cell]]) -> list[list[_Cell]]:
    """Return the rows with one header of two, if the first has cells that reach over several columns."""
    if len(rows) < 3 or len(rows[0]) != len(rows[1]) or not any(cell.is_wide for cell in rows[0]):
        return rows
    if not all(cell.is_header for row in rows[:2] for cell in row):
        return rows
    joined = [
        _Cell(" ".join(dict.fromkeys(filter(None, (upper.text, lower.text)))), True)
        for upper, lower in zip(rows[0], rows[1], strict=True)
    ]
    return [joined, *rows[2:]]


def _cell_text(cell: LexborNode) -> str:
    return " ".join(cell.text(separator=" ").split())


def _span(cell: LexborNode, name: str) -> int:
    written = cell.attributes.get(name) or ""
    return min(max(int(written), 1), _MOST_SPAN) if written.isdecimal() else 1


def _formula(node: LexborNode) -> str:
    """Return a formula as its author wrote it, if the page says so, or else its letters in one line."""
    source = node.css_first("annotation[encoding='application/x-tex']")
    written = node.attributes.get("alttext") or (source.text() if source is not None else "")
    return " ".join((written or node.text()).split())


def _refers_to_note(link: LexborNode) -> bool:
    """Return whether a link is the mark of a footnote, or leads from the note back to it."""
    attributes = link.attributes
    kinds = f"{attributes.get('epub:type') or ''} {attributes.get('role') or ''} {attributes.get('class') or ''}"
    return bool(_NOTE_LINK.search(kinds))


def _note_mark(link: LexborNode) -> str:
    text = " ".join(link.text().split()).strip("[]()")
    if not text.isalnum():
        return ""
    return f"[{text}] " if (link.attributes.get("class") or "").endswith("sym") else f" [{text}]"


def _holds_data(table: LexborNode) -> bool:
    """False for tables that lay out a page: they hold other tables, headings or lists."""
    return table.css_first("table table, h1, h2, h3, h4, ul, ol, pre") is None
