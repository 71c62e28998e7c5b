"""Compare codings of chunk KV, on the reader over real text and on a Qwen2 shape with large key biases.

The codings are in `baselines.quantization_schemes`. Every coding is scored token by token over
the answer that the model gives from the unquantised stitched cache: KL divergence of the next-token distribution and
whether the most probable token stays the same.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from desk_rag.bench.baselines.quantization_schemes import CODINGS, Coding, Source, as_stored
from desk_rag.bench.harness import corpus, report
from desk_rag.bench.models.outlier_model import planted_qwen2
from desk_rag.config import ModelSettings, StoreSettings
from desk_rag.kv.cache import SlabCache
from desk_rag.kv.calibration.gate import MAX_MEAN_KL, MIN_TOP1, greedy
from desk_rag.kv.identity import hash_tokens
from desk_rag.kv.positions import plan
from desk_rag.kv.prefill import PrefixKV, prefill_chunk, prefill_prefix
from desk_rag.kv.quant import QuantScheme, quantize
from desk_rag.kv.rope import build_tables
from desk_rag.kv.stitch import stitch
from desk_rag.kv.types import ChunkKV, KVKey, Namespace
from desk_rag.model.language_model import LanguageModel
from desk_rag.model.layers.attention_layout import KeyTap
from desk_rag.model.loading import load_model
from desk_rag.store.kv import chunk_file
from desk_rag.store.store import Store

MAX_BYTES = 0.52
"""Bytes per token of a stored chunk, file header and scales included, over fp16."""
_ANSWER_TOKENS = 32


class Context:
    """Chunks prefilled, a question, and the answer from the unquantised stitched cache."""

    def __init__(self, model: LanguageModel, prefix: PrefixKV, posed: corpus.Posed) -> None:
        self.model, self.prefix = model, prefix
        self.ids = [model.prompt.chunk_ids(text) for text in posed.chunks]
        self.chunks = [prefill_chunk(model, prefix, ids) for ids in self.ids]
        self.question = model.prompt.question_ids(posed.question)
        self.plan = plan(prefix.num_tokens, [len(ids) for ids in self.ids])
        size = self.plan.num_slots + len(self.question) + _ANSWER_TOKENS
        self.tables = build_tables(model, size)
        self._cache = SlabCache(model, size)
        self._lay(self.chunks)
        self.answer = greedy(model, self._cache, self.question, self.plan.next_position, _ANSWER_TOKENS)
        self.exact = self.logits(self.chunks)

    def logits(self, chunks: Sequence[ChunkKV]) -> torch.Tensor:
        """fp32 logits [answer tokens, vocab] over these chunks, with the unquantised answer as input."""
        self._lay(chunks)
        ids = torch.tensor([*self.question, *self.answer[:-1]], device=self.model.device)
        rows = self.model.forward_all(ids, self._cache, self.plan.next_position)
        return rows[len(self.question) - 1 :].float()

    def _lay(self, chunks: Sequence[ChunkKV]) -> None:
        coded = [as_stored(chunk) for chunk in chunks]
        stitch(self.model, self.plan, self.prefix, coded, self.tables, self._cache)


@dataclass(slots=True)
class Tally:
    """Sums over contexts for one coding."""

    tokens: int = 0
    divergence: float = 0.0
    agreed: int = 0
    worst: float = 0.0
    errors: dict[str, list[float]] = field(default_factory=lambda: {"keys": [], "values": []})
    chunk_tokens: int = 0
    payload: float = 0.0

    @property
    def mean_kl(self) -> float:
        return self.divergence / self.tokens

    @property
    def top1(self) -> float:
        return self.agreed / self.tokens

    def add(self, context: Context, coding: Coding, source: Source) -> None:
        """Score one context."""
        coded = [coding.apply(chunk, source) for chunk in context.chunks]
        exact, got = context.exact.log_softmax(-1), context.logits(coded).log_softmax(-1)
        divergence = (exact.exp() * (exact - got)).sum(-1)
        self.tokens += len(context.answer)
        self.divergence += float(divergence.sum())
        self.worst = max(self.worst, float(divergence.max()))
        self.agreed += int((exact.argmax(-1) == got.argmax(-1)).sum())
        spec = context.model.spec
        for chunk, back in zip(context.chunks, coded, strict=True):
            self.errors["keys"].append(_relative(back.keys, chunk.keys))
            self.errors["values"].append(_relative(back.values, chunk.values))
            self.chunk_tokens += chunk.num_tokens
            per_token = coding.bytes_per_token(chunk.num_tokens, spec.num_layers, spec.num_kv_heads, spec.head_dim)
            self.payload += per_token * chunk.num_tokens


def main(argv: Sequence[str]) -> int:
    """Run the comparison; 1 if the product's coding misses a bar on the reader. Raises DeskRagError subclasses."""
    options = _arguments(argv)
    torch.manual_seed(0)
    reader = load_model(ModelSettings(name=options.model, threads=options.threads, device=options.device))
    sets = dict(_reader_sets(reader, options))
    results: dict[str, object] = {}
    missed: list[str] = []
    for title, posed in sets.items():
        contexts = _prefilled(reader, posed)
        results[title] = _show(f"{options.model}, {title}", contexts, _bars(contexts, missed, title))
    planted = planted_qwen2()
    posed = corpus.posed_for_bytes(options.planted)
    results["planted biases"] = _show("random Qwen2 shape with planted key biases", _prefilled(planted, posed), {})
    for problem in missed:
        print(f"MISSED: {problem}")
    print("All bars are met on the reader." if not missed else "")
    report.finish({"bench": "quant", **report.environment(), "model": options.model, "sets": results,
                   "missed": missed}, options.out)  # fmt: skip
    return 1 if missed else 0


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="desk-rag bench quant", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--model", default="embedded", help="a model directory or ORG/NAME")
    parser.add_argument("--device", default="cpu", choices=["auto", "cpu", "cuda"])
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--questions", type=Path, help="for the sample documents; those of the demo by default")
    parser.add_argument("--data", type=Path, help="held-out questions, JSON lines (.xz): passage, title, question")
    parser.add_argument("--held-out", type=int, default=60, help="how many of them")
    parser.add_argument("--chunks", type=int, default=5, help="chunks in each context")
    parser.add_argument("--planted", type=int, default=8, help="contexts of the model with planted biases")
    parser.add_argument("--out", type=Path, help="append the JSON line to this file")
    return parser.parse_args(list(argv))


