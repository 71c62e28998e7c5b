"""Complete '@' names in the prompt: which one is being written, and which folders and files match it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from textual.fuzzy import Matcher

from desk_rag.answering.conversation import scope

_BEGUN = re.compile(r"""(?:^|(?<=[\s(\[]))(?<!\\)@(?:"(?P<quoted>[^"]*)|(?P<plain>(?:\\.|[^\s\\@"])*))$""")
_MOST_COMPARED = 5_000


@dataclass(frozen=True, slots=True)
class Begun:
    """The part of a name that was typed, ending at the cursor."""

    name: str
    start: int
    """Position of its '@' in the line."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A folder or file that can be named."""

    path: Path
    is_folder: bool
    token: str
    """Text that names it: '@letters/lease.md'."""


def begun(line: str) -> Begun | None:
    """Return the name that is being written at the end of `line`, None if there is none."""
    match = _BEGUN.search(line)
    if match is None:
        return None
    return Begun(match["quoted"] if match["quoted"] is not None else match["plain"], match.start())


def matching(name: str, names: scope.Names, bases: Sequence[Path], most: int) -> list[Choice]:
    """Return the folders and files that match `name` best, the best first; all begin to match an empty one.

    What is called just so stands before all others. Letters that stand apart count only if no path has them together.
    """
    wanted = name.replace("\\", "").casefold()
    scored: list[tuple[float, int, Path, bool]] = []
    matcher = Matcher(wanted) if wanted else None
    shown_names = [(_inside(path, bases).casefold() + ("/" if is_folder else ""), path, is_folder)
                   for path, is_folder in names.all()]  # fmt: skip
    holds = _holds if any(wanted in shown for shown, *_ in shown_names) else _holds_in_order
    for shown, path, is_folder in shown_names:
        if not holds(shown, wanted):
            continue
        is_whole = bool(wanted) and shown.rstrip("/") == wanted.rstrip("/")
        better = 100.0 if is_whole else 1.0 if path.name.casefold().startswith(wanted.rstrip("/")) else 0.0
        score = matcher.match(shown) if matcher is not None and len(scored) < _MOST_COMPARED else 0.0
        scored.append((-(better + score), len(shown), path, is_folder))
    scored.sort()
    return [
        Choice(path, is_folder, scope.token(path, is_folder=is_folder, bases=bases))
        for _, _, path, is_folder in scored[:most]
    ]


def _inside(path: Path, bases: Sequence[Path]) -> str:
    base = next((base for base in bases if path.is_relative_to(base) and path != base), None)
    return path.relative_to(base).as_posix() if base is not None else path.name


def _holds(text: str, letters: str) -> bool:
    """Return whether the letters stand together in a text."""
    return letters in text


def _holds_in_order(text: str, letters: str) -> bool:
    """Return whether the letters stand in a text in this order."""
    place = 0
    for letter in letters:
        place = text.find(letter, place) + 1
        if not place:
            return False
    return True
