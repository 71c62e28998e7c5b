"""Parse LaTeX (.tex): sections, paragraphs, items and tables as words, with line numbers, without the preamble.

Macros that the file defines are written out. What \\input and \\include name are files of their own.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from desk_rag.documents.document import BlockKind
from desk_rag.documents.parsers.building import Builder, Lines, Parsed, table_rows
from desk_rag.documents.parsers.latex.macros import Macros

if TYPE_CHECKING:
    from pylatexenc.latex2text import LatexNodes2Text

_BEGIN = r"\begin{document}"
_LEVELS = {"part": 1, "chapter": 1, "section": 2, "subsection": 3, "subsubsection": 4, "paragraph": 5}
_SECTION = re.compile(
    r"\s*\\(?P<kind>part|chapter|section|subsection|subsubsection|paragraph)\*?(?:\[[^\]]*\])?"
    r"\{(?P<name>(?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*)\}"
)
_TITLE = re.compile(r"\\title(?:\[[^\]]*\])?\{(?P<title>[^{}]*(?:\{[^{}]*\}[^{}]*)*)\}")
_COMMENT = re.compile(r"(?<!\\)%.*$")
_TABLE_BEGIN = re.compile(r"\\begin\{(?P<kind>tabular\w*|longtable|array|tabu)\*?\}")
_MARKUP = (
    r"\\(?:hypertarget|phantomsection)\{[^{}]*\}\{?|\\def\\label\w+\{(?:[^{}]|\{[^{}]*\})*\}"
    r"|\\(?:begin|end)\{[^{}]*\}(?:\[[^\]]*\])?"
    r"|\\(?:label|bibliographystyle|bibliography|usepackage|input|include|includegraphics|addbibresource|vspace|hspace)"
    r"\*?(?:\[[^\]]*\])?\{[^{}]*\}"
    r"|\\(?:centering|maketitle|tableofcontents|listoffigures|appendix|clearpage|newpage|printbibliography|tightlist)(?![A-Za-z])"
)
_BREAK = re.compile(rf"{_MARKUP}|(?=\\item(?![A-Za-z]))|(?=\\(?:(?:sub){{0,2}}section|chapter|caption)\b)")
"""Marks at which a paragraph ends, in the middle of a line too."""
_RULE = re.compile(
    r"\\(?:end(?:first)?head|end(?:last)?foot|hline|toprule|midrule|bottomrule|(?:cline|cmidrule)(?:\([^)]*\))?\{[^{}]*\})"
)
_COLUMNS = re.compile(r"(?:\s*\[[^\]]*\](?=\s*\{))?\s*(?:\[[^\]]*\]|\{(?:[^{}]|\{[^{}]*\})*\})")
_CAPTION = re.compile(r"\s*\\caption\*?(?:\[[^\]]*\])?\{(?P<text>.*)\}\s*$")
_CITATION = re.compile(r"~?\\(?:[a-zA-Z]*cite[a-zA-Z]*)\*?(?:\[[^\]]*\])*\{(?P<keys>[^{}]*)\}")
_REFERENCE = re.compile(r"~?\\(?:eq|c|C|auto|page|name)?ref\*?\{[^{}]*\}")
_QUANTITY = re.compile(r"\\(?:SI|qty)(?:\[[^\]]*\])?\{(?P<number>[^{}]*)\}\{(?P<unit>[^{}]*)\}")
_NEEDS_CONVERTING = re.compile(r"[\\${}~&`]|''|--")
_PLAIN_FONT = re.compile(r"\\(?:texttt|textsf|mbox|hbox|keywords)(?=\{)")
_BEFORE_TEXT = re.compile(r"\\(?:href|foreignlanguage|parbox|hyperref)(?:\[[^\]]*\])?(?:\{[^{}]*\})?(?=\{)")
"""Macros whose last argument alone is text, up to it."""
_VERBATIM = re.compile(r"\\(?:verb|lstinline)\*?(?P<mark>[^\w\s*])(?P<text>.*?)(?P=mark)")
_ITEM = re.compile(r"\s*\\item(?![A-Za-z])(?:\[(?P<label>[^\]]*)\])?\s*")


def parse(text: str, note: str = "") -> Parsed:
    """Blocks whose k-th line is the file's line `line_start + k`."""
    builder = Builder()
    macros = Macros(text)
    title = _TITLE.search(text)
    if title:
        builder.set_title(words(macros.written_out(title["title"])))
    lines = text.split("\n")
    begin = next((index for index, line in enumerate(lines) if _BEGIN in line), 0)
    lines[begin] = lines[begin].rpartition(_BEGIN)[2]
    reader = _Reader(builder)
    for index in range(begin, len(lines)):
        line = macros.written_out(_COMMENT.sub("", lines[index]))
        reader.read(line, index + 1)
        if r"\end{document}" in line:
            break
    reader.end()
    return builder.done(note)


