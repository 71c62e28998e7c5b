"""A queue of questions, with and without fetching the next one's chunks while an answer decodes, each way of loading.

Knows the engine's events and the page cache; computes no answer of its own. Each question finds the tiers empty and the
files out of the page cache, as far as fetching ahead has not brought them back. Ways and fetching take turns from
round to round; texts must be equal in all of them. (After MatKV's overlap of loading and decoding.)
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from desk_rag.answering.engine import AnswerEngine
from desk_rag.answering.events import Finished, FirstToken, Timings
from desk_rag.answering.kv_connector import CacheTarget, KVConnector, MappedConnector, StreamedConnector, tier_bytes
from desk_rag.answering.serving_model import prepare
from desk_rag.bench.harness import corpus, drive, report
from desk_rag.config import ModelSettings, Settings
from desk_rag.device_lock import DeviceLock
from desk_rag.errors import ConfigError
from desk_rag.ingest import background_prefill, pipeline
from desk_rag.kv.loading.loader import Loader, LoaderSettings
from desk_rag.retrieval.embedding import load_embedder
from desk_rag.store.store import Store

_WAYS = ("mapped", "streamed")


@dataclass(frozen=True, slots=True)
class Case:
    """One way of loading, with or without fetching ahead."""

    way: str
    ahead: bool

    @property
    def name(self) -> str:
        """For tables."""
        return f"{self.way}, fetched ahead" if self.ahead else self.way


def main(argv: Sequence[str]) -> int:
    """Run the measurement; returns an exit code. Raises DeskRagError subclasses."""
    options = _arguments(argv)
    asked = [question.text for question in corpus.questions(options.questions)][: options.limit or None]
    base = options.dir if options.dir is not None else Settings().data_dir.parent
    base.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="desk-rag-bench-", dir=base) as place, ExitStack() as stack:
        engines = _engines(Settings(data_dir=Path(place), model=_model(options)), options, stack)
        samples = _measure(engines, asked, options.repeat)
    found = {case: _stages(timings) for case, timings in samples.items()}
    names = list(dict.fromkeys(name for stages in found.values() for name in stages))
    rows = [
        [case.name, *(f"{found[case][name].median * 1e3:.2f}" if name in found[case] else "" for name in names)]
        for case in found
    ]
    print(report.table(["milliseconds, median", *names], rows))
    result: dict[str, object] = {
        "bench": "overlap", **report.environment(), "model": options.model, "questions": len(asked),
        "repeat": options.repeat, "top_k": options.top_k,
        "ms": {
            case.name: {name: spread.scaled(1e3, 3) for name, spread in stages.items()}
            for case, stages in found.items()
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
    parser.add_argument("--ways", default="mapped,streamed", help="ways of loading to compare")
    parser.add_argument("--top-k", type=int, help="chunks per answer; the model's own number by default")
    parser.add_argument("--model", default="embedded", help="a model directory or ORG/NAME")
    parser.add_argument("--device", default="auto", choices=["auto", "cpu", "cuda"])
    parser.add_argument("--dir", type=Path, help="where chunk KV goes; beside the user's caches by default")
    parser.add_argument("--out", type=Path, help="append the JSON line to this file")
    return parser.parse_args(list(argv))


def _model(options: argparse.Namespace) -> ModelSettings:
    return ModelSettings.model_validate({"name": options.model, "device": options.device})


def _engines(settings: Settings, options: argparse.Namespace, stack: ExitStack) -> dict[str, AnswerEngine]:
    """One engine per way over one data directory; the first one writes it."""
    prepared, embedder = prepare(settings), load_embedder(settings.model)
    ways = options.ways.split(",")
    if unknown := set(ways) - set(_WAYS):
        raise ConfigError(f"There is no way of loading '{unknown.pop()}'.", remedy=f"Known: {', '.join(_WAYS)}.")
    engines: dict[str, AnswerEngine] = {}
    for way in ways:
        store = Store.open(settings.data_dir, settings.store, writer=not engines)
        turn = DeviceLock(settings.data_dir / "run")
        engine = AnswerEngine(prepared, embedder, store, turn, settings, _loading(way, settings))
        stack.callback(engine.close)
        if not engines:
            _fill(engine, options.folder.expanduser().absolute())
        engines[way] = engine
    return engines


def _loading(way: str, settings: Settings) -> Callable[[Store, CacheTarget], KVConnector]:
    def made(store: Store, site: CacheTarget) -> KVConnector:
        device = site.model.device
        if way == "mapped":
            return MappedConnector(store, site)
        if device.type != "cuda":
            return StreamedConnector(store, site, Loader(device, LoaderSettings(threads=2, resident_bytes=1 << 28)))
        resident, staging = tier_bytes(settings.answer, device)
        return StreamedConnector(
            store, site, Loader(device, LoaderSettings(resident_bytes=resident, staging_bytes=staging))
        )

    return made


def _fill(engine: AnswerEngine, folder: Path) -> None:
    corpus.sync(engine.store, folder, engine.model.prompt)
    embedding = pipeline.embed_pending(engine.store, engine.embedder, lambda: False)
    warming = background_prefill.warm_pending(engine.store, engine.serving, engine.turn, lambda: False)
    for _ in itertools.chain(embedding, warming):
        pass


def _measure(engines: dict[str, AnswerEngine], asked: Sequence[str], repeat: int) -> dict[Case, list[Timings]]:
    cases = [Case(way, ahead) for way in engines for ahead in (False, True)]
    samples: dict[Case, list[Timings]] = {case: [] for case in cases}
    texts: dict[str, str] = {}
    for round_number in range(repeat + 1):  # the first round is not reported
        shift = round_number % len(cases)
        for case in cases[shift:] + cases[:shift]:
            told = _queue(engines[case.way], asked, case, texts)
            samples[case] += told if round_number else []
    return samples


def _queue(engine: AnswerEngine, asked: Sequence[str], case: Case, texts: dict[str, str]) -> list[Timings]:
    """Ask one question after the other; the next one is known before the present one is asked."""
    told: list[Timings] = []
    _cool(engine)
    for question, following in itertools.zip_longest(asked, asked[1:]):
        for event in engine.ask(question):
            match event:
                case FirstToken(timings):
                    told.append(timings)
                    _cool(engine)
                    if case.ahead and following is not None:
                        engine.prefetch(following)
                case Finished(answer):
                    if texts.setdefault(question, answer.raw) != answer.raw:
                        raise AssertionError(f"{case.name} answers {question!r} otherwise")
    return told


def _cool(engine: AnswerEngine) -> None:
    engine.forget_loaded()
    drive.drop(sorted((engine.settings.data_dir / "kv").rglob("*.safetensors")))


def _stages(timings: Sequence[Timings]) -> dict[str, report.Spread]:
    names = [stage.name for stage in timings[0].stages]
    columns = {name: [sum(s.seconds for s in one.stages if s.name == name) for one in timings] for name in names}
    return {**{name: report.Spread.of(times) for name, times in columns.items()}, "first token": report.Spread.of(
        [one.ttft for one in timings]
    )}  # fmt: skip
