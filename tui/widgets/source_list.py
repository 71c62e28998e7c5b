"""The retrieved chunks of one answer, a line each: number, state, file, place. Knows no file contents."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from textual import events
from textual.content import Content
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from desk_rag.answering.events import Source
from desk_rag.tui.wording import fit, fit_path, mark, place, safe, short_path

_STYLES = {"warm": "$success", "stale": "$warning", "cold": "$foreground 65%"}
_NARROWEST_PATH = 12


class SourceList(OptionList):
    """List of sources; the highlighted one is shown in the preview, and Enter moves the focus there."""

    def __init__(self, folders: Sequence[Path]) -> None:
        super().__init__(id="sources", markup=False, compact=True)
        self._folders = folders
        self._sources: tuple[Source, ...] = ()
        self._cited: frozenset[int] = frozenset()
        self._width = 0

    @property
    def current(self) -> Source | None:
        """The highlighted source."""
        if self.highlighted is None or self.highlighted >= len(self._sources):
            return None
        return self._sources[self.highlighted]

    def show(self, sources: tuple[Source, ...], cited: frozenset[int]) -> None:
        """Show `sources`; those in `cited` stand out. The first of them is highlighted, unless the list is the same."""
        same = [s.chunk_id for s in sources] == [s.chunk_id for s in self._sources]
        keep = self.highlighted if same else None
        self._sources, self._cited = sources, cited
        first_cited = next((index for index, source in enumerate(sources) if source.number in cited), 0)
        self._draw(keep if keep is not None else first_cited if sources else None)
        self.call_after_refresh(self._fit)

    def choose(self, number: int) -> None:
        """Highlight source `number` (1-based)."""
        if 1 <= number <= len(self._sources):
            self.highlighted = number - 1

    def choose_first_cited(self, number: int) -> None:
        """Go to the first source that is cited, unless the user is looking at another one by now."""
        if not self._cited and not self.has_focus and self.highlighted in (None, 0):
            self.choose(number)

    @property
    def numbers_in_view(self) -> list[tuple[int, int]]:
        """Lines of the list that are drawn now, from its top, and the number of the source on each."""
        first, height = int(self.scroll_offset.y), self.content_region.height
        return [(line, first + line + 1) for line in range(min(height, len(self._sources) - first))]

    def step(self, by: int) -> None:
        """Highlight the next or previous source, round the ends."""
        if self._sources:
            self.highlighted = ((self.highlighted or 0) + by) % len(self._sources)

    def on_resize(self, event: events.Resize) -> None:
        self._fit()

    def _fit(self) -> None:
        """Draw the list anew if it is not as wide as it was drawn for; a list that was hidden has no width."""
        if self.scrollable_content_region.width not in (0, self._width):
            self._draw(self.highlighted)

    def _draw(self, highlight: int | None) -> None:
        self._width = self.scrollable_content_region.width
        with self.prevent(OptionList.OptionHighlighted):
            self.clear_options()
            self.add_options([Option(self._line(source)) for source in self._sources])
        self.highlighted = highlight

    def _line(self, source: Source) -> Content:
        letter, state = mark(source)
        where = safe(place(source), single_line=True, most=24)
        left = Content.assemble(
            (f"{source.number:>2} ", "bold $accent" if source.number in self._cited else "$foreground 65%"),
            (f"{letter} ", _STYLES[state]),
        )
        width = max(self._width - left.cell_length - where.cell_length - 2, _NARROWEST_PATH)
        path = fit_path(short_path(source.path, self._folders), width)
        line = Content.assemble(left, path, " ", where.stylize("$foreground 65%"))
        return fit(line, self._width) if self._width else line
