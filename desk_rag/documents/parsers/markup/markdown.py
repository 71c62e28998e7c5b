"""Markdown: headings, paragraphs, list items, table rows and code fences, each with its lines in the file.

Markup is taken off ('**Rent** is 900' reads 'Rent is 900'); link targets are dropped, link texts stay.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence

from markdown_it import MarkdownIt
from markdown_it.rules_block import StateBlock, reference
from markdown_it.token import Token

from desk_rag.documents.document import BlockKind
from desk_rag.documents.parsers.building import Builder, Lines, Parsed, row_text

_FRONT_MATTER_LINES = 200
_TITLE_FIELD = re.compile(r"title\s*:\s*[\"']?(?P<title>.+?)[\"']?\s*$", re.IGNORECASE)
_WIKI_LINK = re.compile(r"!?\[\[(?=[^\s\[\]])(?:[^\[\]|\n]*\|)?(?P<text>[^\[\]|\n]+)\]\]")
_CALLOUT = re.compile(r"\[!(?P<kind>[\w-]+)\][+-]?[ \t]*(?=(?P<title>\S)?)")
_TAG = re.compile(r"<!--.*?-->|<[^<>]*>", re.DOTALL)


def parse(text: str, note: str = "") -> Parsed:
    """Blocks of a CommonMark document with tables; the title comes from the front matter or the first heading."""
    builder = Builder()
    lines = text.split("\n")
    skipped = _front_matter(builder, lines)
    # Blank lines keep the line numbers of what follows.
    source = "\n" * skipped + "\n".join(lines[skipped:])
    walker = _Walker(builder)
    for token in _grammar().parse(source):
        walker.take(token)
    return builder.done(note)


@functools.cache
def _grammar() -> MarkdownIt:
    """Made once: building its rules takes longer than reading a short file."""
    grammar = MarkdownIt("commonmark", {"maxNesting": 40}).enable(["table", "strikethrough"])
    grammar.block.ruler.at("reference", _link_target)
    return grammar


def _link_target(state: StateBlock, start: int, end: int, silent: bool) -> bool:
    """Read '[name]: target', which is no text; '[^1]: https://…' is a footnote and stays."""
    is_footnote = state.src.startswith("[^", state.bMarks[start] + state.tShift[start])
    return not is_footnote and reference(state, start, end, silent)


def _front_matter(builder: Builder, lines: Sequence[str]) -> int:
    """Add a leading YAML front matter as lines of text; returns how many lines it takes."""
    if not lines or lines[0].rstrip() != "---":
        return 0
    for index in range(1, min(len(lines), _FRONT_MATTER_LINES)):
        if lines[index].rstrip() in ("---", "..."):
            for number in range(1, index):
                match = _TITLE_FIELD.match(lines[number])
                if match:
                    builder.set_title(match["title"])
                builder.add(lines[number], BlockKind.PARAGRAPH, Lines(number + 1, number + 1))
            return index + 1
    return 0


class _Walker:
    """Follows the token stream; holds where in lists and tables it is."""

    def __init__(self, builder: Builder) -> None:
        self._builder = builder
        self._markers: list[str] = []
        """One per open list: '-' or the next number."""
        self._fresh_item = False
        """The next inline text opens a list item."""
        self._heading = 0
        self._headers: list[str] = []
        self._cells: list[str] | None = None
        self._lines = Lines()

    def take(self, token: Token) -> None:
        kind = token.type
        if token.map and not kind.startswith(("td", "th")):
            self._lines = Lines(token.map[0] + 1, max(token.map[1], token.map[0] + 1))
        if kind == "inline":
            self._inline(token)
        elif kind in ("fence", "code_block"):
            self._code(token)
        elif kind == "html_block":
            self._builder.add(_TAG.sub(" ", token.content), BlockKind.PARAGRAPH, self._trimmed(token.content))
        elif kind in ("heading_open", "heading_close"):
            self._heading = int(token.tag[1]) if kind == "heading_open" else 0
        elif "list" in kind:
            self._list(token)
        elif kind[:2] in ("ta", "tr", "th", "td"):
            self._table(kind)

    def _list(self, token: Token) -> None:
        if token.type == "bullet_list_open":
            self._markers.append("-")
        elif token.type == "ordered_list_open":
            self._markers.append("1.")
        elif token.type == "list_item_open":
            if token.info:
                self._markers[-1] = f"{token.info}."
            self._fresh_item = True
        elif token.type.endswith("_list_close"):
            self._markers.pop()

    def _table(self, kind: str) -> None:
        if kind == "table_open":
            self._headers = []
        elif kind == "tr_open":
            self._cells = []
        elif kind == "thead_close":
            self._headers, self._cells = self._cells or [], None
        elif kind == "tr_close" and self._cells is not None and self._headers:
            self._builder.add(row_text(self._headers, self._cells), BlockKind.TABLE, self._row_line())
            self._cells = None
        elif kind == "table_close":
            self._cells = None

    def _row_line(self) -> Lines:
        return Lines(self._lines.start, self._lines.start)

    def _inline(self, token: Token) -> None:
        text = _plain(token.children or [])
        if self._cells is not None:
            self._cells.append(text)
        elif self._heading:
            self._builder.heading(self._heading, text, self._lines)
        elif self._markers:
            marker = f"{self._markers[-1]} " if self._fresh_item else ""
            self._fresh_item = False
            self._builder.add(marker + text, BlockKind.LIST, self._lines)
        else:
            text = _CALLOUT.sub(lambda mark: "" if mark["title"] else mark["kind"].capitalize(), text, count=1)
            self._builder.add(text, BlockKind.PARAGRAPH, self._lines)

    def _code(self, token: Token) -> None:
        start = (self._lines.start or 1) + (1 if token.type == "fence" else 0)
        content = token.content.rstrip("\n")
        leading = len(content) - len(content.lstrip("\n"))
        start += leading
        self._builder.add(content, BlockKind.CODE, Lines(start, start + content.count("\n") - leading))

    def _trimmed(self, content: str) -> Lines:
        start = self._lines.start or 1
        return Lines(start, start + content.rstrip("\n").count("\n"))


def _plain(children: Sequence[Token]) -> str:
    parts = []
    for child in children:
        if child.type == "text":
            parts.append(_WIKI_LINK.sub(r"\g<text>", child.content))
        elif child.type == "code_inline":
            parts.append(child.content)
        elif child.type in ("softbreak", "hardbreak"):
            parts.append("\n")
        elif child.type == "image":
            parts.append(child.content)
        elif child.type == "html_inline" and child.content.lower().startswith("<br"):
            parts.append(" ")
    return "".join(parts)
