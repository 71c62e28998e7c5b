"""Quality gate: choose for each layer of a model the coarsest coding of chunk KV that is good enough.

Runs once per (weights, weight quantization, prefix) on the calibration texts: the same answers are scored token by
token over the unquantized and the quantized cache. While a bar is missed, the worst layer moves one step finer: int8
over the chunk, int8 over groups of 64 tokens, the compute dtype.

Bars: mean KL divergence <= 0.001 nats, top-1 agreement >= 99 %. (llama.cpp measured 0.0002 nats for fp16 KV and 0.001
for q8_0.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from desk_rag.kv.cache import SlabCache
from desk_rag.kv.calibration.texts import GROUPS, PROBE, CalibrationGroup
from desk_rag.kv.positions import plan
from desk_rag.kv.prefill import PrefixKV, prefill_chunk
from desk_rag.kv.quant import LayerScheme, QuantScheme, keep_exact, quantize
from desk_rag.kv.rope import RotaryTables, build_tables
from desk_rag.kv.shift import PlaceShift
from desk_rag.kv.stitch import stitch
from desk_rag.kv.types import ChunkKV, QuantizedKV
from desk_rag.model.language_model import LanguageModel

MAX_MEAN_KL = 1e-3
MIN_TOP1 = 0.99
_ANSWER_TOKENS = 24
_STEPS = (LayerScheme(), LayerScheme(group=64), LayerScheme(raw=True))
_DRIFT_TOLERANCE = 0.02
"""Relative error of the probe's KV above which stored KV is considered stale: bf16 and fp32 of the same weights stay
below it, another weight quantization or a broken kernel does not."""


@dataclass(frozen=True, slots=True)
class Score:
    """Divergence of the quantized cache from the unquantized one, over the answers' tokens."""

    mean_kl: float
    """KL(unquantized || quantized) of the next-token distribution, in nats."""
    top1: float
    """Share of tokens with the same most probable next token."""
    tokens: int

    @property
    def passes(self) -> bool:
        """True within both bars."""
        return self.mean_kl <= MAX_MEAN_KL and self.top1 >= MIN_TOP1


@dataclass(frozen=True, slots=True)
class GateReport:
    """Decision of the gate and its scores; stored in the data directory and shown by `desk-rag doctor`."""

    scheme: QuantScheme
    score: Score
    """Score of `scheme`."""
    plain_score: Score
    """Score of int8 for every layer."""
    needles_found: int
    """Number of those groups whose answer over the quantized cache contains the code as well."""
    needles_expected: int
    """Number of groups whose answer over the unquantized cache contains the code that was asked for."""


class _GroupRun:
    """One calibration group, prefilled and answered without quantization, to score codings against."""

    def __init__(self, model: LanguageModel, prefix: PrefixKV, group: CalibrationGroup) -> None:
        self.model, self.prefix, self.group = model, prefix, group
        ids = [model.prompt.chunk_ids(text) for text in group.chunks]
        self.chunks = [prefill_chunk(model, prefix, chunk) for chunk in ids]
        self.plan = plan(prefix.num_tokens, [len(chunk) for chunk in ids])
        question = model.prompt.question_ids(group.question)
        size = self.plan.num_slots + len(question) + _ANSWER_TOKENS
        self.tables: RotaryTables = build_tables(model, size)
        self.cache = SlabCache(model, size)
        self.question = question
        self._place([keep_exact(chunk) for chunk in self.chunks])
        self.answer = greedy(model, self.cache, question, self.plan.next_position, _ANSWER_TOKENS)
        self.exact = self.logits([keep_exact(chunk) for chunk in self.chunks])

    def logits(self, chunks: Sequence[QuantizedKV]) -> torch.Tensor:
        """fp32 logits [answer tokens, vocab] over these chunks, with the unquantized answer as input."""
        self._place(chunks)
        forced = torch.tensor([*self.question, *self.answer[:-1]], device=self.model.device)
        rows = self.model.forward_all(forced, self.cache, self.plan.next_position)
        return rows[len(self.question) - 1 :].float()

    def coded(self, scheme: QuantScheme) -> list[QuantizedKV]:
        return [quantize(chunk, scheme) for chunk in self.chunks]

    def finds_needle(self, chunks: Sequence[QuantizedKV], shift: PlaceShift | None = None) -> bool:
        self._place(chunks, shift)
        answer = greedy(self.model, self.cache, self.question, self.plan.next_position, _ANSWER_TOKENS)
        return self.group.needle in self.model.prompt.decode(answer)

    def _place(self, chunks: Sequence[QuantizedKV], shift: PlaceShift | None = None) -> None:
        stitch(self.model, self.plan, self.prefix, chunks, self.tables, self.cache, shift)


