"""Replay Zipf traces over a fixed RAM budget: one position-free int8 copy against copies per position and 16 bits.

Every answer draws chunks by a Zipf law, in any order. What memory does not hold is read from the drive by the loader,
out of the page cache, and placed into a cache: position-free copies are rotated to their places, copies per position
only decoded; on a GPU one kernel does either. The ways take turns at every answer; the first quarter of a trace fills
the memory and is not counted. Rates are given twice: with every copy of every way on the drive, and with a drive budget
too, where a copy that the drive does not hold costs a prefill besides. The values are random: time does not depend on
them. The last line is JSON. (After LazyAttention's throughput under skew.)
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from itertools import accumulate
from pathlib import Path

import torch

from desk_rag.bench.harness import drive, report
from desk_rag.bench.models import synthetic
from desk_rag.bench.models.synthetic import Shape, Slabs
from desk_rag.config import ModelSettings, Settings
from desk_rag.kv.calibration.texts import PROBE
from desk_rag.kv.kernels.availability import place_group
from desk_rag.kv.loading.costs import Tier
from desk_rag.kv.loading.loader import Load, Loader, LoaderSettings
from desk_rag.kv.payload import ChunkFile
from desk_rag.kv.positions import StitchPlan, plan
from desk_rag.kv.prefill import prefill_chunk, prefill_prefix
from desk_rag.kv.quant import dequantize_into, move_layer
from desk_rag.kv.rope import RotaryTables
from desk_rag.kv.stitch import place_layer
from desk_rag.kv.types import KVKey, Namespace, QuantizedKV, RawLayer, TokenHash
from desk_rag.model.loading import load_model
from desk_rag.store.kv import chunk_file
from desk_rag.store.kv import header as kv_header

_NAMESPACE = Namespace("0" * 32)
_READER = Shape(10, 8, 2, 64)
"""The embedded reader's."""
_WARM_UP = 0.25
"""Share of a trace that fills the memory."""

Result = tuple[float, float, float, float]
"""Hit ratio; answers per second with everything on the drive, and within its budget; prefills per answer then."""
Drawn = tuple[int, ...]
"""Chunks of one answer in the order in which they stand."""


@dataclass(frozen=True, slots=True)
class Way:
    """A way to keep chunk KV."""

    name: str
    bits: int
    is_per_position: bool


WAYS = (
    Way("position-free int8", 8, False),
    Way("position-free 16-bit", 16, False),
    Way("per position int8", 8, True),
    Way("per position 16-bit", 16, True),
)


@dataclass(frozen=True, slots=True)
class Desk:
    """Files of every way, and the cache that answers are placed into."""

    files: dict[tuple[int, int, int], ChunkFile]
    """Copies by bits, chunk and place; position-free ones have place 0."""
    stitch_plan: StitchPlan
    tables: RotaryTables
    still: RotaryTables
    """Tables that turn nothing."""
    slabs: Slabs
    device: torch.device

    def file(self, way: Way, chunk: int, place: int) -> ChunkFile:
        """Return the file that an answer with `chunk` at `place` reads."""
        return self.files[way.bits, chunk, place if way.is_per_position else 0]

    def place(self, way: Way, load: Load) -> None:
        """Fill the cache with the chunks of a load."""
        chunks = [load.quantized(index) for index in range(len(load.items))]
        kernel = place_group(self.device) if way.bits == 8 else None
        if kernel is not None:
            tables = self.still if way.is_per_position else self.tables
            kernel(range(len(self.slabs.layers)), self.stitch_plan.placements, chunks, tables, self.slabs)  # type: ignore[arg-type]
            return
        for layer, _ in enumerate(self.slabs.layers):
            for placement, chunk in zip(self.stitch_plan.placements, chunks, strict=True):
                if not way.is_per_position:
                    place_layer(layer, placement, chunk, self.tables, self.slabs)  # type: ignore[arg-type]
                    continue
                keys, values = self.slabs.write(layer, placement.slot, placement.num_tokens)
                exact = torch.empty(keys.shape, dtype=torch.float32, device=keys.device)
                dequantize_into(move_layer(chunk.layers[layer], keys.device), exact, values)
                keys.copy_(exact)


def trace(rng: random.Random, chunks: int, answers: int, places: int, alpha: float) -> list[Drawn]:
    """Return the chunks of each answer, without repetition, by Zipf's law over a random ranking."""
    order = rng.sample(range(chunks), chunks)
    weights = list(accumulate(1 / (rank + 1) ** alpha for rank in range(chunks)))
    answers_drawn = []
    for _ in range(answers):
        drawn: dict[int, None] = {}
        while len(drawn) < places:
            drawn[rng.choices(order, cum_weights=weights)[0]] = None
        shuffled = list(drawn)
        rng.shuffle(shuffled)
        answers_drawn.append(tuple(shuffled))
    return answers_drawn


