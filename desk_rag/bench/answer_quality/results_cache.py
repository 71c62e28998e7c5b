"""Keep answers on disk while a run goes on: batches of JSON lines in a folder named by the configuration.

A batch counts when all of its lines are there, so a process that was killed goes on with the batch it was in, and
batches are the same ones as before: padding, and with it rounding, does not depend on when a run was stopped.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType

from desk_rag.bench.answer_quality.score import Marks
from desk_rag.errors import ConfigError

_FORMAT = 1
_LINES = "answers.jsonl"


@dataclass(frozen=True, slots=True)
class Answered:
    """One question in one mode."""

    output: str
    marks: Marks
    kl: float | None
    top1: float | None
    recomputed: float
    prefill_seconds: float
    select_seconds: float
    tokens: int
    """Chunks and question."""
    left_out: int


@dataclass(frozen=True, slots=True)
class Entry:
    """One question in all modes."""

    index: int
    """Index of the sample."""
    task: str
    modes: Mapping[str, Answered]
    """Modes by label, in the order of the run."""


def config_hash(configuration: Mapping[str, object]) -> str:
    """16 hex digits over everything that answers depend on."""
    text = json.dumps({"format": _FORMAT, **configuration}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class Journal:
    """The lines of one configuration; kept in memory alone where there is no folder."""

    def __init__(self, folder: Path | None, configuration: Mapping[str, object], batches: Sequence[Sequence[int]]):
        """`folder` holds one folder per configuration; `batches` are the samples' indices. Raises ConfigError."""
        self.name = config_hash(configuration)
        self._entries: dict[int, Entry] = {}
        self._file: Path | None = None
        if folder is None:
            return
        place = folder / self.name
        try:
            place.mkdir(parents=True, exist_ok=True)
            (place / "configuration.json").write_text(json.dumps(configuration, indent=1), encoding="utf-8")
            self._file = place / _LINES
            self._resume(batches)
        except OSError as error:
            raise ConfigError(f"{place} cannot be written: {error}", remedy="Give another folder.") from error

    def has(self, batch: Sequence[int]) -> bool:
        """Return whether all samples of `batch` have been answered."""
        return all(index in self._entries for index in batch)

    def add(self, entries: Sequence[Entry]) -> None:
        """Keep a batch; it is on its way to the disk when this returns."""
        self._entries |= {entry.index: entry for entry in entries}
        if self._file is not None:
            with self._file.open("ab") as file:
                file.write(_encoded(entries))
                file.flush()
                os.fsync(file.fileno())

    @property
    def entries(self) -> list[Entry]:
        """Return the entries by index."""
        return [self._entries[index] for index in sorted(self._entries)]

    def _resume(self, batches: Sequence[Sequence[int]]) -> None:
        assert self._file is not None
        if not self._file.exists():
            return
        content = self._file.read_bytes()
        entries: dict[int, Entry] = {}
        for line in content.split(b"\n"):
            entry = _decoded(line)
            if entry is not None:
                entries[entry.index] = entry
        kept = [entries[index] for batch in batches if all(i in entries for i in batch) for index in batch]
        self._entries = {entry.index: entry for entry in kept}
        rewritten = _encoded(kept)
        if rewritten != content:
            beside = self._file.with_suffix(".tmp")
            beside.write_bytes(rewritten)
            beside.replace(self._file)


def _encoded(entries: Sequence[Entry]) -> bytes:
    lines = []
    for entry in entries:
        modes = {label: asdict(answered) for label, answered in entry.modes.items()}
        lines.append(json.dumps({"index": entry.index, "task": entry.task, "modes": modes}) + "\n")
    return "".join(lines).encode()


def _decoded(line: bytes) -> Entry | None:
    """None for a line that was cut off."""
    try:
        value = json.loads(line)
        modes = {}
        for label, fields in value["modes"].items():
            modes[label] = Answered(**(fields | {"marks": Marks(**fields["marks"])}))
        return Entry(int(value["index"]), str(value["task"]), MappingProxyType(modes))
    except (ValueError, KeyError, TypeError):
        return None


def by_task(entries: Sequence[Entry]) -> dict[str, list[Entry]]:
    """Entries under their tasks, in order of first appearance."""
    grouped: dict[str, list[Entry]] = defaultdict(list)
    for entry in entries:
        grouped[entry.task].append(entry)
    return dict(grouped)
