"""Places in a file: of a chunk, of the parts of its text, and so of a quote in it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from desk_rag.documents.formats import PlaceUnits, place_units

LEVELS = " › "
"""Between the levels of a heading path."""
ATTACHMENT = "Attachment "
"""Beginning of the heading of a file attached to a mail, below that of the mail."""


@dataclass(frozen=True, slots=True)
class Part:
    """A run of a chunk's text whose place in the file is known more closely than the chunk's."""

    begin: int
    """Its first character in the chunk's text; it ends where the next part begins."""
    page: int | None = None
    line_start: int | None = None
    line_end: int | None = None
    section: str = ""
    """Its outermost heading where that is not the chunk's: another sheet, event or chapter."""


@dataclass(frozen=True, slots=True)
class Location:
    """Place of a chunk in its file; every field may be None because formats differ."""

    heading: str = ""
    """Heading path in force at the chunk's start, ' › ' between levels."""
    page_start: int | None = None
    page_end: int | None = None
    line_start: int | None = None
    line_end: int | None = None
    units: PlaceUnits = PlaceUnits()
    """Names of pages and lines in the file's format; set where the file is known (catalog)."""
    parts: tuple[Part, ...] = ()
    """Places within the chunk, in order; empty in the place of a quote, and in catalogs of earlier versions."""

    def __str__(self) -> str:
        """'p. 4', 'slides 4-5', 'Budget, rows 12-40', or '' when the format has no places.

        A chunk over several sections (sheets, messages, events) is placed by their numbers, not by the first's name.
        """
        if enclosing := self._enclosing():
            return ", ".join(filter(None, map(str, enclosing)))
        units = self.units
        one_page = self.page_end in (None, self.page_start)
        section = self.heading.split(LEVELS)[0] if units.names_section and one_page else ""
        if self.page_start is not None and not section:
            number = _counted(units.page, units.pages, self.page_start, self.page_end)
        elif self.line_start is not None:
            number = _counted(units.line, units.lines, self.line_start, self.line_end)
        else:
            number = ""
        return ", ".join(part for part in (section, number) if part)

    def _enclosing(self) -> tuple[str, Location] | None:
        """Return the name of a file inside the file, with what holds it, and the place in it; None if there is none."""
        levels = self.heading.split(LEVELS)
        if self.units.inside and self.heading:
            name, shown, inside = levels[0], self.units.inside + levels[0], levels[1:]
        elif self.units.has_attachments and len(levels) > 1 and levels[1].startswith(ATTACHMENT):
            name, shown, inside = levels[1].removeprefix(ATTACHMENT), ", ".join(levels[:2]), levels[2:]
        else:
            return None
        place = replace(self, heading=LEVELS.join(inside), units=place_units(name.rpartition("/")[2]), parts=())
        counts_messages = self.units.page != PlaceUnits().page
        return shown, replace(place, page_start=None, page_end=None) if counts_messages else place

    def within(self, text: str, start: int, end: int) -> Location:
        """Return the place of characters `start` to `end` of the chunk's text, as closely as it is known."""
        ends = [part.begin for part in self.parts[1:]] + [len(text)]
        met = [(part, stop) for part, stop in zip(self.parts, ends, strict=False) if start < stop and part.begin < end]
        if not met or start < met[0][0].begin:
            return replace(self, parts=())
        pages = [part.page for part, _ in met if part.page is not None]
        first = _lines_within(*met[0], text, start, end)
        last = _lines_within(*met[-1], text, start, end)
        heading = met[0][0].section or self.heading
        return Location(heading, min(pages, default=None), max(pages, default=None), first[0], last[1], self.units)


def _lines_within(part: Part, stop: int, text: str, start: int, end: int) -> tuple[int, int] | tuple[None, None]:
    """Return the first and last line of those characters that stand in `part`, whose text ends at `stop`."""
    if part.line_start is None or part.line_end is None:
        return None, None
    inside = text[part.begin : stop].rstrip("\n")
    if inside.count("\n") != part.line_end - part.line_start:
        return part.line_start, part.line_end
    last = min(end, part.begin + len(inside))
    return part.line_start + text.count("\n", part.begin, max(start, part.begin)), (
        part.line_start + text.count("\n", part.begin, last)
    )


def _counted(one: str, several: str, first: int, last: int | None) -> str:
    return f"{one} {first}" if last in (None, first) else f"{several} {first}-{last}"


def joined(one: Part, other: Part, text: str, end: int) -> Part | None:
    """Return both parts as one; None if that would know less about the place of either."""
    if (one.page, one.section) != (other.page, other.section):
        return None
    if one.line_start is None and other.line_start is None:
        return one
    if one.line_start is None or one.line_end is None or other.line_end is None:
        return None
    is_exact = one.line_start + text.count("\n", one.begin, end) == other.line_end
    alone = one.line_start + text.count("\n", one.begin, other.begin) == other.line_start
    return replace(one, line_end=other.line_end) if is_exact and alone else None
