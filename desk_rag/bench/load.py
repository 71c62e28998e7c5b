"""Compare loading from files to a filled cache: ours, the drive's own rate, the loaders of TurboRAG and MatKV.

Values are random, shapes are published ones. Three
conditions: cold (out of the page cache and out of our tiers, checksums verified), in RAM (page-locked staging, or the
page cache for the others) and on the GPU. Baselines run in the same process, on the same chunks and drive, and both
end with what they end with in their own code: keys and values of all chunks in one cache, rotated.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

import torch

from desk_rag.bench.harness import drive, report
from desk_rag.bench.models import synthetic
from desk_rag.bench.models.synthetic import Shape, Slabs
from desk_rag.config import Settings
from desk_rag.kv.loading.layerwise import CacheTarget, Placer
from desk_rag.kv.loading.loader import Loader, LoaderSettings
from desk_rag.kv.payload import ChunkFile
from desk_rag.kv.positions import StitchPlan, plan
from desk_rag.kv.rope import RotaryTables
from desk_rag.kv.types import KVKey, Namespace, TokenHash
from desk_rag.store.kv import chunk_file
from desk_rag.store.kv import header as kv_header

if TYPE_CHECKING:
    from desk_rag.kv.cache import SlabCache

_NAMESPACE = Namespace("0" * 32)


@dataclass(frozen=True, slots=True)
class Files:
    """The same chunks in everybody's own format."""

    ours: tuple[ChunkFile, ...]
    turborag: tuple[Path, ...]
    matkv: tuple[Path, ...]
    big: Path
    """One large file, for the drive's own rate."""

    @property
    def every_path(self) -> list[Path]:
        return [*(file.path for file in self.ours), *self.turborag, *self.matkv, self.big]


