"""Make text from documents, file names and models safe to show in a terminal.

Every sink (TUI, CLI, logs, window title) passes such text through `clean`: an indexed file must not be able to move the
cursor, write the clipboard (OSC 52), fake a link (OSC 8) or reverse a line (bidi). Parsers take terminal codes out of
what they read with `without_terminal_codes`, so that they are neither indexed nor quoted.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

_ESCAPE_SEQUENCES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # CSI
    r"|\x1b[\]PX^_][^\x07\x1b\x9c\n]*(?:\x1b\\|\x07|\x9c)"  # OSC, DCS, SOS, PM, APC up to their terminator
    r"|\x1b[ -/]*[0-~]"  # two-character escapes
    r"|\x9b[0-?]*[ -/]*[@-~]"  # CSI as one C1 byte
    r"|[\x90\x98\x9d-\x9f][^\x07\x1b\x90\x98\x9c-\x9f\n]*(?:\x1b\\|\x9c|\x07)"  # the same opened by a C1 byte
)
"""A string without a terminator loses only its opener, and the rest becomes plain text: wrongly decoded documents are
full of C1 codes, and what follows them must not vanish."""
_BARE_SEQUENCES = re.compile(
    # A text about terminal codes spells out the escape character in front of them.
    r"(?<!\\033)(?<!\\0)(?<!\\e)(?<!\\E)(?<!\\x1[bB])(?<!\\u001[bB])(?<!ESC)(?<!CSI)(?<!\^\[)"
    r"\[(?:\d{1,3}(?:;\d{1,3})*m|[0-3]J|[0-2]K|\d{1,3};\d{1,3}[Hf]|\?\d{1,4}[hl])"
    r"(?![^\[\]\n]*\])"  # [2K video] is text: what a terminal code opens is never closed
)
"""Codes whose escape character was lost when the text was copied: colours, erasing, cursor positions, modes."""
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_INVISIBLE = re.compile(
    "[\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]"
)


def without_terminal_codes(text: str, *, bare: bool = True) -> str:
    """Return `text` without terminal escape sequences; line ends stay.

    With `bare`, also without what is left of such a sequence when its escape character was lost: '[2J', '[31m'.
    """
    if "\x1b" in text or "\x9b" in text:
        text = _ESCAPE_SEQUENCES.sub("", text).replace("\x1b", "")
    return _BARE_SEQUENCES.sub("", text) if bare and "[" in text else text


def clean(text: str, *, single_line: bool = False) -> str:
    """Return `text` without escape sequences or control characters; invisible and bidi ones become ⟨U+XXXX⟩.

    Newline and tab stay, unless `single_line`, which turns every run of white space into one space.
    """
    if text.isascii() and text.isprintable():  # most names: nothing below would change them
        return " ".join(text.split()) if single_line else text
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    text = _ESCAPE_SEQUENCES.sub("", text)
    text = _CONTROLS.sub("", text)
    text = _INVISIBLE.sub(lambda match: f"⟨U+{ord(match.group()):04X}⟩", text)
    text = text.encode("utf-8", "replace").decode("utf-8")
    return " ".join(text.split()) if single_line else text


def clean_name(name: str) -> str:
    """Return a file name or path in one line; what `clean` would drop leaves a mark, for it is part of the name."""
    if name.isascii() and name.isprintable():
        return name
    marked = _ESCAPE_SEQUENCES.sub("⟨ESC⟩", name)
    marked = re.sub(r"[\x00-\x1f\x7f-\x9f]", lambda match: f"⟨U+{ord(match.group()):04X}⟩", marked)
    return clean(marked)  # blanks are part of the name, too


def shown_path(path: Path, bases: Sequence[Path] = ()) -> str:
    """`path` as a person would write it: relative to one of `bases` or to the current folder, else with '~'.

    In the home folder, and above it, paths begin with '~' too, so that they read as everywhere else.
    """
    here = os.getcwd()  # noqa: PTH109 - paths are compared as text, many times faster than by their parts
    for base in (*map(str, bases), *(() if _below(os.path.expanduser("~"), here) is not None else (here,))):  # noqa: PTH111
        if relative := _below(str(path), base):
            return clean_name(relative)
    return home_path(path)


def home_path(path: Path) -> str:
    """Return `path` with '~' for the home folder."""
    relative = _below(str(path), os.path.expanduser("~"))  # noqa: PTH111
    return clean_name(str(path) if relative is None else os.path.join("~", relative).rstrip(os.sep))  # noqa: PTH118


def _below(path: str, folder: str) -> str | None:
    """Return a path relative to a folder, '' for the folder itself; None if it is not at or below it."""
    if path == folder:
        return ""
    prefix = folder.rstrip(os.sep) + os.sep
    return path[len(prefix) :] if path.startswith(prefix) else None


def quoted_path(path: Path) -> str:
    """Return `path` as an argument of a shell command, with '~' for the home folder outside the quotes."""
    home = Path.home()
    if path == home or not path.is_relative_to(home):
        return shlex.quote(str(path))
    return f"~/{shlex.quote(str(path.relative_to(home)))}"
