"""Facts that the process with the models tells the UI that it works for. Imports nothing heavy."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from desk_rag.store.store import Store

_SOON = 20.0
"""Seconds after its start in which an indexing process need not show activity; later, silence means that none runs."""


@dataclass(frozen=True, slots=True)
class Started:
    """Facts about an engine that can answer."""

    model: str
    """Name shown in the title bar, such as 'embedded reader'."""
    device: str
    """'CPU', the name of the GPU, or that of the process that answers."""
    markdown: bool = False
    """True if the model writes Markdown; the embedded reader writes words of the documents."""
    notices: tuple[str, ...] = ()
    """Sentences about what happened when the store was opened, such as repaired damage or a read-only drive."""
    namespace: str = ""
    """Namespace of the model's chunk KV; empty if it is not known."""
    embedder: str = ""
    """Name of the embedder's vectors; empty if it is not known."""


@dataclass(frozen=True, slots=True)
class IndexingState:
    """State of the indexing that belongs to an engine, at one moment."""

    pid: int = 0
    """Process that indexes; 0 if none of this engine does."""
    is_reading: bool = False
    """True while the folders are being looked through or files are being read, or will be within seconds."""
    changed_files: tuple[Path, ...] = ()
    """Files that changed and were not read yet, as far as the system reported them."""


def is_young(since: float) -> bool:
    """Return whether `since` is so recent that a process that indexes may not have said anything yet."""
    return time.monotonic() - since < _SOON


def is_being_read(store: Store, since: float) -> bool:
    """Return whether another process reads files; one that has started after `since` may not have said so yet."""
    from desk_rag.ingest import freshness

    return freshness.is_reading(store) or (is_young(since) and store.activity() is None)
