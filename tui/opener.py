"""Choose the program that opens a source, and its arguments: a list, never a shell command line.

A name such as `-rf` or `$(x).md` stays one absolute argument. What could run as a program is refused, because a
desktop opener might run it.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from desk_rag.answering.events import Source
from desk_rag.errors import DocumentError, UnreadableDocument

_PLUS_LINE = {"vi", "vim", "nvim", "nano", "emacs", "emacsclient", "micro", "kak", "joe", "ne", "mg"}
_GOTO = {"code", "codium", "code-insiders", "cursor"}
_COLON_LINE = {"hx", "helix", "subl", "zed"}
_WINDOWED = _GOTO | {"subl", "zed", "gedit", "kate", "gvim"}
_RUNNABLE = {
    ".desktop",
    ".appimage",
    ".exe",
    ".bat",
    ".cmd",
    ".com",
    ".msi",
    ".ps1",
    ".jar",
    ".app",
    ".command",
    ".lnk",
}


@dataclass(frozen=True, slots=True)
class Opening:
    """How to open one file."""

    argv: tuple[str, ...]
    in_terminal: bool
    """True if the program needs the terminal, so that the app must step aside meanwhile."""


def opening(source: Source, environment: Mapping[str, str]) -> Opening:
    """Return how to open `source`: a file with lines in the user's editor at the line, else the desktop's program.

    Raises UnreadableDocument if the file is gone, DocumentError if nothing suitable is there or it could be run.
    """
    path = source.path.absolute()
    if not path.is_file():
        raise UnreadableDocument(f"{path} is not there any more.", remedy="The quote is kept in the transcript.")
    editor = shlex.split(environment.get("VISUAL") or environment.get("EDITOR") or "")
    if source.location.line_start is not None and editor:
        return _in_editor(editor, path, source.location.line_start)
    if path.suffix.lower() in _RUNNABLE or os.access(path, os.X_OK):
        raise DocumentError(f"{path} can be run as a program, so it is not opened.", remedy="Open it by hand.")
    program = _desktop_opener(environment)
    if program is None:
        raise DocumentError(
            f"No program to open {path} with.", remedy="Set EDITOR for text files; others need a graphical desktop."
        )
    return Opening((program, str(path)), in_terminal=False)


def _in_editor(editor: list[str], path: Path, line: int) -> Opening:
    name = Path(editor[0]).name
    if name in _GOTO:
        arguments = ["--goto", f"{path}:{line}"]
    elif name in _COLON_LINE:
        arguments = [f"{path}:{line}"]
    elif name in _PLUS_LINE:
        arguments = [f"+{line}", str(path)]
    else:
        arguments = [str(path)]
    return Opening((*editor, *arguments), in_terminal=name not in _WINDOWED)


def _desktop_opener(environment: Mapping[str, str]) -> str | None:
    if sys.platform == "darwin":
        return shutil.which("open")
    if environment.get("DISPLAY") or environment.get("WAYLAND_DISPLAY"):
        return shutil.which("xdg-open")
    return None
