"""Time to first token and first text: chunk KV beside full prefill of the same chunks, interleaved in one run.

Times to the first token are sums of the stages that `AnswerEngine.ask` reports, times to the first text those at which
it yields a quote or a word, so what is measured is what ships. Three conditions per question, in an order that turns
from round to round: full prefill; chunk KV from disk (the files' pages dropped from the page cache, their checksums
verified anew); chunk KV that the system still holds in memory. A question is asked at all numbers of chunks before the
next one, so that a run that its time limit ends has measured all of them on the same questions.
"""

from __future__ import annotations

import argparse
import errno
import math
import os
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from enum import Enum
from pathlib import Path

from desk_rag.answering.engine import AnswerEngine
from desk_rag.answering.events import (
    Answer,
    AnswerMode,
    AnswerText,
    Evidence,
    Finished,
    FirstToken,
    Retrieved,
    Timings,
)
from desk_rag.answering.opening import open_engine
from desk_rag.bench.harness import corpus, report
from desk_rag.bench.harness.agreement import Agreement
from desk_rag.config import AnswerSettings, ModelSettings, Settings
from desk_rag.errors import ConfigError
from desk_rag.kv.recompute.policy import RecomputeChoice, SelectorName

_BEFORE_RETRIEVED = ("queue", "retrieve")
_CONTEXT_TOKENS = 2300
"""More than the embedded reader's own 2,000, so that ten chunks make a row of 2,000 tokens."""
_KEPT_ROUNDS = 1
"""Rounds whose answers are decoded to the end and compared; the others stop at the first text."""


class Condition(Enum):
    """Way by which the context gets to the model."""

    FULL = "full prefill"
    DISK = "cached, from disk"
    MEMORY = "cached, in memory"

    @property
    def mode(self) -> AnswerMode:
        """The engine's mode for it."""
        return AnswerMode.FULL if self is Condition.FULL else AnswerMode.CACHED


@dataclass(frozen=True, slots=True)
class Sample:
    """One question, asked once."""

    question: corpus.Question
    timings: Timings
    first_text: float
    """Seconds to the first quote or word."""
    answer: Answer | None
    """None where the stream was left at the first text."""

    @property
    def after_retrieval(self) -> float:
        """Seconds to the first token from the moment the chunks are known."""
        return sum(stage.seconds for stage in self.timings.stages if stage.name not in _BEFORE_RETRIEVED)


@dataclass(slots=True)
class Cell:
    """All samples at one number of chunks."""

    chunks: int
    samples: dict[Condition, list[Sample]] = field(default_factory=lambda: {condition: [] for condition in Condition})

    def spread(self, condition: Condition) -> report.Spread:
        """Spread of the TTFT in seconds."""
        return report.Spread.of([sample.timings.ttft for sample in self.samples[condition]])

    def first_text(self, condition: Condition) -> report.Spread:
        """Spread of the seconds to the first quote or word."""
        return report.Spread.of([sample.first_text for sample in self.samples[condition]])

    def text_ratios(self, condition: Condition) -> report.Spread:
        """Return what `ratios` does, for the first text."""
        pairs = zip(self.samples[Condition.FULL], self.samples[condition], strict=True)
        return report.Spread.of([full.first_text / cached.first_text for full, cached in pairs])

    def ratios(self, condition: Condition, *, after_retrieval: bool = False) -> report.Spread:
        """Full prefill over `condition`, pair by pair: the same question in the same round."""
        pairs = zip(self.samples[Condition.FULL], self.samples[condition], strict=True)
        if after_retrieval:
            return report.Spread.of([full.after_retrieval / cached.after_retrieval for full, cached in pairs])
        return report.Spread.of([full.timings.ttft / cached.timings.ttft for full, cached in pairs])

    def stage(self, condition: Condition, name: str) -> float:
        """Median seconds of one stage."""
        sums = [
            sum(stage.seconds for stage in sample.timings.stages if stage.name == name)
            for sample in self.samples[condition]
        ]
        return report.Spread.of(sums).median

    @property
    def context_tokens(self) -> float:
        """Median tokens in the context at the first token."""
        return report.Spread.of([s.timings.context_tokens for s in self.samples[Condition.FULL]]).median


