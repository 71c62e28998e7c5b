"""What `AnswerEngine.ask` tells whoever listens: the TUI, the CLI and the benchmarks consume the same stream.

Knows no torch, no store and no Textual, so that a window can be drawn before any of them is imported.
Text in these events is document or model text: a sink must pass it through `clean.clean` before showing it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from desk_rag.documents.chunking import ChunkId, Location
from desk_rag.ingest.unread import UnreadFiles


class AnswerMode(Enum):
    """How the context gets into the model; everything else of `ask` is the same code."""

    CACHED = "cached"
    """Load chunk KVs, give them reordered positions, stitch, prefill only the question."""
    FULL = "full"
    """The baseline: prefill shared prefix, chunks and question as one ordinary prompt."""


class Missing(Enum):
    """Why a source's file cannot be looked at."""

    FOLDER_AWAY = "folder not connected"
    FILE_GONE = "file gone"


@dataclass(frozen=True, slots=True)
class Absence:
    """The answer is from the index because the file is not there."""

    why: Missing
    indexed_at: float
    """Unix time at which the file was read."""

    @property
    def notice(self) -> str:
        """Return what the user is told of the source."""
        what = "its folder is not connected" if self.why is Missing.FOLDER_AWAY else "its file is gone"
        return f"{what}; from the index of {time.strftime('%Y-%m-%d', time.localtime(self.indexed_at))}"


@dataclass(frozen=True, slots=True)
class Source:
    """One retrieved chunk, as numbered in the answer."""

    number: int
    """1-based, order of relevance; what a citation [n] refers to."""
    chunk_id: ChunkId
    path: Path
    title: str
    location: Location
    text: str
    score: float
    """Fused retrieval score in (0, 1]; comparable within one answer only."""
    warm: bool
    """True if the chunk's KV was on disk when the question came."""
    stale: bool
    """True if the file on disk is newer than what was indexed, or gone."""
    digest: str = ""
    """blake2b-256 of the file as it was read, hex; empty where that is not known."""
    file: tuple[int, int, int] = (0, 0, 0)
    """Its size, mtime_ns and inode then."""
    indexed_at: float = 0.0
    """Unix time of that reading."""
    absence: Absence | None = None
    """Set if the file is not there."""


@dataclass(frozen=True, slots=True)
class Citation:
    """A verbatim line of the answer that was found in a source."""

    source_number: int
    path: Path
    location: Location
    """Narrowed to the lines of the quote where the file has lines."""
    quote: str
    as_of: float | None = None
    """None if the file itself was seen to hold the quote; else the unix time at which it was read into the index."""

    @property
    def origin(self) -> str:
        """'from the index of 2026-11-22' where the file could not be asked or says something else now; else ''."""
        if self.as_of is None:
            return ""
        return f"from the index of {time.strftime('%Y-%m-%d', time.localtime(self.as_of))}"


@dataclass(frozen=True, slots=True)
class Stage:
    """One named part of the way to the first token."""

    name: str
    """retrieve | load | stitch | live prefill | choose | prefill | queue; with `prefill` counts what the pointer reads
    where the model finds no answer."""
    seconds: float


@dataclass(frozen=True, slots=True)
class Timings:
    """Where the time to first token went; the stages sum to TTFT by construction."""

    stages: tuple[Stage, ...]
    context_tokens: int = 0
    """Tokens in the model's context when the first token was sampled, question included."""
    loaded_bytes: int = 0
    decode_seconds: float = 0.0
    decoded_tokens: int = 0
    recompute_ratio: float = 0.0
    """Share of chunk tokens that were computed anew: what was done, not what was asked for."""

    @property
    def ttft(self) -> float:
        """Seconds from the question's submission to the first sampled token."""
        return sum(stage.seconds for stage in self.stages)


@dataclass(frozen=True, slots=True)
class Answer:
    """The whole result of one question."""

    question: str
    text: str
    """The short answer in the model's own words; when `found` is False a sentence that says so."""
    found: bool
    """False when the documents do not hold the answer; `sources` then are the nearest passages."""
    citations: tuple[Citation, ...]
    dropped_quotes: tuple[str, ...]
    """Quotes the model made that stand in no source; shown as unverified, never as citations."""
    sources: tuple[Source, ...]
    timings: Timings
    warm_chunks: int
    cold_chunks: int
    mode: AnswerMode
    model: str
    raw: str
    """Exactly what the model wrote."""
    stopped: bool = False
    """True if the user stopped the stream; the text is what had come until then."""
    question_cut_at: int = 0
    """Tokens of the question that were read, where its end was left out because it is longer; else 0."""
    notices: tuple[str, ...] = ()
    """Sentences about what this answer may lack: damage in the index, a run of indexing that was cut short."""
    not_read: UnreadFiles | None = None
    """Files below the asked folders that were not read; None if the answer was found or every file was read."""

    @property
    def cut_notice(self) -> str:
        """A sentence for the user where the end of the question was left out; else ''."""
        tokens = self.question_cut_at
        return f"The question is longer than {tokens} tokens; its end was left out" if tokens else ""


@dataclass(frozen=True, slots=True)
class Retrieved:
    """Sent first, before any model work."""

    sources: tuple[Source, ...]


@dataclass(frozen=True, slots=True)
class FirstToken:
    timings: Timings


@dataclass(frozen=True, slots=True)
class Evidence:
    """A quoted line is complete and was found in a source."""

    citation: Citation


@dataclass(frozen=True, slots=True)
class AnswerText:
    """The next piece of the answer's own words."""

    text: str


@dataclass(frozen=True, slots=True)
class Finished:
    """Always the last event."""

    answer: Answer


AnswerEvent = Retrieved | FirstToken | Evidence | AnswerText | Finished
