"""Measure a queue of questions with and without prefetching the next one's chunks while an answer is decoded.

Each question finds the memory tiers empty and the files out of the page cache, as far as prefetching has not brought
them back. Both ways take turns from round to round; texts must be equal. (After MatKV's overlap of loading and
decoding.)
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from desk_rag.answering.engine import AnswerEngine
from desk_rag.answering.events import Finished, FirstToken, Timings
from desk_rag.answering.serving_model import prepare
from desk_rag.bench.harness import corpus, drive, report
from desk_rag.config import ModelSettings, Settings
from desk_rag.device_lock import DeviceLock
from desk_rag.ingest import background_prefill, pipeline
from desk_rag.retrieval.embedding import load_embedder
from desk_rag.store.store import Store

_NAMES = {False: "not prefetched", True: "prefetched"}
"""Names of the two ways in tables, by whether the next question's chunks are prefetched."""


def main(argv: Sequence[str]) -> int:
    """Run the measurement; returns an exit code. Raises DeskRagError subclasses."""
    options = _arguments(argv)
    questions = [question.text for question in corpus.questions(options.questions)][: options.limit or None]
    base = options.dir if options.dir is not None else Settings().data_dir.parent
    base.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="desk-rag-bench-", dir=base) as place, ExitStack() as stack:
        engine = _engine(Settings(data_dir=Path(place), model=_model(options)), options, stack)
        samples = _measure(engine, questions, options.repeat)
    spreads = {_NAMES[prefetching]: _stages(timings) for prefetching, timings in samples.items()}
    names = list(dict.fromkeys(name for stages in spreads.values() for name in stages))
    rows = [
        [way, *(f"{stages[name].median * 1e3:.2f}" if name in stages else "" for name in names)]
        for way, stages in spreads.items()
    ]
    print(report.table(["milliseconds, median", *names], rows))
    result: dict[str, object] = {
        "bench": "overlap", **report.environment(), "model": options.model, "questions": len(questions),
        "repeat": options.repeat, "top_k": options.top_k,
        "ms": {
            way: {name: spread.scaled(1e3, 3) for name, spread in stages.items()} for way, stages in spreads.items()
        },
    }  # fmt: skip
    report.finish(result, options.out)
    return 0


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="desk-rag bench overlap", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--folder", type=Path, default=corpus.sample_folder(), help="documents; the samples by default")
    parser.add_argument("--questions", type=Path, help="JSON list of questions; those of the demo by default")
    parser.add_argument("--limit", type=int, default=0, help="take only the first N questions; 0 takes all")
    parser.add_argument("--repeat", type=int, default=3, help="rounds over all questions")
    parser.add_argument("--top-k", type=int, help="chunks per answer; the model's own number by default")
    parser.add_argument("--model", default="embedded", help="a model directory or ORG/NAME")
    parser.add_argument("--device", default="auto", choices=["auto", "cpu", "cuda"])
    parser.add_argument("--dir", type=Path, help="where chunk KV goes; beside the user's caches by default")
    parser.add_argument("--out", type=Path, help="append the JSON line to this file")
    return parser.parse_args(list(argv))


def _model(options: argparse.Namespace) -> ModelSettings:
    return ModelSettings.model_validate({"name": options.model, "device": options.device})


def _engine(settings: Settings, options: argparse.Namespace, stack: ExitStack) -> AnswerEngine:
    prepared, embedder = prepare(settings), load_embedder(settings.model)
    store = Store.open(settings.data_dir, settings.store, writer=True)
    engine = AnswerEngine(prepared, embedder, store, DeviceLock(settings.data_dir / "run"), settings)
    stack.callback(engine.close)
    _fill(engine, options.folder.expanduser().absolute())
    return engine


def _fill(engine: AnswerEngine, folder: Path) -> None:
    corpus.sync(engine.store, folder, engine.model.prompt)
    embedding = pipeline.embed_pending(engine.store, engine.embedder, lambda: False)
    warming = background_prefill.warm_pending(engine.store, engine.serving, engine.turn, lambda: False)
    for _ in itertools.chain(embedding, warming):
        pass


def _measure(engine: AnswerEngine, questions: Sequence[str], repeat: int) -> dict[bool, list[Timings]]:
    """Timings by whether the next question's chunks are prefetched."""
    samples: dict[bool, list[Timings]] = {False: [], True: []}
    texts: dict[str, str] = {}
    for round_number in range(repeat + 1):  # the first round is not reported
        for prefetching in sorted(samples, reverse=bool(round_number % 2)):
            timings = _queue(engine, questions, prefetching, texts)
            samples[prefetching] += timings if round_number else []
    return samples


def _queue(engine: AnswerEngine, questions: Sequence[str], prefetching: bool, texts: dict[str, str]) -> list[Timings]:
    """Ask one question after the other; the next one is known before the present one is asked."""
    first_tokens: list[Timings] = []
    _cool(engine)
    for question, following in itertools.zip_longest(questions, questions[1:]):
        for event in engine.ask(question):
            match event:
                case FirstToken(timings):
                    first_tokens.append(timings)
                    _cool(engine)
                    if prefetching and following is not None:
                        engine.prefetch(following)
                case Finished(answer):
                    if texts.setdefault(question, answer.raw) != answer.raw:
                        raise AssertionError(f"{question!r} is answered otherwise if {_NAMES[prefetching]}")
    return first_tokens


def _cool(engine: AnswerEngine) -> None:
    engine.forget_loaded()
    drive.drop(sorted((engine.settings.data_dir / "kv").rglob("*.safetensors")))


def _stages(timings: Sequence[Timings]) -> dict[str, report.Spread]:
    names = [stage.name for stage in timings[0].stages]
    columns = {name: [sum(s.seconds for s in one.stages if s.name == name) for one in timings] for name in names}
    return {**{name: report.Spread.of(times) for name, times in columns.items()}, "first token": report.Spread.of(
        [one.ttft for one in timings]
    )}  # fmt: skip
