"""Events of an answer, as `AnswerEngine.ask` yields them to TUI, CLI and benchmarks.

Text in them is that of documents or models: `sanitize.clean` it before it is shown. No torch is imported for them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date
from enum import Enum
from pathlib import Path

from desk_rag.documents.chunking import ChunkId, Location
from desk_rag.documents.status import plural
from desk_rag.ingest.freshness import Backlog
from desk_rag.ingest.unread import UnreadFiles

DOUBT = "The quote may not answer the question: read it before you rely on it"
"""Notice on a doubtful answer."""
DOUBTFUL = 0.4
"""Support below which an answer is shown with a word of doubt; see "A second look" in bench/LOG.md."""


class AnswerMode(Enum):
    """Way by which the context gets into the model."""

    CACHED = "cached"
    """Load chunk KVs, give them reordered positions, stitch, prefill only the question."""
    FULL = "full"
    """The baseline: prefill shared prefix, chunks and question as one ordinary prompt."""


class Missing(Enum):
    """Why a source's file cannot be read."""

    FOLDER_AWAY = "folder not connected"
    FILE_GONE = "file gone"


@dataclass(frozen=True, slots=True)
class Absence:
    """A source whose file is missing, so that its text is from the index."""

    why: Missing
    indexed_at: float
    """Unix time at which the file was read; 0 if unknown."""

    @property
    def notice(self) -> str:
        """Sentence part about the source for the user."""
        what = "its folder is not connected" if self.why is Missing.FOLDER_AWAY else "its file is gone"
        return f"{what}; from the index of {date.fromtimestamp(self.indexed_at)}" if self.indexed_at else what


@dataclass(frozen=True, slots=True)
class Source:
    """One retrieved chunk, as numbered in the answer."""

    number: int
    """1-based, in order of relevance; what a citation [n] refers to."""
    chunk_id: ChunkId
    path: Path
    title: str
    location: Location
    text: str
    score: float
    """Fused retrieval score in (0, 1]; comparable within one answer only."""
    warm: bool | None
    """True if the chunk's KV was loaded, or, before the first token, is on disk; None if no model reads it."""
    stale: bool
    """True if the file has changed since it was indexed, or is gone."""
    digest: str = ""
    """blake2b-256 of the file as it was indexed, hex; empty if unknown."""
    file: tuple[int, int, int] = (0, 0, 0)
    """Size, mtime_ns and inode of the file when it was indexed."""
    indexed_at: float = 0.0
    """Unix time at which the file was indexed."""
    absence: Absence | None = None  # set if the file is missing
    copies: int = 0  # other files with the same content
    closely: bool = False  # chosen by a second look


@dataclass(frozen=True, slots=True)
class Citation:
    """A quote of the answer that a source contains."""

    source_number: int
    path: Path
    location: Location
    """Narrowed to the lines of the quote if the file has lines."""
    quote: str
    as_of: float | None = None
    """None if the file itself contains the quote; else the Unix time at which it was indexed."""
    is_lost: bool = False  # the file was read and no longer contains the quote

    @property
    def origin(self) -> str:
        """'from the index of 2026-11-22' if the file could not be read or has lost the quote; else ''."""
        lost = "no longer in the file; " if self.is_lost else ""
        return "" if self.as_of is None else f"{lost}from the index of {date.fromtimestamp(self.as_of)}"


class Support(Enum):
    """Support of one sentence of the answer by the passages."""

    SUPPORTED = "supported"
    UNSUPPORTED = "unsupported"
    UNCHECKED = "unchecked"
    """Not compared, for example because it is in another language than the passages."""


@dataclass(frozen=True, slots=True)
class CheckedSentence:
    """A sentence, list item or table row that a model wrote in its own words, compared with the passages."""

    start: int
    end: int
    """Characters of `Answer.text`, citation marks included."""
    support: Support
    reason: str = ""
    """Sentence part that says why it is not supported: 'the number 14 stands in no passage'."""
    score: float | None = None
    """Calibrated probability in [0, 1] that the passages support it; None if it was not compared."""
    citations: tuple[Citation, ...] = ()
    """The passages that support it, best first; the text names them as [n]."""


READ_BY_WORDS = "none (read by words)"
"""Model of an answer that no model wrote."""
MARK = "[?]"
"""Stands behind a sentence that the passages do not support, or that could not be compared."""


def mark(sentence: CheckedSentence) -> str:
    """Mark to put behind a sentence; empty for a supported one, whose text names its passages."""
    return "" if sentence.support is Support.SUPPORTED else f" {MARK}"