def greedy(model: LanguageModel, cache: SlabCache, question: Sequence[int], position: int, limit: int) -> list[int]:
    """Token ids of the greedy answer to `question`, read at `position`: up to a stop id or `limit` tokens."""
    ids, answer = list(question), list[int]()
    while len(answer) < limit:
        logits = model.forward(torch.tensor(ids, device=model.device), cache, position, logits=True)
        assert logits is not None
        position += len(ids)
        ids = [int(logits.argmax())]
        answer += ids
        if ids[0] in model.prompt.stop_ids:
            break
    return answer


def run_gate(model: LanguageModel, prefix: PrefixKV, groups: Sequence[CalibrationGroup] = GROUPS) -> GateReport:
    """Choose the coding of every layer; takes 16 chunk prefills and a few dozen question prefills."""
    runs = [_GroupRun(model, prefix, group) for group in groups]
    scheme = QuantScheme.uniform(model.spec.num_layers)
    expected = [c for c in runs if c.group.needle in model.prompt.decode(c.answer)]
    plain = score = _score(runs, scheme)
    needles = sum(c.finds_needle(c.coded(scheme)) for c in expected)
    while not (score.passes and needles == len(expected)) and any(not layer.raw for layer in scheme.layers):
        scheme = _coarsest_layer_finer(runs, scheme)
        score = _score(runs, scheme)
        needles = sum(c.finds_needle(c.coded(scheme)) for c in expected)
    return GateReport(
        scheme=scheme, score=score, plain_score=plain, needles_found=needles, needles_expected=len(expected)
    )


def canaries_answered(
    model: LanguageModel, prefix: PrefixKV, scheme: QuantScheme, shift: PlaceShift | None = None
) -> int:
    """Number of calibration groups whose answer over stitched, shifted chunk KV contains the code asked for."""
    runs = (_GroupRun(model, prefix, group) for group in GROUPS)
    return sum(run.finds_needle(run.coded(scheme), shift) for run in runs)


def probe_kv(model: LanguageModel, prefix: PrefixKV) -> ChunkKV:
    """KV of the drift probe as this machine computes it now, fp16 on the CPU."""
    kv = prefill_chunk(model, prefix, model.prompt.chunk_ids(PROBE))
    return ChunkKV(kv.keys.to("cpu", torch.float16), kv.values.to("cpu", torch.float16))


def drifted(stored: ChunkKV, now: ChunkKV) -> bool:
    """True if the stored probe KV differs from what this model computes on this machine."""
    if stored.keys.shape != now.keys.shape:
        return True
    return max(_relative(stored.keys, now.keys), _relative(stored.values, now.values)) > _DRIFT_TOLERANCE


def _relative(stored: torch.Tensor, now: torch.Tensor) -> float:
    """Relative error of the worst layer; NaN counts as infinite."""
    difference = (stored.float() - now.float()).flatten(1).norm(dim=1)
    error = (difference / now.float().flatten(1).norm(dim=1).clamp_min(1e-6)).max().item()
    return error if error == error else float("inf")


def _score(runs: Sequence[_GroupRun], scheme: QuantScheme) -> Score:
    divergence, agree, tokens = 0.0, 0, 0
    for run in runs:
        coded = run.logits(run.coded(scheme))
        exact_log, coded_log = run.exact.log_softmax(-1), coded.log_softmax(-1)
        divergence += float((exact_log.exp() * (exact_log - coded_log)).sum())
        agree += int((run.exact.argmax(-1) == coded.argmax(-1)).sum())
        tokens += coded.shape[0]
    return Score(mean_kl=max(divergence / tokens, 0.0), top1=agree / tokens, tokens=tokens)


def _coarsest_layer_finer(runs: Sequence[_GroupRun], scheme: QuantScheme) -> QuantScheme:
    """Move the layer whose quantization alone causes the largest divergence one step finer."""
    raw = (LayerScheme(raw=True),) * len(scheme.layers)
    worst, worst_kl = 0, -1.0
    for index, layer in enumerate(scheme.layers):
        if layer.raw:
            continue
        alone = QuantScheme((*raw[:index], layer, *raw[index + 1 :]))
        divergence = _score(runs, alone).mean_kl
        if divergence > worst_kl:
            worst, worst_kl = index, divergence
    finer = _STEPS[_STEPS.index(scheme.layers[worst]) + 1]
    layers = list(scheme.layers)
    layers[worst] = finer
    return replace(scheme, layers=tuple(layers))
