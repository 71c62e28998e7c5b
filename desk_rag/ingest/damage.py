"""Repair and report damage in the index while a question is answered.

A damaged row is never used. The writer reads its file again at once if the file is small; otherwise the answer lacks
that source and says so, and the file is read at the next sweep of its folder.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from desk_rag.config import IndexSettings
from desk_rag.documents.status import FileState, plural
from desk_rag.errors import StoreError, catalog_lost
from desk_rag.ingest import freshness

if TYPE_CHECKING:
    from desk_rag.model.prompt import PromptFormat
    from desk_rag.store.store import Store

_MOST_FILES = 4
_MOST_BYTES = 4 << 20
"""Size of the largest file that an answer waits for."""


def read_damaged(store: Store, prompt: PromptFormat, settings: IndexSettings) -> tuple[Path, ...]:
    """Read the files of damaged rows again, a few small ones at once, and return those that were repaired.

    The others are marked to be read at the next sweep of their folder. Raises StoreError.
    """
    from desk_rag.ingest.file_update import FileReader

    damaged = list(dict.fromkeys(fault.path for fault in store.faults() if fault.path is not None))
    repaired: list[Path] = []
    for path in damaged:
        if store.writer and len(repaired) < _MOST_FILES and _is_small(path):
            event = FileReader(store, prompt, prompt.chunk_size, settings).reread(path)
            if event is not None and event.state is FileState.INDEXED:
                repaired.append(path)
                continue
        store.read_again(path)
    return tuple(repaired)


@dataclass(frozen=True, slots=True)
class Gap:
    """A part that the index lacks."""

    sentence: str
    remedy: str
    """A command, or what it does."""
    is_open_run: bool = False
    """An indexing run that met no fault; it may still be going on."""


def gaps(store: Store, under: Sequence[Path]) -> list[Gap]:
    """Return what the index of the documents `under` (all, if empty) lacks, as far as is known."""
    store.check_beside_answer()
    known = []
    for fault in store.faults():
        if fault.path is None:
            known.append(Gap(f"{fault.what} Answers may lack something", "desk-rag verify --repair"))
        elif _overlap(fault.path, under):
            remedy = "desk-rag index on its folder reads it again."
            known.append(Gap(f"The index entry of {fault.path} is damaged and left out", remedy))
    for run in store.unfinished_runs():
        if run.root is None or _overlap(run.root, under):
            since = time.strftime("%Y-%m-%d %H:%M", time.localtime(run.at))
            of = "" if run.root is None else f" of {run.root}"
            why = f" ({run.reason})" if run.reason else ""
            remedy = "desk-rag index FOLDER" if run.root is None else f"desk-rag index {run.root}"
            sentence = f"The index{of} is not complete since {since}{why}"
            if not run.reason and freshness.is_reading(store):
                sentence, remedy = f"The index{of} is still being made", "ask again once that is done."
            known.append(Gap(sentence, remedy, is_open_run=not run.reason))
    return list(dict.fromkeys(known))


def notices(
    store: Store, repaired: Sequence[Path], under: Sequence[Path], embedder: str | None = None
) -> tuple[str, ...]:
    """Sentences about what an answer from the documents `under` (all, if empty) may lack.

    `embedder` is given if no vectors of it found the passages: they are still to be made, as after another embedder
    was chosen or came with a new version.
    """
    known = gaps(store, under)
    if embedder is not None and (waiting := store.missing_vectors(embedder, under=under)):
        sentence = f"{plural(waiting, 'passage')} found by the words in them only, not yet by meaning"
        known.append(Gap(sentence, "that is caught up while `desk-rag index`, `watch` or the UI runs."))
    sentence = "The index entry of {} was damaged; the file was read again for this answer."
    sentences = [sentence.format(path) for path in repaired]
    if store.is_lost:
        sentences.append(_sentence(catalog_lost(store.root)))
    return (*sentences, *(f"{gap.sentence}: {gap.remedy}" for gap in known))


def _sentence(error: StoreError) -> str:
    return f"{error.message} {error.remedy}"


def _overlap(path: Path, under: Sequence[Path]) -> bool:
    return not under or any(path.is_relative_to(folder) or folder.is_relative_to(path) for folder in under)


def _is_small(path: Path) -> bool:
    try:
        return path.stat().st_size <= _MOST_BYTES
    except (OSError, ValueError):
        return False
