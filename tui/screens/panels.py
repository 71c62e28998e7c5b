"""The screens beside the chat, by the name of the action that opens them, with their keys."""

from __future__ import annotations

from typing import NamedTuple

from desk_rag.tui.screens.activity import ActivityScreen
from desk_rag.tui.screens.cache import CacheScreen
from desk_rag.tui.screens.doctor import DoctorScreen
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
    "activity": Panel("f4", "Activity", "How far indexing is, why it waits, pause, work now", ActivityScreen),
    "cache": Panel("f5", "Cache", "Room, use, what would be deleted next, verify", CacheScreen),
    "doctor": Panel("f8", "Doctor", "Check the installation, with a remedy for each fault", DoctorScreen),
    "library": Panel("f3", "Library", "Folders and files: what was read, what not and why", LibraryScreen),
}