def _reader_sets(reader: LanguageModel, options: argparse.Namespace) -> Iterator[tuple[str, list[corpus.Posed]]]:
    with tempfile.TemporaryDirectory() as place, Store.open(Path(place), StoreSettings(), writer=True) as store:
        corpus.sync(store, corpus.sample_folder(), reader.prompt)
        questions = corpus.questions(options.questions)
        yield "sample documents", corpus.posed_on_samples(store, questions, options.chunks)
    if options.data is not None:
        yield "held-out", corpus.posed_held_out(options.data, options.held_out, options.chunks, reader.prompt)


def _prefilled(model: LanguageModel, posed: Sequence[corpus.Posed]) -> list[Context]:
    prefix = prefill_prefix(model)
    return [Context(model, prefix, one) for one in posed]


def _bars(contexts: Sequence[Context], missed: list[str], title: str) -> dict[str, object]:
    """Score the product's coding against the bars; what fails is said and added to `missed`."""
    tally = _score(contexts, Coding())
    share = _file_share(contexts)
    checks = [
        (tally.mean_kl <= MAX_MEAN_KL, f"{title}: mean KL {tally.mean_kl:.2e} nats, bar {MAX_MEAN_KL}"),
        (tally.top1 >= MIN_TOP1, f"{title}: top-1 agreement {tally.top1:.2%}, bar {MIN_TOP1:.0%}"),
        (share <= MAX_BYTES, f"{title}: files take {share:.4f} of fp16, bar {MAX_BYTES}"),
    ]
    missed += [text for met, text in checks if not met]
    return {"mean_kl": tally.mean_kl, "top1": tally.top1, "file_share_of_fp16": round(share, 4)}


def _file_share(contexts: Sequence[Context]) -> float:
    """Bytes of the files that the store would write, header and padding included, over fp16 keys and values."""
    size = fp16 = 0
    for context in contexts:
        spec = context.model.spec
        for chunk, ids in zip(context.chunks, context.ids, strict=True):
            key = KVKey(Namespace("0" * 32), hash_tokens(ids))
            image = chunk_file.prepare(key, quantize(chunk, QuantScheme.uniform(spec.num_layers)), ["0" * 32], 0.25)
            size += image.size
            fp16 += spec.fp16_bytes_per_token * chunk.num_tokens
    return size / fp16


def _score(contexts: Sequence[Context], coding: Coding) -> Tally:
    tally = Tally()
    for context in contexts:
        tally.add(context, coding, _source(context))
    return tally


def _source(context: Context) -> Source:
    spec = context.model.spec
    biases = None
    if spec.layout.key_tap is KeyTap.K_PROJ:
        projections: list[Any] = [layer.get_submodule("self_attn.k_proj") for layer in context.model.decoder_layers]
        if projections[0].bias is not None:
            rows = [projection.bias.detach() for projection in projections]
            biases = torch.stack(rows).view(-1, spec.num_kv_heads, spec.head_dim)
    return Source(context.tables, context.prefix.num_tokens, biases)


def _show(title: str, contexts: Sequence[Context], bars: dict[str, object]) -> dict[str, object]:
    spec = contexts[0].model.spec
    rows, kept = [], []
    for coding in CODINGS:
        if not coding.applies(_source(contexts[0])):
            continue
        tally = _score(contexts, coding)
        per_token = tally.payload / tally.chunk_tokens
        share = per_token / spec.fp16_bytes_per_token
        keys, values = (sum(errors) / len(errors) for errors in tally.errors.values())
        mark = "* " if coding.is_product else "  "
        rows.append([
            mark + coding.name, f"{keys:.2e}", f"{values:.2e}", f"{tally.mean_kl:.2e}", f"{tally.worst:.1e}",
            f"{tally.top1:.2%}", f"{per_token:.0f}", f"{share:.3f}",
        ])  # fmt: skip
        kept.append({
            "coding": coding.name, "key_error": float(f"{keys:.3e}"), "value_error": float(f"{values:.3e}"),
            "mean_kl": float(f"{tally.mean_kl:.3e}"), "max_kl": float(f"{tally.worst:.2e}"),
            "top1": round(tally.top1, 4), "bytes_per_token": round(per_token, 1), "share_of_fp16": round(share, 4),
        })  # fmt: skip
    tokens = sum(len(context.answer) for context in contexts)
    print(f"\n{title}: {len(contexts)} contexts, {tokens} answer tokens ('*' is what desk-rag stores)")
    headings = ["coding (V per token and head)", "K error", "V error", "mean KL", "max KL", "top-1", "B/token", "share"]
    print(report.table(headings, rows))
    if bars:
        print(f"files, header included: {bars['file_share_of_fp16']} of fp16")
    return {"contexts": len(contexts), "answer_tokens": tokens, **bars, "codings": kept}


def _relative(back: torch.Tensor, exact: torch.Tensor) -> float:
    exact = exact.float()
    return float((back - exact).norm() / exact.norm())
