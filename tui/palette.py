"""Entries of the command palette that act on the selected turn, each with its key."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from textual.app import SystemCommand

from desk_rag.tui.keys.actions import NUMBER_OF_SOURCE_KEYS
from desk_rag.tui.turns.actions import TURN_ACTIONS

if TYPE_CHECKING:
    from desk_rag.tui.keys.keymap import KeyMap
    from desk_rag.tui.screens.chat import ChatScreen

_SOURCE_ACTIONS = (
    ("Next source", "In the preview", "step_source(1)", "next_source"),
    ("Previous source", "In the preview", "step_source(-1)", "previous_source"),
    ("Show or hide the sources", "A pane, or a tab below 100 columns", "toggle_sources", "sources"),
)
_CHAT_ACTIONS = (
    ("New chat", "Empties the screen; the old one stays among the saved chats", "new_chat", "new_chat"),
    ("New private chat", "Nothing of it is saved", "new_chat(True)", ""),
    ("Saved chats", "Search, open, rename, delete", "chats", "chats"),
    ("Export this chat", "As Markdown or JSON, with its sources", "export", "export"),
    ("Find in this chat", "In questions, answers and quotes", "find", "find"),
)


def turn_commands(chat: ChatScreen, keymap: KeyMap) -> Iterator[SystemCommand]:
    """Yield what can be done with the selected turn of `chat` now."""

    def command(title: str, text: str, action: str, key: str) -> SystemCommand:
        run: Callable[[], Awaitable[None]] = partial(chat.run_action, action)
        return SystemCommand(title, with_key(text, keymap, key), run)

    for each in TURN_ACTIONS:
        if chat.check_action(each.name, ()):
            yield command(each.title, each.help, each.name, each.key)
    for entry in _CHAT_ACTIONS:
        yield command(*entry)
    for number in range(1, chat.number_of_sources + 1):
        key = f"source_{number}" if number <= NUMBER_OF_SOURCE_KEYS else ""
        yield command(f"Source {number}", "In the preview", f"show_source({number})", key)
    for entry in _SOURCE_ACTIONS if chat.number_of_sources else ():
        yield command(*entry)


def with_key(text: str, keymap: KeyMap, key: str) -> str:
    """Return the description of a command, with the key that does the same."""
    return f"{text} ({keymap.shown(key)})" if key else text
