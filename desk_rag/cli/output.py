"""Print progress, answers, tables and JSON for the command line.

Answers go to stdout, progress and messages to stderr. On a terminal, progress is one line that is overwritten;
elsewhere there are plain lines without escape sequences. All text from documents, file names and models passes `clean`;
JSON is ASCII, which escapes what `clean` would remove.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from desk_rag.answering.events import (
    Answer,
    AnswerEvent,
    AnswerText,
    AskedAs,
    Evidence,
    Finished,
    PassagesRead,
    SentenceChecked,
    mark,
)
from desk_rag.answering.requirements.places import place_of_source
from desk_rag.answering.writing.remarks import kept_notices, reasoned, searched_only, stale_notice
from desk_rag.cli.questions import written
from desk_rag.documents.chunking import Location
from desk_rag.documents.status import FileState, IndexStage
from desk_rag.documents.status import plural as plural
from desk_rag.ingest.events import DeletionsWaiting, FileEvent, IndexEvent, IndexFinished, RootAbsent, StageProgress
from desk_rag.sanitize import clean, shown_path

if TYPE_CHECKING:
    from desk_rag.answering.events import Absence, Source
    from desk_rag.ingest.unread import UnreadFiles

_TERMINAL_EVERY, _PLAIN_EVERY = 0.1, 10.0
"""Seconds between two progress lines of a stage, on a terminal and without one."""


def duration(seconds: float) -> str:
    """Return a duration: '0.19 s', '42 s', '1 min 20 s', '5 h 12 min'."""
    whole = round(seconds)
    if whole < 60:
        return f"{seconds:.2f} s" if seconds < 10 else f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def size(count: int) -> str:
    """Bytes as '812 B', '3.1 MiB', '20.0 GiB'."""
    value = float(count)
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} GiB"


def print_json(stream: TextIO, value: object) -> None:
    """Write one JSON object on one line."""
    stream.write(json.dumps(value, ensure_ascii=True) + "\n")
    stream.flush()


class Progress:
    """Messages and progress of a long command, on one stream."""

    def __init__(self, stream: TextIO, bases: Sequence[Path] = ()) -> None:
        self._stream = stream
        self._bases = bases
        self._terminal = stream.isatty()
        self._last: tuple[IndexStage, float] | None = None
        self._shown = False

    def say(self, text: str) -> None:
        """Write a line that stays."""
        self.clear()
        self._stream.write(clean(text) + "\n")
        self._stream.flush()

    def passing(self, text: str) -> None:
        """Show a line that the next one overwrites; without a terminal, show nothing."""
        if not self._terminal:
            return
        width = shutil.get_terminal_size().columns - 1
        self._stream.write("\r\x1b[K" + clean(text, single_line=True)[:width])
        self._stream.flush()
        self._shown = True

    def clear(self) -> None:
        """Erase the passing line."""
        if self._shown:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
            self._shown = False

    def end(self) -> None:
        """Erase the passing line and show no more: it would overwrite the answer that follows."""
        self.clear()
        self._terminal = False

    def show(self, event: IndexEvent) -> None:
        """Show one event of indexing."""
        match event:
            case StageProgress():
                self._stage(event)
            case FileEvent(state=FileState.FAILED):
                self.say(f"  not read: {reason_line(event.path, event.reason, self._bases)}")
            case FileEvent(state=FileState.INDEXED | FileState.REMOVED | FileState.RENAMED):
                self.passing(f"{event.state.value} {shown_path(event.path, self._bases)}")
            case RootAbsent():
                self.say(f"{reason_line(event.root, event.reason)}")
            case DeletionsWaiting():
                self.say(f"{reason_line(event.root, event.sentence)}")
            case FileEvent() | IndexFinished():
                pass

    def _stage(self, event: StageProgress) -> None:
        now = time.monotonic()
        finished = event.done >= event.total > 0
        pause = _TERMINAL_EVERY if self._terminal else _PLAIN_EVERY
        if self._last and self._last[0] is event.stage and now - self._last[1] < pause and not finished:
            return
        new_stage = self._last is None or self._last[0] is not event.stage
        self._last = (event.stage, now)
        if self._terminal:
            self.passing(event.line)
        elif event.total and (finished or not new_stage):
            self.say("  " + event.line)


def index_summary(done: IndexFinished) -> str:
    """Summarise an index run in one line."""
    if not (done.indexed or done.removed or done.failed or done.vectors or done.chunk_kvs):
        unchanged = f"{plural(done.unchanged, 'file')} unchanged" if done.unchanged else "no file that can be read"
        return f"Nothing to do: {unchanged} ({duration(done.seconds)})."
    read = bool(done.indexed or done.failed)
    # Equal text in several files is one chunk with one KV; without this the figures would not add up.
    different = f", {done.different_chunks:,} different" if 0 < done.different_chunks < done.chunks else ""
    parts = [f"{plural(done.indexed, 'file')} read ({plural(done.chunks, 'chunk')}{different})"] if read else []
    for number, word in (
        (done.unchanged, "unchanged"),
        (done.removed, "removed"),
        (done.failed, "could not be read"),
        (done.beginnings, "too long to be indexed to the end (desk-rag status names them)"),
    ):
        if number:
            parts.append(f"{number:,} {word}")
    computed = [f"{plural(done.vectors, 'vector')} made"] if done.vectors and not done.indexed else []
    computed += [f"{plural(done.warm, 'chunk')} made warm"] if done.warm else []
    computed += [f"{plural(done.chunk_kvs, 'cache')} made"] if done.chunk_kvs > done.warm else []
    clauses = [", ".join(parts) or "nothing read", *([", ".join(computed)] if computed else []), duration(done.seconds)]
    return f"{'; '.join(clauses)}."


class AnswerPrinter:
    """Prints one answer as it streams: quotes with their locations, the answer's text, the footer."""

    def __init__(self, stream: TextIO, bases: Sequence[Path] = (), *, footer_stream: TextIO | None = None) -> None:
        """The footer goes to `footer_stream`; without one, to `stream` on a terminal and elsewhere to stderr."""
        self._stream = stream
        self._footer_stream = footer_stream or (stream if stream.isatty() else sys.stderr)
        self._bases = bases
        self._wrote_words = False
        self._quotes: list[str] = []

    def show(self, event: AnswerEvent) -> None:
        """Print what `event` adds."""
        match event:
            case AskedAs(question=question):
                self._write(f"(asked as: {clean(question, single_line=True)})\n")
            case Evidence(citation=citation):
                self._quotes.append(" ".join(citation.quote.split()))
                where = place(citation.path, citation.location, self._bases)
                origin = f" ({citation.origin})" if citation.origin else ""
                quote = clean(citation.quote, single_line=True)
                self._write(f"[{citation.source_number}] {where}{origin} “{quote}”\n")
            case PassagesRead(passages=passages, of_passages=of_passages):
                Progress(sys.stderr).passing(f"reading: {passages:,} of {plural(of_passages, 'passage')}")
            case AnswerText(text=text):
                # If the quote is the whole answer, the text repeats it.
                if text != "\n".join(self._quotes):
                    self._wrote_words = self._wrote_words or bool(text)
                    self._write(clean(text))
            case SentenceChecked(sentence=sentence):
                self._write(mark(sentence))
            case Finished(answer=answer):
                self._finish(answer)
            case _:
                pass

    def _finish(self, answer: Answer) -> None:
        if self._wrote_words:
            self._write("\n")
        if answer.stopped:
            self._write("(stopped)\n")
        for line in written.evidence_lines(answer, self._bases):
            self._write(f"{line}\n")
        if not answer.found and not answer.stopped and answer.sources:
            self._write("Nearest passages:\n")
            for source in answer.sources[:3]:
                self._write(f"  {source_line(source, self._bases)}\n")
        for remark in _remarks(answer, self._bases):
            self._write(f"({clean(remark, single_line=True)})\n")
        self._footer_stream.write(f"-- {footer(answer)}\n")
        self._footer_stream.flush()

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


