"""Score chunk tokens by the attention of a small second model, over chunk KV of its own.

It reads texts instead of the answering model's cache, so it can run while that model's chunk KV is still being loaded.
(CacheClip, arXiv 2510.10129: last-layer attention of the question on chunk tokens, averaged over heads and question
tokens.)
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
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

_MAX_QUESTION_TOKENS = 256


class ChunkKVStore(Protocol):
    """Storage for the auxiliary model's chunk KV between questions."""

    def get(self, chunks: Sequence[tuple[int, ...]]) -> list[QuantizedKV | None]:
        """Chunk KVs of these token id sequences; None for those that are not stored."""
        ...

    def has(self, chunks: Sequence[tuple[int, ...]]) -> list[bool]:
        """Return whether each of these token id sequences has its chunk KV stored; reads none."""
        ...

    def put(self, token_ids: tuple[int, ...], kv: QuantizedKV) -> None:
        """Store a chunk KV; an implementation may ignore it."""
        ...


class MemoryKVStore:
    """In-memory LRU store of chunk KV, up to a number of bytes."""

    def __init__(self, max_bytes: int = 256 << 20) -> None:
        self._max_bytes, self._bytes = max_bytes, 0
        self._kept: OrderedDict[tuple[int, ...], QuantizedKV] = OrderedDict()

    def get(self, chunks: Sequence[tuple[int, ...]]) -> list[QuantizedKV | None]:
        """Chunk KVs of these token id sequences; None for those that are not stored."""
        for token_ids in chunks:
            if token_ids in self._kept:
                self._kept.move_to_end(token_ids)
        return [self._kept.get(token_ids) for token_ids in chunks]

    def has(self, chunks: Sequence[tuple[int, ...]]) -> list[bool]:
        """Return whether each of these token id sequences has its chunk KV stored."""
        return [token_ids in self._kept for token_ids in chunks]

    def put(self, token_ids: tuple[int, ...], kv: QuantizedKV) -> None:
        """Store a chunk KV and evict the least recently used."""
        old = self._kept.pop(token_ids, None)
        self._bytes += kv.nbytes - (old.nbytes if old is not None else 0)
        self._kept[token_ids] = kv
        while self._bytes > self._max_bytes and self._kept:
            self._bytes -= self._kept.popitem(last=False)[1].nbytes


@dataclass(frozen=True, slots=True)
class AuxiliaryScores:
    """Scores of one chunk's tokens, as the auxiliary model tokenizes it."""

    weights: torch.Tensor
    """fp32 [tokens of the chunk's text, frame excluded], on the CPU."""
    spans: tuple[Span, ...]
    """Character range of each token."""


class AuxiliaryModel:
    """A small model and its chunk KV. A second caller waits; other models may run concurrently."""

    def __init__(
        self, model: LanguageModel, prefix: PrefixKV | None = None, shelf: ChunkKVStore | None = None,
        scheme: QuantScheme | None = None,
    ) -> None:  # fmt: skip
        self.model = model
        self.prefix = prefill_prefix(model) if prefix is None else prefix
        self.shelf: ChunkKVStore = MemoryKVStore() if shelf is None else shelf
        self.scheme = scheme or QuantScheme.uniform(model.spec.num_layers)
        self._max_chunk_tokens = model.spec.max_context - self.prefix.num_tokens - _MAX_QUESTION_TOKENS
        self._cache = SlabCache(model, 0)
        self._turn = threading.RLock()

    def chunk_ids(self, texts: Sequence[str]) -> list[tuple[int, ...]]:
        """Token ids of each text, frame included. Raises UnsupportedModel for one longer than the model's context."""
        chunks = [tuple(self.model.prompt.chunk_ids(text)) for text in texts]
        longest = max(map(len, chunks), default=0)
        if longest > self._max_chunk_tokens:
            raise UnsupportedModel(
                f"A chunk of {longest} tokens does not fit into the auxiliary model '{self.model.spec.name}'.",
                remedy="Use an auxiliary model with a longer context, or another selector.",
            )
        return chunks

    def has(self, texts: Sequence[str]) -> list[bool]:
        """Return whether each text's chunk KV is stored. Raises UnsupportedModel as `chunk_ids` does."""
        return self.shelf.has(self.chunk_ids(texts))

    def prefill(self, texts: Sequence[str], stop: Callable[[], bool] | None = None) -> list[QuantizedKV]:
        """Return the chunk KVs of these texts, stored or prefilled now; call it ahead of a question.

        `stop` is called before every layer; Cancelled is raised when it returns True. Raises UnsupportedModel as
        `chunk_ids` does.
        """
        chunks = self.chunk_ids(texts)
        kvs = []
        with self._turn:
            for ids, kv in zip(chunks, self.shelf.get(chunks), strict=True):
                if kv is None:
                    kv = quantize(prefill_chunk(self.model, self.prefix, ids, stop), self.scheme)
                    self.shelf.put(ids, kv)
                kvs.append(kv)
        return kvs

    def score(self, texts: Sequence[str], question: str) -> list[AuxiliaryScores]:
        """Score the tokens of each of `texts` by the question's attention, in their order.

        Text that exceeds the model's context is scored in several batches.
        """
        with self._turn:
            return self._score(texts, question)

    def _score(self, texts: Sequence[str], question: str) -> list[AuxiliaryScores]:
        question_ids = self.model.prompt.question_ids(question, _MAX_QUESTION_TOKENS)
        kvs = self.prefill(texts)
        scores: list[AuxiliaryScores] = []
        batches = _batches([kv.num_tokens for kv in kvs], self._max_chunk_tokens)
        for batch in batches:
            weights = self._attention(kvs[batch.start : batch.stop], question_ids)
            if len(batches) > 1:
                # A batch divides its attention among less text; make the share on prefix and question equal for all.
                weights = weights / (1 - weights.sum()).clamp_min(1e-6)
            parts = torch.split(weights, [kv.num_tokens for kv in kvs[batch.start : batch.stop]])
            for text, part in zip(texts[batch.start : batch.stop], parts, strict=True):
                spans = token_spans(self.model.prompt, text)
                text_tokens = [index for index, span in enumerate(spans) if span is not None]
                scores.append(AuxiliaryScores(part[text_tokens], tuple(span for span in spans if span is not None)))
        return scores

    def _attention(self, chunks: Sequence[QuantizedKV], question_ids: Sequence[int]) -> torch.Tensor:
        """Attention on each chunk token, fp32 [tokens of all chunks] on the CPU."""
        stitch_plan = plan(self.prefix.num_tokens, [chunk.num_tokens for chunk in chunks])
        size = stitch_plan.num_slots + len(question_ids)
        if self._cache.capacity < size:
            self._cache = SlabCache(self.model, size)
        tables = build_tables(self.model, size)
        stitched = stitch(self.model, stitch_plan, self.prefix, chunks, tables, self._cache)
        weights = question_attention(self.model, stitched, question_ids, [self.model.spec.num_layers - 1])
        return weights.mean((0, 1, 2)).cpu()


def _batches(lengths: Sequence[int], max_tokens: int) -> list[range]:
    """Ranges of consecutive chunks that have at most `max_tokens` together."""
    batches, start, used = [], 0, 0
    for index, length in enumerate(lengths):
        if used + length > max_tokens and index > start:
            batches.append(range(start, index))
            start, used = index, 0
        used += length
    return [*batches, range(start, len(lengths))] if lengths else []
