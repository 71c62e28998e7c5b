"""Time first tokens from caches, from caches and prefill as measured rates choose, and by full prefill.

Every context is read from the drive (page cache dropped, checksums verified anew), from RAM and from the device's own
memory. Weights and chunks are random: time does not depend on them. Ways take turns; the first round is not reported.
The last line is JSON, and names every case in which caches lose to full prefill.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import cast

import torch

from desk_rag.answering.kv_connector import CacheTarget, KVConnector
from desk_rag.answering.load_costs import measured
from desk_rag.bench.harness import clock, drive, report
from desk_rag.bench.models import shapes
from desk_rag.bench.models.chunk_pool import ChunkPool
from desk_rag.bench.models.synthetic import lengths
from desk_rag.config import Settings
from desk_rag.kv.forward.runner import ModelRunner
from desk_rag.kv.loading.costs import Rates
from desk_rag.kv.loading.loader import Loader, LoaderSettings
from desk_rag.kv.payload import ChunkFile
from desk_rag.kv.positions import plan
from desk_rag.kv.prefill import prefill_chunk
from desk_rag.kv.quant import QuantScheme, quantize
from desk_rag.kv.rope import build_tables
from desk_rag.kv.types import KVKey, Namespace, TokenHash
from desk_rag.store.store import Store

_ROOM = 256
_TIERS = ("drive", "RAM", "device")


@dataclass(frozen=True, slots=True)
class FileStore:
    """The part of a store that loading asks."""

    files: dict[KVKey, ChunkFile]

    def kv_files(self, keys: Sequence[KVKey], *, used: bool = True) -> list[ChunkFile | None]:
        """Return the file of each key."""
        return [self.files[key] for key in keys]


class Case:
    """One context, ready to be timed."""

    def __init__(self, runner: ModelRunner, target: CacheTarget, loader: Loader, files: Sequence[ChunkFile]) -> None:
        self.runner, self.target, self.loader, self.files = runner, target, loader, files
        self.keys = [KVKey(Namespace("0" * 32), TokenHash(f"{number:032x}")) for number in range(len(files))]
        store = cast("Store", FileStore(dict(zip(self.keys, files, strict=True))))
        self.connector = KVConnector(store, target, loader)
        self.scheme = QuantScheme.uniform(target.model.spec.num_layers)
        self.plan = plan(target.prefix.num_tokens, [file.header.num_tokens for file in files])
        self.ids = [self._random(file.header.num_tokens) for file in files]
        self.question = self._random(32)
        self.whole = self._full()
        self.prefilled = 0
        """Chunks that the last answer prefilled."""

    def _random(self, count: int) -> list[int]:
        return [int(token) for token in shapes.random_ids(self.target.model, 1, count)[0]]

    def cached(self, rates: Rates | None) -> None:
        """Load the chunks, or prefill some of them as the rates say, and run the question."""
        self.connector.rates = rates
        with closing(self.connector.start_load(lambda: self.keys)) as load:
            load.select(self.keys)
            if load.whole_is_faster:
                self.whole()
                self.prefilled = len(self.keys)
                return
            missing = load.missing()
            for index in missing:
                chunk_kv = prefill_chunk(self.target.model, self.target.prefix, self.ids[index])
                load.replace(index, quantize(chunk_kv, self.scheme))
            with load.attach(self.plan) as run:
                int(run.forward(self.question, self.plan.next_position).argmax())
            self.prefilled = len(missing)

    def _full(self) -> Callable[[], object]:
        """Return full prefill of prefix, chunks and question, by the fastest way."""
        prompt = [*self._random(self.target.prefix.num_tokens), *(i for ids in self.ids for i in ids), *self.question]
        return lambda: int(self.runner.whole(prompt)().argmax())

    def cool(self, tier: str) -> None:
        """Leave the chunks in this tier and none above it."""
        if tier == "drive":
            drive.drop([file.path for file in self.files])
        if tier != "device":
            self.loader.forget(staged=tier == "drive")


def main(argv: Sequence[str]) -> int:
    """Run the measurement; returns an exit code. Raises ConfigError for an unknown shape."""
    options = _arguments(argv)
    contexts = [int(context) for context in options.contexts.split(",")]
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = shapes.build(options.shape, device)
    prefix = shapes.random_prefix(model, 64)
    size = prefix.num_tokens + max(contexts) + _ROOM
    runner = ModelRunner(model, prefix, build_tables(model, size), size)
    runner.prepare([int(token) for token in shapes.random_ids(model, 1, 32)[0]])
    target = CacheTarget(model, prefix, build_tables(model, size), runner, _ROOM)
    base = options.dir if options.dir is not None else Settings().data_dir.parent
    base.mkdir(parents=True, exist_ok=True)
    entries: list[dict[str, object]] = []
    with ExitStack() as stack, torch.inference_mode():
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="desk-rag-bench-", dir=base)))
        pool = ChunkPool(place, shapes.model_shape(options.shape).chunk_shape)
        room = 2 * pool.payload(lengths(max(contexts), options.chunk)) + (64 << 20)
        loader = stack.enter_context(Loader(device, LoaderSettings(resident_bytes=room, staging_bytes=room)))
        sample = pool.of_question([options.chunk] * 16, 0)
        rates = measured(model, prefix, QuantScheme.uniform(model.spec.num_layers), loader, sample, runner)
        for context in contexts:
            case = Case(runner, target, loader, pool.of_question(lengths(context, options.chunk), 0))
            entries.append({"context": context, **_measure(case, rates, options.repeat)})
    rows = [[str(entry["context"]), name, *(str(number) for number in cast("list[float]", five))]
            for entry in entries for name, five in cast("dict[str, object]", entry["ms"]).items()]  # fmt: skip
    print(report.table(["context", "way", "min", "p25", "median", "p75", "max"], rows))
    report.finish(
        {
            "bench": "mixed", **report.environment(), "shape": options.shape, "chunk": options.chunk,
            "values": "random", "rates": asdict(rates), "spread": "min, p25, p50, p75, max", "cases": entries,
            "slower_than_full_by_5_percent": [f"{entry['context']} {name}" for entry in entries
                                              for name in cast("list[str]", entry["slower"])],
        },
        options.out,
    )  # fmt: skip
    return 0


def _measure(case: Case, rates: Rates, repeat: int) -> dict[str, object]:
    works: dict[str, tuple[Callable[[], object], str]] = {"full prefill": (case.whole, "device")}
    for tier in _TIERS:
        works[f"cached, {tier}"] = (partial(case.cached, None), tier)
        works[f"mixed, {tier}"] = (partial(case.cached, rates), tier)
    samples: dict[str, list[float]] = {name: [] for name in works}
    prefilled: dict[str, int] = {}
    for round_number in range(repeat + 1):
        for name, (work, tier) in works.items():
            if tier != "drive" and name != "full prefill":
                case.cached(None)  # so that all of it is there, whatever was chosen before
            case.cool(tier)
            clock.synchronize(case.loader.device)
            began = time.perf_counter()
            work()
            clock.synchronize(case.loader.device)
            samples[name] += [time.perf_counter() - began] if round_number else []
            if name.startswith("mixed"):
                prefilled[name] = case.prefilled
    spreads = {name: report.Spread.of(sample) for name, sample in samples.items()}
    full = spreads["full prefill"].median
    slower = [name for name, spread in spreads.items() if spread.median > 1.05 * full]
    return {
        "chunks": len(case.files), "prefilled": prefilled, "slower": slower,
        "ms": {name: spread.scaled(1e3, 2) for name, spread in spreads.items()},
    }  # fmt: skip


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="desk-rag bench mixed", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--shape", default="qwen2.5-1.5b", help=f"one of {', '.join(shapes.MODELS)}")
    parser.add_argument("--contexts", default="256,512,1024,2048,4096,8192", help="tokens in chunks")
    parser.add_argument("--chunk", type=int, default=128, help="tokens per chunk")
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--dir", type=Path, help="where the files go; beside the user's caches by default")
    parser.add_argument("--out", type=Path, help="append the JSON line to this file")
    return parser.parse_args(list(argv))


if __name__ == "__main__":
    import sys

    raise SystemExit(main(sys.argv[1:]))
