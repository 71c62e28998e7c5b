"""Estimate first tokens on other machines from bytes, operations and measured rates.

Knows four rates of a machine and the results of `bench contexts` and `bench ttft`; runs nothing. The formulas, with
S = prefix + context + question, Q = question, all times in seconds:

    full prefill   operations(S) / (c F)
    question       max((weights + KV read) / (m M), operations(Q over S) / (c F))
    placing        (int8 bytes + 16-bit bytes) / (m M)
    load           bytes / (d D) from the drive, bytes / (b B) from host memory, 0 from the GPU's
    first token    o + max(load + work / w, load / w + work), work = placing + question, in w waves

F, M, B, D are the machine's own rates: multiplications and additions, memory, bus, drive. The shares c, m, b, d that
the code reaches of them and the fixed time o are fitted at one context; the other contexts show how wrong the model is.
On a CPU there is neither bus nor placing on another device, and two constants replace them: seconds per pass of the
question and seconds per token loaded and stitched.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from desk_rag.bench.gpu_paths.first_token import Mode
from desk_rag.bench.harness import report
from desk_rag.bench.models import shapes, synthetic
from desk_rag.bench.models.shapes import ModelShape
from desk_rag.errors import ConfigError

_WAVES = 4
_RESULTS = Path(__file__).parent / "results"
READER = ModelShape("qwen3", 10, 512, 8, 2, 64, 1152, 12_288)
"""The embedded reader."""


@dataclass(frozen=True, slots=True)
class Machine:
    """A GPU and what feeds it."""

    name: str
    operations: float
    """Per second, 16-bit inputs, fp32 sums, dense: the data sheet's."""
    memory: float
    """Bytes per second."""
    bus: float
    """Host to device, page-locked, bytes per second."""
    drive: float
    """Sequential reads, bytes per second."""


H200 = Machine("H200", 989e12, 4.8e12, 55e9, 4.16e9)
RTX_3060 = Machine("RTX 3060 12 GB", 25e12, 360e9, 25e9, 3.5e9)
"""GA106: 51 TFLOP/s are with fp16 sums, half of it with fp32 sums; PCIe 4.0 x16; an ordinary NVMe drive."""


@dataclass(frozen=True, slots=True)
class Shares:
    """Share of a machine's rates that the code reaches, and the time that no rate explains."""

    compute: float
    memory: float
    bus: float
    drive: float
    overhead: float


@dataclass(frozen=True, slots=True)
class Point:
    """One context and the medians measured at it, in seconds."""

    prefix: int
    context: int
    question: int
    seconds: dict[Mode, float]

    @property
    def tokens(self) -> int:
        return self.prefix + self.context + self.question


MODES = (Mode.FULL, Mode.QUESTION, Mode.VRAM, Mode.RAM, Mode.COLD)


def predict(shape: ModelShape, point: Point, machine: Machine, shares: Shares) -> dict[Mode, float]:
    """Seconds of every mode."""
    rate, memory = shares.compute * machine.operations, shares.memory * machine.memory
    stored, widened = _bytes(shape, point)
    operations = shape.prefill_operations(point.question, point.tokens - point.question)
    question = max(_pass_bytes(shape, point) / memory, operations / rate)
    work = (stored + widened) / memory + question

    def first(load: float) -> float:
        return shares.overhead + max(load + work / _WAVES, load / _WAVES + work)

    return {
        Mode.FULL: shape.prefill_operations(point.tokens) / rate,
        Mode.QUESTION: question,
        Mode.VRAM: shares.overhead + work,
        Mode.RAM: first(stored / (shares.bus * machine.bus)),
        Mode.COLD: first(stored / (shares.drive * machine.drive)),
    }


def fit(shape: ModelShape, point: Point, machine: Machine) -> Shares:
    """The shares with which `predict` gives this point."""
    stored, widened = _bytes(shape, point)
    seconds = point.seconds
    compute = shape.prefill_operations(point.tokens) / seconds[Mode.FULL] / machine.operations
    memory = _pass_bytes(shape, point) / seconds[Mode.QUESTION] / machine.memory
    work = (stored + widened) / (memory * machine.memory) + seconds[Mode.QUESTION]
    overhead = max(0.0, seconds[Mode.VRAM] - work)

    def load(mode: Mode) -> float:
        beyond = max(seconds[mode] - overhead, work * (1 + 1e-6))
        behind = beyond - work / _WAVES
        return behind if behind >= work else _WAVES * (beyond - work)

    bus = stored / load(Mode.RAM) / machine.bus
    return Shares(compute, memory, bus, stored / load(Mode.COLD) / machine.drive, overhead)


