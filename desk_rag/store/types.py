"""The doorways of the store. Knows names and units; computes nothing and loads neither torch nor numpy."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from desk_rag.documents.chunking import Chunk, ChunkId
from desk_rag.documents.status import FileState, IndexStage


@dataclass(frozen=True, slots=True)
class FileStamp:
    """What tells that a file is still the one that was read. Compared by equality only, never by order."""

    size: int
    mtime_ns: int
    inode: int
    parser: str
    """Version of the parsers as a whole; another one means: read again."""


@dataclass(frozen=True, slots=True)
class DocumentRow:
    """One path in the catalog, whatever became of it."""

    path: Path
    title: str
    digest: str
    """blake2b-256 of the content, hex; empty for a file that was never read."""
    stamp: FileStamp
    """All zeros where the outcome was recorded without one; equals no real file, so the file is looked at again."""
    state: FileState
    reason: str
    """Why it was skipped or failed; for an indexed document what the user should know about it."""
    num_chunks: int
    indexed_at: float
    """Unix time; for people only, decides nothing."""


@dataclass(frozen=True, slots=True)
class Passage:
    """A chunk together with one place where it stands."""

    chunk: Chunk
    path: Path
    title: str
    """The document's title; empty if its content names none."""
    stamp: FileStamp
    digest: str = ""
    """Of the document's content as it was read, as in `DocumentRow`; empty if it is to be read anew."""
    indexed_at: float = 0.0
    """Unix time at which the document was read."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Something in the catalog that is not as it was written; it is used for nothing."""

    what: str
    """A sentence without any text of documents but their paths."""
    path: Path | None
    """The document that must be read anew; None if that cannot be told, or would not help."""


@dataclass(frozen=True, slots=True)
class UnfinishedRun:
    """A run of indexing that was begun and has not come to its end."""

    root: Path | None
    """None: whatever was indexed last."""
    at: float
    """Unix time of its beginning."""
    reason: str
    """Why it was cut short, as far as it is known: 'the disk is full'; else ''."""


@dataclass(frozen=True, slots=True)
class Hit:
    """A chunk found by words or by meaning."""

    chunk_id: ChunkId
    score: float
    """Higher is better; comparable within one search only (BM25), or cosine in [-1, 1]."""


@dataclass(frozen=True, slots=True)
class PendingChunk:
    """A chunk that waits for its vector or its KV."""

    chunk_id: ChunkId
    text: str
    path: Path
    """One of the documents that hold it."""


@dataclass(frozen=True, slots=True)
class Activity:
    """What the writer is doing right now, as other processes see it."""

    pid: int
    at: float
    """Unix time of the heartbeat."""
    stage: IndexStage
    done: int
    total: int
    unit: str
    rate: float
    eta_seconds: float | None
    waiting: str
    current: str


@dataclass(frozen=True, slots=True)
class Counts:
    """How much there is. `under` narrows all but the bytes."""

    files: int
    """Indexed documents."""
    failed: int
    skipped: int
    chunks: int
    """Different chunks; one that stands in two documents counts once."""
    with_vectors: int
    warm: int
    """Chunks whose KV is on disk for the namespace asked about."""
    kv_bytes: int
    """Everything of ours under kv/ and quarantine/, all models."""
    budget_bytes: int
    """What kv_bytes may grow to now."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing `verify` found."""

    what: str
    """A sentence that names the file or row."""
    repaired: bool


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What a check of the store covered and found."""

    kv_files: int
    kv_bytes: int
    documents: int
    chunks: int
    problems: tuple[Problem, ...]
    foreign: tuple[Path, ...] = ()
    """What lies in the store's directories and was not made by desk-rag; it is left alone."""
    unusable: bool = False
    """The catalog is damaged beyond its rows: a repair has to begin it anew."""

    @property
    def clean(self) -> bool:
        """True if nothing was found."""
        return not self.problems


@dataclass(frozen=True, slots=True)
class PurgeReport:
    """What a purge removed, and what it could still find of it."""

    documents: int
    chunks: int
    kv_files: int
    freed_bytes: int
    """KV bytes; the catalog shrinks besides."""
    verified: bool
    """True if the raw files were searched for pieces of the removed text; False if nothing could be looked for."""
    traces: tuple[str, ...]
    """Files in which a piece of the removed text was still found; empty is the proof."""
    unsearched: int = 0
    """Chunks of which nothing was looked for: too short, or all of it stands in other documents too."""
