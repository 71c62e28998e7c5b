"""Key actions on the selected turn and its sources that ask nothing: look, copy, open."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import ClassVar

from textual.binding import BindingType
from textual.content import Content
from textual.screen import Screen
from textual.widgets import OptionList, Static, Tabs

from desk_rag.answering.events import Source
from desk_rag.sanitize import clean
from desk_rag.tui import messages as m
from desk_rag.tui.keys.actions import NUMBER_OF_SOURCE_KEYS
from desk_rag.tui.keys.bindings import bound
from desk_rag.tui.keys.jump import JumpTarget
from desk_rag.tui.turns.source_files import compared
from desk_rag.tui.widgets.answer_view import AnswerView, Quote
from desk_rag.tui.widgets.question_input import QuestionInput
from desk_rag.tui.widgets.source_list import SourceList
from desk_rag.tui.widgets.source_preview import SourcePreview
from desk_rag.tui.widgets.transcript import Transcript
from desk_rag.tui.wording import as_text, count, quotes_of, sent_for_clipboard

_COMPARE_SECONDS = 5.0
"""Seconds between two looks at the files of the selected turn."""
_WITH_ANSWER = ("copy_answer", "copy_words", "toggle_timing")
_WITH_SOURCES = ("open_source", "read_source", "step_source", "show_source")


class TurnScreen(Screen[None]):
    """Base of the chat screen: the selected turn, its sources in the side pane, and what is done with both."""

    BINDINGS: ClassVar[list[BindingType]] = [
        bound("sources", "toggle_sources", "Sources", show=True),
        bound("open_source", "open_source", "Open", show=True),
        bound("turn_above", "choose_turn(-1)", "Answer above"),
        bound("turn_below", "choose_turn(1)", "Answer below"),
        bound("next_source", "step_source(1)", "Next source"),
        bound("previous_source", "step_source(-1)", "Previous source"),
        bound("read_source", "read_source", "Read the source here"),
        bound("copy", "copy_answer", "Copy answer"),
        bound("timing", "toggle_timing", "Timing"),
        *[bound(f"source_{n}", f"show_source({n})", f"Source {n}") for n in range(1, NUMBER_OF_SOURCE_KEYS + 1)],
    ]

    def __init__(self, folders: Sequence[Path]) -> None:
        super().__init__()
        self._folders = folders
        self._compares_files = False

    @property
    def _selected(self) -> AnswerView | None:
        return self.query_one(Transcript).selected if self.is_mounted else None

    @property
    def number_of_sources(self) -> int:
        """Number of sources of the selected turn."""
        return len(self._selected.sources) if self._selected else 0

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        view = self._selected
        if action in _WITH_ANSWER:
            return view is not None and view.answer is not None
        if action == "copy_quotes":
            return view is not None and view.answer is not None and bool(view.answer.citations)
        if action in _WITH_SOURCES:
            return view is not None and bool(view.sources)
        if action == "toggle_sources":
            return self.has_class("-with-sources")
        return view is not None if action in ("turn_menu", "edit", "edit_searched", "choose_turn") else True

    # The side pane ----------------------------------------------------------------------------------------------

    def on_mount(self) -> None:
        self.set_interval(_COMPARE_SECONDS, self._compare_files)

    def on_transcript_selected(self, message: Transcript.Selected) -> None:
        self._show_sources(message.view)
        self._compare_files()

    def _compare_files(self) -> None:
        """Look in a thread whether files of the selected turn have changed, unless the last look still waits."""
        view = self._selected
        if view is None or not view.over or not view.sources or self._compares_files:
            return
        self._compares_files = True

        def compare(sources: tuple[Source, ...]) -> None:
            now = compared(sources, self._folders)
            self.app.call_from_thread(self._files_compared, view, sources, now)

        self.run_worker(partial(compare, view.sources), thread=True, group="files", exit_on_error=False)

    def _files_compared(self, view: AnswerView, before: tuple[Source, ...], now: tuple[Source, ...]) -> None:
        self._compares_files = False
        if now != before and view.is_attached and view.over and view.sources is before:
            view.sources_changed(now)
            if view is self._selected:
                self._show_sources(view)

    def on_question_input_page_wanted(self, message: QuestionInput.PageWanted) -> None:
        """Scroll the transcript, or the source where a narrow terminal shows that instead."""
        reads_source = self.has_class("-narrow", "-sources-tab")
        pane = self.query_one("#preview-text") if reads_source else self.query_one(Transcript)
        scroll = pane.scroll_page_down if message.step > 0 else pane.scroll_page_up
        scroll(animate=False)

    def on_answer_view_source_clicked(self, message: AnswerView.SourceClicked) -> None:
        self.query_one(Transcript).select(message.view)
        self._show_sources(message.view)
        self.action_show_source(message.number)

    def on_option_list_option_highlighted(self, message: OptionList.OptionHighlighted) -> None:
        self._preview()

    def on_option_list_option_selected(self, message: OptionList.OptionSelected) -> None:
        self.query_one("#preview-text").focus()

    def on_document_came(self, message: m.DocumentCame) -> None:
        self.query_one(SourcePreview).show_neighbours(message.path, message.chunks)

    def _show_sources(self, view: AnswerView) -> None:
        if view.sources or view.over:
            self.set_class(bool(view.sources), "-with-sources")
        cited = frozenset(citation.source_number for citation in view.citations)
        self.query_one("#side-title", Static).update(Content(count(len(view.sources), "source")))
        self.query_one(SourceList).show(view.sources, cited)
        self._preview()
        self.refresh_bindings()

    def _preview(self) -> None:
        source = self.query_one(SourceList).current
        view = self._selected
        quotes = [c.quote for c in view.citations if source and c.source_number == source.number] if view else []
        self.query_one(SourcePreview).show(source, quotes)
        if source is not None:
            self.post_message(m.DocumentWanted(source.path))

    def _shown(self) -> tuple[Source, m.OpenWanted] | None:
        """Return the shown source and how to open it: at its first quote, or else at its beginning."""
        source, view = self.query_one(SourceList).current, self._selected
        if source is None or view is None:
            return None
        cited = next((one for one in view.citations if one.source_number == source.number), None)
        location, quote = (cited.location, cited.quote) if cited else (source.location, "")
        return source, m.OpenWanted(source, location, quote)

    def jump_targets(self) -> list[JumpTarget]:
        """Return the places of the chat that can be gone to: answers, quotes, sources, panes and the prompt."""
        transcript, sources = self.query_one(Transcript), self.query_one(SourceList)
        targets = [
            JumpTarget(widget.region.x, widget.region.y, partial(self.set_focus, widget))
            for widget in self.focus_chain
            if widget.region and widget not in (transcript, sources)
        ]
        visible = transcript.region
        for view in self.query(AnswerView):
            if view.region.overlaps(visible):
                row = max(view.region.y, visible.y)
                targets.append(JumpTarget(view.region.x, row, partial(self._go_to_turn, view)))
        for quote in self.query(Quote):
            if quote.region and visible.contains_region(quote.region):
                targets.append(JumpTarget(quote.region.x, quote.region.y, quote.on_click))
        for line, number in sources.numbers_in_view:
            where = sources.content_region
            targets.append(JumpTarget(where.x, where.y + line, partial(self.action_show_source, number)))
        return targets

    def _go_to_turn(self, view: AnswerView) -> None:
        transcript = self.query_one(Transcript)
        transcript.select(view)
        self.set_focus(transcript)

    def on_tabs_tab_activated(self, message: Tabs.TabActivated) -> None:
        self.set_class(message.tab.id == "tab-sources", "-sources-tab")
        if self.has_class("-narrow"):
            target = SourceList if message.tab.id == "tab-sources" else QuestionInput
            self.query_one(target).focus()
        self.refresh_bindings()

    # Actions ----------------------------------------------------------------------------------------------------

    def action_choose_turn(self, step: int) -> None:
        """Select the turn above or below."""
        self.query_one(Transcript).action_choose(step)

    def action_toggle_sources(self) -> None:
        """Show or hide the sources: a pane on a wide terminal, a tab on a narrow one."""
        if self.has_class("-narrow"):
            self._show_pane("tab-chat" if self.query_one(Tabs).active == "tab-sources" else "tab-sources")
        else:
            self.toggle_class("-without-sources")

    def action_show_source(self, number: int) -> None:
        """Show source `number` of the selected answer."""
        self.remove_class("-without-sources")
        self.query_one(SourceList).choose(number)
        self._show_pane("tab-sources")

    def action_step_source(self, by: int) -> None:
        """Show the next or previous source."""
        self.query_one(SourceList).step(by)

    def action_open_source(self) -> None:
        """Open the shown source in the user's own program."""
        if shown := self._shown():
            self.post_message(shown[1])

    def action_read_source(self) -> None:
        """Show the text of the source's document here."""
        if shown := self._shown():
            self.post_message(m.TextWanted(shown[0], shown[1].quote))

    def action_copy_answer(self) -> None:
        """Copy the selected answer with its quotes."""
        if (view := self._selected) and view.answer:
            self._copy(as_text(view.answer, self._folders), "Answer")

    def action_copy_words(self) -> None:
        """Copy the words of the selected answer."""
        if (view := self._selected) and view.answer:
            self._copy(clean(view.answer.marked_text), "Words")

    def action_copy_quotes(self) -> None:
        """Copy the quotes of the selected answer with their places."""
        if (view := self._selected) and view.answer:
            self._copy("\n".join(quotes_of(view.answer, self._folders)), "Quotes")

    def action_toggle_timing(self) -> None:
        """Show or hide the stages of the time to first token."""
        if view := self._selected:
            view.toggle_details()

    def _copy(self, text: str, what: str) -> None:
        self.app.copy_to_clipboard(text)
        self.notify(sent_for_clipboard(what), markup=False)

    def _show_pane(self, tab: str) -> None:
        self.query_one(Tabs).active = tab
