"""Ask many questions of a random model in 4 bits while another program takes GPU memory and gives it back.

A second process first takes all of the GPU but `--gib`, so that this process sees a card of that size. Then it takes
and returns memory in turns, before questions and in the middle of answers. Counted are answers, questions that were
refused in words because memory was too short, and other errors, of which there must be none; every tenth question
repeats the first one with all memory given back, and must get the first one's answer. Weights are random, so answers
say nothing.
"""

from __future__ import annotations

import argparse
import dataclasses
import logging
import random
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch

from desk_rag.answering.engine import AnswerEngine
from desk_rag.answering.events import Answer, Finished, FirstToken
from desk_rag.bench import load
from desk_rag.bench.harness import report
from desk_rag.bench.harness.report import Spread
from desk_rag.bench.models import shapes
from desk_rag.bench.models.tiny_models import byte_prompt, byte_tokenizer
from desk_rag.bench.soak.other_program import OtherProgram
from desk_rag.config import GIB, ModelSettings, Settings
from desk_rag.device_lock import DeviceLock
from desk_rag.documents.chunking import ChunkSize
from desk_rag.errors import ConfigError, OutOfMemory
from desk_rag.ingest import background_prefill, pipeline
from desk_rag.kv.calibration.gate import GateReport, Score
from desk_rag.kv.prefill import prefill_prefix
from desk_rag.kv.prefix_variants.variants import PLAIN, build_prefix_variants
from desk_rag.kv.quant import QuantScheme
from desk_rag.kv.serving import ServingModel
from desk_rag.model.loading import quiet_libraries
from desk_rag.model.memory.device import release_unused
from desk_rag.model.prompt import PromptFormat
from desk_rag.retrieval.embedding import load_embedder
from desk_rag.store.store import Store

_MIB = 1 << 20
_LEFT = (None, 1024 * _MIB, 256 * _MIB, 64 * _MIB, None, 0)
"""Bytes that the other program leaves free, in turns of a few questions; None: it gives back what it took."""
_TURN = 3
"""Questions per turn."""
_REPEAT = 10
"""Every so many questions the first one is asked again."""
_THINGS = ("ladder", "passport", "violin", "tent", "lawn mower", "projector", "sewing machine", "spare key")
_PEOPLE = ("Anna", "Bertil", "Chiara", "Dawit", "Elif", "Farid", "Greta", "Hiro", "Ines", "Jonas", "Katya", "Luis")
_PLACES = ("the attic", "the red cabinet", "a box under the stairs", "the garage", "the neighbour's shed")
_log = logging.getLogger("desk_rag.bench")


@dataclass(slots=True)
class Counts:
    """Results of the questions so far."""

    asked: int = 0
    answered: int = 0
    with_fewer_passages: int = 0
    warm_chunks: int = 0
    """Passages read from their caches, and those computed for the answer."""
    cold_chunks: int = 0
    refused: int = 0
    """Because of memory, in words and with a remedy."""
    errors: int = 0
    first_error: str = ""
    repeated: int = 0
    repeated_alike: int = 0
    lowest_free: int = -1
    """Bytes free on the GPU when it was least; -1 without one."""
    given_back: list[int] = field(default_factory=list)
    """Bytes that this process returned to the GPU in questions with little memory, where it did."""
    seconds: list[float] = field(default_factory=list)
    """Seconds of each answered question."""

    def json(self) -> dict[str, object]:
        """Return the fields of the result line."""
        parts = dataclasses.asdict(self)
        parts["seconds"] = Spread.of(self.seconds).scaled(1.0, 3) if self.seconds else []
        parts["given_back"] = {"times": len(self.given_back), "most": max(self.given_back, default=0)}
        return parts


