"""Many chunks to chunk KV, coded as the store codes them, in batches of like length."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from desk_rag.kv.prefill import PrefixKV, prefill_chunks
from desk_rag.kv.quant import QuantScheme, quantize
from desk_rag.kv.types import QuantizedKV
from desk_rag.model.language_model import LanguageModel

_TOKENS = {"cpu": 1024, "cuda": 16384}
"""Tokens of one padded batch."""
ChunkIds = tuple[int, ...]


def quantized_chunks(
    model: LanguageModel, prefix: PrefixKV, chunks: Sequence[ChunkIds], scheme: QuantScheme
) -> dict[ChunkIds, QuantizedKV]:
    """Chunk KV of every distinct chunk, frame included in its ids."""
    ordered = sorted(set(chunks), key=lambda ids: (len(ids), ids))
    done: dict[ChunkIds, QuantizedKV] = {}
    for batch in _batches(ordered, _TOKENS.get(model.device.type, 1024)):
        for ids, kv in zip(batch, prefill_chunks(model, prefix, batch), strict=True):
            done[ids] = quantize(kv, scheme)
    return done


def _batches(ordered: Sequence[ChunkIds], tokens: int) -> Iterator[list[ChunkIds]]:
    batch: list[ChunkIds] = []
    for ids in ordered:
        if batch and (len(batch) + 1) * len(ids) > tokens:
            yield batch
            batch = []
        batch.append(ids)
    if batch:
        yield batch
