"""Events of an index run, for the CLI, the background service and the TUI."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from desk_rag.documents.status import FileState, IndexStage, foreseen

_STAGE_WORDS = {
    IndexStage.SCAN: "looking through the folder",
    IndexStage.WORDS: "reading files",
    IndexStage.VECTORS: "findable by meaning",
    IndexStage.WARM: "caches",
}
_SLOWEST = 0.05
"""Units per second below which no rate is shown."""

@dataclass(frozen=True, slots=True)
class FileEvent:
    """One file reached a state."""

    path: Path
    state: FileState
    chunks: int = 0
    reason: str = ""
    """Reason why it was skipped or failed, as a sentence with the remedy."""
    is_folder: bool = False
    """A folder that was skipped with everything in it."""


@dataclass(frozen=True, slots=True)
class StageProgress:
    """Progress of one stage in this run; rate and time left come from monotonic time."""

    stage: IndexStage
    done: int
    total: int
    unit: str
    """'files', 'chunks', or 'caches' where a chunk gets several."""
    rate: float
    """Units per second over the recent past; 0 before the first."""
    eta_seconds: float | None
    """None while unknown."""
    waiting: str = ""
    """Reason why the stage waits: 'the GPU is busy (43 %)', 'on battery', 'paused'; empty while it runs."""
    upper: bool = False
    """The last unit was a further KV of a chunk that was already warm (kv/prefix_variants/variants.py)."""
    disk_full: bool = False
    """The stage ended early because the disk is full; `waiting` says so."""

    @property
    def line(self) -> str:
        """Return 'caches: 312 of 1,204 chunks, 3.1/s, 4 min 48 s left'."""
        parts = [f"{_STAGE_WORDS[self.stage]}: {self.done:,} of {self.total:,} {self.unit}"]
        if self.waiting:
            parts.append(f"waiting: {self.waiting}")
        elif self.done < self.total:
            if self.rate >= _SLOWEST:
                parts.append(f"{self.rate:.1f}/s")
            if self.eta_seconds is not None:
                parts.append(f"{foreseen(self.eta_seconds)} left")
        return ", ".join(parts)


@dataclass(frozen=True, slots=True)
class RootAbsent:
    """An indexed folder, or a mount point inside one, is absent now. Nothing of it is deleted."""

    root: Path
    reason: str


@dataclass(frozen=True, slots=True)
class Notice:
    """A state that needs the user's attention, or the end of one."""

    subject: str
    """Names the state, such as 'folder /home/ada/notes'; a later notice of the same subject replaces it."""
    sentence: str
    remedy: str = ""
    is_over: bool = False


@dataclass(frozen=True, slots=True)
class DeletionsWaiting:
    """Many files of a folder vanished at once. Their documents are kept for a while."""

    root: Path
    waiting: int
    known: int

    @property
    def sentence(self) -> str:
        """Say what is kept and what the user can do."""
        summary = f"{self.waiting:,} of {self.known:,} files are gone at once"
        return f"{summary}; their documents are kept for now (`desk-rag deletions` says for how long)"


@dataclass(frozen=True, slots=True)
class IndexFinished:
    """A run is complete (not stopped, not paused)."""

    indexed: int
    unchanged: int
    removed: int
    skipped: int
    failed: int
    chunks: int
    warm: int
    seconds: float
    different_chunks: int = 0
    """Number of different texts among `chunks`; 0 if they were not counted."""
    vectors: int = 0
    """Made in this run."""
    chunk_kvs: int = 0
    """Chunk KVs made in this run, one per chunk and prefix variant."""
    disk_full: bool = False
    """Vectors or chunk KV are missing because the disk has no room."""
    beginnings: int = 0
    """Files of `indexed` of which only the beginning is indexed."""


IndexEvent = FileEvent | StageProgress | RootAbsent | DeletionsWaiting | Notice | IndexFinished