def main(argv: Sequence[str]) -> int:
    """Run the soak; returns an exit code, 0 if nothing was lost. Raises DeskRagError subclasses."""
    options = _arguments(argv)
    quiet_libraries()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    counts, failed = Counts(), ""
    began = time.perf_counter()
    with OtherProgram(device) as other, load._place(options.dir) as place:
        _shrink(device, other, options.gib)
        try:
            with _engine(device, place, options) as engine:
                served = time.perf_counter() - began
                _ask_all(engine, other, counts, options)
        except (ConfigError, OutOfMemory) as error:
            failed, served = str(error), time.perf_counter() - began
    result = {
        "bench": "soak", **report.environment(), "shape": options.shape, "quantization": options.quantization,
        "gib": options.gib, "context": options.context, "failed": failed, "seconds_to_serve": round(served, 1),
        "peak_reserved": _peak(device), **counts.json(),
    }  # fmt: skip
    _print(result)
    report.finish(result, options.out)
    return int(bool(failed or counts.errors or counts.repeated != counts.repeated_alike))


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="desk-rag bench soak", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--shape", default="qwen3-4b", help="a model shape of `bench card`")
    parser.add_argument("--gib", type=float, default=8.0, help="GPU memory that there is in all")
    parser.add_argument("--quantization", default="nf4", choices=["none", "nf4", "int8"])
    parser.add_argument("--questions", type=int, default=200)
    parser.add_argument("--files", type=int, default=60, help="files of one chunk each")
    parser.add_argument("--chunk", type=int, default=256, help="tokens per chunk, about")
    parser.add_argument("--context", type=int, default=4096, help="most tokens of passages in an answer")
    parser.add_argument("--answer", type=int, default=24, help="longest answer in tokens")
    parser.add_argument("--seconds", type=float, default=150.0, help="no further question is asked after these")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--dir", type=Path, help="where files lie meanwhile; beside the user's caches by default")
    parser.add_argument("--out", type=Path, help="append the JSON line to this file")
    return parser.parse_args(list(argv))


def _shrink(device: torch.device, other: OtherProgram, gib: float) -> None:
    """Let the other program take all of the GPU but `gib` GiB, this process's CUDA context counted in."""
    if device.type != "cuda":
        return
    before, total = torch.cuda.mem_get_info(device)  # creates the context
    torch.zeros(1, device=device)
    after = torch.cuda.mem_get_info(device)[0]
    own = max(before - after, 500 * _MIB)  # before the first tensor much of a context may be there already
    left = int(gib * GIB) - own
    if not 0 < left <= after:
        raise ConfigError(
            f"{gib:g} GiB of GPU memory cannot be had: {after / GIB:.1f} of {total / GIB:.1f} GiB are free.",
            remedy="Give a smaller or larger --gib.",
        )
    other.keep(left)


@contextmanager
def _engine(device: torch.device, place: Path, options: argparse.Namespace) -> Iterator[AnswerEngine]:
    """An engine over a folder that is indexed and warm, as the product opens it."""
    model = shapes.build(options.shape, device, quantization=options.quantization)
    model = dataclasses.replace(model, prompt=_prompt(options))
    scheme, exact = QuantScheme.uniform(model.spec.num_layers), Score(0.0, 1.0, 0)
    # The quality gate is left out: it has nothing to say about random weights.
    variants = build_prefix_variants(model, prefill_prefix(model), PLAIN, scheme)
    serving = ServingModel(model, variants, GateReport(scheme, exact, exact, 0, 0))
    settings = Settings.model_validate(
        {"data_dir": place / "data", "answer": {"max_new_tokens": options.answer}, "store": {"reserve_gib": 0.5}}
    )
    store = Store.open(settings.data_dir, settings.store, writer=True)
    try:
        turn = DeviceLock(settings.data_dir / "run")
        engine = AnswerEngine(serving, load_embedder(ModelSettings()), store, turn, settings)
    except BaseException:
        store.close()
        raise
    try:
        _write_files(place / "docs", options)
        prompt = model.prompt
        steps: Sequence[Iterator[object]] = (
            pipeline.sync_folder(store, place / "docs", prompt, prompt.chunk_size, settings.index, lambda: False),
            pipeline.embed_pending(store, engine.embedder, lambda: False),
            background_prefill.warm_pending(store, serving, turn, lambda: False),
        )
        reasons: dict[str, None] = {}
        for step in steps:
            for event in step:
                reason = getattr(event, "reason", "") or getattr(event, "waiting", "")
                reasons |= {str(reason): None} if reason else {}
        if not store.counts(engine.namespace).warm:
            raise ConfigError(
                f"No file could be read and prefilled, so that every answer would be a refusal: {', '.join(reasons)}",
                remedy="Run it where desk-rag is installed, or with PYTHONPATH at its source.",
            )
        yield engine
    finally:
        engine.close()


