"""The screens beside the chat, by the name of the action that opens them; each is imported when it is opened."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING

from textual.app import SystemCommand
from textual.binding import Binding

if TYPE_CHECKING:
    from desk_rag.tui.panels.base import PanelScreen


@dataclass(frozen=True, slots=True)
class Panel:
    """Key and class of a screen."""

    key: str
    title: str
    about: str
    """Description in the command palette."""
    class_name: str

    def load(self, name: str) -> type[PanelScreen]:
        """Import the screen."""
        screen: type[PanelScreen] = getattr(import_module(f"desk_rag.tui.panels.{name}"), self.class_name)
        return screen


PANELS = {
    "activity": Panel("f4", "Activity", "How far indexing is, why it waits, pause, work now", "ActivityScreen"),
    "cache": Panel("f5", "Cache", "Room, use, what would be deleted next, verify", "CacheScreen"),
    "doctor": Panel("f8", "Doctor", "Check the installation, with a remedy for each fault", "DoctorScreen"),
    "settings": Panel("f2", "Settings", "Every setting, what it means, where it comes from", "SettingsScreen"),
    "library": Panel("f3", "Library", "Folders and files: what was read, what not and why", "LibraryScreen"),
}


def panel_bindings() -> list[Binding]:
    """Return the keys of all screens, for the app."""
    return [
        Binding(panel.key, f"panel('{name}')", panel.title, show=False, priority=True) for name, panel in PANELS.items()
    ]


def panel_commands(open_panel: Callable[[str], None]) -> Iterator[SystemCommand]:
    """Yield the entries of the command palette for all screens."""
    for name, panel in PANELS.items():
        yield SystemCommand(panel.title, f"{panel.about} ({panel.key.upper()})", partial(open_panel, name))
