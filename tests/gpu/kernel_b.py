"""Kernel B on a real GPU, in one call: `python -m tests.gpu.kernel_b OUT.json [--seconds 110] [--stages few,question]`.

First it is right or it says so: every variant that is timed is compared with the torch reference in fp32, beside what
bf16 attention over a materialised cache makes of the same numbers, and launches are repeated, because the merge counts
on an atomic. Then its free choices are tried, stage by stage; then the best and the defaults are set beside torch's own
attention over an equally long bf16 cache (the fastest backend that runs), all from CUDA graphs over as many layers as
a second-level cache cannot hold. Compilation is spread over processes, which share Triton's cache on disk.

Ends in one JSON line; OUT.json gets the same. `--dry` goes through all of it at toy sizes without a GPU, in Triton's
interpreter (TRITON_INTERPRET=1), to see that the script itself works; its times mean nothing.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from desk_rag.bench import kernels
from desk_rag.bench.harness import report
from desk_rag.bench.models import synthetic
from desk_rag.bench.models.synthetic import Shape
from desk_rag.kv.lazy.launcher import LazyKernel
from desk_rag.kv.lazy.reference import LazyContext, attend
from desk_rag.kv.lazy.tuning import LazyTuning
from desk_rag.kv.positions import plan

SHAPES = {
    "qwen2-7b": Shape(28, 28, 4, 128),
    "llama-3.1-8b": Shape(32, 32, 8, 128),
    "qwen2.5-1.5b": Shape(28, 12, 2, 128),
    "reader": Shape(24, 8, 2, 64),
}
QUERIES = (1, 4, 32, 128)
_PREFIX, _SUFFIX, _CHUNK = 64, 200, 512
_DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
_TRIED = 3
"""Best tunings of a sweep that every case of its kind is measured with."""
_SPREAD = 120 << 20
"""int8 bytes of all layers together: more than any second-level cache holds."""


@dataclass(frozen=True)
class Case:
    """One size to measure at."""

    shape: str
    tokens: int
    queries: int

    def __str__(self) -> str:
        return f"{self.shape} {self.tokens:,} x {self.queries}"


class Bed:
    """Random chunks, slabs and a query of one case, of `layers` layers."""

    def __init__(self, case: Case, layers: int | None = None) -> None:
        full = SHAPES[case.shape]
        per_layer = 2 * full.num_kv_heads * full.head_dim * case.tokens
        self.layers = layers or min(64, max(4, math.ceil(_SPREAD / per_layer))) if _DEVICE.type == "cuda" else 1
        self.shape = replace(full, num_layers=self.layers)
        sizes = synthetic.lengths(case.tokens, _CHUNK)
        torch.manual_seed(0)
        chunks = tuple(synthetic.chunk(self.shape, size, _DEVICE)[2] for size in sizes)
        tables = synthetic.tables(self.shape, case.tokens + _PREFIX + _SUFFIX + 64, _DEVICE)
        self.context = LazyContext(chunks, plan(_PREFIX, sizes).placements, tables)
        self.scaling = full.head_dim**-0.5
        self.query = self._random(full.num_heads, case.queries)
        plain = (self.layers, full.num_kv_heads, _PREFIX + _SUFFIX)
        self.keys, self.values = ([part[None] for part in self._random(*plain)[0]] for _ in range(2))

    def _random(self, *size: int) -> torch.Tensor:
        shape = (1, *size, self.shape.head_dim)
        return torch.randn(shape, device=_DEVICE).to(torch.bfloat16)

    def kernel(self, tuning: LazyTuning | None = None) -> LazyKernel:
        return LazyKernel.of(self.context, self.shape.num_kv_heads, self.shape.head_dim, tuning)

    def run(self, kernel: LazyKernel, layer: int = 0) -> torch.Tensor:
        return kernel(layer, self.query, self.keys[layer], self.values[layer], self.scaling)

    def expected(self) -> torch.Tensor:
        return attend(0, self.query.float(), self.keys[0].float(), self.values[0].float(), self.scaling, self.context)

    def microseconds(self, work: Callable[[int], object], repeat: int = 6) -> float:
        """Per layer: the median of replays of one graph of all layers."""

        def every_layer() -> None:
            for layer in range(self.layers):
                work(layer)

        if _DEVICE.type != "cuda":
            return kernels._timed(every_layer, _DEVICE, 1).median / self.layers * 1e6
        return kernels._graphed(every_layer, _DEVICE, repeat).median / self.layers * 1e6

    def error(self, tuning: LazyTuning | None, expected: torch.Tensor) -> float:
        """Relative to the reference; 1 if repeated launches differ."""
        kernel = self.kernel(tuning)
        first = self.run(kernel)
        same = all(torch.equal(first, self.run(kernel)) for _ in range(20 if _DEVICE.type == "cuda" else 1))
        return distance(first, expected) if same else 1.0


def distance(got: torch.Tensor, expected: torch.Tensor) -> float:
    return float((got.float() - expected.float()).norm() / expected.float().norm())


def warm(job: tuple[Case, LazyTuning | None]) -> str:
    """Compile one variant in a process of its own; '' or what went wrong."""
    case, tuning = job
    try:
        bed = Bed(case, layers=1)
        bed.run(bed.kernel(tuning)).sum().item()
    except Exception as error:  # Triton raises types of its own for what does not fit the chip
        return f"{type(error).__name__}: {str(error)[:120]}"
    return ""


class Bench:
    """The stages, within a time limit."""

    def __init__(self, seconds: float, pool: ProcessPoolExecutor, queries: tuple[int, ...], *, dry: bool) -> None:
        self.queries = queries
        self.end, self.pool, self.dry = time.monotonic() + seconds, pool, dry
        self.failed: dict[str, str] = {}

    def left(self) -> float:
        return self.end - time.monotonic()

    def sweep(self, case: Case, choices: Iterable[LazyTuning], known: dict[LazyTuning, list[float]]) -> None:
        """Add [microseconds, error] of each choice to `known`; what does not fit the chip is left out."""
        fresh = [tuning for tuning in dict.fromkeys(choices) if tuning not in known][: 2 if self.dry else None]
        reasons = list(self.pool.map(warm, [(case, tuning) for tuning in fresh]))
        bed = Bed(case)
        expected = bed.expected()
        for tuning, reason in zip(fresh, reasons, strict=True):
            if reason:
                self.failed[told(tuning)] = reason
            elif self.left() > 0:
                with suppress(Exception):
                    kernel = bed.kernel(tuning)
                    took = bed.microseconds(lambda layer, kernel=kernel: bed.run(kernel, layer))  # type: ignore[misc]
                    known[tuning] = [round(took, 2), bed.error(tuning, expected)]

    def compared(self, case: Case, tunings: dict[str, LazyTuning | None]) -> dict[str, Any]:
        """The tunings beside torch's own attention; microseconds per layer."""
        bed = Bed(case)
        entry: dict[str, Any] = {"case": str(case), **against_torch(case, bed)}
        expected = bed.expected()
        for name, tuning in tunings.items():
            kernel = bed.kernel(tuning)
            entry[name] = round(bed.microseconds(lambda layer, kernel=kernel: bed.run(kernel, layer)), 2)  # type: ignore[misc]
            entry[f"{name}_error"] = bed.error(tuning, expected)
        entry["ratio"] = round(min(entry[name] for name in tunings) / entry["bf16"], 3)
        return entry

    def final(
        self, known: dict[LazyTuning, list[float]], asked: dict[LazyTuning, list[float]]
    ) -> tuple[list[dict[str, Any]], list[str]]:
        """All cases with default and best, one query token first; and the cases there was no time for."""
        entries, missed = [], []
        for count in (1, 4) if self.dry else self.queries:
            contexts = (96,) if self.dry else (8192, 32_768, 2048)
            cases = [Case(shape, tokens, count) for tokens in contexts for shape in SHAPES][-1 if self.dry else 0 :]
            if self.left() < 5:
                missed += [str(case) for case in cases]
                continue
            tried = [(case, tuning) for case in cases for tuning in tunings_for(case, known, asked).values()]
            jobs = list(dict.fromkeys(tried))
            reasons = dict(zip(jobs, self.pool.map(warm, jobs), strict=True))
            for case in cases:
                tops = tunings_for(case, known, asked)
                usable = {name: tuning for name, tuning in tops.items() if not reasons[case, tuning]}
                self.failed |= {f"{case} {name}": reasons[case, tops[name]] for name in tops if name not in usable}
                if self.left() < 0 or not usable:
                    missed.append(str(case))
                    continue
                entries.append(self.compared(case, usable))
                print(json.dumps(entries[-1]), flush=True)
        return entries, missed