@dataclass(slots=True)
class Replay:
    """One way's memory while a trace is replayed, and what was counted."""

    desk: Desk
    way: Way
    loader: Loader
    hits: int = 0
    lookups: int = 0
    seconds: float = 0.0
    answers: int = 0
    prefills: int = 0
    """Chunks that neither memory nor a drive of limited size held."""
    drive_room: int = 0
    """Bytes of the drive's budget that are left."""
    on_drive: OrderedDict[Path, int] = field(default_factory=OrderedDict)
    """Sizes of the files within the drive's budget, least recently used first."""

    def answer(self, drawn: Drawn, *, counted: bool) -> None:
        """Load and place the chunks of one answer."""
        files = [self.desk.file(self.way, chunk, place) for place, chunk in enumerate(drawn)]
        in_memory = [self.loader.tier_of(file) is Tier.DEVICE for file in files]
        drive.drop([file.path for file, held in zip(files, in_memory, strict=True) if not held])
        began = time.perf_counter()
        with closing(self.loader.start(files)) as load:
            load.wait_all()
            self.desk.place(self.way, load)
            if self.desk.device.type == "cuda":
                torch.cuda.synchronize(self.desk.device)
        seconds = time.perf_counter() - began
        prefills = sum(self._is_made(file, held=held) for file, held in zip(files, in_memory, strict=True))
        if counted:
            self.prefills += prefills
            self.hits, self.lookups = self.hits + sum(in_memory), self.lookups + len(files)
            self.seconds, self.answers = self.seconds + seconds, self.answers + 1

    def _is_made(self, file: ChunkFile, *, held: bool) -> bool:
        """Return whether a chunk must be prefilled, and put it on the drive of limited size."""
        is_stored = self.on_drive.pop(file.path, 0) > 0
        self.on_drive[file.path] = file.payload
        self.drive_room -= 0 if is_stored else file.payload
        while self.drive_room < 0:
            self.drive_room += self.on_drive.popitem(last=False)[1]
        return not (held or is_stored)

    def result(self, prefill_seconds: float) -> Result:
        """Return what was counted."""
        in_all = self.seconds + self.prefills * prefill_seconds
        return (
            self.hits / self.lookups, self.answers / self.seconds, self.answers / in_all, self.prefills / self.answers
        )  # fmt: skip


def replay(
    desk: Desk, drawn: Sequence[Drawn], budget: int, drive_budget: int, prefill_seconds: float
) -> dict[str, Result]:
    """Return the result of each way; they take turns at every answer."""
    settings = LoaderSettings(threads=4, resident_bytes=budget, staging_bytes=1 << 20)
    counted_from = int(_WARM_UP * len(drawn))
    with ExitStack() as stack:
        loaders = [stack.enter_context(Loader(desk.device, settings)) for _ in WAYS]
        ways = [
            Replay(desk, way, loader, drive_room=drive_budget) for way, loader in zip(WAYS, loaders, strict=True)
        ]
        for number, answer in enumerate(drawn):
            first = number % len(ways)
            for one in (*ways[first:], *ways[:first]):
                one.answer(answer, counted=number >= counted_from)
        return {one.way.name: one.result(prefill_seconds) for one in ways}


def main(argv: Sequence[str]) -> int:
    """Run the measurement; returns an exit code."""
    options = _arguments(argv)
    shape = _READER if options.shape == "reader" else synthetic.shape_of(options.shape)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    base = options.dir if options.dir is not None else Settings().data_dir.parent
    base.mkdir(parents=True, exist_ok=True)
    all_bytes = options.chunks * synthetic.header(shape, options.tokens).groups[-1].end
    budget = int(options.share * all_bytes)
    prefill_seconds = _prefill_seconds(options)
    alphas = [float(alpha) for alpha in options.alphas.split(",")]
    samples: dict[tuple[float, str], list[Result]] = {}
    with ExitStack() as stack, torch.inference_mode():
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="desk-rag-bench-", dir=base)))
        desk = _desk(place, shape, options, device)
        for alpha in alphas:
            for seed in range(options.repeat):
                drawn = trace(random.Random(seed), options.chunks, options.answers, options.places, alpha)
                for name, result in replay(desk, drawn, budget, all_bytes, prefill_seconds).items():
                    samples.setdefault((alpha, name), []).append(result)
    rows, results = [], []
    for alpha in alphas:
        for way in WAYS:
            columns = zip(*samples[alpha, way.name], strict=True)
            hits, rates, limited, prefills = (report.Spread.of(numbers) for numbers in columns)
            rows.append([
                way.name, f"{alpha:g}", f"{hits.median:.1%}",
                f"{prefills.median:.2f}",
                *(f"{each.median:.1f} ({each.least:.1f} to {each.most:.1f})" for each in (rates, limited)),
            ])  # fmt: skip
            results.append({
                "alpha": alpha, "way": way.name, "hit_ratio": hits.scaled(1, 4),
                "answers_per_second": rates.scaled(1, 2), "answers_per_second_within_drive": limited.scaled(1, 2),
                "prefills_per_answer_within_drive": prefills.scaled(1, 3),
            })  # fmt: skip
    print(report.table(["way", "alpha", "hits", "prefills", "answers/s", "answers/s, drive budget"], rows))
    report.finish(
        {
            "bench": "zipf", **report.environment(), "shape": options.shape, "chunks": options.chunks,
            "tokens": options.tokens, "places": options.places, "answers": options.answers, "repeat": options.repeat,
            "budget_bytes": budget, "drive_budget_bytes": all_bytes, "prefill_ms": round(1e3 * prefill_seconds, 2),
            "values": "random", "spread": "min, p25, p50, p75, max", "results": results,
        },
        options.out,
    )  # fmt: skip
    return 0


