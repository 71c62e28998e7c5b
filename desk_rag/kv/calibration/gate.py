"""Quality gate: choose for each layer of a model the coarsest coding of chunk KV that is good enough.

Runs once per (weights, weight quantization, prefix) on the calibration texts: the same answers are scored token by
token over the unquantized and the quantized cache. If a bar is missed, layers move to finer steps, the worst first:
int8 over the chunk, int8 over groups of 64 tokens, the compute dtype. The divergence that each layer causes alone gives
the order of the moves, and the number of moves is found by doubling and bisection (`schemes`).

Bars: mean KL divergence <= 0.001 nats, top-1 agreement >= 99 %. (llama.cpp measured 0.0002 nats for fp16 KV and 0.001
for q8_0.) Another most probable token is no disagreement where the distributions diverge by no more than the first bar:
the two tokens are then as probable as each other, as often with flat distributions or in bf16.

The cost is bounded by `BUDGET_SECONDS`, which are compared with the clock before every passage and before every
question. When they are over, the texts read so far are judged, at least one passage of one text, and if the bars are
missed, the coarsest coding that is known to meet them is taken: all layers in the compute dtype, at worst. Such a
report is not complete; `Progress` carries what was scored to a later run, which goes on from there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch

from desk_rag.errors import Cancelled
from desk_rag.kv.cache import SlabCache
from desk_rag.kv.calibration.schemes import Moves, OutOfTime, coarsest
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
_ANSWER_TOKENS, _LATE_ANSWER_TOKENS = 24, 12
"""Maximum tokens of an answer that is scored, and of one that is late."""
_FIRST_TEXT_SHARE = 0.3
"""Share of the time after which the first text takes no further passage: what is read is to be judged, too."""
BUDGET_SECONDS = 60.0
"""Time after which no further passage is read and no further coding is tried."""
_DRIFT_TOLERANCE = 0.02
"""Relative error of the probe's KV above which stored KV is considered stale: bf16 and fp32 of the same weights stay
below it, another weight quantization or a broken kernel does not."""


@dataclass(frozen=True, slots=True)
class Score:
    """Divergence of the quantized cache from the unquantized one, over the answers' tokens."""

    mean_kl: float
    """KL(unquantized || quantized) of the next-token distribution, in nats."""
    top1: float
    """Share of tokens with the same most probable next token, or with one that is as probable."""
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
    complete: bool = True
    """False if time ran out before all texts were read, or before a coarser coding was tried."""

    @property
    def notice(self) -> str:
        """Sentence about a measurement that was not completed; else empty."""
        if self.complete:
            return ""
        exact = sum(layer.raw for layer in self.scheme.layers)
        if not exact:
            return "What caches cost this model was measured on a part of the texts: there was no time for more."
        return (
            "There was no time to measure how coarsely this model's caches may be coded:"
            f" {exact} of {len(self.scheme.layers)} layers are kept as they were computed, which takes more disk."
            " The measurement goes on at the next start, unless there are caches by then."
        )


@dataclass(slots=True)
class Progress:
    """Results of an unfinished measurement, and the listener that is told of its progress and may end it."""

    moves: Moves = field(default_factory=Moves)
    say: Callable[[str], None] = lambda text: None
    """Called with a line that names the step in progress."""
    keep: Callable[[], None] = lambda: None
    """Called whenever `moves` has grown."""
    stop: Callable[[], bool] = lambda: False
    """Returns whether the user wants the measurement to end, which raises Cancelled."""
    budget: float = BUDGET_SECONDS
    _started: float = 0.0

    def start(self) -> None:
        """Start the clock."""
        self._started = time.monotonic()

    def goes_on(self, share: float = 1.0) -> bool:
        """Return whether less than `share` of the time is spent. Raises Cancelled."""
        if self.stop():
            raise Cancelled("The measurement was stopped.")
        return time.monotonic() < self._started + share * self.budget

    def must_go_on(self) -> bool:
        """Return True if there is time for another passage or question. Raises Cancelled or OutOfTime."""
        if not self.goes_on():
            raise OutOfTime
        return True

    def step(self, text: str) -> None:
        """Name the step that begins now."""
        spent = time.monotonic() - self._started
        self.say(f"first use: testing the caches, {text} ({spent:.0f} of about {self.budget:.0f} s) …")


class _GroupRun:
    """One calibration group, prefilled and answered without quantization, to score codings against."""

    def __init__(
        self,
        model: LanguageModel,
        prefix: PrefixKV,
        group: CalibrationGroup,
        goes_on: Callable[[], bool] = lambda: True,
    ) -> None:
        """`goes_on` is asked before every passage but the first, which has the code; False leaves out the rest."""
        self.model, self.prefix, self.group = model, prefix, group
        question = model.prompt.question_ids(group.question)
        room = model.spec.max_context - prefix.num_tokens - len(question) - _ANSWER_TOKENS
        ids = _fitting([model.prompt.chunk_ids(text) for text in group.chunks], room)
        self.chunks = list[ChunkKV]()
        for chunk in ids:
            if self.chunks and not goes_on():
                break
            self.chunks.append(prefill_chunk(model, prefix, chunk))
        self.plan = plan(prefix.num_tokens, [chunk.num_tokens for chunk in self.chunks])
        size = self.plan.num_slots + len(question) + _ANSWER_TOKENS
        self.tables: RotaryTables = build_tables(model, size)
        self.cache = SlabCache(model, size)
        self.question = question
        self._place([keep_exact(chunk) for chunk in self.chunks])
        is_late = not goes_on()
        tokens = _LATE_ANSWER_TOKENS if is_late else _ANSWER_TOKENS
        self.answer = greedy(model, self.cache, question, self.plan.next_position, tokens)
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