def against_torch(case: Case, bed: Bed) -> dict[str, Any]:
    """Microseconds per layer of every way torch has, over a bf16 cache as long; 'bf16' is the least of them."""
    length, count = case.tokens + _PREFIX + _SUFFIX, case.queries
    shape = (1, bed.shape.num_kv_heads, length, bed.shape.head_dim)
    layers = [[torch.randn(shape, device=_DEVICE, dtype=torch.bfloat16) for _ in range(2)] for _ in range(bed.layers)]
    group = bed.shape.num_heads // bed.shape.num_kv_heads
    mask: Any = None
    if count > 1:
        mask = torch.ones(count, length, dtype=torch.bool, device=_DEVICE).tril(length - count)[None, None]

    def gqa(layer: int) -> None:
        scaled_dot_product_attention(bed.query, *layers[layer], attn_mask=mask, enable_gqa=True)

    def packed(layer: int) -> None:
        grouped = bed.query.reshape(1, bed.shape.num_kv_heads, group * count, bed.shape.head_dim)
        scaled_dot_product_attention(grouped, *layers[layer])

    def causal(layer: int) -> None:
        from torch.nn.attention.bias import causal_lower_right

        lower: Any = causal_lower_right(count, length)
        scaled_dot_product_attention(bed.query, *layers[layer], attn_mask=lower, enable_gqa=True)

    ways: dict[str, tuple[Callable[[int], None], list[SDPBackend] | None]] = {"sdpa_gqa": (gqa, None)}
    if count == 1:
        ways |= {
            "sdpa_packed": (packed, None),
            "flash_gqa": (gqa, [SDPBackend.FLASH_ATTENTION]),
            "flash_packed": (packed, [SDPBackend.FLASH_ATTENTION]),
            "cudnn_gqa": (gqa, [SDPBackend.CUDNN_ATTENTION]),
        }
    else:
        ways["flash_causal"] = (causal, None)
    timings: dict[str, Any] = {}
    for name, (work, backends) in ways.items():
        with suppress(Exception):
            if backends is None:
                timings[name] = round(bed.microseconds(work), 2)
            else:
                with sdpa_kernel(backends):
                    timings[name] = round(bed.microseconds(work), 2)
    timings["bf16"] = min(timings.values())
    return timings


