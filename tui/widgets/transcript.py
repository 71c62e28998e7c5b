"""Column of turns, newest at the bottom, one of them selected.

Turns far from what is in view are folded, so that a long chat takes little memory and is laid out soon.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.message import Message
from textual.widgets import Static

from desk_rag.tui.widgets.answer_view import AnswerView

_NEVER_FOLDED = 12
"""Newest turns that are drawn wherever the view is."""
_UNFOLDED_SCREENS, _FOLDED_SCREENS = 1, 3
"""Distance from the view below which a turn is drawn, and above which it is folded."""


class Transcript(VerticalScroll, can_focus=True):
    """Scrolling column of turns; follows the newest line until the user scrolls."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "choose(-1)", "Answer above", show=False),
        Binding("down", "choose(1)", "Answer below", show=False),
        Binding("enter", "menu", "Actions"),
        Binding("delete,backspace", "withdraw", "Withdraw", show=False),
    ]

    @dataclass
    class Selected(Message):
        """Message that another turn was selected; its sources are shown."""

        view: AnswerView

    class MenuWanted(Message):
        """Request for the menu of the selected turn."""

    class WithdrawWanted(Message):
        """Request to withdraw the selected question, if it still waits."""

    def __init__(self) -> None:
        super().__init__(id="transcript")
        self.selected: AnswerView | None = None
        self._will_fold = False

    def compose(self) -> ComposeResult:
        # As tall as the view at least: an anchored view would push a short transcript to its lower edge.
        yield Vertical(id="turns")

    def on_mount(self) -> None:
        self.anchor()
        self.watch(self, "scroll_y", self._fold_soon, init=False)

    def on_resize(self) -> None:
        self._fold_soon()

    def _fold_soon(self) -> None:
        if not self._will_fold:
            self._will_fold = True
            self.call_after_refresh(self._fold)

    async def _fold(self) -> None:
        """Draw the turns near the view and fold those far from it."""
        self._will_fold = False
        height, views = self.size.height, list(self.query(AnswerView))
        for view in views[:-_NEVER_FOLDED]:
            region = view.virtual_region
            distance = max(region.y - (self.scroll_y + height), self.scroll_y - region.bottom)
            is_wanted = view is self.selected or not view.over or distance < _UNFOLDED_SCREENS * height
            if view.folded and is_wanted:
                await view.fold(False)
            elif not (view.folded or is_wanted) and distance > _FOLDED_SCREENS * height:
                await view.fold(True)

    def on_click(self, event: events.Click) -> None:
        """Select the turn that was clicked."""
        if event.widget is None:
            return
        for node in event.widget.ancestors_with_self:
            if isinstance(node, AnswerView):
                self.select(node)
                return

    def welcome(self, content: Content) -> None:
        """Show what to do while there is no turn yet; empty content takes it away."""
        for old in self.query("#welcome").results(Static):
            if not content:
                old.remove()
                return
            old.update(content)
            return
        if content:
            self.query_one("#turns").mount(Static(content, id="welcome", markup=False))

    async def add(self, view: AnswerView) -> None:
        """Append a turn and scroll to it; it can be filled when this returns."""
        self.welcome(Content(""))
        await self.query_one("#turns").mount(view)
        self.anchor()
        self._fold_soon()

    def read_from_its_beginning(self, view: AnswerView) -> None:
        """Scroll to the first line of a turn, which may be longer than the view, once it is laid out."""

        def scroll() -> None:
            self.release_anchor()
            self.scroll_to_widget(view, top=True, animate=False)

        self.call_after_refresh(self.call_after_refresh, scroll)  # the second time, its lines are wrapped

    def select(self, view: AnswerView) -> None:
        """Make `view` the turn whose sources are shown."""
        if self.selected is not None:
            self.selected.remove_class("-selected")
        self.selected = view
        view.add_class("-selected")
        self.post_message(self.Selected(view))
        self._fold_soon()

    async def drop(self, view: AnswerView) -> None:
        """Take a turn away; the one above it, or else below it, is selected then."""
        views = list(self.query(AnswerView))
        index = views.index(view)
        left = views[:index][::-1] + views[index + 1 :]
        was_selected = self.selected is view
        await view.remove()
        if was_selected:
            self.selected = None
            if left:
                self.select(left[0])

    def action_menu(self) -> None:
        """Ask for the menu of the selected turn."""
        self.post_message(self.MenuWanted())

    def action_withdraw(self) -> None:
        """Ask for the selected question to be withdrawn."""
        self.post_message(self.WithdrawWanted())

    def action_choose(self, step: int) -> None:
        """Select the turn above or below."""
        views = list(self.query(AnswerView))
        if self.selected not in views:
            return
        index = min(max(views.index(self.selected) + step, 0), len(views) - 1)
        self.select(views[index])
        self.release_anchor()
        views[index].scroll_visible(animate=False)