def _fitting(chunks: Sequence[list[int]], room: int) -> list[list[int]]:
    """Return the first chunks that fit a short window; only the very first may be cut."""
    fitting = [chunks[0][:room]]
    for chunk in chunks[1:]:
        if sum(map(len, fitting)) + len(chunk) <= room:
            fitting.append(chunk)
    return fitting


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


def run_gate(
    model: LanguageModel,
    prefix: PrefixKV,
    groups: Sequence[CalibrationGroup] = GROUPS,
    progress: Progress | None = None,
) -> GateReport:
    """Choose the coding of every layer; takes 16 chunk prefills and a few dozen question prefills, if there is time."""
    progress = progress or Progress()
    progress.start()
    layers = model.spec.num_layers
    runs = _read_texts(model, prefix, groups, progress)
    expected = [run for run in runs if run.group.needle in model.prompt.decode(run.answer)]

    def measure(scheme: QuantScheme, goes_on: Callable[[], bool]) -> bool:
        """Keep the score of a coding, over the first text at least; return whether it passes."""
        score, needles, asked = _score(runs, scheme, goes_on), 0, 0
        for run in expected:
            if not goes_on() and asked:
                break
            needles, asked = needles + run.finds_needle(run.coded(scheme)), asked + 1
        results[scheme] = score, needles, asked
        return score.passes and needles == asked

    def passes(scheme: QuantScheme) -> bool:
        return progress.must_go_on() and measure(scheme, progress.must_go_on)

    def divergence_alone(index: int, layer: LayerScheme) -> float:
        """KL if only this layer is quantized."""
        progress.step(f"layer {index + 1} of {layers} as {layer.label}")
        progress.must_go_on()
        progress.keep()
        raw = (LayerScheme(raw=True),) * layers
        scheme = QuantScheme((*raw[:index], layer, *raw[index + 1 :]))
        return _score(runs, scheme, progress.must_go_on).mean_kl

    results: dict[QuantScheme, tuple[Score, int, int]] = {}
    """Score of a coding, codes found with it, and codes asked for."""
    plain = QuantScheme.uniform(layers)
    progress.step("8 bits")
    tokens = sum(len(run.answer) for run in runs)
    if measure(plain, progress.goes_on):
        chosen, searched = plain, (results[plain][0].tokens, results[plain][2]) == (tokens, len(expected))
    else:
        chosen, searched = coarsest(layers, progress.moves, divergence_alone, passes)
    if chosen not in results:  # all layers as they were computed, which nothing was lost from
        results[chosen] = Score(mean_kl=0.0, top1=1.0, tokens=tokens), len(expected), len(expected)
    score, needles, asked = results[chosen]
    return GateReport(
        scheme=chosen,
        score=score,
        plain_score=results[plain][0],
        needles_found=needles,
        needles_expected=asked,
        complete=searched and len(runs) == len(groups),
    )


def _read_texts(
    model: LanguageModel, prefix: PrefixKV, groups: Sequence[CalibrationGroup], progress: Progress
) -> list[_GroupRun]:
    """Read as many texts as there is time for; at least the first passage of the first."""
    runs = list[_GroupRun]()
    for number, group in enumerate(groups, 1):
        if runs and not progress.goes_on():
            break
        progress.step(f"text {number} of {len(groups)}")
        try:
            goes_on = progress.must_go_on if runs else partial(progress.goes_on, _FIRST_TEXT_SHARE)
            runs.append(_GroupRun(model, prefix, group, goes_on))
        except OutOfTime:
            break
    return runs


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


def _score(runs: Sequence[_GroupRun], scheme: QuantScheme, goes_on: Callable[[], bool]) -> Score:
    """Score a coding over the first run, and over the others as long as `goes_on`."""
    divergence, agree, tokens = 0.0, 0, 0
    for run in runs:
        if tokens and not goes_on():
            break
        coded = run.logits(run.coded(scheme))
        exact_log, coded_log = run.exact.log_softmax(-1), coded.log_softmax(-1)
        by_token = (exact_log.exp() * (exact_log - coded_log)).sum(-1)
        divergence += float(by_token.sum())
        same = (run.exact.argmax(-1) == coded.argmax(-1)) | (by_token <= MAX_MEAN_KL)
        agree += int(same.sum())
        tokens += coded.shape[0]
    return Score(mean_kl=max(divergence / tokens, 0.0), top1=agree / tokens, tokens=tokens)
