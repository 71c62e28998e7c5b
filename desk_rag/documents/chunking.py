"""Cut a document into chunks of bounded token length. `split` is the only entry point."""

from __future__ import annotations

import hashlib
import math
import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NewType, Protocol

from desk_rag.documents.document import Block, BlockKind
from desk_rag.documents.location import LEVELS, Location, Part, joined
from desk_rag.documents.sentences import SentenceCutter, TokenCounter, ends_sentence

__all__ = ["Chunk", "ChunkId", "ChunkSize", "Location", "TokenCounter", "chunk_id_of", "split"]

ChunkId = NewType("ChunkId", str)
"""32 hex digits: blake2b-128 of the chunk's text. Equal text means one chunk, whatever file it stands in."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """A run of a document's text, as the model reads it."""

    chunk_id: ChunkId
    ordinal: int
    """0-based place in its document."""
    text: str
    """A title line (document title › heading) where the document has one, then the text."""
    num_tokens: int
    """Length of `text` in the reader's tokens, frame excluded."""
    location: Location


@dataclass(frozen=True, slots=True)
class ChunkSize:
    """Token bounds of a chunk, title line included."""

    smallest: int
    """Sections below this are merged with what follows where anything follows."""
    target: int
    largest: int
    """Never exceeded."""


@dataclass(frozen=True, slots=True)
class _Unit:
    """The smallest thing that is packed: a block, or a sentence-sized piece of an over-long one."""

    text: str
    joint: str
    """Text between it and the unit before if both are in one chunk."""
    num_tokens: int
    """Tokens of joint and text together."""
    cut_cost: float
    """Cost of beginning a chunk here; a well-filled chunk is worth about 0.2."""
    is_heading: bool
    opens_chunk: bool
    path: tuple[str, ...]
    page: int | None
    line_start: int | None
    line_end: int | None


_BIND = 50.0
"""Cost of cutting a heading from its text: only where nothing else fits."""
_PIECES_PER_TARGET = 4
_TITLE_SHARE = 4
"""A title line takes at most a quarter of the largest chunk."""


def chunk_id_of(text: str) -> ChunkId:
    """Name a chunk by its text."""
    return ChunkId(hashlib.blake2b(text.encode("utf-8"), digest_size=16).hexdigest())


class Text(Protocol):
    """Text to cut: a Document, or a parser's result."""

    @property
    def title(self) -> str:
        """The document's title; empty if its content names none."""
        ...

    @property
    def blocks(self) -> tuple[Block, ...]:
        """In reading order."""
        ...


def split(document: Text, counter: TokenCounter, size: ChunkSize) -> list[Chunk]:
    """Cut a document into chunks of at most `size.largest` tokens that together hold all of its text, in order.

    Boundaries are chosen for the whole document at once (shortest path over block and sentence boundaries): chunks near
    `size.target`, cuts at headings rather than between paragraphs, between paragraphs rather than sentences. Equal
    documents give equal chunks.
    """
    packer = _Packer(document.title, counter, size)
    units = [unit for block, before in _with_previous(document.blocks) for unit in packer.units(block, before)]
    pending = [units[start:end] for start, end in reversed(packer.boundaries(units))]
    chunks: list[Chunk] = []
    while pending:
        group = pending.pop()
        text, begins = packer.render(group)
        num_tokens = counter.count(text)
        if num_tokens > size.largest and (smaller := packer.divide(group)):
            pending.extend(reversed(smaller))
            continue
        chunks.append(Chunk(chunk_id_of(text), len(chunks), text, num_tokens, _location(group, text, begins)))
    return chunks