@dataclass(frozen=True, slots=True)
class Bench:
    """Inputs of every measurement."""

    shape: Shape
    where: StitchPlan
    tables: RotaryTables
    slots: CacheTarget
    device: torch.device
    repeat: int

    def sync(self) -> None:
        """Let the device finish."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def stream_sync(self) -> None:
        """Let the computing stream finish, and what it waits for; what is copied beyond that goes on."""
        if self.device.type == "cuda":
            torch.cuda.current_stream(self.device).synchronize()

    def seconds(self, work: Callable[[], object], before: Callable[[], object]) -> report.Spread:
        """Time `work`, calling `before` unmeasured each time; the first call is not reported."""
        sample = []
        for _ in range(self.repeat + 1):
            before()
            self.sync()
            began = time.perf_counter()
            work()
            self.sync()
            sample.append(time.perf_counter() - began)
        return report.Spread.of(sample[1:])


def main(argv: Sequence[str]) -> int:
    """Run the measurement; returns an exit code. Raises DeskRagError subclasses."""
    options = _arguments(argv)
    shape = synthetic.shape_of(options.shape)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    sizes = synthetic.lengths(options.tokens, options.chunk)
    where = plan(0, sizes)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    tables = synthetic.tables(shape, options.tokens, device)
    slabs = Slabs.of(shape, options.tokens, device, dtype)
    bench = Bench(shape, where, tables, CacheTarget.of(tables, cast("SlabCache", slabs)), device, options.repeat)
    with _place(options.dir) as place:
        files = _write(place, shape, sizes, options.big_mib << 20)
        readers = _numbers(options.threads) or [2, 4, 8, 16]
        before = drive.rates(files.big, readers, options.repeat)
        tried = _sweep(files, bench, options)
        spreads = _measure(files, bench, tried[0].settings)
        after = drive.rates(files.big, readers, options.repeat)
        steps = _steps(files, bench, tried[0].settings)
    copied = drive.host_to_device(device, options.repeat)
    # A drive's rate wanders: what it gave before and after our own loads counts, each way's median, the best way.
    best = max((spread for rates in (before, after) for spread in rates.values()), key=lambda spread: spread.median)
    bound = {"cold": best.median, "in RAM": copied.median, "on the GPU": None}
    _print(spreads, tried, files, bench, bound, options)
    result: dict[str, object] = {
        "bench": "load", **report.environment(), "values": "random", "shape": options.shape, "tokens": options.tokens,
        "chunk": options.chunk, "bytes": _payload(files),
        "drive_gb_s": {
            when: {how: rate.scaled(1e-9, 2) for how, rate in rates.items()}
            for when, rates in (("before", before), ("after", after))
        },
        "host_to_device_gb_s": copied.scaled(1e-9, 2),
        "settings": _settings_json(tried[0].settings),
        "sweep": [
            {**_settings_json(one.settings), "cold_ms": one.cold.scaled(1e3, 2), "in_ram_ms": one.in_ram.scaled(1e3, 2)}
            for one in tried
        ],
        "share_of_bound": {
            f"{what}, {condition}": round(_payload(files) / spread.median / limit, 3)
            for (what, condition), spread in spreads.items()
            if "loader" not in what and (limit := bound[condition])
        },
        "steps_ms": steps,
        "ms": {f"{what}, {condition}": spread.scaled(1e3, 2) for (what, condition), spread in spreads.items()},
    }  # fmt: skip
    report.finish(result, options.out)
    return 0


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="desk-rag bench load", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--shape", default="qwen2-7b", help=f"one of {', '.join(synthetic.SHAPES)}")
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--chunk", type=int, default=512, help="tokens per chunk")
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--threads", help="tried for the load path, 4,8,16; the product's own by default")
    parser.add_argument("--waves", help="tried likewise")
    parser.add_argument("--run-mib", help="most MiB of one read and copy, tried likewise")
    parser.add_argument("--big-mib", type=int, default=1024, help="size of the file for the drive's own rate")
    parser.add_argument("--dir", type=Path, help="where the files go; beside the user's caches by default")
    parser.add_argument("--out", type=Path, help="append the JSON line to this file")
    return parser.parse_args(list(argv))


@contextmanager
def _place(chosen: Path | None) -> Iterator[Path]:
    # Not in /tmp by default, which is memory on many systems and would make the drive look fast.
    base = chosen if chosen is not None else Settings().data_dir.parent
    base.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="desk-rag-bench-", dir=base) as place:
        yield Path(place)


def _write(place: Path, shape: Shape, sizes: Sequence[int], big: int) -> Files:
    """Write the chunks three times over, and a large file of noise."""
    ours, turbo, matkv = [], [], []
    cpu = torch.device("cpu")
    for number, tokens in enumerate(sizes):
        _, _, kv = synthetic.chunk(shape, tokens, cpu)
        key = KVKey(_NAMESPACE, TokenHash(f"{number:032x}"))
        path = place / "ours" / f"{number % 16:02x}" / f"{number}.safetensors"
        path.parent.parent.mkdir(exist_ok=True)
        chunk_file.write(path, chunk_file.prepare(key, kv, ["0"], 0.1))
        ours.append(ChunkFile(path, kv_header.read_header(path)))
        size = (1, shape.num_kv_heads, tokens, shape.head_dim)
        layers = [tuple(torch.randn(size).to(torch.bfloat16) for _ in range(2)) for _ in range(shape.num_layers)]
        turbo.append(place / f"turborag-{number}.pt")
        torch.save(layers, turbo[-1])
        matkv.append(place / f"matkv-{number}.bin")
        flat = torch.cat([part.to(torch.float16).reshape(-1) for pair in layers for part in pair])
        matkv[-1].write_bytes(flat.numpy().tobytes())
    large = place / "big"
    drive.write_noise(large, big)
    files = Files(tuple(ours), tuple(turbo), tuple(matkv), large)
    drive.drop(files.every_path)
    return files


# The loaders ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Tried:
    """One setting of the load path, bytes only."""

    settings: LoaderSettings
    cold: report.Spread
    in_ram: report.Spread

    @property
    def row(self) -> list[str]:
        one = self.settings
        sizes = [str(one.threads), str(one.waves), str(one.run_bytes >> 20)]
        return [*sizes, f"{self.cold.median * 1e3:.1f}", f"{self.in_ram.median * 1e3:.2f}"]


def _sweep(files: Files, bench: Bench, options: argparse.Namespace) -> list[Tried]:
    """Every combination of the options, the fastest cold load first; the product's own value for one not given."""
    base = LoaderSettings(staging_bytes=1 << 30, resident_bytes=1 << 30)
    grid = [_numbers(text) for text in (options.threads, options.waves, options.run_mib)]
    threads, waves, runs = (option or [default] for option, default in zip(grid, _default(base), strict=True))
    candidates = [
        replace(base, threads=thread, waves=wave, run_bytes=mib << 20)
        for thread, wave, mib in itertools.product(threads, waves, runs)
    ]
    tried = []
    for settings in candidates:
        with Loader(bench.device, settings) as loader:
            work = _our_load(files, bench, loader)
            cold = bench.seconds(work, partial(_cool, files, loader))
            tried.append(Tried(settings, cold, bench.seconds(work, partial(loader.forget, staged=False))))
    return sorted(tried, key=lambda one: one.cold.median)