def _remarks(answer: Answer, bases: Sequence[Path]) -> list[str]:
    """Return remarks on an answer: what it may lack, and what has changed since."""
    remarks = []
    if reasoned(answer):
        remarks.append(f"{reasoned(answer)}; --json has the text")
    if searched := searched_only(answer, [shown_path(path, bases) for path in answer.limited_to]):
        remarks.append(searched)
    if answer.doubt:
        remarks.append(answer.doubt)
    cited = {citation.source_number for citation in answer.citations}
    for source in answer.sources:
        if source.stale and source.number in cited:
            remarks.append(f"[{source.number}] {stale_notice(source)}")
        if source.copies and source.number in cited:
            remarks.append(f"[{source.number}] the same as in {plural(source.copies, 'other file')}")
    return [*remarks, *kept_notices(answer)]


def place(path: Path, location: Location, bases: Sequence[Path] = ()) -> str:
    """Return a path and a location: 'letters/boiler.md lines 3-9'."""
    where = str(location)
    return f"{shown_path(path, bases)}{'' if where.startswith('!/') else ' '}{where}".rstrip()


def source_line(source: Source, bases: Sequence[Path] = ()) -> str:
    """Return a source's number, location and beginning."""
    start = shorten(source.text[place_of_source(source).body :] or source.text, 90)
    notice = f" ({source.absence.notice})" if source.absence else ""
    return f"[{source.number}] {place(source.path, source.location, bases)}{notice}: {start}"