def _bytes(shape: ModelShape, point: Point) -> tuple[int, int]:
    """Return the bytes of the context's chunks: as stored, and in 16 bits."""
    sizes = synthetic.lengths(point.context, 512)
    kv = shape.chunk_shape
    return sum(synthetic.header(kv, size).groups[-1].end for size in sizes), kv.float_bytes(point.context)


def _pass_bytes(shape: ModelShape, point: Point) -> float:
    """Read by the question's pass: the weights once, the cache once."""
    weights = 2.0 * (shape.linear_parameters + shape.head_parameters)
    return weights + shape.chunk_shape.float_bytes(point.tokens)


@dataclass(frozen=True, slots=True)
class OnCpu:
    """A CPU's three constants, fitted at one number of chunks."""

    operations: float
    """Per second, in full prefill."""
    question: float
    """Seconds per pass of a question."""
    token: float
    """Seconds to load and stitch one token."""

    @classmethod
    def fit(cls, entry: dict[str, dict[str, dict[str, float]]], tokens: float) -> OnCpu:
        """From one context of `bench ttft`'s JSON line."""
        full, cached = entry["full"]["stages_ms"], entry["disk"]["stages_ms"]
        rate = READER.prefill_operations(round(tokens)) / (full["prefill"] / 1e3)
        return cls(rate, cached["prefill"] / 1e3, (cached["load"] + cached["stitch"]) / 1e3 / tokens)

    def predict(self, tokens: float) -> tuple[float, float]:
        """Seconds of full prefill and of a cached first token, retrieval left out."""
        return READER.prefill_operations(round(tokens)) / self.operations, self.question + self.token * tokens

    def on(self, operations: float) -> OnCpu:
        """The same code where a CPU computes at that rate; memory and drive are taken to be as fast as here."""
        return replace(self, operations=operations, question=self.question * self.operations / operations)


LAPTOP_OPERATIONS = 200e9
"""Operations per second that a laptop of 2022 with four fast cores reaches in fp32: three times one core of ours."""


