"""A list of any length that draws and asks for the rows in view only.

It knows rows as lines of text. Whoever uses it hands over rows when `RowsWanted` asks for them, from any place in the
list and in any order; until they come a row is blank.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from textual import events
from textual.content import Content
from textual.geometry import Region, Size
from textual.message import Message
from textual.reactive import reactive
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.visual import Visual

from desk_rag.tui.wording import fit

PAGE = 64
"""Rows asked for at a time."""
_MOST_KEPT = 40 * PAGE


class EntryList(ScrollView):
    """List of rows, one highlighted. It takes no focus: the filter has it, and the screen moves the highlight."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"entry-list--highlighted"}
    highlighted: reactive[int] = reactive(0)

    @dataclass
    class RowsWanted(Message):
        """Request for the rows from `first` on, which came into view."""

        first: int
        generation: int

    @dataclass
    class Highlighted(Message):
        row: int

    @dataclass
    class Chosen(Message):
        """Message that the highlighted row was clicked."""

        row: int

    def __init__(self, id: str) -> None:
        super().__init__(id=id)
        self.can_focus = False
        self.generation = 0
        """Counts the lists shown, so that rows of an earlier one are not taken for this one's."""
        self.drawn = 0
        """Rows drawn since the start, for tests of how much a frame costs."""
        self._total = 0
        self._rows: OrderedDict[int, Content] = OrderedDict()
        self._asked: set[int] = set()
        self._empty = ""

    @property
    def total(self) -> int:
        """Number of rows."""
        return self._total

    def show(self, total: int, *, empty: str = "", highlighted: int = 0) -> None:
        """Begin another list of `total` rows; `empty` stands there if there are none."""
        self._rows.clear()
        self.set_reactive(EntryList.highlighted, highlighted)
        self.scroll_to(y=0, animate=False)
        self.change(total, empty=empty)
        self._keep_in_view()

    def change(self, total: int, *, empty: str = "") -> None:
        """Go on with the same list, which has changed; its rows stay in view until new ones come."""
        self.generation += 1
        self._total, self._empty = total, empty
        self._asked.clear()
        for row in [row for row in self._rows if row >= total]:
            del self._rows[row]
        self.virtual_size = Size(self.size.width, total)
        self.set_reactive(EntryList.highlighted, min(self.highlighted, max(0, total - 1)))
        self.renew()
        self.refresh()
        self.post_message(self.Highlighted(self.highlighted))

    def renew(self) -> None:
        """Ask for all rows in view again; until they come the old ones stay."""
        self._asked.clear()
        if not self._total:
            return
        for row in list(self._rows):
            if not self._first_in_view <= row <= self._first_in_view + self.size.height:
                del self._rows[row]
        for page in range(self._first_in_view // PAGE, (self._first_in_view + self.size.height) // PAGE + 1):
            self._ask(page)

    def take(self, first: int, rows: Sequence[Content], generation: int) -> None:
        """Take rows that `RowsWanted` asked for."""
        if generation != self.generation:
            return
        for number, row in enumerate(rows, first):
            self._rows[number] = row
            self._rows.move_to_end(number)
        while len(self._rows) > _MOST_KEPT:
            dropped, _ = self._rows.popitem(last=False)
            self._asked.discard(dropped // PAGE)
        self.refresh()

    def move(self, by: int) -> None:
        """Move the highlight by so many rows, not beyond the ends."""
        self.highlighted = min(max(0, self.highlighted + by), max(0, self._total - 1))

    def highlight(self, row: int) -> None:
        """Move the highlight to this row."""
        self.highlighted = row

    @property
    def rows_in_view(self) -> range:
        """The rows that are drawn now."""
        return range(self._first_in_view, min(self._total, self._first_in_view + self.size.height))

    def move_page(self, by: int) -> None:
        """Move the highlight by so many screens."""
        self.move(by * max(1, self.size.height - 1))

    def move_to_end(self, last: bool) -> None:
        """Move the highlight to the last or the first row."""
        self.highlighted = max(0, self._total - 1) if last else 0

    def watch_highlighted(self) -> None:
        self._keep_in_view()
        self.refresh()
        self.post_message(self.Highlighted(self.highlighted))

    def on_resize(self, event: events.Resize) -> None:
        self.virtual_size = Size(event.size.width, self._total)
        self._keep_in_view()

    def on_click(self, event: events.Click) -> None:
        row = self._first_in_view + event.y
        if row >= self._total:
            return
        if row == self.highlighted:
            self.post_message(self.Chosen(row))
        self.highlighted = row

    def render_line(self, y: int) -> Strip:
        self.drawn += 1
        row, width = self._first_in_view + y, self.scrollable_content_region.width
        if row >= self._total:
            said = self._empty if not self._total and y == 0 else ""
            return self._strip(fit(Content.styled(said, "$foreground 60%"), width), width, row)
        known = self._rows.get(row)
        if known is None:
            self._ask(row // PAGE)
        return self._strip(fit(known if known is not None else Content(" …"), width), width, row)

    def _strip(self, content: Content, width: int, row: int) -> Strip:
        style = self.visual_style
        if row == self.highlighted and row < self._total:
            style += self.get_visual_style("entry-list--highlighted")
        strips = Visual.to_strips(self, content, width, 1, style, pad=True)
        return strips[0] if strips else Strip.blank(width)

    @property
    def _first_in_view(self) -> int:
        return int(self.scroll_offset.y)

    def _ask(self, page: int) -> None:
        if page not in self._asked and page * PAGE < self._total:
            self._asked.add(page)
            self.post_message(self.RowsWanted(page * PAGE, self.generation))

    def _keep_in_view(self) -> None:
        if self._total and self.size.height:
            self.scroll_to_region(Region(0, self.highlighted, 1, 1), animate=False)