def _default(base: LoaderSettings) -> tuple[int, int, int]:
    return base.threads, base.waves, base.run_bytes >> 20


def _numbers(text: str | None) -> list[int]:
    return [int(number) for number in (text or "").split(",") if number]


def _cool(files: Files, loader: Loader) -> None:
    drive.drop([file.path for file in files.ours])
    loader.forget()


def _our_load(files: Files, bench: Bench, loader: Loader) -> Callable[[], None]:
    """Load only the bytes, from the files to the computing device."""

    def work() -> None:
        load = loader.start(files.ours)
        load.wait_all()
        bench.sync()
        load.close()

    return work


def _our_place(files: Files, bench: Bench, loader: Loader) -> Callable[[], None]:
    """Load into a filled cache: dequantised, rotated, each wave placed while the next one loads."""

    def work() -> None:
        load = loader.start(files.ours)
        Placer(load, bench.where, bench.slots).place_all()
        bench.sync()
        load.close()

    return work


def _turborag(files: Files, bench: Bench) -> Callable[[], None]:
    """torch.load of one file per chunk, concatenation per layer, rotation of the whole cache in its dtype."""

    def work() -> None:
        chunks = [torch.load(path, map_location=bench.device, weights_only=True) for path in files.turborag]
        cos, sin = bench.tables.cos[0], bench.tables.sin[0]
        whole_cos, whole_sin = (torch.cat((half, half), -1).to(torch.bfloat16) for half in (cos, sin))
        for layer in range(bench.shape.num_layers):
            keys = torch.cat([chunk[layer][0] for chunk in chunks], 2)
            torch.cat([chunk[layer][1] for chunk in chunks], 2)
            first, second = keys.chunk(2, -1)
            keys = keys * whole_cos + torch.cat((-second, first), -1) * whole_sin

    return work


def _matkv(files: Files, bench: Bench) -> Callable[[], None]:
    """One raw read per file into memory page-locked for it, a blocking copy, views by layer, concatenation; the keys
    were rotated at position 0 when written (composite positions)."""
    shape = bench.shape

    def work() -> None:
        chunks = []
        for path in files.matkv:
            size = path.stat().st_size
            host = torch.empty(size, dtype=torch.uint8)
            if bench.device.type == "cuda":
                host = host.pin_memory()
            with path.open("rb", buffering=0) as file:
                file.readinto(host.numpy().data)
            flat = host.to(bench.device).view(torch.float16)
            chunks.append(flat.view(shape.num_layers, 2, 1, shape.num_kv_heads, -1, shape.head_dim))
        for layer in range(shape.num_layers):
            torch.cat([chunk[layer, 0] for chunk in chunks], 2)
            torch.cat([chunk[layer, 1] for chunk in chunks], 2)

    return work


