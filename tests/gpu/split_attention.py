"""Attention with divided keys on a real GPU, in one call: `python -m tests.gpu.split_attention OUT.json --seconds 60`.

First it is right or it says so: every variant that is timed is compared with attention in fp32, beside the error of
torch's FlashAttention-2 operator over the same numbers. Then its free choices are tried for one query token and for a
question; the best of each are set beside the operator for other models and lengths, from CUDA graphs over as many
layers as a second-level cache cannot hold, and what a launch costs the host is measured without graphs. Compilation is
spread over processes, which share Triton's cache on disk.

Ends in one JSON line; OUT.json gets the same. `--dry` goes through all of it at toy sizes without a GPU, in Triton's
interpreter (TRITON_INTERPRET=1), to see that the script itself works; its times mean nothing.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import multiprocessing
import os
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch

from desk_rag.bench import kernels
from desk_rag.bench.harness import report
from desk_rag.kv.forward.attention import attend
from desk_rag.kv.kernels.flash_decoding import reference
from desk_rag.kv.kernels.flash_decoding_triton import FlashDecoding, SplitTuning, kind_of, tuning_for

SHAPES = {
    "qwen2-7b": (28, 4, 128), "llama-3.1-8b": (32, 8, 128), "qwen2.5-32b": (40, 8, 128), "reader": (8, 2, 64),
}  # fmt: skip
"""Query heads, key heads, numbers per head."""
QUERIES = (128, 1, 32, 256)
LENGTHS = (8_320, 800, 2_048, 16_477, 32_896)
_DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
_SPREAD = 160 << 20
"""Bytes of all layers together: more than any second-level cache holds."""
_KIND = torch.bfloat16 if _DEVICE.type == "cuda" else torch.float16
Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Case:
    """One size to measure at."""

    shape: str
    length: int
    queries: int

    def __str__(self) -> str:
        return f"{self.shape} {self.queries} x {self.length:,}"

    @property
    def kind(self) -> int:
        heads, kv_heads, _ = SHAPES[self.shape]
        return kind_of(heads // kv_heads * self.queries)


class Bed:
    """Slabs of some layers and a question's rotated query, as a pass has them."""

    def __init__(self, case: Case, layers: int | None = None) -> None:
        self.heads, self.kv_heads, self.dim = SHAPES[case.shape]
        of_layer = 4 * self.kv_heads * self.dim * case.length
        wanted = min(400, max(2, math.ceil(_SPREAD / of_layer))) if _DEVICE.type == "cuda" else 1
        self.layers = layers or wanted
        torch.manual_seed(0)
        query = torch.randn(1, case.queries, self.heads, self.dim, device=_DEVICE, dtype=_KIND)
        self.query = (2 * query).transpose(1, 2)
        slabs = (self.layers, 2, 1, self.kv_heads, case.length + 77, self.dim)
        self.slabs = torch.randn(slabs, device=_DEVICE, dtype=_KIND).narrow(4, 0, case.length)

    def attention(self, tuning: SplitTuning | None) -> FlashDecoding:
        return FlashDecoding(self.heads, self.kv_heads, self.dim, _KIND, _DEVICE, tuning)

    def run(self, attention: Attend, layer: int = 0) -> torch.Tensor:
        return attention(self.query, self.slabs[layer, 0], self.slabs[layer, 1])

    def error(self, attention: Attend) -> float:
        """Relative to attention in fp32; 1 if repeated launches differ."""
        first = self.run(attention).float()
        same = all(torch.equal(first, self.run(attention).float()) for _ in range(5 if _DEVICE.type == "cuda" else 1))
        wanted = reference(self.query, self.slabs[0, 0], self.slabs[0, 1])
        return float((first - wanted).norm() / wanted.norm()) if same else 1.0

    def microseconds(self, attention: Attend, repeat: int = 9) -> float:
        """Per layer: the median of replays of one graph of all layers."""

        def every_layer() -> None:
            for layer in range(self.layers):
                self.run(attention, layer)

        if _DEVICE.type != "cuda":
            return kernels._timed(every_layer, _DEVICE, 1).median / self.layers * 1e6
        return kernels._graphed(every_layer, _DEVICE, repeat).median / self.layers * 1e6

    def host_microseconds(self, attention: Attend) -> float:
        """Time one call without waiting for the device: the median of ten times as many calls as there are layers."""
        taken = []
        for _ in range(10):
            if _DEVICE.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
            for layer in range(self.layers):
                self.run(attention, layer)
            taken.append((time.perf_counter() - began) / self.layers * 1e6)
        return sorted(taken)[len(taken) // 2]


def warm(job: tuple[Case, SplitTuning | None]) -> str:
    """Compile one variant in a process of its own; '' or what went wrong."""
    case, tuning = job
    try:
        bed = Bed(replace(case, length=max(case.length, 2048) if _DEVICE.type == "cuda" else case.length), layers=1)
        bed.run(bed.attention(tuning)).sum().item()
    except Exception as error:  # Triton raises types of its own for what does not fit the chip
        return f"{type(error).__name__}: {str(error)[:120]}"
    return ""


class Bench:
    """The stages, within a time limit."""

    def __init__(self, seconds: float, pool: ProcessPoolExecutor, *, dry: bool) -> None:
        self.end, self.pool, self.dry = time.monotonic() + seconds, pool, dry
        self.failed: dict[str, str] = {}

    def left(self) -> float:
        return self.end - time.monotonic()

    def sweep(self, case: Case, choices: Iterable[SplitTuning]) -> dict[SplitTuning, list[float]]:
        """[microseconds, error] of each choice, by time; what does not fit the chip is left out, wrong ones as well."""
        fresh = list(dict.fromkeys(choices))[: 3 if self.dry else None]
        known: dict[SplitTuning, list[float]] = {}
        bed = Bed(case)
        limit = self._limit(bed)
        reasons = list(self.pool.map(warm, [(case, tuning) for tuning in fresh]))
        for tuning, reason in zip(fresh, reasons, strict=True):
            if reason or self.left() < 0:
                self.failed[f"{case} {told(tuning)}"] = reason or "no time left"
                continue
            attention = bed.attention(tuning)
            error = bed.error(attention)
            if error > limit:
                self.failed[f"{case} {told(tuning)}"] = f"wrong: {error:.1e}, not {limit:.1e}"
            else:
                known[tuning] = [round(bed.microseconds(attention), 2), error]
        return dict(sorted(known.items(), key=lambda item: item[1][0]))

    def _limit(self, bed: Bed) -> float:
        return 1.5 * bed.error(attend) + 1e-4

    def compared(self, case: Case, tunings: dict[str, SplitTuning | None]) -> dict[str, Any]:
        """The tunings beside torch's operator; microseconds per layer."""
        bed = Bed(case)
        entry: dict[str, Any] = {"case": str(case), "torch": round(bed.microseconds(attend), 2)}
        for name, tuning in tunings.items():
            attention = bed.attention(tuning)
            entry[name] = round(bed.microseconds(attention), 2)
            entry[f"{name}_error"] = bed.error(attention)
        entry["torch_error"] = bed.error(attend)
        entry["ratio"] = round(min(entry[name] for name in tunings) / entry["torch"], 3)
        return entry

    def final(self, best: dict[int, SplitTuning]) -> tuple[list[dict[str, Any]], list[str]]:
        """All cases with the default and the best of the sweep that fits; and the cases there was no time for."""
        entries, missed = [], []
        lengths, queries = ((70,), (1, 5)) if self.dry else (LENGTHS, QUERIES)
        cases = [Case(shape, length, count) for length in lengths for count in queries for shape in SHAPES]
        cases = cases[-2:] if self.dry else cases
        jobs = {(case, tuning): "" for case in cases for tuning in self._tunings(case, best).values()}
        once = {(case.shape, case.kind, tuning): (case, tuning) for case, tuning in jobs}
        reasons = dict(zip(once, self.pool.map(warm, once.values()), strict=True))
        for case in cases:
            usable = {
                name: tuning
                for name, tuning in self._tunings(case, best).items()
                if not reasons[case.shape, case.kind, tuning]
            }
            if self.left() < 0 or not usable:
                missed.append(str(case))
                continue
            entries.append(self.compared(case, usable))
        self.failed |= {f"{shape} {told(t) if t else 'default'}": why for (shape, _, t), why in reasons.items() if why}
        return entries, missed

    def _tunings(self, case: Case, best: dict[int, SplitTuning]) -> dict[str, SplitTuning | None]:
        best_tuning = best.get(case.kind)
        return {"default": None} if best_tuning is None else {"default": None, "best": best_tuning}


def told(tuning: SplitTuning) -> str:
    """Fields that differ from the class's defaults, and the first four fields."""
    plain = SplitTuning()
    return " ".join(
        f"{field.name}={getattr(tuning, field.name)}"
        for index, field in enumerate(fields(tuning))
        if index < 5 or getattr(tuning, field.name) != getattr(plain, field.name)
    )


def question_choices() -> list[SplitTuning]:
    """For 128 rows and more: blocks, tiles, warps, stages and how many programs share a multiprocessor."""
    shapes = [
        # block, tile, warps, stages, programs
        (128, 64, 8, 2, 1), (128, 64, 8, 3, 1), (128, 128, 8, 2, 1), (128, 64, 4, 2, 2), (128, 64, 4, 2, 1),
        (128, 64, 8, 2, 2), (128, 64, 4, 3, 1), (128, 32, 4, 3, 2), (128, 32, 8, 3, 2), (128, 32, 8, 2, 2),
        (256, 64, 8, 2, 1), (64, 64, 4, 2, 2), (64, 64, 4, 3, 2), (64, 128, 4, 2, 2), (256, 64, 16, 2, 1),
        (256, 64, 16, 3, 1), (256, 32, 8, 3, 1), (128, 64, 8, 4, 1), (64, 64, 4, 2, 3),
    ]  # fmt: skip
    return [
        SplitTuning(block=block, tile=tile, warps=warps, stages=stages, programs=programs)
        for block, tile, warps, stages, programs in shapes
    ]


def merge_choices(best: SplitTuning) -> list[SplitTuning]:
    """Other choices around a tuning, and all that are cheap together."""
    tunings = [
        replace(best, dependent=True), replace(best, merge_columns=32), replace(best, merge_step=8),
    ]  # fmt: skip
    tunings += [replace(best, programs=programs) for programs in (1, 2, 3, 4) if programs != best.programs]
    return tunings


_FEW = [(64, 4, 3), (64, 4, 2), (32, 4, 3), (32, 2, 4), (64, 2, 3), (128, 4, 2), (128, 8, 2)]
"""tile, warps, stages."""


def token_choices(block: int) -> list[SplitTuning]:
    """For few rows: memory bounds them."""
    return [
        replace(tuning_for(block, _DEVICE), block=block, tile=tile, warps=warps, stages=stages, programs=programs)
        for tile, warps, stages in _FEW
        for programs in (1, 2, 4)
    ]


def main() -> int:
    """Run all stages; 1 if a variant was wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--dry", action="store_true")
    options = parser.parse_args()
    workers = 1 if options.dry else max(1, min(14, (os.cpu_count() or 4) - 2))
    shape, length = ("reader", 70) if options.dry else ("qwen2-7b", 8_320)
    token, question = Case(shape, length, 1), Case(shape, length, 5 if options.dry else 128)
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        bench = Bench(options.seconds, pool, dry=options.dry)
        asked = bench.sweep(question, [tuning_for(128, _DEVICE), *question_choices()])
        more = itertools.chain.from_iterable(merge_choices(tuning) for tuning in list(asked)[:2])
        asked = dict(sorted((asked | bench.sweep(question, more)).items(), key=lambda item: item[1][0]))
        told_one = bench.sweep(token, [tuning_for(16, _DEVICE), *token_choices(16)])
        told_one |= bench.sweep(token, [replace(tuning, dependent=True) for tuning in list(told_one)[:3]])
        told_one = dict(sorted(told_one.items(), key=lambda item: item[1][0]))
        show(f"{question}", asked)
        show(f"{token}", told_one)
        best = {kind: next(iter(known)) for kind, known in ((128, asked), (16, told_one)) if known}
        entries, missed = bench.final(best)
    show_cases(entries)
    bed = Bed(question)
    host = {"torch": bed.host_microseconds(attend), "default": bed.host_microseconds(bed.attention(None))}
    host["best"] = bed.host_microseconds(bed.attention(best.get(128)))
    print(f"the host per call, {question}: " + ", ".join(f"{name} {took:.1f} us" for name, took in host.items()))
    wrong = [name for name, why in bench.failed.items() if why.startswith("wrong")]
    print(f"wrong: {wrong or 'none'}; not run: {len(bench.failed)}; no time for {len(missed)}")
    result = {
        "bench": "split-attention", **report.environment(), "wrong": wrong, "host_us": host,
        "question": [[asdict(tuning), *asked[tuning]] for tuning in asked],
        "token": [[asdict(tuning), *told_one[tuning]] for tuning in told_one],
        "cases": entries, "missed": missed, "failed": bench.failed,
    }  # fmt: skip
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(result) + "\n", encoding="utf-8")
    report.finish(result, None)
    return 1 if wrong else 0


def show(title: str, known: dict[SplitTuning, list[float]]) -> None:
    rows = [[told(tuning), f"{took:.2f}", f"{error:.1e}"] for tuning, (took, error) in list(known.items())[:25]]
    print(f"\n{title}")
    print(report.table(["", "us a layer", "error"], rows), flush=True)


def show_cases(entries: list[dict[str, Any]]) -> None:
    names = ("torch", "default", "best", "ratio")
    rows = [
        [entry["case"], *(str(entry.get(name, "")) for name in names), f"{entry['default_error']:.1e}",
         f"{entry['torch_error']:.1e}"]
        for entry in entries if "default" in entry
    ]  # fmt: skip
    print("\nmicroseconds a layer")
    print(report.table(["", *names, "error", "of torch"], rows), flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
