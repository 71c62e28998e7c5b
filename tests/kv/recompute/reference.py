"""Selective recompute written the slow way: every token of the context is a query row, and stale keys are put back.

No slab, no scattering, no blocks, no order of rows: one ordinary forward pass over prefix, chunks and question with the
plain causal mask, in which a cache replaces the keys and values of all chunk tokens that were not chosen by those of
the stitched cache, at every layer. Rows of tokens that were not chosen compute something that nobody reads.
"""

from __future__ import annotations

from typing import Any

import torch

from desk_rag.kv.cache import SlabCache
from desk_rag.model.language_model import LanguageModel


class PuttingBack:
    """Returns what the pass computed, except for the slots that are to stay as they were stitched."""

    def __init__(self, stitched: SlabCache, stale: list[int]) -> None:
        self.kept = [(layer.key_slab.clone(), layer.value_slab.clone()) for layer in stitched.layers]
        self.stale = stale
        self.mixed: list[tuple[torch.Tensor, torch.Tensor]] = []

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0

    def update(
        self, keys: torch.Tensor, values: torch.Tensor, layer: int, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        keys, values = keys.clone(), values.clone()
        for slot in self.stale:
            keys[:, :, slot] = self.kept[layer][0][:, :, slot]
            values[:, :, slot] = self.kept[layer][1][:, :, slot]
        self.mixed.append((keys, values))
        return keys, values


def slow_recompute(
    model: LanguageModel, stitched: SlabCache, ids: list[int], chosen: set[int], chunk_slots: range
) -> tuple[torch.Tensor, list[tuple[torch.Tensor, torch.Tensor]]]:
    """Logits [vocab] of the last of `ids` (prefix, chunks, question); per layer keys and values [1, H, N, D]."""
    cache = PuttingBack(stitched, [slot for slot in chunk_slots if slot not in chosen])
    positions = torch.arange(len(ids))
    behind = positions[:, None] - positions[None, :]
    config = model.module.config
    window = getattr(config, "sliding_window", None)
    whole = _additive(behind >= 0, model.spec.dtype)
    near = _additive((behind >= 0) & (behind < window), model.spec.dtype) if window else whole
    kinds = getattr(config, "layer_types", None) or []
    mixed = "sliding_attention" in kinds
    mask: Any = {"full_attention": whole, "sliding_attention": near} if mixed else near
    with torch.inference_mode():
        output = model.module(
            torch.tensor(ids)[None],
            attention_mask=mask,
            position_ids=positions[None],
            past_key_values=cache,
            use_cache=True,
        )
    return output.logits[0, -1], cache.mixed


def _additive(visible: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return torch.zeros(visible.shape, dtype=dtype).masked_fill(~visible, torch.finfo(dtype).min)[None, None]
