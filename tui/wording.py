"""Values as the user reads them: counts, times, sizes, paths, and untrusted text as safe Content.

Knows no widget. `safe` is the only way document text, model text and file names reach the screen: cleaned of escape
sequences, never parsed as markup, and bounded in length.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from textual.content import Content

from desk_rag.answering.events import Answer, Source
from desk_rag.documents.status import plural
from desk_rag.ingest.events import DeletionsWaiting, Notice, RootAbsent
from desk_rag.sanitize import clean, clean_name
from desk_rag.tui.backend import Status

MOST_CHARS = 20_000
"""Longest run of untrusted text in one widget: a megabyte without a space would take seconds to wrap."""


def safe(text: str, style: str = "", *, single_line: bool = False, most: int = MOST_CHARS) -> Content:
    """Return `text` in `style` as Content that cannot steer the terminal or be taken for markup."""
    kept = clean(text[: 2 * most], single_line=single_line)
    if len(kept) > most:
        kept = f"{kept[:most]} …"
    return Content.styled(kept, style) if style else Content(kept)


def short_path(path: Path, folders: Sequence[Path]) -> str:
    """Return `path` as the user thinks of it: below its folder, with the folder's name where there are several."""
    for folder in folders:
        if path.is_relative_to(folder):
            inside = path.relative_to(folder)
            return clean_name(str(Path(folder.name) / inside if len(folders) > 1 else inside))
    return clean_name(str(path))


def said_of(event: RootAbsent | DeletionsWaiting | Notice) -> str:
    """Return what the user is told about a folder that is away, deletions that wait, or a fault and its remedy."""
    match event:
        case Notice():
            text = f"{event.sentence} {event.remedy}"
        case RootAbsent():
            text = f"{short_path(event.root, ())}: {event.reason}"
        case DeletionsWaiting():
            text = f"{short_path(event.root, ())}: {event.sentence}"
    return safe(text.rstrip(), single_line=True, most=400).plain


def sent_for_clipboard(what: str) -> str:
    """Return the sentence after a copy: no terminal answers whether it took the text."""
    if os.environ.get("TMUX"):
        return f"{what} sent to tmux. It reaches the clipboard only after `tmux set -s set-clipboard on`."
    return f"{what} sent to the terminal. It reaches the clipboard if the terminal allows programs that (OSC 52)."


def other_model(key: str) -> str:
    """Return the sentence that leads from a model that did not start to another one."""
    return f"{key} shows the models on this computer; the one you choose there starts at once."


def fit_path(text: str, width: int) -> Content:
    """Return a path in exactly `width` cells; leading folders go first, because the name says most."""
    content = Content(text)
    parts = text.removesuffix("/").split("/")
    while content.cell_length > width and len(parts) > 1:
        parts = parts[1:]
        content = Content("…/" + "/".join(parts) + "/" * text.endswith("/"))
    return fit(content, width)


def hanging(label: Content, text: Content, width: int) -> Content:
    """Return a label and a text that is wrapped beside it, in `width` cells."""
    room = max(1, width - label.cell_length)
    blank = Content(" " * label.cell_length)
    lines = [line.rstrip() for line in text.wrap(room)]
    return Content("\n").join(
        Content.assemble(blank if number else label, line) for number, line in enumerate(lines or [Content("")])
    )


def fit(content: Content, width: int) -> Content:
    """Return `content` cut or padded to exactly `width` cells."""
    cut = content.truncate(width, ellipsis=True) if content.cell_length > width else content
    return cut.pad_right(width - cut.cell_length)


def place(source: Source) -> str:
    """Return where in its file a source stands: 'p. 4', 'lines 12-40', or its heading where the format has neither."""
    where = str(source.location) or source.location.heading.rpartition(" › ")[2]
    return clean(where, single_line=True)


def mark(source: Source) -> tuple[str, str]:
    """Return the letter and the style class of a source's state: warm, stale, cold, or read by no model."""
    if source.stale:
        return "◐", "stale"
    if source.warm is None:
        return "·", "cold"
    return ("●", "warm") if source.warm else ("○", "cold")


def notice(status: Status) -> str:
    """Return what needs the user's attention: no caches, folders or files not there; empty if nothing does."""
    if status.no_caches:
        return f"! {status.no_caches}"
    if status.absent:
        names = ", ".join(path.name for path in status.absent)
        return f"! {names} is not there now; nothing of it is removed"
    return f"! {gone(status)}" if status.missing else ""


def gone(status: Status) -> str:
    """Return how many files are gone and what becomes of their documents; empty if none is."""
    said = []
    if status.missing:
        left = f"kept {about(status.missing_seconds)} more" if status.missing_seconds else "leaving the index"
        said.append(f"{count(status.missing, 'file')} gone, {left} (^p: remove or keep)")
    if status.gone_and_kept:
        said.append(f"{count(status.gone_and_kept, 'file')} gone and kept, as you decided")
    return "; ".join(said)


def count(number: int, noun: str) -> str:
    """Return '1 file', '12,431 files'."""
    return plural(number, noun)


def brief(number: int) -> str:
    """Return a count in four characters or so: '950', '12.4k', '3.1M'."""
    for size, letter in ((1_000_000, "M"), (1_000, "k")):
        if number >= size:
            return f"{number / size:.1f}".removesuffix(".0") + letter
    return str(number)


def percent(part: int, whole: int) -> int:
    """Return `part` of `whole` rounded down, so that 100 means all of it."""
    return 100 * part // whole if whole else 0


def reading_seconds(text: str) -> float:
    """Return how long a notice of this text stays, so that it can be read and then lies over nothing."""
    return 3 + len(text) / 20


def seconds(value: float) -> str:
    """Return a measured time: '0.19 s', '4.3 s', '12 s'."""
    return f"{value:.2f} s" if value < 1 else f"{value:.1f} s" if value < 10 else f"{value:.0f} s"


def about(value: float) -> str:
    """Return a predicted time, no more exact than a prediction is: '40 s', '12 min', '2 h', '3 days'."""
    for size, unit in ((86_400 * 2, "days"), (3_600, "h"), (60, "min")):
        if value >= size:
            return f"{value / (86_400 if unit == 'days' else size):.0f} {unit}"
    return f"{max(1, round(value))} s"


def gib(value: int) -> str:
    """Return bytes in GiB, or in smaller units below one: '38 GiB', '1.5 GiB', '12 MiB', '800 KiB'."""
    if 0 < value < 1024**2:
        return f"{max(1, value // 1024)} KiB"
    if value < 1024**3:
        return f"{value / 1024**2:.0f} MiB"
    number = value / 1024**3
    return f"{number:.0f} GiB" if number >= 10 else f"{number:.1f} GiB"


def as_text(answer: Answer, folders: Sequence[Path]) -> str:
    """Return an answer for the clipboard: text, then its quotes with file and place."""
    return "\n".join([clean(answer.marked_text), *([] if answer.is_list else quotes_of(answer, folders))])


def quotes_of(answer: Answer, folders: Sequence[Path]) -> list[str]:
    """Return each quote of an answer with its file and place, for the clipboard."""
    lines = []
    for citation in answer.citations:
        parts = (short_path(citation.path, folders), clean(str(citation.location)), citation.origin)
        where = ", ".join(part for part in parts if part)
        lines.append(f'[{citation.source_number}] "{clean(citation.quote, single_line=True)}" ({where})')
    return lines