def _prefill_seconds(options: argparse.Namespace) -> float:
    """Return the time to prefill a chunk: as given, or measured with the embedded reader, the fastest of some."""
    if options.prefill_ms is not None:
        return float(options.prefill_ms) / 1e3
    model = load_model(ModelSettings())
    prefix = prefill_prefix(model)
    ids = list(model.prompt.chunk_ids(PROBE))
    ids = (ids * (1 + options.tokens // len(ids)))[: options.tokens]
    times = []
    for _ in range(6):
        began = time.perf_counter()
        prefill_chunk(model, prefix, ids).keys.cpu()
        times.append(time.perf_counter() - began)
    return min(times)


def _desk(place: Path, shape: Shape, options: argparse.Namespace, device: torch.device) -> Desk:
    files = {}
    cpu = torch.device("cpu")
    _, _, int8 = synthetic.chunk(shape, options.tokens, cpu)
    size = (shape.num_kv_heads, options.tokens, shape.head_dim)
    raw = QuantizedKV(tuple(
        RawLayer(torch.randn(size).to(torch.bfloat16), torch.randn(size).to(torch.bfloat16))
        for _ in range(shape.num_layers)
    ))  # fmt: skip
    for bits, kv in ((8, int8), (16, raw)):
        for number in range(options.chunks * options.places):
            key = KVKey(_NAMESPACE, TokenHash(f"{number:032x}"))
            path = place / str(bits) / f"{number % 256:02x}" / f"{number}.safetensors"
            path.parent.parent.mkdir(exist_ok=True)
            chunk_file.write(path, chunk_file.prepare(key, kv, ["0"], 0.1))
            chunk, at = divmod(number, options.places)
            files[bits, chunk, at] = ChunkFile(path, kv_header.read_header(path))
    stitch_plan = plan(0, [options.tokens] * options.places)
    tables = synthetic.tables(shape, stitch_plan.next_position, device)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    still = replace(
        tables, cos=tuple(map(torch.ones_like, tables.cos)), sin=tuple(map(torch.zeros_like, tables.sin))
    )
    return Desk(files, stitch_plan, tables, still, Slabs.of(shape, stitch_plan.num_slots, device, dtype), device)


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="desk-rag bench zipf", description=(__doc__ or "").split("\n\n")[0])
    shapes = ", ".join(synthetic.SHAPES)
    parser.add_argument("--shape", default="reader", help=f"the embedded reader's, or one of {shapes}")
    parser.add_argument("--chunks", type=int, default=200)
    parser.add_argument("--tokens", type=int, default=100, help="per chunk")
    parser.add_argument("--places", type=int, default=5, help="chunks per answer")
    parser.add_argument("--answers", type=int, default=120, help="per trace")
    parser.add_argument("--alphas", default="0.9,1.1,1.5,2.1", help="exponents of Zipf's law")
    parser.add_argument("--share", type=float, default=0.2, help="RAM budget: share of one int8 copy of all chunks")
    parser.add_argument("--prefill-ms", type=float, help="of a chunk; by default measured with the embedded reader")
    parser.add_argument("--repeat", type=int, default=3, help="traces per exponent")
    parser.add_argument("--dir", type=Path, help="where the files go; beside the user's caches by default")
    parser.add_argument("--out", type=Path, help="append the JSON line to this file")
    return parser.parse_args(list(argv))


if __name__ == "__main__":
    import sys

    raise SystemExit(main(sys.argv[1:]))