def main(argv: Sequence[str]) -> int:
    """Print model, errors and extrapolations; returns an exit code. Raises ConfigError."""
    parser = argparse.ArgumentParser(prog="desk-rag bench paper-model", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--contexts", type=Path, default=_RESULTS / "contexts.jsonl", help="of `bench contexts`")
    parser.add_argument("--ttft", type=Path, default=_RESULTS / "ttft.jsonl", help="of `bench ttft`, on a CPU")
    parser.add_argument("--fit-at", type=int, default=8192, help="the context that the GPU's shares are fitted at")
    parser.add_argument("--model", default="qwen2.5-3b", help="the shape to extrapolate for")
    parser.add_argument("--out", type=Path, help="append the JSON line to this file")
    options = parser.parse_args(list(argv))
    result: dict[str, object] = {"bench": "paper_model", **report.environment()}
    if options.contexts.exists():
        contexts = _last(options.contexts, "contexts", lambda line: _has_context(line, options.fit_at))
        result["gpu"] = _gpu(contexts, options.fit_at, shapes.model_shape(options.model))
    else:
        print(f"{options.contexts} is not there: no GPU was measured.")
    if options.ttft.exists():
        result["cpu"] = _cpu(_last(options.ttft, "ttft"))
    report.finish(result, options.out)
    return 0


def _gpu(found: dict[str, object], fit_at: int, wanted: ModelShape) -> dict[str, object]:
    shape, points, machine = read_points(found)
    fit_point = next((point for point in points if point.context == fit_at), None)
    if fit_point is None:
        raise ConfigError(f"No context of {fit_at} tokens was measured.", remedy="--fit-at one of those that were.")
    shares = fit(shape, fit_point, machine)
    print(f"Fitted at {fit_at:,} tokens on {machine.name}: {shares}")
    rows, errors = [], []
    for point in points:
        expected = predict(shape, point, machine, shares)
        off = {mode: expected[mode] / took - 1 for mode, took in point.seconds.items()}
        errors += [abs(error) for error in off.values() if point is not fit_point]
        row = [f"{expected[m] * 1e3:.1f} ({off[m]:+.0%})" if m in off else "" for m in MODES]
        rows.append([f"{point.context:,}{' (fitted)' if point is fit_point else ''}", *row])
    print(report.table(["context", *(mode.value for mode in MODES)], rows))
    ahead: list[dict[str, object]] = [
        {"context": context, "ms": {mode.value: round(took * 1e3, 1) for mode, took in expected.items()}}
        for context in (750, 2048, 4096, 8192)
        for expected in [predict(wanted, Point(fit_point.prefix, context, fit_point.question, {}), RTX_3060, shares)]
    ]
    print(f"\nThe same shares on {RTX_3060}, milliseconds")
    print(report.table(["context", *(mode.value for mode in MODES)], _ahead_rows(ahead)))
    return {
        "fitted_at": fit_at, "shares": {name: getattr(shares, name) for name in shares.__dataclass_fields__},
        "mean_error": round(sum(errors) / len(errors), 3) if errors else None,
        "largest_error": round(max(errors), 3) if errors else None, RTX_3060.name: ahead,
    }  # fmt: skip


def _ahead_rows(ahead: Iterable[dict[str, object]]) -> list[list[str]]:
    rows = []
    for entry in ahead:
        times = entry["ms"]
        assert isinstance(times, dict)
        rows.append([str(entry["context"]), *(f"{times[mode.value]:.1f}" for mode in MODES)])
    return rows


def _cpu(found: dict[str, object]) -> dict[str, object]:
    contexts = found["contexts"]
    assert isinstance(contexts, list)
    four_chunks = next((entry for entry in contexts if entry["chunks"] == 4), contexts[0])
    model = OnCpu.fit(four_chunks, four_chunks["context_tokens"])
    laptop = model.on(LAPTOP_OPERATIONS)
    print(f"\nThe reader on a CPU, fitted at {four_chunks['context_tokens']:.0f} tokens: {model}")
    rows, errors, ahead = [], [], []
    for entry in contexts:
        tokens = entry["context_tokens"]
        stages = entry["disk"]["stages_ms"]
        measured = (entry["full"]["stages_ms"]["prefill"], sum(stages[name] for name in ("load", "stitch", "prefill")))
        off = [ours * 1e3 / took - 1 for ours, took in zip(model.predict(tokens), measured, strict=True)]
        errors += [abs(error) for error in off if entry is not four_chunks]
        full, cached = (seconds * 1e3 for seconds in laptop.predict(tokens))
        ahead.append({"tokens": tokens, "full_ms": round(full, 1), "cached_ms": round(cached, 1)})
        pairs = [f"{took:.0f} ({error:+.0%})" for took, error in zip(measured, off, strict=True)]
        rows.append([f"{tokens:.0f}", *pairs, f"{full:.0f}", f"{cached:.0f}"])
    print(report.table(["tokens", "full, ms (model)", "cached (model)", "laptop, full", "laptop, cached"], rows))
    return {
        "fitted_at": four_chunks["context_tokens"], "operations": model.operations,
        "mean_error": round(sum(errors) / len(errors), 3) if errors else None,
        "largest_error": round(max(errors), 3) if errors else None, "laptop": ahead,
    }  # fmt: skip


def read_points(found: dict[str, object]) -> tuple[ModelShape, list[Point], Machine]:
    """Results of `bench contexts` with one question at once. Raises ConfigError if there are none."""
    part = found.get("ttft", found)
    cases = part.get("cases", []) if isinstance(part, dict) else []
    single = [case for case in cases if case["questions"] == 1 and Mode.FULL.value in case["modes"]]
    if not single:
        raise ConfigError("There are no first tokens in these results.", remedy="desk-rag bench contexts --parts ttft")
    points = []
    for case in single:
        medians = {mode: case["modes"].get(mode.value, {}).get("wall_ms", [0, 0, 0])[2] / 1e3 for mode in MODES}
        seconds = {mode: took for mode, took in medians.items() if took}
        points.append(Point(case["prefix"], case["context"], case["question"], seconds))
    measured = single[0]
    bus, drive = measured["host_to_device_gb_s"] * 1e9, measured.get("drive_gb_s", H200.drive / 1e9) * 1e9
    return shapes.model_shape(measured["shape"]), points, replace(H200, bus=bus, drive=drive)


def _has_context(line: dict[str, object], context: int) -> bool:
    part = line.get("ttft")
    return isinstance(part, dict) and any(case["context"] == context for case in part.get("cases", []))


def _last(path: Path, bench: str, preferred: Callable[[dict[str, object]], bool] = lambda _: True) -> dict[str, object]:
    """The content of a JSON file, or of JSON lines the last of that benchmark, if possible a preferred one.

    Raises ConfigError.
    """
    text = path.read_text(encoding="utf-8")
    parts = [text] if path.suffix == ".json" else text.splitlines()
    lines: list[dict[str, object]] = [json.loads(part) for part in parts]
    wanted = [line for line in lines if line.get("bench") == bench]
    if not wanted:
        raise ConfigError(f"{path} has no result of `bench {bench}`.", remedy=f"desk-rag bench {bench} --help")
    return next(filter(preferred, reversed(wanted)), wanted[-1])
