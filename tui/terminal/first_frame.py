"""The first frame, drawn before Textual is imported: title, prompt and status where the screen will have them.

What is typed meanwhile stays in the terminal's buffer, unseen, until the prompt is there to take it.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from desk_rag.sanitize import clean_name
from desk_rag.tui.terminal.locale import wants_ascii

_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?1049l\x1b[?25h"
_COLOURS = {
    "desk-rag": ("213;217;222", "20;23;27", "26;30;35", "138;169;200", "34;39;46"),
    "desk-rag-light": ("35;40;46", "251;250;247", "243;241;236", "51;96;140", "231;228;220"),
}
"""Foreground, background, surface, primary and panel of the themes in `tui.themes`, as decimal numbers."""


class FirstFrame:
    """Hold of the terminal until the UI takes it over; `give_back` restores it if that never happens."""

    def __init__(self) -> None:
        self._before: list[Any] | None = None

    @property
    def before(self) -> list[Any] | None:
        """The terminal's attributes as they were, which the UI restores in the end; None if nothing was drawn."""
        return self._before

    def draw(self, folders: Sequence[Path], theme: str, *, plain: bool) -> None:
        """Draw the frame; nothing happens where that is not possible."""
        if sys.platform == "win32" or theme not in _COLOURS or plain or wants_ascii(os.environ):
            return
        if "NO_COLOR" in os.environ:
            return
        import termios

        descriptor = sys.stdin.fileno()
        try:
            before = termios.tcgetattr(descriptor)
            raw = termios.tcgetattr(descriptor)
            raw[0] &= ~termios.ICRNL  # Enter stays Enter
            raw[3] &= ~(termios.ECHO | termios.ICANON)
            termios.tcsetattr(descriptor, termios.TCSANOW, raw)
            self._before = before
            sys.stdout.write(frame(folders, theme, *shutil.get_terminal_size()))
            sys.stdout.flush()
        except (OSError, ValueError, termios.error):
            self.give_back()

    def give_back(self) -> None:
        """Restore the terminal."""
        if self._before is None:
            return
        import termios

        before, self._before = self._before, None
        termios.tcsetattr(sys.stdin.fileno(), termios.TCSANOW, before)
        sys.stdout.write(_LEAVE)
        sys.stdout.flush()


def frame(folders: Sequence[Path], theme: str, columns: int, rows: int) -> str:
    """Return what draws the frame on a terminal of this size."""
    foreground, background, surface, primary, panel = _COLOURS[theme]
    names = ", ".join(clean_name(folder.name or str(folder)) for folder in folders)
    ground = f"\x1b[0;38;2;{foreground};48;2;{background}m"
    title = " desk-rag"
    lines = [
        f"\x1b[H{ground}\x1b[2J",
        f"\x1b[48;2;{surface}m\x1b[1m{title}\x1b[22m  {names[: max(0, columns - len(title) - 3)]}\x1b[K",
        f"\x1b[{rows - 2};1H\x1b[38;2;{primary};48;2;{panel}m▌\x1b[38;2;{foreground};48;2;{surface}m "
        "Ask about your files\x1b[K",
        f"\x1b[{rows - 1};1H{ground} \x1b[38;2;{primary}m◌ \x1b[38;2;{foreground}mstarting\x1b[K",
    ]
    return _ENTER + "".join(lines)
