"""The written dialogues: three turns each about a small fictional folder, with every question also written out.

`desks/NAME.txt` holds the files of a folder, each after a line '=== PATH'; `desks/NAME.jsonl` one dialogue per line.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

_DESKS = Path(__file__).parent / "desks"
_FILE = re.compile(r"^=== (.+)\n", re.MULTILINE)
DEVELOPED_ON, HELD_OUT = "wharf", "clinic"


@dataclass(frozen=True, slots=True)
class WrittenTurn:
    """One question of a dialogue."""

    question: str
    alone: str
    """The same question written out, so that it stands alone."""
    answers: tuple[str, ...]
    """A right answer or its quote contains one of them."""
    file: str


def names() -> list[str]:
    """Return the names of the folders."""
    return sorted(file.stem for file in _DESKS.glob("*.txt"))


def dialogues(name: str) -> list[tuple[WrittenTurn, ...]]:
    """Return the dialogues about a folder."""
    lines = (_DESKS / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    return [
        tuple(WrittenTurn(t["question"], t["alone"], tuple(t["answers"]), t["file"]) for t in json.loads(line)["turns"])
        for line in lines
    ]


def write(name: str, folder: Path) -> None:
    """Write the files of a folder below `folder`."""
    _, *parts = _FILE.split((_DESKS / f"{name}.txt").read_text(encoding="utf-8"))
    for path, text in zip(parts[0::2], parts[1::2], strict=True):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")
