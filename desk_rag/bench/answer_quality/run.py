"""Answer one batch of samples in one mode: prefill row by row and timed, decode side by side.

The first token is computed one question at a time, through
the functions that the product takes it with, because that is what its user waits for; decoding, where most of the time
goes, is done for the whole batch.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from desk_rag.answering.evidence.selection import EvidenceDecoding, EvidenceSelector, PendingToken
from desk_rag.answering.token_choice import next_token
from desk_rag.bench.answer_quality.batch import BatchCache, RowCache, decode, forced
from desk_rag.bench.answer_quality.data.sample import Sample
from desk_rag.bench.answer_quality.modes import Mode, Way
from desk_rag.bench.answer_quality.prefill import ChunkIds
from desk_rag.bench.baselines.parallel_attention import attending
from desk_rag.bench.baselines.positions import Overlapping, overlapping_plan
from desk_rag.bench.baselines.selectors import select
from desk_rag.errors import ConfigError
from desk_rag.kv.forward.runner import ModelPass
from desk_rag.kv.positions import StitchPlan, plan
from desk_rag.kv.prefill import PrefixKV
from desk_rag.kv.prefix_variants.variants import PrefixVariants
from desk_rag.kv.recompute.auxiliary_model import AuxiliaryModel
from desk_rag.kv.recompute.run import Selection, recompute
from desk_rag.kv.recompute.selectors import SelectionContext
from desk_rag.kv.rope import RotaryTables
from desk_rag.kv.shift import PlaceShift
from desk_rag.kv.stitch import StitchedCache, stitch
from desk_rag.kv.types import QuantizedKV
from desk_rag.model.language_model import LanguageModel

_OVERLAPPING = {
    Way.COMPOSITE: Overlapping.COMPOSITE, Way.PARALLEL: Overlapping.PARALLEL, Way.APE: Overlapping.PARALLEL
}  # fmt: skip
NO_PREFIX = -1
"""Stands for the number of filler passages of a chunk that was prefilled without even the shared prefix."""
_QUESTION_ROOM = 256
Shelved = tuple[int, ChunkIds]
"""Names a chunk KV: how many filler passages precede it, and its token ids."""


@dataclass(frozen=True, slots=True)
class Item:
    """A sample as token ids."""

    sample: Sample
    chunks: tuple[ChunkIds, ...]
    """Frames included, in the order in which they are laid."""
    texts: tuple[str, ...]
    """Texts of the same chunks."""
    question_ids: tuple[int, ...]
    left_out: int
    """Contexts of the sample that the model's window has no room for."""

    @property
    def num_tokens(self) -> int:
        """Tokens of chunks and question together."""
        return sum(len(ids) for ids in self.chunks) + len(self.question_ids)


@dataclass(frozen=True, slots=True)
class Setting:
    """Models and settings shared by all batches."""

    model: LanguageModel
    prefix: PrefixKV
    tables: RotaryTables
    max_new_tokens: int
    auxiliary: AuxiliaryModel | None = None
    ladder: PrefixVariants | None = None
    """Prefix variants of primed modes."""
    chooser: EvidenceSelector | None = None
    """Chooses the first quote, as answers do; None leaves it to greedy decoding."""
    shift: PlaceShift | None = None
    """Learned shift of adapted modes, on the model's device."""

    def shelved(self, mode: Mode, item: Item) -> list[Shelved]:
        """Keys of the chunk KVs that `mode` uses for `item`, in the plan's order."""
        if mode.way is Way.BLOCK:
            return [(NO_PREFIX, ids) for ids in item.chunks]
        if self.ladder is None or not mode.primed:
            return [(0, ids) for ids in item.chunks]
        return [(self.ladder.for_place(place).count, ids) for place, ids in enumerate(item.chunks)]


@dataclass(frozen=True, slots=True)
class Begun:
    """One row, prefilled."""

    logits: torch.Tensor
    """fp32 [vocab] of the first answer token."""
    positions: tuple[int, ...]
    """Positions of the row's slots in use."""
    next_position: int
    prefill_seconds: float
    """Time from chunk KV in memory (or tokens) to the first token's logits, without selection."""
    select_seconds: float
    recomputed: float
    """Chunk tokens computed at answer time, as a share of all."""


@dataclass(frozen=True, slots=True)
class Said:
    """One answer of one mode."""

    token_ids: tuple[int, ...]
    """The id that ended it included, if one did."""
    begun: Begun
    kl: float | None
    """KL(full prefill || this mode) of the first answer token's distribution, in nats."""
    top1: float | None
    """Share of full prefill's answer tokens, but for those that were chosen, that are the most probable ones here too,
    each after full prefill's own beginning of the answer."""
    chosen: int
    """Tokens at the answer's beginning that were chosen: its quote, mostly all of it."""


