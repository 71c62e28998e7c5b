"""Entries of the command palette that act on the selected turn, each with its key."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from textual.app import SystemCommand

from desk_rag.tui.turns.actions import TURN_ACTIONS

if TYPE_CHECKING:
    from desk_rag.tui.screens.chat import ChatScreen

_SOURCE_ACTIONS = (
    ("Next source", "In the preview (Alt+N)", "step_source(1)"),
    ("Previous source", "In the preview (Alt+P)", "step_source(-1)"),
    ("Show or hide the sources", "A pane, or a tab below 100 columns (Ctrl+B)", "toggle_sources"),
)
_CHAT_ACTIONS = (
    ("New chat", "Empties the screen; the old one stays among the saved chats (Ctrl+N)", "new_chat"),
    ("New private chat", "Nothing of it is saved", "new_chat(True)"),
    ("Saved chats", "Search, open, delete (Ctrl+R)", "chats"),
    ("Export this chat", "As Markdown or JSON, with its sources (Alt+S)", "export"),
    ("Find in this chat", "In questions, answers and quotes (Ctrl+F)", "find"),
)
_MOST_KEYS = 9


def turn_commands(chat: ChatScreen) -> Iterator[SystemCommand]:
    """Yield what can be done with the selected turn of `chat` now."""

    def doing(action: str) -> Callable[[], Awaitable[None]]:
        return partial(chat.run_action, action)

    for action in TURN_ACTIONS:
        if chat.check_action(action.name, ()):
            text = f"{action.help} ({action.key})" if action.key else action.help
            yield SystemCommand(action.title, text, doing(action.name))
    for title, text, action_name in _CHAT_ACTIONS:
        yield SystemCommand(title, text, doing(action_name))
    if not chat.number_of_sources:
        return
    for number in range(1, chat.number_of_sources + 1):
        key = f" (Alt+{number})" if number <= _MOST_KEYS else ""
        yield SystemCommand(f"Source {number}", f"In the preview{key}", doing(f"show_source({number})"))
    for title, text, action_name in _SOURCE_ACTIONS:
        yield SystemCommand(title, text, doing(action_name))