def _prompt(options: argparse.Namespace) -> PromptFormat:
    parts = byte_prompt().parts
    size = ChunkSize(smallest=options.chunk // 4, target=options.chunk, largest=options.chunk + 64)
    top_k = max(1, min(64, options.context // options.chunk))
    return PromptFormat(
        byte_tokenizer(), parts, stop_ids=frozenset({2}), chunk_size=size, context_tokens=options.context, top_k=top_k
    )


def _write_files(folder: Path, options: argparse.Namespace) -> None:
    """Write files of one sentence to be found by, and filler up to the length of a chunk (a byte is a token here)."""
    folder.mkdir(parents=True)
    for number in range(options.files):
        sentence = f"{_subject(number)} is kept in {_PLACES[number % len(_PLACES)]} since May {1990 + number % 30}. "
        filler = f"Nobody has moved it; see page {number}. "
        (folder / f"note{number}.txt").write_text((sentence + filler * 99)[: options.chunk - 16] + "\n")


def _subject(number: int) -> str:
    return f"{_PEOPLE[number % len(_PEOPLE)]}'s {_THINGS[number // len(_PEOPLE) % len(_THINGS)]} number {number}"


def _ask_all(engine: AnswerEngine, other: OtherProgram, counts: Counts, options: argparse.Namespace) -> None:
    began, order = time.perf_counter(), random.Random(options.seed)
    first: str | None = None
    for index in range(options.questions):
        if time.perf_counter() - began > options.seconds:
            _log.warning("no time for more than %d questions", index)
            break
        left = _LEFT[index // _TURN % len(_LEFT)]
        if index % _REPEAT == 0:
            left, subject = None, _subject(0)
        else:
            subject = _subject(order.randrange(options.files))
        _let(other, left)
        # Every second question the other program changes its mind in the middle of the answer.
        then = _LEFT[(index // _TURN + 1) % len(_LEFT)] if index % 2 else left
        answer = _ask(engine, f"Where is {subject} kept?", other, (left, then), counts)
        if index % _REPEAT == 0 and answer is not None:
            first = answer.raw if first is None else first
            counts.repeated += 1
            counts.repeated_alike += answer.raw == first
    other.give()


def _let(other: OtherProgram, left: int | None) -> None:
    other.give()
    if left is not None:
        other.leave(left)


def _ask(
    engine: AnswerEngine, question: str, other: OtherProgram, left: tuple[int | None, int | None], counts: Counts
) -> Answer | None:
    """Ask one question, with so much memory left before it and from its first token on; None if it was refused."""
    device, before = engine.model.device, _reserved(engine.model.device)
    began = time.perf_counter()
    counts.asked += 1
    answer: Answer | None = None
    try:
        for event in engine.ask(question):
            _note_free(device, counts)
            if isinstance(event, FirstToken) and left[0] != left[1]:
                _let(other, left[1])
                _note_free(device, counts)
            if isinstance(event, Finished):
                answer = event.answer
    except OutOfMemory as error:
        counts.refused += 1
        assert error.remedy
    except Exception as error:  # what this benchmark looks for
        counts.errors += 1
        counts.first_error = counts.first_error or f"{type(error).__name__}: {error}"
        _log.error("question %d: %s", counts.asked, traceback.format_exc())
    if answer is not None:
        counts.answered += 1
        counts.with_fewer_passages += any("Memory was too short" in notice for notice in answer.notices)
        counts.warm_chunks += answer.warm_chunks
        counts.cold_chunks += answer.cold_chunks
        counts.seconds.append(time.perf_counter() - began)
    _note_free(device, counts)
    if left[0] is not None and (returned := before - _reserved(device)) > 0:
        counts.given_back.append(returned)
    return answer


def _note_free(device: torch.device, counts: Counts) -> None:
    if device.type == "cuda":
        free = torch.cuda.mem_get_info(device)[0]
        counts.lowest_free = free if counts.lowest_free < 0 else min(counts.lowest_free, free)


def _reserved(device: torch.device) -> int:
    return int(torch.cuda.memory_reserved(device)) if device.type == "cuda" else 0


def _peak(device: torch.device) -> int:
    release_unused(device)
    return int(torch.cuda.max_memory_reserved(device)) if device.type == "cuda" else 0


def _print(result: dict[str, object]) -> None:
    names = [
        "asked", "answered", "with_fewer_passages", "warm_chunks", "cold_chunks", "refused", "errors", "repeated",
        "repeated_alike",
    ]  # fmt: skip
    print(f"{result['shape']}, {result['gib']} GiB: " + ", ".join(f"{name} {result[name]}" for name in names))
    if result["failed"] or result["first_error"]:
        print(f"  {result['failed'] or result['first_error']}")


if __name__ == "__main__":
    import sys

    raise SystemExit(main(sys.argv[1:]))
