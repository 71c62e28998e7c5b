"""The cache a forward pass reads: one preallocated slab per layer, written in place, reused from answer to answer.

Knows transformers' cache protocol; knows nothing of chunks. Appending a token copies that token only, cropping is a
number, and stitching writes straight into the slab (transformers' DynamicLayer concatenates the whole cache per token).
Slots are positions-in-order: for models with sliding layers slot and position must be equal, because masks count slots.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers.cache_utils import Cache, DynamicLayer

from desk_rag.model.language_model import LanguageModel


class SlabLayer(DynamicLayer):  # type: ignore[misc]
    """One layer's keys and values: buffers [1, H, capacity, D] of which the first `length` slots are in use."""

    def __init__(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        super().__init__()
        self.key_slab, self.value_slab = keys, values
        self.dtype, self.device, self.is_initialized = keys.dtype, keys.device, True
        self.set_length(0)

    def set_length(self, length: int) -> None:
        """Declare that the first `length` slots hold valid keys and values."""
        self.length = length
        self.keys = self.key_slab[:, :, :length]
        self.values = self.value_slab[:, :, :length]

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append [1, H, N, D] and return everything in use. (transformers CacheLayerMixin.update)"""
        start, end = self.length, self.length + key_states.shape[-2]
        assert end <= self.key_slab.shape[2], "slab too small: the engine plans its capacity"
        self.key_slab[:, :, start:end] = key_states
        self.value_slab[:, :, start:end] = value_states
        self.set_length(end)
        return self.keys, self.values

    def get_seq_length(self) -> int:
        """Slots in use."""
        return self.length

    def crop(self, tokens_to_remove: int) -> None:
        """Give up the last -tokens_to_remove slots (transformers passes a negative number)."""
        assert -self.length <= tokens_to_remove <= 0, "crop takes the number of slots to remove, negative"
        self.set_length(self.length + tokens_to_remove)


class SlabCache(Cache):  # type: ignore[misc]
    """All layers' slabs."""

    def __init__(self, model: LanguageModel, capacity: int, dtype: torch.dtype | None = None) -> None:
        spec = model.spec
        self.capacity = capacity
        shape = (1, spec.num_kv_heads, capacity, spec.head_dim)

        def slab() -> torch.Tensor:
            return torch.empty(shape, dtype=dtype or spec.dtype, device=model.device)

        super().__init__(layers=[SlabLayer(slab(), slab()) for _ in range(spec.num_layers)])

    @property
    def device(self) -> torch.device:
        """Where the slabs are."""
        device: torch.device = self.layers[0].key_slab.device
        return device

    def set_length(self, length: int) -> None:
        """Declare the first `length` slots of every layer valid."""
        assert 0 <= length <= self.capacity
        for layer in self.layers:
            layer.set_length(length)

    def write(self, layer: int, start: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Views [H, length, D] of one layer's key and value slots, for writing before `set_length` declares them."""
        slab = self.layers[layer]
        return slab.key_slab[0, :, start : start + length], slab.value_slab[0, :, start : start + length]