def to_item(sample: Sample, setting: Setting) -> Item:
    """Token ids of a sample. What does not fit into the window is left out from the middle, right chunks last.

    Raises ConfigError if not even one chunk fits.
    """
    model = setting.model
    question_ids = tuple(model.prompt.question_ids(sample.question, _QUESTION_ROOM))
    chunks = [tuple(model.prompt.chunk_ids(text)) for text in sample.contexts]
    room = model.spec.max_context - setting.prefix.num_tokens - len(question_ids) - setting.max_new_tokens
    kept = _fitting(chunks, set(sample.gold or ()), room)
    if not kept:
        raise ConfigError(
            f"No chunk of the question '{sample.question[:60]}' fits into the {model.spec.max_context} positions of "
            f"'{model.spec.name}'.",
            remedy="Lower --chunk-tokens or --max-new-tokens.",
        )
    texts = tuple(sample.contexts[index] for index in kept)
    return Item(sample, tuple(chunks[index] for index in kept), texts, question_ids, len(chunks) - len(kept))


def ask(
    setting: Setting, mode: Mode, items: Sequence[Item], known: Mapping[Shelved, QuantizedKV],
    full: Sequence[Said] | None,
) -> list[Said]:  # fmt: skip
    """Answer `items` in `mode`; `full` are full prefill's answers to them, if they are known."""
    if mode.way is not Way.APE:
        return _ask(setting, mode, items, known, full)
    outputs: list[Said] = []
    for number, item in enumerate(items):  # one by one: the slots of the chunks differ
        end = setting.prefix.num_tokens + sum(len(ids) for ids in item.chunks)
        with attending(setting.model, slice(setting.prefix.num_tokens, end)):
            outputs += _ask(setting, mode, [item], known, None if full is None else [full[number]])
    return outputs


def _ask(
    setting: Setting, mode: Mode, items: Sequence[Item], known: Mapping[Shelved, QuantizedKV],
    full: Sequence[Said] | None,
) -> list[Said]:  # fmt: skip
    model, size = setting.model, setting.prefix.num_tokens
    capacity = size + max(item.num_tokens for item in items) + setting.max_new_tokens
    if setting.chooser is not None:
        capacity += setting.max_new_tokens  # all rows go on behind the longest one and its quote
    cache = BatchCache(model, len(items), capacity)
    prefilled = [_begin(setting, mode, item, cache.row(row), known) for row, item in enumerate(items)]
    rows = [cache.row(row) for row in range(len(items))]
    opened = [_open(setting, *each) for each in zip(items, prefilled, rows, strict=True)]
    places = [_with(one, len(ids) - 1) for one, ids in zip(prefilled, opened, strict=True)]
    starts = [one.next_position for one in prefilled]
    kl: list[float | None] = [None] * len(items)
    top1: list[float | None] = [None] * len(items)
    if full is not None:
        cache.filled([one.positions for one in prefilled])
        cache.set_length(max(map(len, places)))  # behind what was laid, which these passes do not see
        best = forced(model, cache, [other.token_ids for other in full], starts)
        for row, (one, other) in enumerate(zip(prefilled, full, strict=True)):
            kl[row] = divergence(other.begun.logits, one.logits)
            guesses = [int(one.logits.argmax()), *best[row]]
            pairs = list(zip(guesses, other.token_ids, strict=True))[other.chosen :]
            top1[row] = sum(a == b for a, b in pairs) / len(pairs) if pairs else None
    cache.filled(places)
    outputs = decode(model, cache, opened, starts, setting.max_new_tokens)
    return [
        Said(tuple(ids), one, kl[row], top1[row], _chosen(model, opened[row]))
        for row, (ids, one) in enumerate(zip(outputs, prefilled, strict=True))
    ]


def _open(setting: Setting, item: Item, begun: Begun, row: RowCache) -> list[int]:
    """Return the beginning of an answer: its first token, or the selected quote, written to `row`, and one token more.

    A stop id ends it.
    """
    prompt, first = setting.model.prompt, int(begun.logits.argmax())
    if setting.chooser is None or first in prompt.stop_ids:
        return [first]
    row.set_length(len(begun.positions))
    run, most = ModelPass(setting.model, row), setting.max_new_tokens - 1
    strategy = EvidenceDecoding(setting.chooser, item.sample.question, item.texts)
    first = strategy.first_token(first)  # `Said.chosen` counts it with the quote behind it
    quoted = strategy.select_quote(PendingToken(run, first, begun.logits, begun.next_position), most)
    if quoted is None:
        return [first]
    answer = quoted.append_answer() or quoted.quote
    if answer.token_ids[-1] in prompt.stop_ids:
        return list(answer.token_ids)
    return [*answer.token_ids, next_token(prompt, answer.token_ids, int(answer.logits.argmax()), answer.logits)]