def bf16_error(case: Case) -> float:
    """Error of bf16 attention over the same context, materialised."""
    bed = Bed(case, layers=1)
    keys, values = [bed.keys[0][0, :, :_PREFIX]], [bed.values[0][0, :, :_PREFIX]]
    for _, turned, whole in bed.context.positioned(0):
        keys.append(turned.bfloat16())
        values.append(whole.bfloat16())
    keys.append(bed.keys[0][0, :, _PREFIX:])
    values.append(bed.values[0][0, :, _PREFIX:])
    k, v = torch.cat(keys, 1)[None], torch.cat(values, 1)[None]
    out = scaled_dot_product_attention(bed.query, k, v, enable_gqa=True).transpose(1, 2)
    return distance(out, bed.expected())


def told(tuning: LazyTuning) -> str:
    usual = asdict(LazyTuning())
    return " ".join(
        f"{name}={getattr(value, 'name', value)}"
        for name, value in asdict(tuning).items()
        if value != usual[name] or name in ("tile", "warps", "stages", "programs")
    )


def few_stage() -> list[LazyTuning]:
    """The decode step's own program: tokens per warp, warps, splits and registers."""
    return [
        LazyTuning(
            few=True, fused=False, tile=tile, warps=warps, stages=2, programs=programs, registers=registers,
            merge_columns=32, merge_step=128,
        )
        for tile, warps in [(16, 4), (16, 8), (32, 4), (32, 8)]
        for programs in (2, 3, 4, 6)
        for registers in (None, 128, 168)
        if not (registers == 168 and tile == 16) and not (registers == 128 and tile == 32 and warps == 8)
    ]  # fmt: skip


