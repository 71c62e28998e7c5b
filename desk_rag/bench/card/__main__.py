"""Memory, first tokens and decoding of published model shapes with little GPU memory, beside plain transformers.

The process is capped (`--gib`, the CUDA context included), and one model after another is served in it: weights,
embedder, span scorer, cache, graphs, chunks kept in GPU memory. Weights and chunks are random, so that nothing here
says anything about quality. Full prefill is the fastest way that the product has; 'transformers' is the same weights
with its own `sdpa` attention and DynamicCache.
"""

from __future__ import annotations

import argparse
import logging
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch

from desk_rag.answering.evidence.span_scorer import load_span_scorer
from desk_rag.answering.strategy import attention_path
from desk_rag.bench import load
from desk_rag.bench.card.memory import Ledger, capped
from desk_rag.bench.card.processors import on_part
from desk_rag.bench.card.serving import (
    DECODE,
    FULL,
    LIBRARY_DECODE,
    QUESTION,
    STOCK_DECODE,
    STOCK_FULL,
    ContextWorks,
    ServedModel,
)
from desk_rag.bench.harness import report
from desk_rag.bench.harness.clock import Times, Work, in_turns
from desk_rag.bench.harness.report import Spread
from desk_rag.bench.models import shapes
from desk_rag.bench.models.chunk_pool import ChunkPool
from desk_rag.config import AnswerSettings, ModelSettings
from desk_rag.errors import ConfigError, OutOfMemory
from desk_rag.kv.positions import plan
from desk_rag.model.language_model import LanguageModel
from desk_rag.model.loading import quiet_libraries
from desk_rag.model.memory.device import free_gpu_bytes, is_out_of_memory, release_unused
from desk_rag.model.memory.plan import Device
from desk_rag.model.memory.plan import plan as plan_memory
from desk_rag.retrieval.embedding import load_embedder

_TOKENS_PER_MB = 250_000
"""Tokens per MB of text, at four characters per token."""
_log = logging.getLogger("desk_rag.bench")


def main(argv: Sequence[str]) -> int:
    """Run the measurement; returns an exit code. Raises DeskRagError subclasses."""
    options = _arguments(argv)
    quiet_libraries()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    names = options.shapes.split(",")
    for name in names:
        shapes.model_shape(name)
    began, results, failed = time.perf_counter(), [], False
    with (
        capped(device, options.gib) as tensors,
        on_part(options.multiprocessors),
        load._place(options.dir) as place,
    ):
        for index, name in enumerate(names):
            left = options.seconds - (time.perf_counter() - began)
            try:
                result = _one_model(name, device, options, place, left / (len(names) - index))
            except (torch.OutOfMemoryError, OutOfMemory, ConfigError) as error:
                result, failed = {"shape": name, "failed": str(error).splitlines()[0]}, True
            release_unused(device)
            results.append(result)
            _print(result)
    report.finish(
        {
            "bench": "card", **report.environment(), "gib": options.gib, "bytes_for_tensors": tensors,
            "multiprocessors": options.multiprocessors, "quantization": options.quantization, "values": "random",
            "question": QUESTION, "decoded": options.decoded, "spread": "min, p25, p50, p75, max", "models": results,
        },
        options.out,
    )  # fmt: skip
    return int(failed)


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="desk-rag bench card", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--shapes", default="qwen3-4b,llama-3.2-3b,gemma-3-4b,qwen2.5-7b", help="separated by commas")
    parser.add_argument("--gib", type=float, default=8.0, help="GPU memory for everything; 0 for all there is")
    parser.add_argument("--quantization", default="nf4", choices=["none", "nf4", "int8"])
    parser.add_argument("--contexts", default="512,2048,4096,8192", help="tokens in chunks")
    parser.add_argument("--chunk", type=int, default=256, help="tokens per chunk")
    parser.add_argument("--decoded", type=int, default=24, help="tokens decoded per round")
    parser.add_argument("--warmed", default="1,2,4,8", help="chunks prefilled together, by which idle prefill is timed")
    parser.add_argument(
        "--compare-products", action="store_true", help="nf4: beside a pass with bitsandbytes' products"
    )
    parser.add_argument("--multiprocessors", type=int, default=0, help="run on this many of the GPU's; 0 for all")
    parser.add_argument("--seconds", type=float, default=200.0, help="about what all of it may take")
    parser.add_argument("--dir", type=Path, help="where chunk files go; beside the user's caches by default")
    parser.add_argument("--out", type=Path, help="append the JSON line to this file")
    return parser.parse_args(list(argv))


