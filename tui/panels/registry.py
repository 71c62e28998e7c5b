"""The screens beside the chat, by the name of the action that opens them; each is imported when it is opened."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING

from textual.app import SystemCommand
from textual.binding import Binding

from desk_rag.tui.keys.bindings import bound
from desk_rag.tui.palette import with_key

if TYPE_CHECKING:
    from desk_rag.tui.keys.keymap import KeyMap
    from desk_rag.tui.panels.base import PanelScreen


@dataclass(frozen=True, slots=True)
class Panel:
    """Title and class of a screen. Its name is that of the action with its key."""

    title: str
    about: str
    """Description in the command palette."""
    class_name: str

    def load(self, name: str) -> type[PanelScreen]:
        """Import the screen."""
        screen: type[PanelScreen] = getattr(import_module(f"desk_rag.tui.panels.{name}"), self.class_name)
        return screen


PANELS = {
    "activity": Panel("Activity", "How far indexing is, why it waits, pause, work now", "ActivityScreen"),
    "cache": Panel("Cache", "Room, use, what would be deleted next, verify", "CacheScreen"),
    "doctor": Panel("Doctor", "Check the installation, with a remedy for each fault", "DoctorScreen"),
    "settings": Panel("Settings", "Every setting, what it means, where it comes from", "SettingsScreen"),
    "models": Panel("Models", "Models on this computer, which of them fit, choose one", "ModelsScreen"),
    "library": Panel("Library", "Folders and files: what was read, what not and why", "LibraryScreen"),
}


def panel_bindings() -> list[Binding]:
    """Return the keys of all screens, for the app."""
    return [
        bound(name, f"panel('{name}')", panel.title, show=name == "library", priority=True)
        for name, panel in PANELS.items()
    ]


def panel_commands(open_panel: Callable[[str], None], keymap: KeyMap) -> Iterator[SystemCommand]:
    """Yield the entries of the command palette for all screens."""
    for name, panel in PANELS.items():
        yield SystemCommand(panel.title, with_key(panel.about, keymap, name), partial(open_panel, name))