def few_further(best: LazyTuning) -> list[LazyTuning]:
    """Around the best of `few_stage`, one at a time but for the launches' overlap, which is asked for each merge."""
    merges = [(32, 128, 4), (32, 128, 8), (16, 128, 4), (64, 128, 8), (32, 64, 4), (32, 256, 8), (128, 32, 4)]
    kinds = [
        replace(best, merge_columns=columns, merge_step=step, merge_warps=warps) for columns, step, warps in merges
    ]
    kinds += [replace(best, stages=1), replace(best, programs=best.programs + 2)]
    kinds += [replace(best, stages=1, programs=2, registers=None, ahead=ahead) for ahead in (False, True)]
    return [replace(kind, dependent=dependent) for kind in kinds for dependent in (True, False)]


def general_further(best: LazyTuning) -> list[LazyTuning]:
    """The same for the program that serves all, unfused."""
    wide = replace(best, fused=False, merge_columns=32, merge_step=128)
    return [
        wide,
        replace(wide, dependent=True),
        *(replace(wide, dependent=True, programs=programs, registers=registers)
          for programs in (3, 4) for registers in (128, 168)),
    ]  # fmt: skip


def first_stage() -> list[LazyTuning]:
    """Tiles, warps, stages and splits."""
    sizes = [(32, 4), (32, 8), (64, 4), (64, 8), (128, 8), (128, 16)]
    return [
        LazyTuning(tile=tile, warps=warps, stages=stages, programs=programs)
        for tile, warps in sizes
        for stages in (1, 2, 3)
        for programs in (1, 2, 4)
        if not (stages == 3 and tile == 128)
    ]


def second_stage(best: LazyTuning) -> list[LazyTuning]:
    """Other choices around a tuning, one at a time."""
    return [
        replace(best, rotate_query=not best.rotate_query),
        replace(best, fused=False),
        replace(best, half_math=True),
        replace(best, registers=128),
        replace(best, registers=168),
    ]


def third_stage(best: LazyTuning, known: dict[LazyTuning, list[float]]) -> list[LazyTuning]:
    """Everything that helped alone, together; and with the number of splits chosen anew."""
    helped: dict[str, Any] = {}
    for other in second_stage(best):
        if other in known and known[other][0] < known[best][0]:
            helped |= {name: value for name, value in asdict(other).items() if value != getattr(best, name)}
    joint = replace(best, **helped)
    return [replace(joint, programs=programs) for programs in (1, 2, 3, 4)]


def many_rows() -> list[LazyTuning]:
    """For question prefill."""
    return [
        LazyTuning(tile=tile, warps=warps, stages=stages, programs=programs, block=block, rotate_query=False)
        for tile, warps, block in [(32, 4, 64), (64, 4, 64), (64, 8, 64), (64, 8, 128), (128, 8, 64)]
        for stages in (1, 2)
        for programs in (1, 2)
    ]


def few_ranked(known: dict[LazyTuning, list[float]]) -> list[LazyTuning]:
    return [tuning for tuning in ranked(known) if tuning.few]


def ranked(known: dict[LazyTuning, list[float]]) -> list[LazyTuning]:
    right = [tuning for tuning, (_, error) in known.items() if error < 2e-2]
    return sorted(right, key=lambda tuning: known[tuning][0])