class _Reader:
    """Gathers lines into paragraphs, items and tables, and adds each where it ends."""

    def __init__(self, builder: Builder) -> None:
        self._builder = builder
        self._run: list[str] = []
        self._first_line = 0
        self._table: str | None = None
        """Source of the table that is open, without line ends."""
        self._row_line = 0
        """Line on which the row in `_table` begins."""
        self._rows: list[tuple[int, list[str]]] = []
        self._header_ends = False
        """True if a rule follows the first row."""

    def read(self, line: str, number: int) -> None:
        """Read one line of the file."""
        while True:
            if self._table is not None:
                rows, end, line = line.partition(r"\end{tab") if r"\end{tab" in line else _at_end_of_array(line)
                self._read_rows(rows, number)
                if not end:
                    return
                line = line.partition("}")[2]
                self._end_table()
            table = _TABLE_BEGIN.search(line)
            self._read_prose(line[: table.start()] if table else line, number, ends=table is not None)
            if table is None:
                return
            self._table, line = "", line[table.end() :]
            for _ in range(2 if table["kind"] in ("tabularx", "tabulary") else 1):
                columns = _COLUMNS.match(line)
                line = line[columns.end() :] if columns else line

    def end(self) -> None:
        """Add what is not ended yet."""
        if self._table is not None:
            self._end_table()
        self._end_run()

    def _read_prose(self, line: str, number: int, *, ends: bool) -> None:
        parts = _BREAK.split(line)
        for part in parts:
            section = _SECTION.match(part)
            if len(parts) > 1 or section or not part.strip():
                self._end_run()
            if section:
                self._builder.heading(_LEVELS[section["kind"]], words(section["name"]), Lines(number, number))
                part = part[section.end() :]
            caption = _CAPTION.match(part)
            part = caption["text"] if caption else part
            if part.strip(" \t{}"):
                self._first_line = self._first_line if self._run else number
                self._run.append(part)
        if ends or len(parts) > 1 and not parts[-1].strip():
            self._end_run()

    def _end_run(self) -> None:
        if self._run:
            _add_run(self._builder, self._run, self._first_line)
            self._run = []

    def _read_rows(self, source: str, number: int) -> None:
        if not any(_cells(self._table or "")):
            self._row_line = number
        *ended, self._table = f"{self._table} {source}".split(r"\\")
        for row in ended:
            self._add_row(row)
            self._row_line = number

    def _end_table(self) -> None:
        self._add_row(self._table or "")
        shown = table_rows([row for _, row in self._rows], self._header_ends or None) if self._rows else []
        for (number, _), row in zip(self._rows, shown, strict=True):
            self._builder.add(row, BlockKind.TABLE, Lines(number, number))
        self._table, self._rows, self._header_ends = None, [], False

    def _add_row(self, source: str) -> None:
        """Add a row, and note a rule between the first one and the next."""
        if any(cells := _cells(source)):
            self._header_ends |= len(self._rows) == 1 and bool(_RULE.match(source.lstrip()))
            self._rows.append((self._row_line, cells))


def _at_end_of_array(line: str) -> tuple[str, str, str]:
    mark = next((mark for mark in (r"\end{longtable", r"\end{array") if mark in line), None)
    return line.partition(mark) if mark else (line, "", "")


def _cells(row: str) -> list[str]:
    row = re.sub(r"^\s*\[[^\]]*\]", "", _RULE.sub(" ", row))  # the distance after a line end
    return [words(cell).strip() for cell in re.split(r"(?<!\\)&", row)]


def _add_run(builder: Builder, run: list[str], first_line: int) -> None:
    item = _ITEM.match(run[0])
    shown = [words(line[item.end() :] if item and index == 0 else line) for index, line in enumerate(run)]
    if item:
        label = f"{words(item['label'])}: " if item["label"] else ""
        text = "\n".join([f"- {label}{shown[0]}", *shown[1:]])
        builder.add(text, BlockKind.LIST, Lines(first_line, first_line + len(run) - 1))
    else:  # line ends inside a paragraph mean nothing in LaTeX
        builder.add("\n".join(shown), BlockKind.PARAGRAPH, Lines(first_line, first_line + len(run) - 1))


def words(text: str) -> str:
    """Return one line without commands, or as it stands where it cannot be understood."""
    if not _NEEDS_CONVERTING.search(text):
        return " ".join(text.split())
    text = _VERBATIM.sub(lambda verbatim: verbatim["text"], text)
    text = _BEFORE_TEXT.sub("", _PLAIN_FONT.sub(r"\\textrm", text))
    text = _REFERENCE.sub("", _CITATION.sub(r" [\g<keys>]", text))
    text = _QUANTITY.sub(lambda quantity: " ".join(_quantity(quantity["number"], quantity["unit"])), text)
    try:
        return " ".join(str(_converter().latex_to_text(text.replace("&", r" \& "))).split())
    except Exception:  # pylatexenc raises several kinds of errors on a line cut out of its environment
        return text


def _quantity(number: str, unit: str) -> Iterator[str]:
    """Yield the words of a number with its unit, as the package siunitx takes them."""
    yield number
    names = {"euro": "€", "percent": r"\%", "degreeCelsius": "°C"}
    yield from (names.get(name, name) for name in re.findall(r"[A-Za-z]+|[^\s\\A-Za-z]+", unit))


@functools.cache
def _converter() -> LatexNodes2Text:
    from pylatexenc.latex2text import LatexNodes2Text

    return LatexNodes2Text(math_mode="text", strict_latex_spaces=True)
