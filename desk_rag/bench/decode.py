"""Decoding: one token after another over a long cache, our way beside stock transformers, interleaved in one run.

Our way is what answers are decoded by: the pass that a `ModelRunner` gives, proved as an engine proves it before its
first question (on a GPU the fused one with CUDA graphs, on a CPU the compiled layers or else the decode step). Keys
and values in the cache are random, the same for every side: latency does not depend on values, and the logits of all
sides are compared before anything is timed. Stock is the same weights in the classes of transformers as they load by
default: `sdpa` attention, which asks torch for `enable_gqa`, with a DynamicCache (its default; concatenates the cache
for every token) and with a StaticCache of just the length needed. Batch 1, greedy, on the CPU or an NVIDIA GPU.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.cache_utils import DynamicCache, StaticCache

from desk_rag.assets import assets_dir
from desk_rag.bench.harness import clock, report
from desk_rag.config import ModelSettings
from desk_rag.errors import ConfigError
from desk_rag.kv.forward.runner import ModelRunner
from desk_rag.kv.prefill import PrefixKV, prefill_prefix
from desk_rag.kv.rope import build_tables
from desk_rag.model.embedded.reader import ReaderConfig
from desk_rag.model.language_model import LanguageModel
from desk_rag.model.loading import load_model

_FIRST_ID = 100
"""An ordinary word of any vocabulary; what is decoded from random keys means nothing anyway."""


class Side(Enum):
    """Implementation that decodes."""

    OURS = "desk-rag"
    DYNAMIC = "stock, DynamicCache"
    STATIC = "stock, StaticCache"


@dataclass(frozen=True, slots=True)
class Decoder:
    """One side over one context."""

    step: Callable[[int, int], torch.Tensor]
    """(token id, position) -> logits [vocab]; the token is appended to the cache."""
    rewind: Callable[[], None]
    """Back to the context alone."""


@dataclass(slots=True)
class Row:
    """All rounds at one context length: milliseconds per token."""

    context: int
    times: dict[Side, list[float]] = field(default_factory=lambda: {side: [] for side in Side})
    way: str = ""
    """Name of the pass that the runner uses."""
    difference: float = 0.0
    """Largest difference of first logits between ours and stock, in standard deviations of stock's."""

    def ratio(self, side: Side) -> report.Spread:
        """`side` over ours, round by round."""
        pairs = zip(self.times[side], self.times[Side.OURS], strict=True)
        return report.Spread.of([theirs / ours for theirs, ours in pairs])


def main(argv: Sequence[str]) -> int:
    """Run the measurement; returns an exit code. Raises DeskRagError subclasses."""
    options = _arguments(argv)
    model = load_model(ModelSettings(name=options.model, threads=options.threads, device=options.device))
    stock = stock_twin(model)
    rows = [measure(model, stock, context, options) for context in _contexts(options, model)]
    _print(rows)
    report.finish(_result(rows, options, model), options.out)
    return 0


def stock_twin(model: LanguageModel) -> Any:
    """The same weights in transformers' own modules, as it loads them by default."""
    if isinstance(model.module.config, ReaderConfig):
        config = AutoConfig.from_pretrained(assets_dir() / "reader")
    else:
        config = type(model.module.config)(**model.module.config.to_dict())
    twin = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa", dtype=model.spec.dtype)
    with torch.no_grad():
        for name, parameter in twin.named_parameters():
            owner, _, leaf = name.rpartition(".")
            parameter.copy_(getattr(model.module.get_submodule(owner), leaf))
    return twin.to(model.device).eval().requires_grad_(False)


def _contexts(options: argparse.Namespace, model: LanguageModel) -> list[int]:
    """Return the requested contexts that the model has positions for. Raises ConfigError if there are none."""
    contexts = [int(context) for context in options.contexts.split(",")]
    served = [context for context in contexts if context + options.tokens + 1 <= model.spec.max_context]
    if not served:
        raise ConfigError(
            f"--contexts: '{model.spec.name}' has {model.spec.max_context:,} positions.", remedy="Ask for fewer tokens."
        )
    for context in sorted(set(contexts) - set(served)):
        print(f"Left out: {context:,} tokens, more than '{model.spec.name}' has positions for.")
    return served


def shipped(model: LanguageModel, prefix: PrefixKV, capacity: int) -> ModelRunner:
    """The slab as an engine makes and proves it; without room for the proof the pass is taken unproved."""
    slab = ModelRunner(model, prefix, build_tables(model, capacity), capacity)
    probe = model.prompt.question_ids("When?")
    if prefix.num_tokens + len(probe) <= capacity:
        slab.prepare(probe)
    return slab


@torch.inference_mode()
def measure(model: LanguageModel, stock: Any, context: int, options: argparse.Namespace) -> Row:
    """Decode `options.tokens` tokens per round and side behind a random context of this length."""
    room = options.tokens + 1
    slab = shipped(model, prefill_prefix(model), context + room)
    row = Row(context, way=_way(model, slab))
    decoders = _decoders(model, slab, stock, context, room)
    first = {side: _first_logits(decoder, context) for side, decoder in decoders.items()}
    reference = first[Side.DYNAMIC].float()
    row.difference = float((first[Side.OURS].float() - reference).abs().max() / reference.std())
    sides = list(decoders)
    for decoder in decoders.values():  # once, unreported
        _decode(decoder, context, options.tokens, model.device)
    for number in range(options.rounds):
        shift = number % len(sides)
        for side in sides[shift:] + sides[:shift]:
            seconds = _decode(decoders[side], context, options.tokens, model.device)
            row.times[side].append(seconds / options.tokens * 1e3)
    return row


