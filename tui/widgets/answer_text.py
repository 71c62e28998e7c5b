"""Text of an answer, plain or Markdown; `[n]` of a retrieved source can be clicked.

Markdown never opens anything: a click on a link of the model only shows where it points.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from textual import events
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.message import Message
from textual.style import Style
from textual.widgets import Static

from desk_rag.tui.wording import safe

if TYPE_CHECKING:
    from textual.widgets import Markdown

_CHIP = re.compile(r"\[(\d{1,3})\]")
_LIST_LINE = re.compile(r"^\[\d{1,3}\] ", re.MULTILINE)
_SCHEME = "source:"


class AnswerText(Vertical):
    """Growing text of an answer. Pass all of it each time: an escape sequence may be recognised only when complete."""

    @dataclass
    class SourceClicked(Message):
        number: int

    def __init__(self, *, markdown: bool) -> None:
        super().__init__(classes="words")
        self.text = ""
        """The text shown, cleaned; without Markdown's marks only where it is plain."""
        self._plain: Static | None = None if markdown else Static("", markup=False)
        self._markdown: Markdown | None = None
        self._source = ""

    def compose(self) -> ComposeResult:
        if self._plain is None:
            from textual.widgets import Markdown

            self._markdown = Markdown(open_links=False)
            yield self._markdown
        else:
            yield self._plain

    def on_mount(self) -> None:
        self.display = False

    def show(self, text: str, numbers: Collection[int]) -> None:
        """Show all of the text so far; `numbers` are those of the retrieved sources."""
        content = safe(text)
        self.text = content.plain
        self.display = bool(self.text)
        if self._plain is not None:
            self._plain.update(with_chips(content, numbers))
        elif self._markdown is not None:
            lines = self.text.replace("\n", "  \n") if _LIST_LINE.search(self.text) else self.text  # lines stay apart
            source = _CHIP.sub(lambda match: _link(match, numbers), lines)
            if self._source and source.startswith(self._source):
                self._markdown.append(source[len(self._source) :])
            else:
                self._markdown.update(source)
            self._source = source

    def on_markdown_link_clicked(self, message: Markdown.LinkClicked) -> None:
        """Show the source of a number; say where any other link points."""
        message.stop()
        number = message.href.removeprefix(_SCHEME)
        if message.href.startswith(_SCHEME) and number.isdecimal():
            self.post_message(self.SourceClicked(int(number)))
        else:
            shown = safe(message.href, single_line=True, most=200).plain
            self.notify(f"Links are not opened. This one points to {shown}", markup=False)

    def on_click(self, event: events.Click) -> None:
        """Show the source whose number was clicked in plain text."""
        number = event.style.meta.get("source")
        if isinstance(number, int):
            self.post_message(self.SourceClicked(number))


def with_chips(content: Content, numbers: Collection[int]) -> Content:
    """Mark the numbers of retrieved sources; any other number in brackets stays text."""
    for match in _CHIP.finditer(content.plain):
        number = int(match.group(1))
        if number in numbers:
            content = content.stylize("bold $accent", match.start(), match.end())
            content = content.stylize(Style.from_meta({"source": number}), match.start(), match.end())
    return content


def _link(match: re.Match[str], numbers: Collection[int]) -> str:
    number = match.group(1)
    return f"[\\[{number}\\]]({_SCHEME}{number})" if int(number) in numbers else match.group()
