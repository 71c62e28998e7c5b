"""Write one of the fictional folders to ask about: mails, letters, minutes, tables, logs, settings and code.

`desks/NAME.txt` holds all files of a folder, each after a line '=== PATH'. After '=== * PATH' comes a table of values
and a template, from which one file per row is made: material that resembles itself, as years of minutes do. Folders
with office files, PDFs and the like are in `desks/NAME.zip`.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterator
from pathlib import Path

from desk_rag.errors import ConfigError

_DESKS = Path(__file__).parent / "desks"
_FILE = re.compile(r"^=== (\* )?(.+)\n", re.MULTILINE)


def names() -> list[str]:
    """Names of the folders that can be written."""
    return sorted([*text_names(), *(file.stem for file in _DESKS.glob("*.zip"))])


def text_names() -> list[str]:
    """Names of those that hold nothing but text."""
    return sorted(file.stem for file in _DESKS.glob("*.txt"))


def questions_of(name: str) -> Path:
    """The file of questions about a folder."""
    return _DESKS / f"{name}.jsonl"


def files(name: str) -> dict[str, str]:
    """The files of a folder of text: content by path. Raises ConfigError for an unknown name."""
    if name not in text_names():
        raise ConfigError(f"There is no desk '{name}'.", remedy=f"Desks: {', '.join(names())}.")
    text = (_DESKS / f"{name}.txt").read_text(encoding="utf-8")
    _, *parts = _FILE.split(text)
    content: dict[str, str] = {}
    for series, path, body in zip(parts[0::3], parts[1::3], parts[2::3], strict=True):
        content |= dict(_rows(path, body)) if series else {path: body}
    return content


def write(name: str, folder: Path) -> None:
    """Write the files of a folder below `folder`. Raises ConfigError for an unknown name."""
    archive = _DESKS / f"{name}.zip"
    if archive.is_file():
        with zipfile.ZipFile(archive) as packed:
            packed.extractall(folder)
        return
    for path, text in files(name).items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")


def _rows(path: str, body: str) -> Iterator[tuple[str, str]]:
    table, _, template = body.partition("---\n")
    header, *rows = ([cell.strip() for cell in line.split(" | ")] for line in table.splitlines())
    for row in rows:
        values = dict(zip(header, row, strict=True))
        yield path.format(**values), template.format(**values)
