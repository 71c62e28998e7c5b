"""A small second model says which chunk tokens a question looks at, from chunk KV of its own.

Knows its model, its tokenizer and a shelf for its chunk KV; knows nothing of the model that answers. It needs texts
instead of caches, so it can work while the answering model's chunk KV is still being loaded. (CacheClip, arXiv
2510.10129: last-layer attention of the question's tokens on chunk tokens, averaged over heads and question tokens.)
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from desk_rag.errors import UnsupportedModel
from desk_rag.kv.cache import SlabCache
from desk_rag.kv.positions import plan
from desk_rag.kv.prefill import PrefixKV, prefill_chunk, prefill_prefix
from desk_rag.kv.quant import QuantScheme, quantize
from desk_rag.kv.recompute.attention_scores import question_attention
from desk_rag.kv.recompute.token_alignment import Span, token_spans
from desk_rag.kv.rope import build_tables
from desk_rag.kv.stitch import stitch
from desk_rag.kv.types import QuantizedKV
from desk_rag.model.language_model import LanguageModel

_QUESTION_ROOM = 256


class Shelf(Protocol):
    """Where the auxiliary model's chunk KV is kept between questions."""

    def get(self, chunks: Sequence[tuple[int, ...]]) -> list[QuantizedKV | None]:
        """The chunk KVs of these runs of token ids, as far as they are there."""
        ...

    def put(self, token_ids: tuple[int, ...], kv: QuantizedKV) -> None:
        """Keep it, or do not."""
        ...


class MemoryShelf:
    """The most recently used chunk KV, up to a number of bytes."""

    def __init__(self, most_bytes: int = 256 << 20) -> None:
        self._most, self._bytes = most_bytes, 0
        self._kept: OrderedDict[tuple[int, ...], QuantizedKV] = OrderedDict()

    def get(self, chunks: Sequence[tuple[int, ...]]) -> list[QuantizedKV | None]:
        """As in `Shelf`."""
        for token_ids in chunks:
            if token_ids in self._kept:
                self._kept.move_to_end(token_ids)
        return [self._kept.get(token_ids) for token_ids in chunks]

    def put(self, token_ids: tuple[int, ...], kv: QuantizedKV) -> None:
        """As in `Shelf`."""
        old = self._kept.pop(token_ids, None)
        self._bytes += kv.nbytes - (old.nbytes if old is not None else 0)
        self._kept[token_ids] = kv
        while self._bytes > self._most and self._kept:
            self._bytes -= self._kept.popitem(last=False)[1].nbytes


@dataclass(frozen=True, slots=True)
class AuxiliaryScores:
    """What the auxiliary model looks at in one chunk."""

    weights: torch.Tensor
    """fp32 [its tokens of the chunk's text, frame excluded], on the CPU."""
    spans: tuple[Span, ...]
    """Per weight the characters it is about."""


class Auxiliary:
    """A small model and its chunk KV. One caller at a time; another model may run meanwhile."""

    def __init__(
        self, model: LanguageModel, prefix: PrefixKV | None = None, shelf: Shelf | None = None,
        scheme: QuantScheme | None = None,
    ) -> None:  # fmt: skip
        self.model = model
        self.prefix = prefill_prefix(model) if prefix is None else prefix
        self.shelf: Shelf = MemoryShelf() if shelf is None else shelf
        self.scheme = scheme or QuantScheme.uniform(model.spec.num_layers)
        self._room = model.spec.max_context - self.prefix.num_tokens - _QUESTION_ROOM
        self._cache = SlabCache(model, 0)

    def learn(self, texts: Sequence[str]) -> list[QuantizedKV]:
        """The chunk KVs of these chunks' texts, from the shelf or prefilled now; call it when there is time.

        Raises UnsupportedModel for a chunk longer than the model's context.
        """
        chunks = [tuple(self.model.prompt.chunk_ids(text)) for text in texts]
        longest = max(map(len, chunks), default=0)
        if longest > self._room:
            raise UnsupportedModel(
                f"A chunk of {longest} tokens does not fit into the auxiliary model '{self.model.spec.name}'.",
                remedy="Take an auxiliary model with a longer context, or another selector.",
            )
        known = []
        for ids, kv in zip(chunks, self.shelf.get(chunks), strict=True):
            if kv is None:
                kv = quantize(prefill_chunk(self.model, self.prefix, ids), self.scheme)
                self.shelf.put(ids, kv)
            known.append(kv)
        return known

    def look(self, texts: Sequence[str], question: str) -> list[AuxiliaryScores]:
        """What the question looks at in each of `texts`, in their order.

        More text than fits into the model's context is read in several turns.
        """
        question_ids = self.model.prompt.question_ids(question, _QUESTION_ROOM)
        known = self.learn(texts)
        scores: list[AuxiliaryScores] = []
        turns = _turns([kv.num_tokens for kv in known], self._room)
        for turn in turns:
            weights = self._attention(known[turn.start : turn.stop], question_ids)
            if len(turns) > 1:
                # A turn shares its attention among less text; what stays on prefix and question is the common measure.
                weights = weights / (1 - weights.sum()).clamp_min(1e-6)
            parts = torch.split(weights, [kv.num_tokens for kv in known[turn.start : turn.stop]])
            for text, part in zip(texts[turn.start : turn.stop], parts, strict=True):
                spans = token_spans(self.model.prompt, text)
                kept = [index for index, span in enumerate(spans) if span is not None]
                scores.append(AuxiliaryScores(part[kept], tuple(span for span in spans if span is not None)))
        return scores

    def _attention(self, chunks: Sequence[QuantizedKV], question_ids: Sequence[int]) -> torch.Tensor:
        """fp32 [tokens of all chunks] on the CPU."""
        where = plan(self.prefix.num_tokens, [chunk.num_tokens for chunk in chunks])
        size = where.num_slots + len(question_ids)
        if self._cache.capacity < size:
            self._cache = SlabCache(self.model, size)
        tables = build_tables(self.model, size)
        stitched = stitch(self.model, where, self.prefix, chunks, tables, self._cache)
        seen = question_attention(self.model, stitched, question_ids, [self.model.spec.num_layers - 1])
        return seen.mean((0, 1, 2)).cpu()


def _turns(lengths: Sequence[int], room: int) -> list[range]:
    """Runs of chunks that fit into `room` tokens together."""
    turns, start, used = [], 0, 0
    for index, length in enumerate(lengths):
        if used + length > room and index > start:
            turns.append(range(start, index))
            start, used = index, 0
        used += length
    return [*turns, range(start, len(lengths))] if lengths else []
