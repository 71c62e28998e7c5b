"""Time the first token with selective recompute, by ratio and selector, beside full prefill.

Answers are judged by `bench quality`. Chunk KV lies in memory on both sides:
full prefill starts from tokens, the others from int8 chunk KV that is stitched, chosen from and partly recomputed, all
within the measured time; on a GPU it is laid by loader and placer, from its memory. Full prefill is run in every way
this machine offers: ratios are given against transformers' own and against the fastest. Pieces take turns, so that all
of them see the same machine. Stitching, choosing and the pass are measured apart as well: a selector that does not
read the stitched cache could choose while chunk KV is loaded.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from desk_rag.bench.baselines import selectors, serving
from desk_rag.bench.baselines.selectors import select
from desk_rag.bench.harness import clock, report
from desk_rag.bench.harness.clock import Times, Work
from desk_rag.bench.models import shapes
from desk_rag.config import ModelSettings
from desk_rag.kv.cache import SlabCache
from desk_rag.kv.forward import full_prefill
from desk_rag.kv.forward.families import is_plain
from desk_rag.kv.forward.sparse_decoder import SparseDecoder
from desk_rag.kv.loading.layerwise import CacheTarget, Placer
from desk_rag.kv.loading.loader import Loader, LoaderSettings
from desk_rag.kv.payload import ChunkFile
from desk_rag.kv.positions import StitchPlan, plan
from desk_rag.kv.prefill import prefill_chunk, prefill_prefix
from desk_rag.kv.quant import QuantScheme, quantize
from desk_rag.kv.recompute.auxiliary_model import AuxiliaryModel
from desk_rag.kv.recompute.run import NOTHING, Selection, recompute
from desk_rag.kv.recompute.selectors import SelectionContext
from desk_rag.kv.rope import RotaryTables, build_tables
from desk_rag.kv.stitch import StitchedCache, stitch
from desk_rag.kv.types import KVKey, Namespace, TokenHash
from desk_rag.model.language_model import LanguageModel
from desk_rag.model.loading import load_model, pick_device
from desk_rag.store.kv import chunk_file
from desk_rag.store.kv import header as kv_header

_SENTENCE = "The {n}th pump of hall {m} was serviced on day {k} by Anna Berg, who noted {v} bar in the green book. "
_FULL = "full prefill"
_STOCK = f"{_FULL}, {full_prefill.STOCK}"
_QUESTION = "Which pump did Anna Berg service last, and how many bar did she note?"


class Bench:
    """One context of one model, ready to be answered in every way."""

    def __init__(self, model: LanguageModel, tokens: int, chunk: int, auxiliary: AuxiliaryModel | None) -> None:
        self.model, self.auxiliary, self.stack = model, auxiliary, ExitStack()
        self.prefix = prefill_prefix(model)
        self.texts = _texts(model, tokens, chunk)
        self.chunk_ids = [model.prompt.chunk_ids(text) for text in self.texts]
        self.question_ids = model.prompt.question_ids(_QUESTION)
        self.plan: StitchPlan = plan(self.prefix.num_tokens, [len(ids) for ids in self.chunk_ids])
        size = self.plan.num_slots + len(self.question_ids)
        self.tables: RotaryTables = build_tables(model, size)
        self.cache = SlabCache(model, size)
        scheme = QuantScheme.uniform(model.spec.num_layers)
        self.chunks = [quantize(prefill_chunk(model, self.prefix, ids), scheme) for ids in self.chunk_ids]
        every = [*model.prompt.prefix_ids, *(token for ids in self.chunk_ids for token in ids), *self.question_ids]
        self.all_ids = torch.tensor(every, device=model.device)
        self.streamed = self._streamed() if model.device.type == "cuda" else None
        self.prefills = self._prefills()
        """Full prefill in every way, by name."""
        self.lean = SparseDecoder.of(model)

    def _streamed(self) -> tuple[Loader, CacheTarget, list[ChunkFile]]:
        """The chunks as files and the loader that answers on a GPU use, which keeps them in GPU memory."""
        folder = self.stack.enter_context(TemporaryDirectory(prefix="desk-rag-bench-"))
        files = []
        for number, chunk in enumerate(self.chunks):
            path = Path(folder) / f"{number}.safetensors"
            key = KVKey(Namespace("0" * 32), TokenHash(f"{number:032x}"))
            chunk_file.write(path, chunk_file.prepare(key, chunk, ["0"], 0.1))
            files.append(ChunkFile(path, kv_header.read_header(path)))
        room = 2 * sum(file.payload for file in files)
        settings = LoaderSettings(staging_bytes=room, resident_bytes=room)
        loader = self.stack.enter_context(Loader(self.model.device, settings))
        return loader, CacheTarget.of(self.tables, self.cache), files

    def close(self) -> None:
        """Give files and memory back."""
        self.stack.close()

    def context(self) -> SelectionContext:
        """The context with its chunks laid anew, as an answer lays them on this device."""
        if self.streamed is not None:
            loader, slots, files = self.streamed
            load = loader.start(files)
            self.cache.set_length(self.plan.num_slots)
            self.prefix.write_to(self.cache)
            Placer(load, self.plan, slots).place_all()
            load.close()
            stitched = StitchedCache(self.cache, self.plan)
        else:
            stitched = stitch(self.model, self.plan, self.prefix, self.chunks, self.tables, self.cache)
        return SelectionContext(
            self.model, stitched, self.chunk_ids, self.question_ids, self.texts, _QUESTION, self.auxiliary, self.lean
        )

    def stitched(self) -> None:
        """Stitching alone, until the last layer's keys are there: part of every way but full prefill."""
        self.context()
        self.cache.layers[-1].key_slab[0, 0, self.plan.num_slots - 1, 0].item()

    def _prefills(self) -> dict[str, Callable[[], object]]:
        if is_plain(self.model):
            ways = serving.FullPrefill(self.model, self.cache, self.tables).ways(self.all_ids[None])
            return {f"{_FULL}, {name}": way for name, way in ways.items()}
        return {_STOCK: self._stock}

    def _stock(self) -> None:
        self.cache.set_length(0)
        logits = self.model.forward(self.all_ids, self.cache, 0, logits=True)
        assert logits is not None
        logits.argmax().item()

    def answered(self, context: SelectionContext, selection: Selection) -> None:
        """Recompute and read off the first token."""
        logits = recompute(
            self.model, context.stitched, self.chunk_ids, self.question_ids, selection, self.tables, decoder=self.lean
        )
        logits.argmax().item()

    def whole(self, name: str, ratio: float) -> None:
        """Stitch, choose, recompute."""
        context = self.context()
        self.answered(context, select(name, ratio, context))

    def works(self, names: Sequence[str], ratios: Sequence[float]) -> dict[str, Work]:
        """Everything that takes turns."""
        works = {name: Work(way) for name, way in self.prefills.items()}
        works["stitch"] = Work(self.stitched)
        works["stitched"] = Work(lambda: self.answered(self.context(), NOTHING))
        for name in names:
            for ratio in ratios:
                label = _label(name, ratio)
                works[label] = Work(partial(self.whole, name, ratio))
                works[f"select {label}"] = Work(partial(select, name, ratio, self.context()), self.context)
                chosen = select(name, ratio, self.context())
                works[f"pass {label}"] = Work(partial(self.answered, self.context(), chosen), self.context)
        return works


