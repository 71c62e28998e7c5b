"""Damage that this process found in a catalog, kept until it is read again, so that every answer can say so."""

from __future__ import annotations

import threading
from pathlib import Path

from desk_rag.store.types import Fault


class Faults:
    """The faults one process knows of. Safe to use from several threads."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._found: dict[Fault, None] = {}

    def add(self, what: str, path: Path | None = None) -> None:
        """Note that something is damaged; `path` is the document that has to be read anew, if that can be told."""
        with self._guard:
            self._found[Fault(what, path)] = None

    def all(self) -> tuple[Fault, ...]:
        """Return what is known to be damaged, in the order of finding."""
        with self._guard:
            return tuple(self._found)

    def forget(self, path: Path) -> None:
        """A document was read anew, or removed."""
        with self._guard:
            self._found = {fault: None for fault in self._found if fault.path != path}

    def clear(self) -> None:
        """Everything was repaired."""
        with self._guard:
            self._found = {}