def _one_model(
    name: str, device: torch.device, options: argparse.Namespace, place: Path, seconds: float
) -> dict[str, object]:
    """Serve one model and measure it; what does not fit is named in the result."""
    began = time.perf_counter()
    contexts = [int(text) for text in options.contexts.split(",")]
    ledger = Ledger(device)
    free_before = free_gpu_bytes(device) if device.type == "cuda" else 0
    with ledger.part("weights"):
        model = shapes.build(name, device, quantization=options.quantization)
    with ledger.part("embedder"):
        embedder = load_embedder(ModelSettings())
    with ledger.part("span scorer"):
        span_scorer = load_span_scorer(embedder)
    paths = {
        str(context): attention_path(
            AnswerSettings(), model, plan(0, [context]), 2 * QUESTION
        ).value
        for context in contexts
    }  # fmt: skip
    planned = plan_memory(
        shapes.sizes_of(name), options.quantization, Device("GPU memory", free_before, 2, on_gpu=device.type == "cuda")
    )
    pool = ChunkPool(place / name, shapes.model_shape(name).chunk_shape)
    entries = []
    compare = options.compare_products and options.quantization == "nf4"
    with ServedModel(
        model, pool, max(contexts), ledger, chunk=options.chunk, compare_products=compare
    ) as served:  # fmt: skip
        _log.info("%s: served after %.1f s", name, time.perf_counter() - began)
        for index, context in enumerate(contexts):
            left = seconds - (time.perf_counter() - began)
            entries.append(_one_context(served, ledger, context, options, left / (len(contexts) - index)))
        rates = _warm_rates(served, [int(text) for text in options.warmed.split(",")])
        kept = {"chunks kept in GPU memory, at most": served.resident_bytes}
        ways = "graphs" if served.runner.fused is not None and served.runner.fused.uses_graphs else "launches"
        passes = "fused pass" if served.runner.fused is not None else "transformers' pass"
        staging = served.staging_bytes
        by_kernel = {} if served.runner.fused is None else served.runner.fused.nf4_by_kernel
    del span_scorer, embedder
    return {
        "shape": name, "parameters": shapes.model_shape(name).linear_parameters, "attention": paths,
        "pass": f"{passes}, {ways}", "memory": ledger.parts | kept, "planned": dict(planned.parts),
        "page_locked_ram": staging, "nf4_by_kernel": by_kernel,
        "weight_bytes_per_token": _read_per_token(model), "gpu_bytes_per_s": _bandwidth(device),
        "warm_tokens_per_s": rates,
        "hours_to_warm": {
            f"{mb} MB": round(mb * _TOKENS_PER_MB / max(rates.values(), default=1.0) / 3600, 2) for mb in (1, 10, 100)
        },
        "contexts": entries, "seconds": round(time.perf_counter() - began, 1),
    }  # fmt: skip


def _one_context(
    served: ServedModel, ledger: Ledger, context: int, options: argparse.Namespace, seconds: float
) -> dict[str, object]:
    work = ContextWorks(served, context, decoded=options.decoded)
    peaks: dict[str, int] = {}
    works: dict[str, Work] = {}
    failed: dict[str, str] = {}
    difference: float | None = None
    try:
        for name, piece in work.works().items():
            try:
                piece.before()
                peaks[name] = ledger.peak_of(piece.run)
                works[name] = piece
            except (RuntimeError, OutOfMemory) as error:
                failed[name] = "out of memory" if is_out_of_memory(error) else str(error).splitlines()[0]
                _log.warning("%s tokens, %s: %s", context, name, failed[name])
                release_unused(served.device)
        times = in_turns(works, served.device, seconds=seconds, least=3, most=9)
        try:
            difference = round(work.difference(), 4)
        except (RuntimeError, OutOfMemory) as error:
            failed["logits compared"] = "out of memory" if is_out_of_memory(error) else str(error).splitlines()[0]
    finally:
        work.close()
    return {
        "context": context, "payload": work.payload, "peaks": peaks, "logits_differ_by": difference,
        "failed": failed,
        "modes": {name: one.json() for name, one in times.items()},
        "sooner_than_full_prefill": _ratios(times, FULL), "sooner_than_transformers": _ratios(times, STOCK_FULL),
        "tokens_per_s": {
            name: round(options.decoded / Spread.of(times[name].wall).median, 1)
            for name in (DECODE, LIBRARY_DECODE, STOCK_DECODE) if name in times
        },
    }  # fmt: skip


