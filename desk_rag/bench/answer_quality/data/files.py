"""Data files to JSON values: .jsonl, .json and either of them in .xz; every complaint names file and line."""

from __future__ import annotations

import json
import lzma
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from desk_rag.errors import ConfigError

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Line:
    """One JSON object and where it stands."""

    file: Path
    number: int
    """1-based: the line, or the entry where the file is one JSON list."""
    value: Mapping[str, object]

    def read(self, reader: Callable[[Mapping[str, object]], _T]) -> _T:
        """`reader` of the object; its ValueError, KeyError and TypeError become ConfigError with file and line."""
        try:
            return reader(self.value)
        except KeyError as error:
            raise self.wrong(f"{error} is missing") from error
        except (ValueError, TypeError, IndexError, AttributeError) as error:
            raise self.wrong(str(error)) from error

    def wrong(self, what: str) -> ConfigError:
        """The error that says what is wrong here."""
        return ConfigError(f"{self.file}, line {self.number}: {what}.", remedy=_REMEDY)


_REMEDY = "Give a file of the form that --form names; `desk-rag bench quality --help` lists them."


def read_text(file: Path) -> str:
    """The file's text, unpacked if its name ends in .xz. Raises ConfigError."""
    try:
        content = file.read_bytes()
        return (lzma.decompress(content) if file.suffix == ".xz" else content).decode("utf-8-sig")
    except (OSError, lzma.LZMAError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} cannot be read: {error}", remedy=_REMEDY) from error


def read_lines(file: Path) -> list[Line]:
    """The objects of a file of JSON lines, or of one JSON list. Raises ConfigError; an empty file is one too."""
    text = read_text(file)
    if text.lstrip().startswith("["):
        value = read_document(file, text)
        entries = list(enumerate(value if isinstance(value, list) else [], start=1))
    else:
        entries = list(_split(file, text))
    lines = []
    for number, entry in entries:
        if not isinstance(entry, dict):
            raise ConfigError(f"{file}, line {number}: no JSON object.", remedy=_REMEDY)
        lines.append(Line(file, number, entry))
    if not lines:
        raise ConfigError(f"{file} holds no data.", remedy=_REMEDY)
    return lines


def read_document(file: Path, text: str | None = None) -> object:
    """The file as one JSON value. Raises ConfigError."""
    try:
        value: object = json.loads(read_text(file) if text is None else text)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{file}, line {error.lineno}: {error.msg}.", remedy=_REMEDY) from error
    return value


def _split(file: Path, text: str) -> Iterator[tuple[int, object]]:
    # Not splitlines: text inside JSON strings may hold U+2028, which that takes for the end of a line.
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            yield number, json.loads(line)
        except json.JSONDecodeError as error:
            raise ConfigError(f"{file}, line {number}: {error.msg}.", remedy=_REMEDY) from error
