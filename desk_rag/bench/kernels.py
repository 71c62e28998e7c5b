"""The kernels against what memory allows: placing int8 chunks (A) and attending to them in place (B).

The bound of A is the bandwidth of a device-to-device copy of as many bytes, measured in the same run; B is set beside
bf16 attention of torch over the same number of tokens. Values are random, shapes are published ones. Without a GPU only
the torch reference of A is measured, against a copy in memory.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

import torch
from torch.nn.functional import scaled_dot_product_attention

from desk_rag.bench.harness import report
from desk_rag.bench.models import synthetic
from desk_rag.bench.models.synthetic import Shape, Slabs
from desk_rag.kv import payload
from desk_rag.kv.kernels import availability
from desk_rag.kv.lazy.reference import LazyContext, attend
from desk_rag.kv.positions import Placement, plan
from desk_rag.kv.stitch import place_layer

if TYPE_CHECKING:
    from desk_rag.kv.cache import SlabCache

_PREFIX = 64
_SUFFIX = 40


def main(argv: Sequence[str]) -> int:
    """Run the measurement; returns an exit code. Raises DeskRagError subclasses."""
    options = _arguments(argv)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    result: dict[str, object] = {"bench": "kernels", **report.environment(), "values": "random"}
    for name in options.shapes.split(","):
        shape = synthetic.shape_of(name)
        results: dict[str, object] = {}
        if "a" in options.only:
            results["place"] = _placing(name, shape, device, options)
        if "b" in options.only and availability.available(device):
            results["attend"] = _attending(name, shape, device, options)
        result[name] = results
    report.finish(result, options.out)
    return 0


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="desk-rag bench kernels", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--shapes", default="qwen2-7b,llama-3.2-3b", help=f"of {', '.join(synthetic.SHAPES)}")
    parser.add_argument("--tokens", type=int, default=8192, help="placed by A")
    parser.add_argument("--chunk", type=int, default=512, help="tokens per chunk")
    parser.add_argument("--contexts", default="2048,4096,8192,16384,32768", help="attended to by B")
    parser.add_argument("--repeat", type=int, default=20)
    parser.add_argument("--only", default="ab", help="a: placing, b: attending")
    parser.add_argument("--sweep", action="store_true", help="try kernel A's free choices and show the best")
    parser.add_argument("--out", type=Path, help="append the JSON line to this file")
    return parser.parse_args(list(argv))


# A: placing -------------------------------------------------------------------------------------------------


def _placing(name: str, shape: Shape, device: torch.device, options: argparse.Namespace) -> dict[str, object]:
    sizes = synthetic.lengths(options.tokens, options.chunk)
    where = plan(_PREFIX, sizes).placements
    capacity = _PREFIX + options.tokens
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    tables = synthetic.tables(shape, capacity, device)
    slabs = Slabs.of(shape, capacity, device, dtype)
    synthetic_chunks = [synthetic.chunk(shape, size, device) for size in sizes]
    chunks = [kv for _, _, kv in synthetic_chunks]
    moved = sum(kv.nbytes for kv in chunks) + shape.float_bytes(options.tokens) * dtype.itemsize // 2
    copy = _copy_rate(moved, device, options.repeat)

    def reference() -> None:
        for layer, (place, kv) in itertools.product(range(shape.num_layers), zip(where, chunks, strict=True)):
            place_layer(layer, place, kv, tables, cast("SlabCache", slabs))

    timed = {"reference": _timed(reference, device, 3)}
    entry: dict[str, object] = {"tokens": options.tokens, "chunk": options.chunk, "bytes": moved}
    entry["copy_gb_s"] = round(copy / 1e9, 1)
    if availability.available(device):
        timed |= _kernel_a(shape, where, synthetic_chunks, tables, slabs, options, entry)
    print(f"\nPlacing {options.tokens:,} tokens, {name}: {moved / 1e6:.0f} MB; a copy runs at {copy / 1e9:.0f} GB/s")
    rows = []
    for what, spread in timed.items():
        rate = moved / spread.median
        rows.append([what, synthetic.milliseconds(spread), f"{rate / 1e9:.0f}", f"{rate / copy:.0%}"])
    print(report.table(["", "ms", "GB/s", "of copy"], rows))
    for what, spread in timed.items():
        entry[what] = {"ms": spread.scaled(1e3, 4), "share_of_copy": round(moved / spread.median / copy, 3)}
    return entry


def _kernel_a(
    shape: Shape, where: Sequence[Placement], made: Sequence[tuple[payload.KVHeader, torch.Tensor, object]],
    tables: object, slabs: Slabs, options: argparse.Namespace, entry: dict[str, object],
) -> dict[str, report.Spread]:  # fmt: skip
    from desk_rag.kv.kernels import place_chunks
    from desk_rag.kv.rope import RotaryTables

    assert isinstance(tables, RotaryTables)
    device = slabs.layers[0].key_slab.device
    target = place_chunks.Target.of(tables, slabs.layers)
    layouts = [payload.layout(head) for head, _, _ in made]

    def gather() -> place_chunks.Batch:
        return place_chunks.batch_of_payloads(
            [
                place_chunks.Loaded(layout, data, place.position, place.slot)
                for layout, (_, data, _), place in zip(layouts, made, where, strict=True)
            ],
            target,
        )

    batch = gather()
    spreads = {"kernel A": _timed(lambda: place_chunks.launch(batch, target), device, options.repeat)}
    began = time.perf_counter()
    for _ in range(10):
        place_chunks.launch(gather(), target)
    entry["host_ms"] = (time.perf_counter() - began) * 100
    torch.cuda.synchronize()
    if options.sweep:
        tried = {}
        for tile, heads, warps in itertools.product((16, 32, 64), (1, 2, 4, 8), (2, 4, 8)):
            tuning = place_chunks.Tuning(tile, heads, warps)
            work = functools.partial(place_chunks.launch, batch, target, tuning=tuning)
            tried[tuning] = _timed(work, device, 8)
        ranking = sorted(tried, key=lambda tuning: tried[tuning].median)
        entry["sweep_ms"] = [[t.tile, t.heads, t.warps, round(tried[t].median * 1e3, 4)] for t in ranking]
        best = ranking[0]
        spreads[f"kernel A, tile {best.tile}, heads {best.heads}, warps {best.warps}"] = tried[best]
    return spreads


# B: attending -----------------------------------------------------------------------------------------------


def _attending(name: str, shape: Shape, device: torch.device, options: argparse.Namespace) -> list[dict[str, object]]:
    print(f"\nAttention of all layers, {name}, microseconds per layer (one query token, CUDA graph)")
    entries, rows = [], []
    for tokens in (int(number) for number in options.contexts.split(",")):
        entry = _decode(shape, tokens, device, options)
        entries.append(entry)
        rows.append([
            f"{tokens:,}", *(f"{entry[key]:.2f}" for key in ("bf16_us", "bf16_packed_us", "int8_us")),
            f"{entry['ratio']:.2f}", f"{entry['share_of_copy']:.0%}", f"{entry['question_bf16_us']:.1f}",
            f"{entry['question_int8_us']:.1f}", f"{entry['error']:.1e}",
        ])  # fmt: skip
    headings = [
        "tokens", "bf16 gqa", "bf16 packed", "int8 lazy", "int8/bf16", "of copy", "q32 bf16", "q32 int8", "error",
    ]  # fmt: skip
    print(report.table(headings, rows))
    return entries


def _decode(shape: Shape, tokens: int, device: torch.device, options: argparse.Namespace) -> dict[str, object]:
    from desk_rag.kv.lazy.launcher import LazyKernel

    sizes = synthetic.lengths(tokens, options.chunk)
    chunks = tuple(synthetic.chunk(shape, size, device)[2] for size in sizes)
    tables = synthetic.tables(shape, tokens + _PREFIX + 64, device)
    context = LazyContext(chunks, plan(_PREFIX, sizes).placements, tables)
    plain, whole = _PREFIX + _SUFFIX, _PREFIX + tokens + _SUFFIX
    scaling = shape.head_dim**-0.5
    dtype = torch.bfloat16
    layers = range(shape.num_layers)
    query, question = (
        torch.randn(1, shape.num_heads, count, shape.head_dim, dtype=dtype, device=device) for count in (1, 32)
    )
    small = Slabs.of(shape, plain, device, dtype)
    large = Slabs.of(shape, whole, device, dtype)
    for slab in (*small.layers, *large.layers):
        slab.key_slab.normal_()
        slab.value_slab.normal_()
    group = shape.num_heads // shape.num_kv_heads
    mask = torch.ones(32, whole, dtype=torch.bool, device=device).tril(whole - 32)[None, None]

    def plain_gqa(queries: torch.Tensor, seen: torch.Tensor | None) -> None:
        for slab in large.layers:
            scaled_dot_product_attention(queries, slab.key_slab, slab.value_slab, attn_mask=seen, enable_gqa=True)

    def packed() -> None:
        grouped = query.reshape(1, shape.num_kv_heads, group, shape.head_dim)
        for slab in large.layers:
            scaled_dot_product_attention(grouped, slab.key_slab, slab.value_slab)

    def lazy(kernel: LazyKernel, queries: torch.Tensor) -> None:
        for layer, slab in zip(layers, small.layers, strict=True):
            kernel(layer, queries, slab.key_slab, slab.value_slab, scaling)

    def per_layer(work: Callable[[], None]) -> float:
        return _graphed(work, device, options.repeat).median / shape.num_layers * 1e6

    kernel = LazyKernel.of(context, shape.num_kv_heads, shape.head_dim)
    first = small.layers[0]
    got = kernel(0, query, first.key_slab, first.value_slab, scaling)
    error = (got - attend(0, query, first.key_slab, first.value_slab, scaling, context)).abs().max().item()
    gqa, together = per_layer(lambda: plain_gqa(query, None)), per_layer(packed)
    coded = per_layer(lambda: lazy(kernel, query))
    moved = sum(chunk.nbytes for chunk in chunks) / shape.num_layers
    entry: dict[str, object] = {
        "tokens": tokens,
        "bf16_us": gqa,
        "bf16_packed_us": together,
        "int8_us": coded,
        "ratio": coded / min(gqa, together),
        "int8_bytes": moved,
        "share_of_copy": moved / (coded * 1e-6) / _copy_rate(512 << 20, device, 5),
        "question_bf16_us": per_layer(lambda: plain_gqa(question, mask)),
        "question_int8_us": per_layer(lambda: lazy(kernel, question)),
        "error": error,
    }
    return entry


# Timing -----------------------------------------------------------------------------------------------------


def _timed(work: Callable[[], object], device: torch.device, repeat: int) -> report.Spread:
    """Seconds per call, on the device's own clock where there is one; two calls go first unreported."""
    for _ in range(2):
        work()
    if device.type != "cuda":
        return report.Spread.of([_host_seconds(work) for _ in range(repeat)])
    sample = []
    for _ in range(repeat):
        begin, end = _event(), _event()
        # A queue that is never empty hides the launch from the measurement.
        torch.cuda._sleep(2_000_000)  # type: ignore[no-untyped-call]
        begin.record()
        work()
        end.record()
        end.synchronize()
        sample.append(begin.elapsed_time(end) / 1e3)
    return report.Spread.of(sample)


def _graphed(work: Callable[[], object], device: torch.device, repeat: int) -> report.Spread:
    """Time all launches in a recorded graph, so that Python costs nothing on either side."""
    side: torch.cuda.Stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(side):
        work()
        work()
    torch.cuda.current_stream(device).wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return _timed(graph.replay, device, repeat)


def _event() -> torch.cuda.Event:
    event: torch.cuda.Event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    return event


def _host_seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _copy_rate(moved: int, device: torch.device, repeat: int) -> float:
    """Bytes per second, read and written both counted, of a copy that moves that many."""
    source = torch.empty(moved // 2, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return moved / _timed(lambda: target.copy_(source), device, repeat).median