def _way(model: LanguageModel, slab: ModelRunner) -> str:
    if slab.fused is not None:
        return "lean pass with graphs" if slab.fused.uses_graphs else "lean pass"
    if slab.step is not None:
        return "the decode step"
    return "the model's own pass" if getattr(model.module.model, "compiled", None) is None else "the compiled layers"


def _decoders(model: LanguageModel, slab: ModelRunner, stock: Any, context: int, room: int) -> dict[Side, Decoder]:
    spec = model.spec
    ours, run = slab.cache, slab.run()
    dynamic, static = DynamicCache(config=stock.config), StaticCache(config=stock.config, max_cache_len=context + room)
    generator = torch.Generator(model.device).manual_seed(7)
    shape = (1, spec.num_kv_heads, context, spec.head_dim)
    for layer in range(spec.num_layers):
        keys, values = (
            torch.randn(shape, generator=generator, device=model.device, dtype=spec.dtype) for _ in range(2)
        )
        for slots, states in zip(ours.write(layer, 0, context), (keys, values), strict=True):
            slots.copy_(states[0])
        dynamic.update(keys, values, layer)
        static.update(keys, values, layer)
    ours.set_length(context)

    def own_step(token_id: int, position: int) -> torch.Tensor:
        return run.forward([token_id], position)

    def static_rewind() -> None:
        for layer in static.layers:
            layer.cumulative_length.fill_(context)

    return {
        Side.OURS: Decoder(own_step, lambda: ours.set_length(context)),
        Side.DYNAMIC: Decoder(_stock_step(stock, dynamic, model.device), lambda: _crop(dynamic, context)),
        Side.STATIC: Decoder(_stock_step(stock, static, model.device), static_rewind),
    }


def _stock_step(stock: Any, cache: Any, device: torch.device) -> Callable[[int, int], torch.Tensor]:
    def step(token_id: int, position: int) -> torch.Tensor:
        ids = torch.tensor([[token_id]], device=device)
        position_ids = torch.tensor([[position]], device=device)
        output = stock(ids, past_key_values=cache, position_ids=position_ids, use_cache=True, logits_to_keep=1)
        logits: torch.Tensor = output.logits[0, -1]
        return logits

    return step


def _crop(cache: Any, context: int) -> None:
    surplus = cache.get_seq_length() - context
    if surplus:
        cache.crop(-surplus)


def _first_logits(decoder: Decoder, context: int) -> torch.Tensor:
    decoder.rewind()
    logits = decoder.step(_FIRST_ID, context).clone()
    decoder.rewind()
    return logits


def _decode(decoder: Decoder, context: int, tokens: int, device: torch.device) -> float:
    """Seconds for `tokens` tokens, each read back to the host, as a stream of text needs them."""
    decoder.rewind()
    token_id = _FIRST_ID
    clock.synchronize(device)
    began = time.perf_counter()
    for position in range(context, context + tokens):
        token_id = int(decoder.step(token_id, position).argmax())
    clock.synchronize(device)
    return time.perf_counter() - began


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="desk-rag bench decode", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--contexts", default="512,2048,8192,32768", help="tokens in the cache, separated by commas")
    parser.add_argument("--tokens", type=int, default=16, help="tokens decoded per round")
    parser.add_argument("--rounds", type=int, default=7, help="rounds; every side once in each, in turns")
    parser.add_argument("--threads", type=int, default=0, help="CPU threads; 0 is the product's own choice")
    parser.add_argument("--model", default="embedded", help="a model directory or ORG/NAME")
    parser.add_argument("--device", default="auto", choices=["auto", "cpu", "cuda"])
    parser.add_argument("--out", type=Path, help="append the JSON line to this file")
    return parser.parse_args(list(argv))


def _print(rows: Sequence[Row]) -> None:
    print("Decoding at batch 1, milliseconds per token")
    headings = ["context", "side", "min", "p25", "median", "p75", "max", "tokens/s", "against ours", "n"]
    cells = []
    for row in rows:
        for side in Side:
            spread = report.Spread.of(row.times[side])
            cells.append([
                str(row.context), side.value, *(f"{number:.2f}" for number in spread.scaled(1.0, 2)),
                f"{1e3 / spread.median:.0f}", f"{row.ratio(side).median:.2f}x", str(spread.count),
            ])  # fmt: skip
    print(report.table(headings, cells))
    for way in dict.fromkeys(row.way for row in rows):
        print(f"desk-rag is {way}: {', '.join(f'{row.context:,}' for row in rows if row.way == way)} tokens.")
    worst = max(row.difference for row in rows)
    print(f"First logits differ from stock's by at most {worst:.1e} of their standard deviation.\n")


def _result(rows: Sequence[Row], options: argparse.Namespace, model: LanguageModel) -> dict[str, object]:
    return {
        "bench": "decode",
        **report.environment(),
        "model": options.model,
        "dtype": str(model.spec.dtype),
        "tokens": options.tokens,
        "rounds": options.rounds,
        "spread": "min, p25, p50, p75, max",
        "contexts": [
            {
                "context": row.context,
                "ours": row.way,
                "logits_difference": row.difference,
                "ms_per_token": {side.name.lower(): report.Spread.of(row.times[side]).scaled(1.0, 3) for side in Side},
                "stock_over_ours": {side.name.lower(): row.ratio(side).scaled(1.0, 2) for side in Side},
            }
            for row in rows
        ],
    }
