"""Dataclasses that the store takes and returns."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from desk_rag.documents.chunking import Chunk, ChunkId
from desk_rag.documents.status import FileState, IndexStage


@dataclass(frozen=True, slots=True)
class FileStamp:
    """Identifies the version of a file that was read. Compared by equality only."""

    size: int
    mtime_ns: int
    inode: int
    parser: str
    """Version of all parsers; if it differs, the file is read again."""
    ctime_ns: int = 0
    """Time of the last change of content, permissions or links, which no program can set; 0 if it is not known."""


FOLDER = FileStamp(0, 0, 0, "folder")
"""Stamp of a folder that is left out with everything in it."""


@dataclass(frozen=True, slots=True)
class DocumentRow:
    """One path in the catalog, indexed or not."""

    path: Path
    title: str
    digest: str
    """blake2b-256 of the content, hex; empty for a file that was never read."""
    stamp: FileStamp
    """All zeros if the outcome was recorded without one; equals no real file, so the file is read again."""
    state: FileState
    reason: str
    """Reason why it was skipped or failed; for an indexed document, a note for the user."""
    num_chunks: int
    indexed_at: float
    """Unix time, for display only."""

    @property
    def is_folder(self) -> bool:
        """Return whether this is a folder that is left out with everything in it."""
        return self.stamp == FOLDER


@dataclass(frozen=True, slots=True)
class UnreadGroup:
    """Files, or folders left out as a whole, that were not read for one reason."""

    state: FileState
    reason: str
    """Reason as in `DocumentRow`, without the path."""
    number: int
    folder: Path | None = None
    """One of the folders; None if these are files."""


@dataclass(frozen=True, slots=True)
class Passage:
    """A chunk with a place where it occurs."""

    chunk: Chunk
    path: Path
    title: str
    """The document's title; empty if its content names none."""
    stamp: FileStamp
    digest: str = ""
    """Digest of the document's content, as in `DocumentRow`; empty if the document must be read again."""
    indexed_at: float = 0.0
    """Unix time at which the document was read."""
    copies: int = 0
    """Other files with exactly the same content, as far as the catalog knows."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Damage in the catalog. Damaged rows are not used."""

    what: str
    """A sentence; it contains no text of documents except their paths."""
    path: Path | None
    """The document to read again; None if it is unknown or reading it would not help."""


@dataclass(frozen=True, slots=True)
class UnfinishedRun:
    """An indexing run that has begun and not ended."""

    root: Path | None
    """None if the folder is unknown."""
    at: float
    """Unix time of its start."""
    reason: str
    """Reason for the interruption, such as 'the disk is full'; "" if unknown."""


@dataclass(frozen=True, slots=True)
class Hit:
    """A chunk retrieved by words or by meaning."""

    chunk_id: ChunkId
    score: float
    """Higher is better; comparable within one search only (BM25), or cosine in [-1, 1]."""


@dataclass(frozen=True, slots=True)
class PendingChunk:
    """A chunk without its vector or KV."""

    chunk_id: ChunkId
    text: str
    path: Path
    """One of the documents that hold it."""


@dataclass(frozen=True, slots=True)
class Activity:
    """Present work of the writer, for other processes."""

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
    notices: tuple[tuple[str, str, str], ...] = ()
    """Subject, sentence and remedy of each state that needs the user's attention."""
    idle_since: float | None = None
    """Unix time since which everything is indexed; None while there is work or a reason to wait."""
    once: bool = False
    """One run of `index`, which ends by itself and obeys no pause."""


@dataclass(frozen=True, slots=True)
class Counts:
    """Counts of a store. `under` narrows all but the bytes."""

    files: int
    """Indexed documents."""
    failed: int
    skipped: int
    chunks: int
    """Distinct chunks; a chunk in two documents counts once."""
    with_vectors: int
    warm: int
    """Chunks with KV on disk for the given namespace."""
    kv_bytes: int
    """Bytes of our files under kv/ and quarantine/, of all models."""
    budget_bytes: int
    """Limit of `kv_bytes` now."""
    with_tokens: int = 0
    """Chunks with token vectors of the given embedder."""
    token_bytes: int = 0
    """Bytes of these; they lie in the catalog."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem that `verify` found."""

    what: str
    """A sentence that names the file or row."""
    repaired: bool


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """Coverage and findings of a check of the store."""

    kv_files: int
    kv_bytes: int
    documents: int
    chunks: int
    problems: tuple[Problem, ...]
    foreign: tuple[Path, ...] = ()
    """Files in the store's directories that desk-rag did not write; they are left alone."""
    unusable: bool = False
    """The catalog is damaged beyond its rows; a repair must replace it."""

    @property
    def clean(self) -> bool:
        """True if there are no problems."""
        return not self.problems


@dataclass(frozen=True, slots=True)
class PurgeReport:
    """Result of a purge, with any traces that remain."""

    documents: int
    chunks: int
    kv_files: int
    freed_bytes: int
    """Bytes of these KV files; the catalog shrinks as well."""
    verified: bool
    """True if the raw files were searched for pieces of the removed text."""
    traces: tuple[str, ...]
    """Files that still contain a piece of the removed text."""
    unsearched: int = 0
    """Chunks that could not be searched for: too short, or also part of other documents."""
    chat_turns: int = 0
    """Turns that were deleted from saved chats."""
    bin_bytes: int = 0
    """Bytes of caches of files that were deleted before, which went with it."""