def marked(text: str, sentences: Iterable[CheckedSentence]) -> str:
    """The text of an answer with the marks of its sentences; in a table row inside its last cell."""
    for sentence in sorted(sentences, key=lambda each: each.end, reverse=True):
        if not mark(sentence) or sentence.end > len(text):
            continue
        body, rest = text[: sentence.end], text[sentence.end :]
        is_row = body.endswith("|") and text[sentence.start : sentence.end].lstrip().startswith("|")
        text = f"{body[:-1].rstrip()}{mark(sentence)} |{rest}" if is_row else f"{body}{mark(sentence)}{rest}"
    return text


class Grounding(Enum):
    """Support of a whole answer in a model's own words by the passages."""

    ALL = "supported"
    PART = "partly supported"
    NONE = "not from your documents"
    UNCHECKED = "not checked"


def grounding(sentences: tuple[CheckedSentence, ...]) -> Grounding | None:
    """Sum up the sentences of an answer; None without any."""
    states = {sentence.support for sentence in sentences}
    if not states:
        return None
    if Support.SUPPORTED in states:
        return Grounding.ALL if len(states) == 1 else Grounding.PART
    return Grounding.UNCHECKED if Support.UNCHECKED in states else Grounding.NONE


@dataclass(frozen=True, slots=True)
class Stage:
    """One named part of the way to the first token."""

    name: str
    """retrieve | load | stitch | live prefill | choose | prefill (span scorer's work on a refusal included) | queue"""
    seconds: float


@dataclass(frozen=True, slots=True)
class Timings:
    """Time to first token by stages, which sum to it by construction."""

    stages: tuple[Stage, ...]
    context_tokens: int = 0
    """Tokens in the model's context when the first token was sampled, question included."""
    loaded_bytes: int = 0
    decode_seconds: float = 0.0
    decoded_tokens: int = 0
    recompute_ratio: float = 0.0
    """Share of chunk tokens that were recomputed, which may differ from the share requested."""
    selector: str = ""  # name of the selector that selected them; empty without recompute
    first_text: float | None = None
    """Seconds from the question's submission to the first quote or word of the answer; None before there was one."""

    @property
    def ttft(self) -> float:
        """Seconds from the question's submission to the first sampled token."""
        return sum(stage.seconds for stage in self.stages)


@dataclass(frozen=True, slots=True)
class Basis:
    """Passages and files that an answer was made from."""

    passages: int
    """Passages that were read for it."""
    of_passages: int
    """Indexed passages in the folders that were asked about."""
    files: int
    """Files of the passages that were read."""

    @property
    def summary(self) -> str:
        """Return '5 of 1,433 passages from 3 files'."""
        return f"{self.passages:,} of {plural(self.of_passages, 'passage')} from {plural(self.files, 'file')}"