class _Packer:
    """Sizes and title lines of one document."""

    def __init__(self, title: str, counter: TokenCounter, size: ChunkSize) -> None:
        self._title = title
        self._counter = counter
        self._size = size
        self._titles: dict[tuple[str, ...], tuple[str, int, frozenset[int]]] = {}
        self._costs: dict[int, float] = {}
        """Cost by number of tokens."""
        self._cutter = SentenceCutter(counter, max(8, size.target // _PIECES_PER_TARGET))

    # Blocks to units ------------------------------------------------------------------------------------------------

    def units(self, block: Block, before: Block | None) -> Iterator[_Unit]:
        """Yield the block as one unit, or as several if it is longer than a chunk should be."""
        shown = block.text if block.kind is BlockKind.CODE else block.text.replace("\n", " ")
        joint = _joint(before, block)
        if len(shown) <= 16 * self._size.target:
            tokens = self._counter.count(joint + shown)
            if tokens <= self._size.target:
                lines = (block.line_start, block.line_end)
                yield _unit(block, shown, joint, tokens, _cut_cost(before, block), lines)
                return
        yield from self._pieces(block, shown, joint, _cut_cost(before, block))

    def _pieces(self, block: Block, shown: str, joint: str, cut_cost: float) -> Iterator[_Unit]:
        last = ""
        lines = _LineFinder(block)
        for first, piece in self._cutter.cut(shown, by_line=block.kind is BlockKind.CODE):
            text = piece.rstrip() if block.kind is BlockKind.CODE else piece.strip()
            if last.strip():
                joint, cut_cost = _piece_joint(last, piece), _piece_cut_cost(last)
            if text:
                tokens = self._counter.count(joint + text)
                place = lines.of(first + _leading(piece), first + len(piece.rstrip()))
                yield _unit(block, text, joint, tokens, cut_cost, place)
                last = piece
            else:
                last += piece

    # Where to cut ---------------------------------------------------------------------------------------------------

    def boundaries(self, units: Sequence[_Unit]) -> list[tuple[int, int]]:
        """Start and end of each chunk: the cheapest way through all possible cuts."""
        best = [0.0] + [math.inf] * len(units)
        came_from = [0] * (len(units) + 1)
        for end in range(1, len(units) + 1):
            for start, cost in self._chunks_ending(units, end):
                if best[start] + cost < best[end]:
                    best[end], came_from[end] = best[start] + cost, start
        bounds = []
        end = len(units)
        while end > 0:
            bounds.append((came_from[end], end))
            end = came_from[end]
        return bounds[::-1]

    def _chunks_ending(self, units: Sequence[_Unit], end: int) -> Iterator[tuple[int, float]]:
        """(start, cost) of every chunk up to `end` that fits, and always of the one-unit chunk."""
        path: tuple[str, ...] | None = None
        body, mixing = 0, 0.0
        last_is_heading = units[end - 1].is_heading and end < len(units)
        headings, by_path = 0, dict[tuple[str, ...], int]()
        for start in range(end - 1, -1, -1):
            unit = units[start]
            if unit.is_heading:
                headings += unit.num_tokens
                by_path[unit.path] = by_path.get(unit.path, 0) + unit.num_tokens
            else:
                path = unit.path if path is None else _common(path, unit.path)
                body += unit.num_tokens
            in_title = path if path is not None else unit.path
            _, title_tokens, _ = self._titles.get(in_title) or self._title_line(in_title)
            # Headings that the title line repeats cost nothing more; looked up by path, for there may be thousands.
            in_line = by_path and sum(by_path.get(in_title[:depth], 0) for depth in range(len(in_title) + 1))
            total = title_tokens + body + headings - (in_line or 0)
            if total > self._size.largest and start < end - 1:
                return
            cost = (self._costs.get(total) or self._cost(total)) + mixing + (_BIND if last_is_heading else 0.0)
            yield start, cost + (unit.cut_cost if start else 0.0)
            if unit.opens_chunk:
                return
            if unit.is_heading:
                mixing += 0.1 / max(len(unit.path), 1)

    def _cost(self, tokens: int) -> float:
        size = self._size
        if tokens > size.target:
            cost = 0.1 + 0.2 * ((tokens - size.target) / max(size.largest - size.target, 1)) ** 2
        else:
            short = max(0.0, (size.smallest - tokens) / size.smallest)
            cost = 0.1 + ((size.target - tokens) / size.target) ** 2 + short
        self._costs[tokens] = cost
        return cost

    # Units to text --------------------------------------------------------------------------------------------------

    def render(self, group: Sequence[_Unit]) -> tuple[str, list[int | None]]:
        """Title line and text of a chunk, and where in it each unit begins.

        Headings that the title line shows are not repeated, and begin nowhere.
        """
        path = _shared_path(group)
        title, _, shown = self._title_line(path)
        body = ""
        begins: list[int | None] = []
        for unit in group:
            depth = len(unit.path)
            if unit.is_heading and depth - 1 in shown and unit.path == path[:depth] and unit.text == path[depth - 1]:
                begins.append(None)
                continue
            body += unit.joint if body else ""
            begins.append(len(body))
            body += unit.text
        above = len(title) + 1 if title and body else 0
        text = f"{title}\n{body}" if title and body else title or body
        return text, [None if begin is None else above + begin for begin in begins]

    def _title_line(self, path: tuple[str, ...]) -> tuple[str, int, frozenset[int]]:
        """The title line for a heading path, its tokens, and which headings of the path it shows."""
        if path not in self._titles:
            self._titles[path] = self._make_title_line(path)
        return self._titles[path]

    def _make_title_line(self, path: tuple[str, ...]) -> tuple[str, int, frozenset[int]]:
        room = self._size.largest // _TITLE_SHARE
        levels = list(range(len(path)))
        while True:
            names = [path[level] for level in levels]
            if self._title and self._title not in names:
                names.insert(0, self._title)
            line = LEVELS.join(names)
            tokens = self._counter.count(line + "\n") if len(line) < 16 * room else room + 1
            if tokens <= room or not levels:
                return (line, tokens, frozenset(levels)) if line and tokens <= room else ("", 0, frozenset())
            # The innermost heading says most; drop the outer ones first, the last one only when nothing else is left.
            levels.pop(0)

    def divide(self, group: Sequence[_Unit]) -> list[list[_Unit]]:
        """Split a chunk that turned out too long in two; return nothing if it is a single character."""
        if len(group) > 1:
            middle = len(group) // 2
            if group[middle - 1].is_heading and middle + 1 < len(group):
                middle += 1
            return [list(group[:middle]), list(group[middle:])]
        unit = group[0]
        if len(unit.text) < 2:
            return []
        middle = unit.text.rfind(" ", len(unit.text) // 4, len(unit.text) * 3 // 4)
        middle = middle if middle > 0 else len(unit.text) // 2
        left, right = unit.text[:middle], unit.text[middle:]
        halves = [replace(unit, text=part, is_heading=False) for part in (left.rstrip(), right.strip()) if part.strip()]
        return [[half] for half in halves]


class _LineFinder:
    """Finds the lines of the file that a part of a block's text stands on."""

    def __init__(self, block: Block) -> None:
        self._whole = (block.line_start, block.line_end)
        self._ends = [match.start() for match in re.finditer("\n", block.text)]
        start, end = self._whole
        self._start = start if start is not None and end is not None and len(self._ends) == end - start else None

    def of(self, first: int, last: int) -> tuple[int | None, int | None]:
        """Lines of characters `first` to `last`; those of the whole block where its text is not laid out in lines."""
        if self._start is None:
            return self._whole
        return self._start + bisect_left(self._ends, first), self._start + bisect_left(self._ends, last)


def _unit(
    block: Block, text: str, joint: str, tokens: int, cut_cost: float, lines: tuple[int | None, int | None]
) -> _Unit:
    is_heading = block.kind is BlockKind.HEADING
    return _Unit(text, joint, tokens, cut_cost, is_heading, block.opens_chunk, block.heading, block.page, *lines)


def _leading(text: str) -> int:
    return len(text) - len(text.lstrip())


def _joint(before: Block | None, block: Block) -> str:
    """Blank lines of the file stay one blank line; formats without lines get none."""
    if before is None:
        return ""
    if before.line_end is None or block.line_start is None or before.kind is BlockKind.HEADING:
        return "\n"
    return "\n" if block.line_start <= before.line_end + 1 else "\n\n"


def _piece_joint(last: str, piece: str) -> str:
    """The white space between two pieces of one block: exact line ends in code, one space elsewhere."""
    gap = last[len(last.rstrip()) :] + piece[: _leading(piece)]
    if "\n" in gap:
        return gap[: gap.rfind("\n") + 1]
    return " " if gap else ""


def _cut_cost(before: Block | None, block: Block) -> float:
    if before is None or block.kind is BlockKind.HEADING:
        return 0.0
    if before.kind is BlockKind.HEADING:
        return _BIND
    if before.text.endswith(":"):
        return 0.6
    if before.kind is block.kind and block.kind in (BlockKind.TABLE, BlockKind.CODE):
        return 0.05
    return 0.12 if before.kind is block.kind else 0.15


def _piece_cut_cost(last: str) -> float:
    if last.endswith("\n"):
        return 0.2
    return 0.25 if ends_sentence(last.rstrip()) else 0.8


def _common(one: tuple[str, ...], other: tuple[str, ...]) -> tuple[str, ...]:
    if one == other:
        return one
    depth = 0
    while depth < min(len(one), len(other)) and one[depth] == other[depth]:
        depth += 1
    return one[:depth]


def _shared_path(group: Sequence[_Unit]) -> tuple[str, ...]:
    """The headings above all running text of a chunk, or above all of it where it is only headings."""
    paths = [unit.path for unit in group if not unit.is_heading] or [group[0].path]
    shared = paths[0]
    for path in paths[1:]:
        shared = _common(shared, path)
    return shared


def _with_previous(blocks: Sequence[Block]) -> Iterator[tuple[Block, Block | None]]:
    before: Block | None = None
    for block in blocks:
        yield block, before
        before = block


def _location(group: Sequence[_Unit], text: str, begins: Sequence[int | None]) -> Location:
    pages = [unit.page for unit in group if unit.page is not None]
    starts = [unit.line_start for unit in group if unit.line_start is not None]
    ends = [unit.line_end for unit in group if unit.line_end is not None]
    return Location(
        heading=LEVELS.join(group[0].path),
        page_start=min(pages, default=None),
        page_end=max(pages, default=None),
        line_start=min(starts, default=None),
        line_end=max(ends, default=None),
        parts=_parts(group, text, begins),
    )


def _parts(group: Sequence[_Unit], text: str, begins: Sequence[int | None]) -> tuple[Part, ...]:
    """Places of the units of a chunk, as few as say the same."""
    outermost = group[0].path[:1]
    parts: list[Part] = []
    for unit, begin in zip(group, begins, strict=True):
        if begin is None or (not parts and unit.page is None and unit.line_start is None):
            continue
        section = unit.path[0] if unit.path[:1] != outermost and unit.path else ""
        part = Part(begin, unit.page, unit.line_start, unit.line_end, section)
        if parts and (both := joined(parts[-1], part, text, begin + len(unit.text))) is not None:
            parts[-1] = both
        else:
            parts.append(part)
    return tuple(parts)
