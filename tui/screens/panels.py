"""The screens beside the chat, by the name of the action that opens them, with their keys."""

from __future__ import annotations

from typing import NamedTuple

from desk_rag.tui.screens.library import LibraryScreen
from desk_rag.tui.screens.panel import PanelScreen


class Panel(NamedTuple):
    """How a screen is reached."""

    key: str
    title: str
    about: str
    """What the command palette says of it."""
    screen: type[PanelScreen]


PANELS = {
    "library": Panel("f3", "Library", "Folders and files: what was read, what not and why", LibraryScreen),
}
