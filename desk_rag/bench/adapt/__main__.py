"""Measure the cost of `desk-rag adapt` for models of published shapes: time per context and memory.

Weights and texts are random, so nothing is said about answers; `bench quality --modes adapted` measures those. Beside
it: placing chunks with and without a shift, which is what an adapted model costs in every answer.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from desk_rag.bench.harness import report
from desk_rag.bench.models import shapes
from desk_rag.finetune.adapt.learning import Learner
from desk_rag.finetune.adapt.lessons import Lesson
from desk_rag.finetune.adapt.run import USUAL
from desk_rag.finetune.rows import Asked, Context
from desk_rag.kv.cache import SlabCache
from desk_rag.kv.calibration.gate import GateReport, Score
from desk_rag.kv.prefill import prefill_chunk
from desk_rag.kv.prefix_variants.variants import PLAIN, build_prefix_variants
from desk_rag.kv.quant import QuantScheme, quantize
from desk_rag.kv.serving import ServingModel
from desk_rag.kv.shift import KNOTS, PlaceShift
from desk_rag.kv.stitch import stitch

_QUESTIONS, _QUESTION, _ANSWER, _PREFIX = 3, 32, 40, 24
_GIB = 2**30


def main(argv: Sequence[str]) -> int:
    """Run the measurement; returns an exit code."""
    options = _options(argv)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    rows, results = [], []
    for name in options.shapes.split(","):
        result = {"shape": name} | _measure(name, device, options)
        results.append(result)
        rows.append([name, *(_cell(result[key]) for key in _HEADINGS)])
    print(report.table(["shape", *_HEADINGS.values()], rows))
    settings = {"quantization": options.quantization, "chunks": options.chunks, "chunk_tokens": options.chunk_tokens}
    report.finish({"bench": "adapt", **report.environment(), **settings, "runs": results}, options.out)
    return 0


_HEADINGS = {
    "lesson_ms": "both prefills, ms", "estimate_ms": "estimate, ms", "step_ms": "step, ms",
    "run_minutes": "whole run, min",
    "weights_gib": "weights, GiB", "peak_gib": "peak, GiB", "shift_kib": "stored, KiB",
    "placing_ms": "placing, ms", "placing_shifted_ms": "placing shifted, ms",
}  # fmt: skip


def _options(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="desk-rag bench adapt", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--shapes", default="qwen2.5-3b,qwen2.5-7b")
    parser.add_argument("--quantization", default="none", choices=["none", "nf4"])
    parser.add_argument("--chunks", type=int, default=5, help="per context (default 5)")
    parser.add_argument("--chunk-tokens", type=int, default=256)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--out", type=Path, help="append the JSON line to this file")
    return parser.parse_args(list(argv))


def _measure(name: str, device: torch.device, options: argparse.Namespace) -> dict[str, Any]:
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    model = shapes.build(name, device, positions=4096, quantization=options.quantization)
    for weight in model.module.parameters():
        weight.requires_grad_(False)
    weight_bytes = torch.cuda.memory_allocated() if device.type == "cuda" else 0
    spec, scheme = model.spec, QuantScheme.uniform(model.spec.num_layers)
    prefix = shapes.random_prefix(model, _PREFIX)
    exact = Score(0.0, 1.0, 1)
    variants = build_prefix_variants(model, prefix, PLAIN, scheme)
    serving = ServingModel(model, variants, GateReport(scheme, exact, exact, 0, 0))

    def ids(count: int) -> tuple[int, ...]:
        return tuple(shapes.random_ids(model, 1, count)[0].tolist())

    def context() -> Context:
        chunks = tuple(ids(options.chunk_tokens) for _ in range(options.chunks))
        asked = tuple(Asked(ids(_QUESTION), ids(_ANSWER)) for _ in range(_QUESTIONS))
        return Context(ids(_PREFIX), chunks, asked, full=True)

    learner = Learner(serving, KNOTS, 1000)
    lesson = Lesson(serving, context(), KNOTS)
    seconds = {
        "lesson_ms": _median(lambda: Lesson(serving, context(), KNOTS), device, options.repeat),
        "estimate_ms": _median(lambda: learner.collect(lesson), device, options.repeat),
        "step_ms": _median(lambda: learner.step(lesson), device, options.repeat),
    }
    peak = torch.cuda.max_memory_allocated() if device.type == "cuda" else 0
    # Judging runs the questions without gradients; a step counts for it, which is more.
    whole = USUAL.contexts * seconds["lesson_ms"] + USUAL.estimate * seconds["estimate_ms"]
    whole += (USUAL.steps + 2 * USUAL.judge) * seconds["step_ms"]
    shift = PlaceShift.zero(spec.num_layers, spec.num_kv_heads, spec.head_dim)
    chunks = [quantize(prefill_chunk(model, prefix, each), scheme) for each in context().chunks]
    cache = SlabCache(model, lesson.plan.num_slots)

    def place(shift: PlaceShift | None) -> Callable[[], object]:
        return lambda: stitch(model, lesson.plan, prefix, chunks, lesson.tables, cache, shift)

    seconds["placing_ms"] = _median(place(None), device, 4 * options.repeat)
    seconds["placing_shifted_ms"] = _median(place(shift.to(device)), device, 4 * options.repeat)
    return {key: round(value * 1e3, 3) for key, value in seconds.items()} | {
        "run_minutes": round(whole / 60, 2),
        "weights_gib": round(weight_bytes / _GIB, 2),
        "peak_gib": round(peak / _GIB, 2),
        "shift_kib": round(len(shift.to_bytes({})) / 1024),
    }


def _median(work: Callable[[], object], device: torch.device, repeat: int) -> float:
    times = []
    for _ in range(repeat + 1):
        began = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    return statistics.median(times[1:])  # the first one compiles and allocates


def _cell(value: float) -> str:
    return f"{value:,.2f}" if isinstance(value, float) else f"{value:,}"


if __name__ == "__main__":
    import sys

    raise SystemExit(main(sys.argv[1:]))
