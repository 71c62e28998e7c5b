"""Parse LaTeX (.tex): sections, paragraphs and items as words, with line numbers, without preamble and comments."""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING

from desk_rag.documents.document import BlockKind
from desk_rag.documents.parsers.building import Builder, Lines, Parsed

if TYPE_CHECKING:
    from pylatexenc.latex2text import LatexNodes2Text

_LEVELS = {"part": 1, "chapter": 1, "section": 2, "subsection": 3, "subsubsection": 4, "paragraph": 5}
_SECTION = re.compile(
    r"\s*\\(?P<kind>part|chapter|section|subsection|subsubsection|paragraph)\*?(?:\[[^\]]*\])?\{(?P<name>.*)\}"
)
_TITLE = re.compile(r"\\title\{(?P<title>[^{}]*(?:\{[^{}]*\}[^{}]*)*)\}")
_COMMENT = re.compile(r"(?<!\\)%.*$")
_MARKUP_ONLY = re.compile(
    r"\s*\\(?:begin|end|label|centering|maketitle|tableofcontents|usepackage|hline|toprule|midrule|bottomrule)\b"
)
_NEEDS_CONVERTING = re.compile(r"[\\${}~&`]|''|--")
_VERBATIM = re.compile(r"\\verb\*?(?P<mark>[^\w\s*])(?P<text>.*?)(?P=mark)")
_ITEM = re.compile(r"\s*\\item(?:\[(?P<label>[^\]]*)\])?\s*")


def parse(text: str, note: str = "") -> Parsed:
    """Blocks whose k-th line is the file's line `line_start + k`."""
    builder = Builder()
    title = _TITLE.search(text)
    if title:
        builder.set_title(_words(title["title"]))
    lines = text.split("\n")
    begin = next((index + 1 for index, line in enumerate(lines) if r"\begin{document}" in line), 0)
    run: list[str] = []
    for index in range(begin, len(lines) + 1):
        line = _COMMENT.sub("", lines[index]) if index < len(lines) else ""
        section = _SECTION.match(line)
        if run and (section or not line.strip() or _MARKUP_ONLY.match(line) or _ITEM.match(line)):
            _add_run(builder, run, index - len(run) + 1)
            run = []
        if section:
            builder.heading(_LEVELS[section["kind"]], _words(section["name"]), Lines(index + 1, index + 1))
        elif line.strip() and not _MARKUP_ONLY.match(line):
            run.append(line)
        if r"\end{document}" in line:
            break
    if run:
        _add_run(builder, run, index - len(run) + 2)
    return builder.done(note)


def _add_run(builder: Builder, run: list[str], first_line: int) -> None:
    item = _ITEM.match(run[0])
    words = [_words(line[item.end() :] if item and index == 0 else line) for index, line in enumerate(run)]
    if item:
        label = f"{_words(item['label'])}: " if item["label"] else ""
        text = "\n".join([f"- {label}{words[0]}", *words[1:]])
        builder.add(text, BlockKind.LIST, Lines(first_line, first_line + len(run) - 1))
    else:  # line ends inside a paragraph mean nothing in LaTeX
        builder.add("\n".join(words), BlockKind.PARAGRAPH, Lines(first_line, first_line + len(run) - 1))


def _words(text: str) -> str:
    """Return one line without commands, or as it stands where it cannot be understood."""
    if not _NEEDS_CONVERTING.search(text):
        return " ".join(text.split())
    text = _VERBATIM.sub(lambda verbatim: verbatim["text"], text)
    try:
        return " ".join(str(_converter().latex_to_text(text.replace("&", r" \& "))).split())
    except Exception:  # pylatexenc raises several kinds of errors on a line cut out of its environment
        return text


@functools.cache
def _converter() -> LatexNodes2Text:
    from pylatexenc.latex2text import LatexNodes2Text

    return LatexNodes2Text(math_mode="text", strict_latex_spaces=True)