@dataclass(frozen=True, slots=True)
class Row:
    """One way to answer."""

    what: str
    effective: float
    """Share of chunk tokens recomputed."""
    times: Times
    select_ms: float
    """Median of choosing alone; part of `times`, as is the next."""
    pass_ms: float
    """Median of the pass of what was chosen and the question."""


def main(argv: Sequence[str]) -> int:
    """Run the measurement; returns an exit code. Raises DeskRagError subclasses."""
    options = _arguments(argv)
    model, auxiliary = _models(options)
    contexts = []
    names = options.selectors.split(",")
    for name in names:
        selectors.check(name)
    if auxiliary is None:
        names = [name for name in names if not name.startswith("aux")]
    ratios = sorted(float(ratio) for ratio in options.ratios.split(","))
    for tokens in (int(number) for number in options.tokens.split(",")):
        with closing(Bench(model, tokens, options.chunk, auxiliary)) as bench:
            works = bench.works(names, ratios)
            times = clock.in_turns(works, model.device, seconds=options.seconds, most=options.rounds)
            rows = _rows(bench, times, names, ratios)
            _print(bench, rows, times)
            contexts.append(_json(bench, rows, times))
        del bench, works
    report.finish(
        {
            "bench": "recompute", **report.environment(), "model": model.spec.name, "dtype": str(model.spec.dtype),
            "auxiliary": auxiliary.model.spec.name if auxiliary else None, "chunk": options.chunk,
            "spread": "min, p25, p50, p75, max", "contexts": contexts,
        },
        options.out,
    )  # fmt: skip
    return 0


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="desk-rag bench recompute", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--model", default="embedded", help="a model directory or ORG/NAME")
    parser.add_argument("--shape", help=f"random weights instead: one of {', '.join(shapes.MODELS)}")
    parser.add_argument("--device", default="auto", choices=["auto", "cpu", "cuda"])
    parser.add_argument("--threads", type=int, default=0, help="CPU threads; 0 is the product's own choice")
    parser.add_argument("--auxiliary", default="embedded", help="the auxiliary model; 'none' leaves it out")
    parser.add_argument("--auxiliary-device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--tokens", default="1024,2048", help="sizes of the context, chunks only")
    parser.add_argument("--chunk", type=int, default=256, help="tokens per chunk, about")
    parser.add_argument("--ratios", default="0.05,0.1,0.2")
    parser.add_argument("--selectors", default=",".join(selectors.NAMES))
    parser.add_argument("--seconds", type=float, default=60.0, help="per size of context")
    parser.add_argument("--rounds", type=int, default=15, help="at most")
    parser.add_argument("--out", type=Path, help="append the JSON line to this file")
    return parser.parse_args(list(argv))


