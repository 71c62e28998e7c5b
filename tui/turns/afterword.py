"""What is said below a finished answer, as a function of the answer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from textual.content import Content

from desk_rag.answering.events import Answer, Source
from desk_rag.answering.writing import remarks
from desk_rag.tui.wording import mark, place, safe, short_path

_NEAREST_SHOWN = 3


def afterword(answer: Answer, folders: Sequence[Path], hint: str) -> Content:
    """Return the lines below an answer: remarks, nearest passages, doubt, what it was made from, `hint`."""
    lines = [Content("stopped")] if answer.stopped else []
    lines += [Content.assemble("! ", safe(remark, single_line=True)) for remark in remarks.remarks(answer)]
    if not answer.found and not answer.stopped and answer.sources:
        lines.append(Content("The nearest passages:"))
        lines += [source_line(source, folders) for source in answer.sources[:_NEAREST_SHOWN]]
    limits = [short_path(path, folders) or path.name for path in answer.limited_to]
    if searched := remarks.searched_only(answer, limits):
        lines.append(safe(searched, single_line=True))
    if hint:
        lines.append(Content(f"! {hint}"))
    if answer.doubt:
        lines.append(Content(f"! {answer.doubt}"))
    lines += [
        Content.assemble("! in no source, do not rely on it: ", safe(quote, "italic", single_line=True))
        for quote in answer.dropped_quotes
    ]
    if answer.basis is not None:
        lines.append(Content.styled(answer.basis.summary, "$foreground 60%"))
    if answer.cut_notice:
        lines.append(Content(f"! {answer.cut_notice}"))
    cited = {citation.source_number for citation in answer.citations}
    lines += [
        Content(f"! [{source.number}] {remarks.stale_notice(source)}")
        for source in answer.sources
        if source.stale and source.number in cited
    ]
    if answer.not_read is not None:
        lines.append(Content(f"! {answer.not_read.brief} (the library lists them)"))
    lines += [Content.assemble("! ", safe(notice, single_line=True)) for notice in answer.notices]
    return Content("\n").join(lines)


def source_line(source: Source, folders: Sequence[Path]) -> Content:
    """Return number, state, file and place of a passage."""
    where = "  ".join(part for part in (short_path(source.path, folders), place(source)) if part)
    return Content.assemble((f"[{source.number}] ", "bold"), f"{mark(source)[0]} ", safe(where))