def footer(answer: Answer) -> str:
    """Return '5 of 113 passages from 4 files; first word after 0.43 s'; `ask --json` has the stages of the time."""
    timings = answer.timings
    first_word = timings.ttft if timings.first_text is None else timings.first_text
    event = "first word" if answer.warm_chunks + answer.cold_chunks or not answer.found else "answered"
    basis = [answer.basis.summary] if answer.basis is not None else []
    if answer.read_anew_chunks:
        basis.append(f"{plural(answer.read_anew_chunks, 'passage')} read anew: faster here")
    if timings.recompute_ratio > 0:
        basis.append(f"{timings.recompute_ratio:.0%} of the passages' tokens recomputed")
    return "; ".join([*basis, f"{event} after {duration(first_word)}"])


def shorten(text: str, most: int) -> str:
    """Return the beginning of `text` on one line, safe to print."""
    text = clean(text, single_line=True)
    return text if len(text) <= most else text[: most - 1] + "…"


def location_json(location: Location) -> dict[str, object]:
    """Return the fields of a location; null where the format has none."""
    return {
        "heading": location.heading,
        "page_start": location.page_start,
        "page_end": location.page_end,
        "line_start": location.line_start,
        "line_end": location.line_end,
    }


def answer_json(answer: Answer) -> dict[str, object]:
    """Return the object that `ask --json` prints; assets/guides/json.md documents its keys."""
    timings = answer.timings
    return {
        "question": answer.question,
        "answer": answer.text,
        "found": answer.found,
        "citations": [
            {
                "source": citation.source_number,
                "path": str(citation.path),
                "quote": citation.quote,
                "from_index_of": None if citation.as_of is None else _date(citation.as_of),
                **location_json(citation.location),
            }
            for citation in answer.citations
        ],
        "support": written.support_json(answer),
        "reasoning": answer.reasoning or None,
        "dropped_quotes": list(answer.dropped_quotes),
        "sources": [
            {
                "number": source.number,
                "path": str(source.path),
                "title": source.title,
                "score": round(source.score, 6),
                "warm": source.warm,
                "stale": source.stale,
                "copies": source.copies,
                "absence": absence_json(source.absence),
                "text": source.text,
                **location_json(source.location),
            }
            for source in answer.sources
        ],
        "mode": answer.mode.value,
        "model": answer.model,
        "warm_chunks": answer.warm_chunks,
        "cold_chunks": answer.cold_chunks,
        "read_anew_chunks": answer.read_anew_chunks,
        "left_out_passages": answer.left_out_passages,
        "ttft_seconds": timings.ttft,
        "first_text_seconds": timings.first_text,
        "stages": {stage.name: stage.seconds for stage in timings.stages},
        "context_tokens": timings.context_tokens,
        "recompute_ratio": timings.recompute_ratio,
        "selector": timings.selector or None,
        "loaded_bytes": timings.loaded_bytes,
        "decode_seconds": timings.decode_seconds,
        "decoded_tokens": timings.decoded_tokens,
        "stopped": answer.stopped,
        "notices": list(answer.notices),
        "not_read": None if answer.not_read is None else unread_json(answer.not_read),
        "backlog": None if answer.backlog is None else answer.backlog.report(),
        "confidence": None if answer.support is None else round(answer.support, 4),
        "doubtful": answer.doubtful,
        "basis": None if answer.basis is None else asdict(answer.basis),
        "question_cut_at": answer.question_cut_at or None,
        "asked_as": answer.asked_as or None,
        "limited_to": [str(path) for path in answer.limited_to],
        "narrowed_to": answer.narrowed_to or None,
    }


def unread_line(unread: UnreadFiles) -> str:
    """Return '46 files not read: 25 images, 21 archives (desk-rag why FOLDER lists them)'."""
    return f"{unread.summary} ({unread.hint})"


def unread_json(unread: UnreadFiles) -> dict[str, object]:
    """Return the number of files that were not read, in all and by kind, and that of folders left out as a whole."""
    folders = {group.kind: group.number for group in unread.folders}
    return {"files": unread.files, "kinds": dict(unread.kinds), "folders": folders}


def _date(unix_time: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S%z", time.localtime(unix_time))


def absence_json(absence: Absence | None) -> dict[str, object] | None:
    """Return why a source's file is missing and when it was read (Unix time); null if it is not missing."""
    return None if absence is None else {"why": absence.why.value, "indexed_at": absence.indexed_at}


def reason_line(path: Path, reason: str, bases: Sequence[Path] = ()) -> str:
    """Return 'letters/x.pdf: damaged'; the path is not repeated if the reason begins with it."""
    text = clean(reason.removeprefix(str(path)), single_line=True)
    return f"{shown_path(path, bases)}: {text}"
