"""Choose the program that opens a source or edits a question, and its arguments: never a shell command line.

A name such as `-rf` or `$(x).md` stays one absolute argument. What a desktop opener might run as a program is refused.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from desk_rag.documents.chunking import Location
from desk_rag.documents.formats import PlaceUnits
from desk_rag.errors import ConfigError, DocumentError, UnreadableDocument

_PLUS_LINE = {"vi", "vim", "nvim", "nano", "emacs", "emacsclient", "micro", "kak", "joe", "ne", "mg"}
_GOTO = {"code", "codium", "code-insiders", "cursor"}
_COLON_LINE = {"hx", "helix", "subl", "zed"}
_WINDOWED = _GOTO | {"subl", "zed", "gedit", "kate", "gvim"}
_WAIT_OPTIONS = {**dict.fromkeys(_GOTO | {"subl", "zed", "gedit"}, "--wait"), "kate": "--block", "gvim": "--nofork"}
"""What makes an editor with a window of its own end only when the file is closed."""
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
_PROGRAM_BEGINNINGS = (b"#!", b"\x7fELF", b"MZ", b"\xcf\xfa\xed\xfe", b"\xca\xfe\xba\xbe")
_PAGE_OPTIONS = {
    "evince": "--page-index={}",
    "atril": "--page-index={}",
    "xreader": "--page-index={}",
    "okular": "--page={}",
    "zathura": "--page={}",
}
"""Viewers of PDF files and how each is told the page."""
_DESKTOP_FILES = {"org.gnome.Evince": "evince", "org.kde.okular": "okular", "org.pwmt.zathura": "zathura"}
_ASK_SECONDS = 2.0
_LINE = PlaceUnits().line
"""Rows of a sheet are no lines of its file."""


@dataclass(frozen=True, slots=True)
class Opening:
    """A command that opens one file."""

    argv: tuple[str, ...]
    in_terminal: bool
    """True if the program needs the terminal, so that the app must step aside meanwhile."""


def opening(path: Path, location: Location, environment: Mapping[str, str]) -> Opening | None:
    """Return how to open `path`: a file with lines in the user's editor at the line, else the desktop's program.

    None if there is no such program; the text can then be shown inside. Raises UnreadableDocument if the file is gone,
    DocumentError if it could be run.
    """
    path = path.absolute()
    if not path.is_file():
        raise UnreadableDocument(f"{path} is not there any more.", remedy="The quote is kept in the transcript.")
    editor = _users_editor(environment)
    if location.line_start is not None and location.units.line == _LINE and editor:
        return _in_editor(editor, path, location.line_start)
    if path.suffix.lower() in _RUNNABLE or _is_program(path):
        raise DocumentError(f"{path} can be run as a program, so it is not opened.", remedy="Open it by hand.")
    program = _desktop_opener(environment)
    if program is None:
        return None
    if location.page_start is not None and path.suffix.lower() == ".pdf":
        viewer = _pdf_viewer()
        if viewer is not None:
            option = _PAGE_OPTIONS[Path(viewer).name].format(location.page_start)
            return Opening((viewer, option, str(path)), in_terminal=False)
    return Opening((program, str(path)), in_terminal=False)


def editor_for_text(environment: Mapping[str, str]) -> list[str]:
    """Return the user's editor and its arguments. Raises ConfigError if none is named, or if it is not installed."""
    editor = _users_editor(environment)
    if not editor:
        raise ConfigError("No editor is named.", remedy="Set VISUAL or EDITOR in your shell, such as EDITOR=nano.")
    check_installed(editor[0])
    return editor


def check_installed(program: str) -> None:
    """Raise ConfigError if the user's editor cannot be started, so that the app need not step aside for nothing."""
    if shutil.which(program) is None:
        remedy = "Set VISUAL or EDITOR in your shell to an editor that is installed, such as EDITOR=vi."
        raise ConfigError(f"{program} is not installed.", remedy=remedy)


def edit(text: str, editor: Sequence[str]) -> str:
    """Let the user edit `text` in `editor`, and return it once that has ended.

    The text lies in a private directory meanwhile, which is removed with whatever the editor leaves there. Raises
    ConfigError if the editor cannot be started, or if it reports a failure.
    """
    editor = list(editor)
    waiting = _WAIT_OPTIONS.get(Path(editor[0]).name)
    if waiting and waiting not in editor:
        editor.append(waiting)
    with tempfile.TemporaryDirectory(prefix="desk-rag-question-") as place:
        file = Path(place) / "question.txt"
        with file.open("x", encoding="utf-8") as new:
            new.write(text)
        try:
            failed = subprocess.run([*editor, str(file)], check=False).returncode
            edited = file.read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            remedy = "Set VISUAL or EDITOR to a program that is installed."
            raise ConfigError(f"{editor[0]} could not edit the question: {error.strerror}.", remedy=remedy) from error
    if failed:
        raise ConfigError(f"{editor[0]} ended with an error ({failed}).", remedy="The prompt stays as it was.")
    return edited.rstrip()


def _users_editor(environment: Mapping[str, str]) -> list[str]:
    """Return the user's editor and its arguments; empty if none is named."""
    return shlex.split(environment.get("VISUAL") or environment.get("EDITOR") or "")


def _is_program(path: Path) -> bool:
    """Return whether a desktop might run the file; files of some drives and archives carry the bit for nothing."""
    if not os.access(path, os.X_OK):
        return False
    with path.open("rb") as file:
        return file.read(4).startswith(_PROGRAM_BEGINNINGS)


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


def _pdf_viewer() -> str | None:
    """Return the desktop's viewer of PDF files if it can be told a page."""
    asking = shutil.which("xdg-mime")
    if asking is None:
        return None
    command = [asking, "query", "default", "application/pdf"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_ASK_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return None
    name = answer.stdout.strip().removesuffix(".desktop")
    name = _DESKTOP_FILES.get(name, name)
    return shutil.which(name) if name in _PAGE_OPTIONS else None