@dataclass(slots=True)
class Coldness:
    """Count of files that the page cache really let go."""

    dropped: int = 0
    kept: int = 0
    unknown: int = 0

    @property
    def verdict(self) -> str:
        """Return the line below the table."""
        if self.kept == self.unknown == 0:
            return f"all {self.dropped} files were out of the page cache before they were read"
        return f"page cache: {self.dropped} files dropped, {self.kept} kept by the system, {self.unknown} unknown"


def main(argv: Sequence[str]) -> int:
    """Run the measurement; returns an exit code. Raises DeskRagError subclasses."""
    options = _arguments(argv)
    questions = corpus.questions(options.questions)[: options.limit or None]
    with _data_dir(options.data_dir) as data_dir:
        engine = open_engine(_settings(options, data_dir), writer=True)
        try:
            corpus.index(engine, options.folder)
            cells, coldness = _measure(engine, questions, options)
        finally:
            engine.close()
    _print(cells, coldness)
    report.finish(_result(cells, coldness, options, len(questions)), options.out)
    return 0


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="desk-rag bench ttft", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--folder", type=Path, default=corpus.sample_folder(), help="documents; the samples by default")
    parser.add_argument("--questions", type=Path, help="JSON list of questions; those of the demo by default")
    parser.add_argument("--limit", type=int, default=0, help="take only the first N questions; 0 takes all")
    parser.add_argument("--chunks", default="3,5,10", help="numbers of chunks to measure at (top_k)")
    parser.add_argument(
        "--context-tokens", type=int, default=_CONTEXT_TOKENS, help="most tokens of chunks; 0 is the product's own"
    )
    parser.add_argument("--repeat", type=int, default=2, help="rounds over all questions")
    parser.add_argument("--minutes", type=float, default=10.0, help="ask nothing more after this time; 0 is no limit")
    parser.add_argument("--threads", type=int, default=0, help="CPU threads; 0 is the product's own choice")
    parser.add_argument("--model", default="embedded", help="a model directory or ORG/NAME")
    parser.add_argument("--device", default="auto", choices=["auto", "cpu", "cuda"])
    parser.add_argument("--quantization", default="none", choices=["none", "nf4", "int8"])
    parser.add_argument("--attention", default="auto", choices=["auto", "materialize", "lazy"])
    parser.add_argument("--recompute", default="0", help="share of chunk tokens recomputed")
    parser.add_argument("--selector", default=SelectorName.EDGE_QUERY.value, help="who chooses them")
    parser.add_argument("--data-dir", type=Path, help="where chunk KV goes; a temporary directory by default")
    parser.add_argument("--out", type=Path, help="append the JSON line to this file")
    return parser.parse_args(list(argv))


def _settings(options: argparse.Namespace, data_dir: Path) -> Settings:
    model = {
        "name": options.model,
        "threads": options.threads,
        "device": options.device,
        "quantization": options.quantization,
    }
    choice = RecomputeChoice.parse(options.recompute, options.selector)
    answer = AnswerSettings(
        context_tokens=options.context_tokens,
        attention=options.attention,
        recompute=choice.ratio,
        selector=choice.selector.value,
    )
    return Settings(data_dir=data_dir, model=ModelSettings.model_validate(model), answer=answer)


@contextmanager
def _data_dir(chosen: Path | None) -> Iterator[Path]:
    if chosen is not None:
        yield chosen.expanduser().absolute()
        return
    # Beside the caches of the user, not in /tmp, which is memory on many systems and would make the disk look fast.
    base = Settings().data_dir.parent
    base.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="desk-rag-bench-", dir=base) as place:
        yield Path(place)