@dataclass(frozen=True, slots=True)
class Answer:
    """The whole result of one question."""

    question: str
    text: str
    """The short answer in the model's own words; if `found` is False, a sentence that says so."""
    found: bool
    """False if the documents do not contain the answer; `sources` are then the nearest passages."""
    citations: tuple[Citation, ...]
    dropped_quotes: tuple[str, ...]
    """Quotes that no source contains; shown as unverified, never as citations."""
    sources: tuple[Source, ...]
    timings: Timings
    warm_chunks: int
    cold_chunks: int
    mode: AnswerMode
    model: str
    raw: str
    """Exactly what the model wrote."""
    stopped: bool = False
    """True if the user stopped the stream; the text is what had been generated until then."""
    question_cut_at: int = 0
    """Number of tokens to which a question that is too long was cut; else 0."""
    notices: tuple[str, ...] = ()
    """Sentences about what the answer may lack, such as damage in the index or an interrupted indexing run."""
    not_read: UnreadFiles | None = None
    """Files below the asked folders that were not read; None if the answer was found or every file was read."""
    asked_as: str = ""  # the question rewritten to stand alone, as it was searched; empty if it stood alone
    is_search: bool = False
    """Passages with certain words were looked for; no model has answered."""
    limited_to: tuple[Path, ...] = ()
    """Folders and files to which the search was limited; empty if it was not."""
    narrowed_to: int = 0
    narrowed: str = ""
    """Number of files that the question names by itself, if they alone were searched, and what they are: 'the mail'."""
    support: float | None = None
    """Probability that the answer is right, as verification estimates it; None if there was no verification."""
    basis: Basis | None = None
    """Passages and files that the answer was made from; None if nothing is indexed."""
    unanswered: tuple[str, ...] = ()
    """Parts of a question with several parts to which nothing was found; the text says so."""
    read_anew_chunks: int = 0  # cold ones whose KV is on disk, but was slower to load than to compute
    left_out_passages: int = 0  # nearest ones for which the context had no room; a notice says why
    unmet: tuple[str, ...] = ()
    """Names, numbers and dates of the question that no quote is about; such an answer is doubtful."""

    @property
    def doubtful(self) -> bool:
        """True if the evidence may well not answer the question; the user is told so."""
        return self.found and self.support is not None and self.support < DOUBTFUL

    backlog: Backlog | None = None
    """Files that waited to be read when the question was answered; None if the index was up to date."""
    sentences: tuple[CheckedSentence, ...] = ()
    """Sentences in a model's own words, compared with the passages; empty for models that quote."""
    reasoning: str = ""
    """Text of the model's reasoning before it answered; never part of `text`."""

    @property
    def marked_text(self) -> str:
        """The text with a mark behind every sentence that the passages do not support, or a word of doubt below it."""
        text = marked(self.text, self.sentences)
        return f"{text}\n({self.doubt})" if self.doubt else text

    @property
    def is_list(self) -> bool:
        """True if each quote has a line of the text, which begins with its number: it is not shown apart then."""
        quoted = {f"[{one.source_number}]" for one in self.citations}
        return self.model == READ_BY_WORDS and set() < quoted <= set(re.findall(r"^\[\d+\]", self.text, re.MULTILINE))

    @property
    def grounding(self) -> Grounding | None:
        """Support of the answer by the passages; None if it is made of quotes, or refuses."""
        return grounding(self.sentences)

    @property
    def doubt(self) -> str:
        """Sentence for the user if the answer is doubtful; else ''."""
        if self.doubtful and self.unmet:
            return f"The quote says nothing about “{'”, “'.join(self.unmet)}”: read it before you rely on it"
        return DOUBT if self.doubtful else ""

    @property
    def warmth(self) -> str:
        """'3 of 5 passages read ahead of time, 2 read anew: faster here'"""
        chunks = self.warm_chunks + self.cold_chunks
        read_anew = f", {self.read_anew_chunks} read anew: faster here" if self.read_anew_chunks else ""
        return f"{self.warm_chunks} of {plural(chunks, 'passage')} read ahead of time{read_anew}"

    @property
    def cut_notice(self) -> str:
        """Sentence for the user if the question was cut; else ''."""
        tokens = self.question_cut_at
        return f"The question is longer than {tokens} tokens; its end was left out" if tokens else ""


@dataclass(frozen=True, slots=True)
class AskedAs:
    """A follow-up was rewritten to stand alone; comes before the engine's events."""

    question: str
    """As it is searched and judged."""


@dataclass(frozen=True, slots=True)
class FilesWaiting:
    """The answer waits until the files of the backlog are read; may come many times, before all other events."""

    backlog: Backlog


@dataclass(frozen=True, slots=True)
class Retrieved:
    """The retrieved sources; the first event of the answer itself, before any model work."""

    sources: tuple[Source, ...]


@dataclass(frozen=True, slots=True)
class PassagesRead:
    """Progress of an answer that reads the whole folder."""

    passages: int
    """Passages read so far."""
    of_passages: int


@dataclass(frozen=True, slots=True)
class FirstToken:
    """The first token was sampled; carries the time to first token."""

    timings: Timings


@dataclass(frozen=True, slots=True)
class Evidence:
    """A quote is complete and a source contains it."""

    citation: Citation
    support: float | None = None
    """Probability that the answer is right, as verification estimates it; None if there was no verification."""


@dataclass(frozen=True, slots=True)
class AnswerText:
    """The next piece of the answer's own words."""

    text: str


@dataclass(frozen=True, slots=True)
class AnswerDraft:
    """The unfinished sentence of a model that writes, not checked yet; stands until the next event with text."""

    text: str


@dataclass(frozen=True, slots=True)
class ReasoningText:
    """The next piece of a model's reasoning, which is not part of the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class SentenceChecked:
    """The sentence at the end of the text so far was compared with the passages."""

    sentence: CheckedSentence


@dataclass(frozen=True, slots=True)
class Finished:
    """The whole answer; always the last event."""

    answer: Answer


StreamEvent = Evidence | AnswerText | AnswerDraft | ReasoningText | SentenceChecked
"""Events made of a model's text."""
AnswerEvent = FilesWaiting | AskedAs | Retrieved | PassagesRead | FirstToken | StreamEvent | Finished