def _ratios(times: dict[str, Times], reference: str) -> dict[str, list[float]]:
    if reference not in times:
        return {}
    return {
        name: Spread.of([a / b for a, b in zip(times[reference].wall, one.wall, strict=True)]).scaled(1.0, 2)
        for name, one in times.items()
        if name.startswith("cached")
    }


def _warm_rates(served: ServedModel, together: Sequence[int]) -> dict[str, float]:
    """Tokens per second of prefilling and quantising so many chunks together; medians of runs in turns."""
    works = {str(count): Work(partial(served.prefill_chunks, count)) for count in together}
    times = in_turns(works, served.device, seconds=4.0, least=3, most=9)
    return {name: round(int(name) * served.chunk / Spread.of(one.wall).median, 1) for name, one in times.items()}


def _read_per_token(model: LanguageModel) -> int:
    """Bytes of weights that one decoded token has to read."""
    module = model.module
    total = sum(parameter.nbytes for parameter in module.parameters())
    tied = module.get_input_embeddings().weight is module.get_output_embeddings().weight
    return int(total if tied else total - module.get_input_embeddings().weight.nbytes)


def _bandwidth(device: torch.device) -> int:
    """Bytes per second that a copy within the GPU reads; 0 without one."""
    if device.type != "cuda":
        return 0
    source, target = (torch.empty(128 << 20, dtype=torch.uint8, device=device) for _ in range(2))
    work = {"copy": Work(lambda: target.copy_(source))}
    seconds = in_turns(work, device, seconds=0.1)["copy"].device
    return int(2 * source.nbytes / min(seconds))


def _print(result: dict[str, object]) -> None:
    print(f"\n{result['shape']}: {result.get('failed') or result['pass']}")
    if "failed" in result:
        return
    memory, entries = result["memory"], result["contexts"]
    assert isinstance(memory, dict) and isinstance(entries, list)
    for title, parts in (("took", memory), ("planned", result["planned"])):
        assert isinstance(parts, dict)
        print(f"  {title}: " + ", ".join(f"{name} {size / 1e9:.2f} GB" for name, size in parts.items()))
    rows = []
    for entry in entries:
        for name, times in entry["modes"].items():
            _, lower, median, upper, _ = times["wall_ms"]
            full, stock = (entry[key].get(name) for key in ("sooner_than_full_prefill", "sooner_than_transformers"))
            rows.append([
                str(entry["context"]), name, f"{median:.1f}", f"{lower:.1f}", f"{upper:.1f}",
                f"{full[2]:.1f}x" if full else "", f"{stock[2]:.1f}x" if stock else "",
                str(entry["tokens_per_s"].get(name, "")), f"{entry['peaks'][name] / 1e9:.2f}",
            ])  # fmt: skip
        rows += [[str(entry["context"]), name, reason[:60], *[""] * 6] for name, reason in entry["failed"].items()]
    headings = ["context", "mode", "ms", "p25", "p75", "of full", "of transformers", "tokens/s", "peak GB"]
    print(report.table(headings, rows))
    print(f"  by our kernel: {result['nf4_by_kernel']}")
    rates, hours = result["warm_tokens_per_s"], result["hours_to_warm"]
    print(f"  idle prefill, tokens/s by chunks together: {rates}; hours to warm {hours}")


if __name__ == "__main__":
    import sys

    raise SystemExit(main(sys.argv[1:]))