def _models(options: argparse.Namespace) -> tuple[LanguageModel, AuxiliaryModel | None]:
    settings = ModelSettings(name=options.model, device=options.device, threads=options.threads)
    model = shapes.build(options.shape, pick_device(settings)) if options.shape else load_model(settings)
    if options.auxiliary == "none":
        return model, None
    aside = settings.model_copy(update={"name": options.auxiliary, "device": options.auxiliary_device})
    return model, AuxiliaryModel(load_model(aside))


def _texts(model: LanguageModel, tokens: int, chunk: int) -> list[str]:
    """Sentences that differ, in chunks of at most `chunk` tokens, frame included, that make up `tokens` together."""
    texts, used, number = [], 0, 0
    while used < tokens:
        room, text = min(chunk, tokens - used), ""
        while True:
            number += 1
            more = text + _SENTENCE.format(n=number, m=number % 7, k=number * 13 % 365, v=number * 31 % 97)
            if len(model.prompt.chunk_ids(more)) > room and text:
                break
            text = more
        texts.append(text.rstrip())
        used += max(len(model.prompt.chunk_ids(texts[-1])), room)
    return texts


def _rows(bench: Bench, times: dict[str, Times], names: Sequence[str], ratios: Sequence[float]) -> list[Row]:
    rows = []
    for name in names:
        for ratio in ratios:
            label = _label(name, ratio)
            parts = [times.get(f"{part} {label}") for part in ("select", "pass")]
            if label in times and parts[0] is not None and parts[1] is not None:
                effective = select(name, ratio, bench.context()).ratio
                rows.append(Row(label, effective, times[label], _median(parts[0]), _median(parts[1])))
    return rows


def _label(name: str, ratio: float) -> str:
    return f"{name} {ratio:g}"


def _median(times: Times) -> float:
    return report.Spread.of(times.wall).median * 1e3


def _fulls(times: dict[str, Times]) -> dict[str, float]:
    """Median milliseconds of full prefill in every way that works here, the fastest first."""
    medians = {name: _median(one) for name, one in times.items() if name.startswith(_FULL)}
    return dict(sorted(medians.items(), key=lambda pair: pair[1]))


def _ratios(times: dict[str, Times], took: float) -> list[float]:
    """Ratios to transformers' full prefill and to the fastest."""
    fulls = _fulls(times)
    return [fulls[_STOCK] / took, next(iter(fulls.values())) / took]


def _print(bench: Bench, rows: Sequence[Row], times: dict[str, Times]) -> None:
    chunk_tokens = bench.plan.num_slots - bench.plan.prefix_tokens
    print(f"\n{chunk_tokens} tokens in {len(bench.texts)} chunks: milliseconds to the first token, chunk KV in memory")

    def line(what: str, recomputed: str, choosing: str, passing: str, one: Times, hidden: str = "") -> list[str]:
        ratios = [f"{ratio:.2f}x" for ratio in _ratios(times, _median(one))]
        return [what, recomputed, choosing, passing, *_five(one), *ratios, hidden]

    shown = [line(name, "", "", "", times[name]) for name in _fulls(times)]
    shown.append(line("stitching alone", "", "", "", times["stitch"]))
    shown.append(line("stitched", "0 %", "", "", times["stitched"]))
    for row in rows:
        early = not selectors.needs_cache(row.what.split()[0])
        hidden = f"{_ratios(times, _median(row.times) - row.select_ms)[1]:.2f}x" if early else ""
        parts = f"{row.select_ms:.1f}", f"{row.pass_ms:.1f}"
        shown.append(line(row.what, f"{row.effective:.1%}", *parts, row.times, hidden))
    headings = [
        "way", "recomputed", "choosing", "pass", "min", "p25", "median", "p75", "max", "transformers", "fastest",
        "choosing hidden",
    ]  # fmt: skip
    print(report.table(headings, shown))


def _five(times: Times) -> list[str]:
    return [f"{number:.1f}" for number in report.Spread.of(times.wall).scaled(1e3)]


def _json(bench: Bench, rows: Sequence[Row], times: dict[str, Times]) -> dict[str, object]:
    fulls = _fulls(times)
    ways = []
    for row in rows:
        ratios = [round(ratio, 3) for ratio in _ratios(times, _median(row.times))]
        ways.append({
            "way": row.what, "effective": round(row.effective, 4), "select_ms": round(row.select_ms, 2),
            "pass_ms": round(row.pass_ms, 2), "ratio": ratios[0], "ratio_fastest": ratios[1], **row.times.json(),
        })  # fmt: skip
    return {
        "tokens": bench.plan.num_slots - bench.plan.prefix_tokens, "chunks": len(bench.texts),
        "question": len(bench.question_ids), "full": times[_STOCK].json(), "fastest": next(iter(fulls)),
        "fulls_ms": {name: round(took, 2) for name, took in fulls.items()},
        "stitch_ms": round(_median(times["stitch"]), 2), "stitched": times["stitched"].json(),
        "ways": ways,
    }  # fmt: skip
