"""Order the printed lines of a page: columns one after the other, rows of a table as rows.

A line is split where a gap stands between its words; the pieces show where columns and cells begin.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

_GUTTER = 6.0
"""Points that separate two columns at least."""
_FEWEST_LINES = 4
_FEWEST_LETTERS = 18
"""Lines of a column, and letters of its average line: narrower pieces are cells of a table."""
_LARGEST_CROSSING = 0.34
"""Share of a page's lines that may cross the space between columns, as titles do."""
_ALIGNED = 6.0
_MOST_COLUMNS = 4
_MOST_LINES = 3000
"""Lines of a page that are examined."""


@dataclass(frozen=True, slots=True)
class PrintedLine:
    """One printed line, or a piece of one; measures in points, size 0 where they are unknown."""

    text: str
    page: int
    size: float = 0.0
    top: float = 0.0
    """Top of the first letter; PDFium gives two printed lines as one where a word is cut between them."""
    last_top: float = 0.0
    left: float = 0.0
    right: float = 0.0
    row: int = -1
    """Number of the printed line on its page; pieces of the same line share it."""
    column_right: float = 0.0
    """Right edge of the column it stands in."""
    cells: tuple[str, ...] = ()
    """Texts of the pieces that were joined to this line."""
    cell_edges: tuple[tuple[float, float], ...] = ()
    """Left and right edges of these pieces."""


def in_rows(pieces: Sequence[PrintedLine]) -> list[PrintedLine]:
    """Return the pieces with one row number for neighbours that stand at the same height from left to right."""
    rows: list[PrintedLine] = []
    for piece in pieces:
        last = rows[-1] if rows else None
        if last is not None and abs(last.top - piece.top) < piece.size / 2 and piece.left > last.right:
            piece = replace(piece, row=last.row)
        rows.append(piece)
    return rows


def in_reading_order(pieces: Sequence[PrintedLine]) -> list[PrintedLine]:
    """Return the lines of a page column by column; pieces of one line are joined, except in columns."""
    if len(pieces) > _MOST_LINES or not all(piece.size for piece in pieces):
        return _joined_rows(pieces)
    return list(_columns(list(pieces), _MOST_COLUMNS))


def table_at(lines: Sequence[PrintedLine], start: int) -> list[list[str]]:
    """Return the rows of the table that begins at line `start`, or nothing."""
    end = start
    while end < len(lines) and lines[end].cells and _aligned(lines[start], lines[end]):
        end += 1
    return [list(line.cells) for line in lines[start:end]] if end > start + 1 else []


def _aligned(one: PrintedLine, other: PrintedLine) -> bool:
    if len(one.cells) != len(other.cells):
        return False
    edges = zip(one.cell_edges, other.cell_edges, strict=True)
    return all(abs(a[0] - b[0]) < _ALIGNED or abs(a[1] - b[1]) < _ALIGNED for a, b in edges)


def _columns(pieces: list[PrintedLine], most: int) -> Iterator[PrintedLine]:
    gutter = _gutter(pieces) if most > 1 else None
    if gutter is None:
        yield from _joined_rows(pieces)
        return
    left: list[PrintedLine] = []
    right: list[PrintedLine] = []
    crossing: list[PrintedLine] = []
    for piece in sorted(pieces, key=lambda piece: -piece.top):
        if piece.right <= gutter:
            side = left
        elif piece.left >= gutter:
            side = right
        else:
            side = crossing
        if side is crossing:
            yield from _columns(left, most - 1)
            yield from _columns(right, most - 1)
            left, right = [], []
        elif crossing:
            yield from _joined_rows(crossing)
            crossing = []
        side.append(piece)
    yield from _joined_rows(crossing)
    yield from _columns(left, most - 1)
    yield from _columns(right, most - 1)


def _gutter(pieces: Sequence[PrintedLine]) -> float | None:
    """Return where the second column begins; None if the page has one column."""
    lefts = sorted(piece.left for piece in pieces)
    starts = zip(lefts, lefts[_FEWEST_LINES - 1 :], strict=False)
    candidates = {first for first, later in starts if later - first < 3}
    best: tuple[int, float] | None = None
    for candidate in sorted(candidates):
        edge = candidate - 1.0
        before = [piece for piece in pieces if piece.right <= edge]
        behind = [piece for piece in pieces if piece.left >= edge]
        crossing = len(pieces) - len(before) - len(behind)
        if not (_is_column(before) and _is_column(behind)) or crossing > _LARGEST_CROSSING * len(pieces):
            continue
        if edge - max(piece.right for piece in before) < _GUTTER - 1 or not _side_by_side(before, behind):
            continue
        if best is None or crossing < best[0]:
            best = crossing, edge
    return best[1] if best else None


def _is_column(pieces: Sequence[PrintedLine]) -> bool:
    if len(pieces) < _FEWEST_LINES:
        return False
    return sum(len(piece.text) for piece in pieces) >= _FEWEST_LETTERS * len(pieces)


def _side_by_side(before: Sequence[PrintedLine], behind: Sequence[PrintedLine]) -> bool:
    """Return whether two columns share a good part of their height."""
    top = min(max(piece.top for piece in side) for side in (before, behind))
    bottom = max(min(piece.top for piece in side) for side in (before, behind))
    shorter = min(max(p.top for p in side) - min(p.top for p in side) for side in (before, behind))
    return top - bottom > 0.5 * shorter


def _joined_rows(pieces: Sequence[PrintedLine]) -> list[PrintedLine]:
    """Join neighbours of the same printed line, and note the right edge that the lines share."""
    edge = max((piece.right for piece in pieces), default=0.0)
    lines: list[PrintedLine] = []
    for piece in pieces:
        if lines and lines[-1].row == piece.row >= 0:
            last = lines[-1]
            cells, edges = last.cells or (last.text,), last.cell_edges or ((last.left, last.right),)
            lines[-1] = replace(
                last,
                text=f"{last.text} {piece.text}",
                right=piece.right,
                last_top=piece.last_top,
                cells=(*cells, piece.text),
                cell_edges=(*edges, (piece.left, piece.right)),
            )
        else:
            lines.append(replace(piece, column_right=edge))
    return lines


def usual_gap(lines: Sequence[PrintedLine]) -> float:
    """Return the distance between two lines of a paragraph, in points; 0 if it is unknown."""
    drops = (before.last_top - after.top for before, after in pairwise(lines))
    gaps = sorted(drop for drop in drops if drop > 0)
    # The lower quartile: a page of short paragraphs has more gaps between them than lines within.
    return gaps[len(gaps) // 4] if gaps else 0.0
