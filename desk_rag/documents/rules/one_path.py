"""Rules of `exclude` that name one path: '~/notes/private/' below the home directory, '//srv/notes/private/' elsewhere.

All others are .gitignore patterns, which hold in every indexed folder.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

_SPECIAL = re.compile(r"([\\*?\[\]!#])")
_ONE_PATH = ("~/", "//")


def rule_for_path(path: Path, *, is_folder: bool) -> str:
    """Return the rule for exactly this path; what a pattern cannot hold becomes `?`, any character."""
    return f"{_names(path)[0]}{'/' if is_folder else ''}"


def holding_in(root: Path, rules: Iterable[str]) -> dict[str, str]:
    """Return the patterns that hold in one indexed folder, in order, and the rule that each comes from."""
    patterns: dict[str, str] = {}
    folders = [
        name if name.endswith("/") else f"{name}/"
        for place in (root, Path(os.path.realpath(root)))
        for name in _names(place)
    ]
    for rule in rules:
        named = rule.removeprefix("!")
        pattern = rule
        if named.startswith(_ONE_PATH):
            inside = next((named.removeprefix(folder) for folder in folders if named.startswith(folder)), "")
            if not inside:
                continue
            pattern = f"{'!' if named != rule else ''}/{inside}"
        patterns.pop(pattern, None)  # the last one decides
        patterns[pattern] = rule
    return patterns


def _names(path: Path) -> list[str]:
    """The path as rules name it, the shortest name first."""
    home, names = Path.home(), [f"/{_pattern(path)}"]
    if path == home or home in path.parents:
        names.insert(0, f"~/{_pattern(path.relative_to(home))}" if path != home else "~")
    return names


def _pattern(path: Path) -> str:
    escaped = _SPECIAL.sub(r"\\\1", path.as_posix())
    plain = "".join("?" if ord(c) < 32 or 0xDC80 <= ord(c) <= 0xDCFF else c for c in escaped)
    return re.sub(r"\s\Z", "?", plain)  # a pattern loses a space at its end