Found = dict[tuple[str, str], report.Spread]


def _measure(files: Files, bench: Bench, settings: LoaderSettings) -> Found:
    spreads: Found = {}
    with Loader(bench.device, settings) as loader:
        for what, work in (
            ("bytes only", _our_load(files, bench, loader)),
            ("filled cache", _our_place(files, bench, loader)),
        ):
            spreads[what, "cold"] = bench.seconds(work, lambda: _cool(files, loader))
            if bench.device.type == "cuda":
                spreads[what, "in RAM"] = bench.seconds(work, lambda: loader.forget(staged=False))
                spreads[what, "on the GPU"] = bench.seconds(work, lambda: None)
            else:
                spreads[what, "in RAM"] = bench.seconds(work, lambda: None)
    for what, work, paths in (
        ("TurboRAG's loader", _turborag(files, bench), files.turborag),
        ("MatKV's loader", _matkv(files, bench), files.matkv),
    ):
        spreads[what, "cold"] = bench.seconds(work, lambda paths=paths: drive.drop(paths))  # type: ignore[misc]
        spreads[what, "in RAM"] = bench.seconds(work, lambda: None)
    return spreads


def _payload(files: Files) -> int:
    return sum(file.payload for file in files.ours)


def _settings_json(settings: LoaderSettings) -> dict[str, int | bool]:
    run_mib = settings.run_bytes >> 20
    return {"threads": settings.threads, "waves": settings.waves, "run_mib": run_mib, "direct": settings.direct}


def _steps(files: Files, bench: Bench, settings: LoaderSettings) -> dict[str, dict[str, float]]:
    """Medians: when `start` returned, when the first wave was there, when everything was."""
    steps: dict[str, dict[str, float]] = {}
    with Loader(bench.device, settings) as loader:
        conditions: dict[str, Callable[[], None]] = {
            "cold": partial(_cool, files, loader),
            "in RAM": partial(loader.forget, staged=False),
        }
        for condition, prepare in conditions.items():
            samples: list[tuple[float, ...]] = []
            for _ in range(bench.repeat + 1):
                prepare()
                bench.sync()
                began = time.perf_counter()
                load = loader.start(files.ours)
                marks = [time.perf_counter()]
                for wait in (partial(load.wait, 0), load.wait_all):
                    wait()
                    bench.stream_sync()
                    marks.append(time.perf_counter())
                load.close()
                samples.append(tuple(mark - began for mark in marks))
            columns = zip(("started", "first wave", "all"), zip(*samples[1:], strict=True), strict=True)
            steps[condition] = {name: round(report.Spread.of(times).median * 1e3, 2) for name, times in columns}
    return steps


def _print(
    found: Found, tried: Sequence[Tried], files: Files, bench: Bench, bound: dict[str, float | None],
    options: argparse.Namespace,
) -> None:  # fmt: skip
    headings = ["threads", "waves", "run MiB", "cold ms", "in RAM ms"]
    print(report.table(headings, [one.row for one in tried]))
    ours, theirs = _payload(files), bench.shape.float_bytes(options.tokens)
    print(f"\n{options.tokens:,} tokens, {options.shape}: {ours / 1e6:.0f} MB int8 ({theirs / 1e6:.0f} MB in 16 bits)")
    for condition, rate in bound.items():
        if rate is not None:
            print(f"bound, {condition}: {rate / 1e9:.2f} GB/s")
    rows = []
    for (what, condition), spread in found.items():
        size = theirs if "loader" in what else ours
        limit = bound[condition]
        share = f"{size / spread.median / limit:.0%}" if limit else ""
        rows.append([
            what, condition, synthetic.milliseconds(spread), f"{size / spread.median / 1e9:.2f}", share,
            f"{options.tokens / spread.median / 1e6:.2f}",
        ])  # fmt: skip
    print(report.table(["", "condition", "ms", "GB/s", "of bound", "million tokens/s"], rows))
