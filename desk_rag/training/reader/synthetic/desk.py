"""Rule-made desk documents as chunks: near-identical facts about different things, in one chunk or in several."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import NamedTuple

from desk_rag.training.reader.data.frame import answer_text
from desk_rag.training.reader.synthetic.leases import leases
from desk_rag.training.reader.synthetic.letters import letter, minutes
from desk_rag.training.reader.synthetic.lists import duties, faults, log, prices, schedule, settings
from desk_rag.training.reader.synthetic.members import members
from desk_rag.training.reader.synthetic.records import invoices, places, possessions
from desk_rag.training.reader.synthetic.templates import Asked, Line, Section

# What stands twice is drawn twice as often.
_MAKERS: tuple[Callable[[Random], list[Section]], ...] = (
    members,
    members,
    leases,
    leases,
    faults,
    minutes,
    minutes,
    prices,
    duties,
    possessions,
    places,
    invoices,
    schedule,
    settings,
    log,
    letter,
)


class DeskScene(NamedTuple):
    """Chunks and what is asked about them."""

    chunks: list[tuple[str, str]]
    """(title, text)."""
    asked: list[Asked]
    """Questions with answers in the trained form."""
    absent: Asked | None
    """A question whose fact was left out, with the short answer that the chunks do not hold."""


def desk_scene(rng: Random, filler: Callable[[Random], str]) -> DeskScene:
    """Chunks of one or two kinds of documents, or two of one kind; `filler` draws sentences to put between lines."""
    makers = rng.sample(_MAKERS, rng.randint(1, 2))
    if rng.random() < 0.35:
        makers = [makers[0], makers[0]]
    chunks: list[tuple[str, str]] = []
    kept_lines: list[Line] = []
    absent: Asked | None = None
    for make in makers:
        for section in make(rng):
            lines, left_out = _leave_out(rng, section.lines)
            absent = left_out or absent
            cut = len(lines) if rng.random() < 0.6 or len(lines) < 6 else rng.randint(3, len(lines) - 2)
            chunks += [(section.title, _chunk(rng, part, filler)) for part in (lines[:cut], lines[cut:]) if part]
            kept_lines += lines
    text = "\n".join(body for _, body in chunks)
    pairs = _unambiguous(kept_lines, text)
    if absent and (absent[1] in text or any(question == absent[0] for question, _ in pairs)):
        absent = None
    rng.shuffle(pairs)
    return DeskScene(chunks, pairs, absent)


def _leave_out(rng: Random, lines: Sequence[Line]) -> tuple[list[Line], Asked | None]:
    """Sometimes all lines but one, and a question that only that one answered."""
    kept = list(lines)
    if len(kept) > 3 and rng.random() < 0.25:
        index = rng.randrange(len(kept))
        if kept[index].asked:
            return kept, rng.choice(kept.pop(index).asked)
    return kept, None


def _chunk(rng: Random, lines: Sequence[Line], filler: Callable[[Random], str]) -> str:
    """The lines as running text or one under another, with sentences between that have nothing to do with them."""
    running = all(line.text.endswith(".") and len(line.text) > 25 for line in lines) and rng.random() < 0.7
    pieces = []
    for line in lines:
        pieces.append(line.text)
        if rng.random() < (0.35 if running else 0.05):
            pieces.append(filler(rng))
    if rng.random() < 0.4:
        pieces.insert(0, filler(rng))
    if rng.random() < 0.4:
        pieces.append(filler(rng))
    return (" " if running else "\n").join(pieces)


def _unambiguous(lines: Sequence[Line], text: str) -> list[Asked]:
    """The questions, each once, whose line stands once in `text`; one that two lines answer keeps the first answer."""
    first: dict[str, tuple[Line, str]] = {}
    for line in lines:
        for question, answer in line.asked:
            first.setdefault(question, (line, answer))
    return [
        (question, answer_text([line.text], answer))
        for question, (line, answer) in first.items()
        if text.count(line.text) == 1
    ]