def _measure(
    engine: AnswerEngine, asked: Sequence[corpus.Question], options: argparse.Namespace
) -> tuple[list[Cell], Coldness]:
    cells, coldness = [Cell(int(number)) for number in options.chunks.split(",")], Coldness()
    end = time.monotonic() + 60 * options.minutes if options.minutes else math.inf
    for cell in cells:
        for condition in Condition:  # once, unreported: the first use of any code path is slower
            _ask(engine, asked[0], condition, cell.chunks, coldness, keep=False)
    turns = [(round_number, question) for round_number in range(options.repeat) for question in asked]
    for count, (round_number, question) in enumerate(turns):
        if count and time.monotonic() >= end:
            print(f"The time is over: {count} of {len(turns)} questions (--minutes).", file=sys.stderr)
            break
        for cell in cells:
            for condition in _turned(round_number):
                keep = round_number < _KEPT_ROUNDS and condition is not Condition.DISK
                sample = _ask(engine, question, condition, cell.chunks, coldness, keep=keep)
                cell.samples[condition].append(sample)
        print(f"{count + 1} of {len(turns)} questions", file=sys.stderr)
    return cells, coldness


def _turned(round_number: int) -> list[Condition]:
    """The conditions, beginning with another one each round."""
    order = list(Condition)
    shift = round_number % len(order)
    return order[shift:] + order[:shift]


def _ask(
    engine: AnswerEngine,
    question: corpus.Question,
    condition: Condition,
    chunks: int,
    coldness: Coldness,
    *,
    keep: bool,
) -> Sample:
    if condition is Condition.DISK:
        _drop((engine.settings.data_dir / "kv").rglob("*.safetensors"), coldness)
    elif condition is Condition.MEMORY:
        any(isinstance(event, FirstToken) for event in engine.ask(question.text, mode=condition.mode, top_k=chunks))
    timings: Timings | None = None
    first_text: float | None = None
    answer: Answer | None = None
    engine.forget_read()
    began = time.perf_counter()
    for event in engine.ask(question.text, mode=condition.mode, top_k=chunks):
        match event:
            case Retrieved(sources) if not sources or not all(source.warm for source in sources):
                raise ConfigError("Not every chunk of an answer is warm.", remedy="Give the store more room on disk.")
            case FirstToken(measured):
                timings = timings or measured
            case Evidence() | AnswerText() if first_text is None:
                first_text = time.perf_counter() - began
                if not keep:
                    break
            case Finished(finished):
                answer = finished
    assert timings is not None and first_text is not None, "every answer has a text"
    return Sample(question, timings, first_text, answer)


def _drop(files: Iterable[Path], coldness: Coldness) -> None:
    """Make chunk KV as cold as it can be made without privileges, and look whether it worked."""
    for file in files:
        status = file.stat()
        # A new ctime makes the store verify the checksum again, as the first read of a process does.
        os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
        descriptor = os.open(file, os.O_RDONLY)
        try:
            os.fsync(descriptor)
            if hasattr(os, "posix_fadvise"):
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            _note_residence(descriptor, coldness)
        finally:
            os.close(descriptor)


def _note_residence(descriptor: int, coldness: Coldness) -> None:
    """Ask for one byte without waiting: EAGAIN means that it is not in memory."""
    try:
        os.preadv(descriptor, [bytearray(1)], 0, os.RWF_NOWAIT)
    except (AttributeError, OSError) as error:
        if isinstance(error, OSError) and error.errno == errno.EAGAIN:
            coldness.dropped += 1
        else:
            coldness.unknown += 1
        return
    coldness.kept += 1


# Comparing and showing --------------------------------------------------------------------------------------


def agreement_of(cell: Cell) -> Agreement:
    """Cached and full answers of one cell, compared."""
    full = {sample.question: sample.answer for sample in cell.samples[Condition.FULL] if sample.answer}
    cached = {sample.question: sample.answer for sample in cell.samples[Condition.MEMORY] if sample.answer}
    return Agreement.of(cached, full)