def main() -> int:
    """Run all stages; 1 if a variant was wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=110)
    parser.add_argument("--stages", default="few", help="which sweeps: few, general, question, joined by commas")
    parser.add_argument("--dry", action="store_true")
    options = parser.parse_args()
    workers = 1 if options.dry else max(1, min(12, (os.cpu_count() or 4) - 2))
    tokens = 96 if options.dry else 8192
    shape = "reader" if options.dry else "qwen2-7b"
    decode, question = Case(shape, tokens, 1), Case(shape, tokens, 9 if options.dry else 32)
    known: dict[LazyTuning, list[float]] = {}
    asked: dict[LazyTuning, list[float]] = {}
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        asked_for = QUERIES if "question" in options.stages else QUERIES[:1]
        bench = Bench(options.seconds, pool, asked_for, dry=options.dry)
        if "few" in options.stages:
            bench.sweep(decode, [LazyTuning.general(7), *few_stage()], known)
            bench.sweep(decode, few_further(next(iter(few_ranked(known)), LazyTuning.general(7))), known)
            bench.sweep(decode, general_further(LazyTuning.general(7)), known)
        if "general" in options.stages:
            bench.sweep(decode, [LazyTuning(), *first_stage()], known)
            for tuning in ranked(known)[:2]:
                bench.sweep(decode, second_stage(tuning), known)
                bench.sweep(decode, third_stage(tuning, known), known)
        if "question" in options.stages:
            bench.sweep(question, [LazyTuning.default(224), *many_rows()], asked)
        show("One query token", known)
        show("32 query tokens", asked)
        entries, missed = bench.final(known, asked)
    wrong = [told(tuning) for tuning, (_, error) in {**known, **asked}.items() if error >= 2e-2]
    result = {
        "bench": "kernel-b", **report.environment(), "wrong": wrong, "bf16_error": bf16_error(decode),
        "decode": [[told(t), *known[t]] for t in ranked(known)],
        "question": [[told(t), *asked[t]] for t in ranked(asked)],
        "cases": entries, "missed": missed, "failed": bench.failed,
    }  # fmt: skip
    print(f"wrong: {wrong or 'none'}; error of bf16 attention over the same context {result['bf16_error']:.1e}")
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(result) + "\n", encoding="utf-8")
    report.finish(result, None)
    return 1 if wrong else 0


def tunings_for(
    case: Case, known: dict[LazyTuning, list[float]], asked: dict[LazyTuning, list[float]]
) -> dict[str, LazyTuning | None]:
    """The default and the best of the sweep that fits the number of query rows; of few rows also what the default is
    for the shortest and for the longest contexts, so that every run tells whether it changes at the right place."""
    shape = SHAPES[case.shape]
    rows = shape.num_heads // shape.num_kv_heads * case.queries
    best = ranked(known if rows <= 32 else asked)
    tunings: dict[str, LazyTuning | None] = {"default": None}
    if rows <= 16:
        ends = {"short": 0, "long": 1 << 30}
        tunings |= {name: LazyTuning.default(rows, lines=lines, dim=shape.head_dim) for name, lines in ends.items()}
        tunings |= {f"best_{place}": tuning for place, tuning in enumerate(best[:_TRIED])}
        long = [tuning for tuning in best[:1] if tuning.few]
        tunings |= {f"best_of_{number}": replace(tuning, programs=number) for tuning in long for number in (2, 3, 4, 6)}
    elif usable := [tuning for tuning in best if not tuning.few]:
        tunings["best"] = usable[0]
    return tunings


def show(title: str, known: dict[LazyTuning, list[float]]) -> None:
    rows = [[told(tuning), f"{known[tuning][0]:.2f}", f"{known[tuning][1]:.1e}"] for tuning in ranked(known)[:25]]
    print(f"\n{title}, 8,192 tokens, Qwen2-7B shape")
    print(report.table(["", "us a layer", "error"], rows), flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
