"""Define the dark and the light colour theme, and read the user's own; no colour carries meaning alone."""

from __future__ import annotations

import dataclasses
import difflib
import re
import tomllib
from pathlib import Path

from textual.color import Color, ColorParseError
from textual.theme import BUILTIN_THEMES, Theme

from desk_rag.sanitize import clean, home_path

DARK = Theme(
    name="desk-rag",
    dark=True,
    primary="#8aa9c8",
    secondary="#7d8a99",
    accent="#e2b86b",
    foreground="#d5d9de",
    background="#14171b",
    surface="#1a1e23",
    panel="#22272e",
    success="#93bf8c",
    warning="#e2b86b",
    error="#e08585",
)
LIGHT = Theme(
    name="desk-rag-light",
    dark=False,
    primary="#33608c",
    secondary="#66707a",
    accent="#8a5806",
    foreground="#14181d",
    background="#fbfaf7",
    surface="#f3f1ec",
    panel="#e7e4dc",
    success="#377231",
    warning="#8a5806",
    error="#b03a3a",
)
_COLOURS = (
    "foreground", "background", "surface", "panel", "primary", "secondary", "accent", "success", "warning", "error",
)  # fmt: skip
"""What a file of a theme may name, beside `dark`."""
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
"""Textual makes a class of the style sheet of it."""


def themes_folder(settings_file: Path) -> Path:
    """Return the folder of the user's own themes, beside the settings file."""
    return settings_file.parent / "themes"


def own_themes(folder: Path) -> tuple[list[Theme], list[str]]:
    """Return the themes of the user's files, and what is wrong with those that cannot be used.

    `paper.toml` is the theme "paper". It names some colours; the others are those of desk-rag's dark or light theme.
    """
    themes, faults = [], []
    for file in sorted(folder.glob("*.toml")):
        try:
            themes.append(_theme_of(file))
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            faults.append(f"The theme {home_path(file)} cannot be used: {reason.rstrip('.')}.")
    return themes, faults


def _theme_of(file: Path) -> Theme:
    if not _NAME.fullmatch(file.stem):
        raise ValueError("its name has other signs than letters, digits, - and _")
    if file.stem in BUILTIN_THEMES or file.stem in (DARK.name, LIGHT.name):
        raise ValueError("a theme that comes with desk-rag has this name")
    values = tomllib.loads(file.read_text(encoding="utf-8"))
    dark = values.pop("dark", True)
    if not isinstance(dark, bool):
        raise ValueError("dark is true or false")
    for name, value in values.items():
        if name not in _COLOURS:
            nearest = difflib.get_close_matches(name, _COLOURS, n=1)
            hint = f"did you mean {nearest[0]}?" if nearest else f"there are {', '.join(_COLOURS)}"
            raise ValueError(f"{clean(name, single_line=True)} is no colour of a theme; {hint}")
        if not _is_colour(value):
            raise ValueError(f"{name} is no colour; colours are such as '#d5d9de' or 'teal'")
    return dataclasses.replace(DARK if dark else LIGHT, name=file.stem, **values)


def _is_colour(value: object) -> bool:
    try:
        return isinstance(value, str) and Color.parse(value).ansi is None
    except ColorParseError:
        return False