def _chosen(model: LanguageModel, opened: Sequence[int]) -> int:
    """Number of an answer's first tokens that were selected, not decoded; includes the stop id of a whole answer."""
    whole = len(opened) > 1 and opened[-1] in model.prompt.stop_ids
    return len(opened) - (not whole)


def _with(begun: Begun, more: int) -> tuple[int, ...]:
    """Positions of a row's slots once `more` tokens of the answer are in it."""
    return (*begun.positions, *range(begun.next_position, begun.next_position + more))


def divergence(reference: torch.Tensor, other: torch.Tensor) -> float:
    """KL(reference || other) in nats, of two logits [vocab]."""
    p, q = (torch.log_softmax(logits.double(), -1) for logits in (reference, other))
    return max(0.0, float((p.exp() * (p - q)).sum()))


def _begin(setting: Setting, mode: Mode, item: Item, row: RowCache, known: Mapping[Shelved, QuantizedKV]) -> Begun:
    if mode.way is Way.FULL:
        return _begin_full(setting, item, row)
    chunks = [known[one] for one in setting.shelved(mode, item)]
    size = setting.prefix.num_tokens
    _learn(setting, mode, item)
    watch = _Watch(setting.model)
    lengths = [chunk.num_tokens for chunk in chunks]
    scheme = _OVERLAPPING.get(mode.way)
    where = plan(size, lengths) if scheme is None else overlapping_plan(setting.model, size, lengths, scheme)
    shift = setting.shift if mode.way is Way.ADAPTED else None
    stitched = stitch(setting.model, where, setting.prefix, chunks, setting.tables, row, shift)
    selecting = 0.0
    if mode.way is Way.RECOMPUTE:
        stitching = watch.lap()
        selection = _select(setting, mode, item, stitched)
        selecting = watch.lap()
        logits = recompute(setting.model, stitched, item.chunks, item.question_ids, selection, setting.tables)
        return _begun(logits, where, item, stitching + watch.lap(), selecting, selection.ratio)
    ids = torch.tensor(item.question_ids, device=setting.model.device)
    question_logits = setting.model.forward(ids, row, where.next_position, logits=True)
    assert question_logits is not None
    return _begun(question_logits, where, item, watch.lap(), selecting, 0.0)


def _begin_full(setting: Setting, item: Item, row: RowCache) -> Begun:
    model = setting.model
    chunk_ids = [token for ids in item.chunks for token in ids]
    ids = [*model.prompt.prefix_ids, *chunk_ids, *item.question_ids]
    watch = _Watch(model)
    logits = model.forward(torch.tensor(ids, device=model.device), row, 0, logits=True)
    assert logits is not None
    return Begun(logits.float(), tuple(range(len(ids))), len(ids), watch.lap(), 0.0, 1.0)


def _begun(
    logits: torch.Tensor, where: StitchPlan, item: Item, prefill: float, selecting: float, recomputed: float
) -> Begun:
    end = where.next_position + len(item.question_ids)
    chunk_positions = (
        place.position + offset for place in where.placements for offset in range(place.num_tokens)
    )  # fmt: skip
    positions = (*range(where.prefix_tokens), *chunk_positions, *range(where.next_position, end))
    return Begun(logits.float(), positions, end, prefill, selecting, recomputed)


def _learn(setting: Setting, mode: Mode, item: Item) -> None:
    """Prefill the auxiliary model's chunks, as indexing does before any question."""
    if setting.auxiliary is not None and mode.selector.startswith("aux"):
        setting.auxiliary.prefill(item.texts)


def _select(setting: Setting, mode: Mode, item: Item, stitched: StitchedCache) -> Selection:
    context = SelectionContext(
        model=setting.model,
        stitched=stitched,
        chunk_ids=item.chunks,
        question_ids=item.question_ids,
        texts=item.texts,
        question=item.sample.question,
        auxiliary=setting.auxiliary,
    )
    return select(mode.selector, mode.ratio, context)


def _fitting(chunks: Sequence[ChunkIds], gold: set[int], room: int) -> list[int]:
    kept = list(range(len(chunks)))
    while kept and sum(len(chunks[index]) for index in kept) > room:
        droppable = [index for index in kept if index not in gold] or kept
        kept.remove(droppable[len(droppable) // 2])
    return kept


class _Watch:
    """Seconds between laps, the device's work included."""

    def __init__(self, model: LanguageModel) -> None:
        self._device = model.device
        self._at = self._now()

    def lap(self) -> float:
        """Seconds since the last lap."""
        before, self._at = self._at, self._now()
        return self._at - before

    def _now(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter()