def _print(cells: Sequence[Cell], coldness: Coldness) -> None:
    print("Time to first token in milliseconds, from the question's submission")
    headings = ["condition", "chunks", "tokens", "min", "p25", "median", "p75", "max", "ratio", "from retrieval", "n"]
    rows = []
    for cell in cells:
        for condition in Condition:
            spread = cell.spread(condition)
            rows.append([
                condition.value, str(cell.chunks), f"{cell.context_tokens:.0f}",
                *(f"{number:.1f}" for number in spread.scaled(1e3)),
                f"{cell.ratios(condition).median:.1f}x",
                f"{cell.ratios(condition, after_retrieval=True).median:.1f}x",
                str(spread.count),
            ])  # fmt: skip
    print(report.table(headings, rows))
    print(f"ratio: median of full prefill over this condition, question by question. {coldness.verdict}.")
    print("\nTime to the first quote or word in milliseconds")
    rows = [
        [condition.value, str(cell.chunks), *(f"{number:.0f}" for number in cell.first_text(condition).scaled(1e3)),
         f"{cell.text_ratios(condition).median:.1f}x"]
        for cell in cells
        for condition in Condition
    ]  # fmt: skip
    print(report.table(["condition", "chunks", "min", "p25", "median", "p75", "max", "ratio"], rows))
    names = _stage_names(cells)
    print("\nStages, median milliseconds")
    rows = [
        [condition.value, str(cell.chunks), *(f"{cell.stage(condition, name) * 1e3:.1f}" for name in names)]
        for cell in cells
        for condition in Condition
    ]
    print(report.table(["condition", "chunks", *names], rows))
    print("\nAnswers of both modes over the same chunks")
    rows = []
    for cell in cells:
        both = agreement_of(cell)
        right = (f"{both.right_cached} of {both.judged}", f"{both.right_full} of {both.judged}")
        rows.append([str(cell.chunks), f"{both.equal:.0%}", f"{both.token_f1:.3f}", *right])
    print(report.table(["chunks", "equal text", "token F1", "right, cached", "right, full prefill"], rows))
    print()


def _stage_names(cells: Sequence[Cell]) -> list[str]:
    names: dict[str, None] = {}
    for cell in cells:
        for condition in (Condition.MEMORY, Condition.FULL):
            names.update((stage.name, None) for sample in cell.samples[condition] for stage in sample.timings.stages)
    return list(names)


def _result(
    cells: Sequence[Cell], coldness: Coldness, options: argparse.Namespace, questions: int
) -> dict[str, object]:
    names = _stage_names(cells)
    contexts = []
    for cell in cells:
        entry: dict[str, object] = {"chunks": cell.chunks, "context_tokens": cell.context_tokens}
        entry["samples"] = len(cell.samples[Condition.FULL])
        for condition in Condition:
            entry[condition.name.lower()] = {
                "ttft_ms": cell.spread(condition).scaled(1e3),
                "first_text_ms": cell.first_text(condition).scaled(1e3),
                "first_text_ratio": cell.text_ratios(condition).scaled(1.0, 2),
                "ratio": cell.ratios(condition).scaled(1.0, 2),
                "ratio_from_retrieval": cell.ratios(condition, after_retrieval=True).scaled(1.0, 2),
                "stages_ms": {name: round(cell.stage(condition, name) * 1e3, 2) for name in names},
            }
        both = agreement_of(cell)
        rounded = {"equal": round(both.equal, 3), "token_f1": round(both.token_f1, 3)}
        entry["answers"] = asdict(both) | rounded
        contexts.append(entry)
    return {
        "bench": "ttft",
        **report.environment(),
        "model": options.model,
        "questions": questions,
        "rounds": options.repeat,
        "spread": "min, p25, p50, p75, max",
        "cold": {"dropped": coldness.dropped, "kept": coldness.kept, "unknown": coldness.unknown},
        "contexts": contexts,
    }
