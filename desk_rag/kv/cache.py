"""Attention cache preallocated per layer (a slab), written in place and reused from answer to answer.

Implements transformers' cache protocol. Appending copies only the new token, cropping changes a number, and stitching
writes straight into the slab; transformers' own DynamicLayer concatenates the whole cache for every token. For models
with sliding-window layers slot and position must be equal, because their masks count slots.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers.cache_utils import Cache, DynamicLayer

from desk_rag.model.language_model import LanguageModel


class SlabLayer(DynamicLayer):  # type: ignore[misc]
    """One layer's keys and values: buffers [1, H, capacity, D], of which the first `length` slots are in use."""

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
        """Append [1, H, N, D] and return all slots in use (CacheLayerMixin.update of transformers)."""
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
        """Drop the last -tokens_to_remove slots (transformers passes a negative number)."""
        assert -self.length <= tokens_to_remove <= 0, "crop takes the number of slots to remove, negative"
        self.set_length(self.length + tokens_to_remove)


class SlabCache(Cache):  # type: ignore[misc]
    """Preallocated cache of all layers."""

    def __init__(self, model: LanguageModel, capacity: int, dtype: torch.dtype | None = None) -> None:
        spec = model.spec
        self.capacity = capacity
        shape = (1, spec.num_kv_heads, capacity, spec.head_dim)

        def slab() -> torch.Tensor:
            return torch.empty(shape, dtype=dtype or spec.dtype, device=model.device)

        super().__init__(layers=[SlabLayer(slab(), slab()) for _ in range(spec.num_layers)])

    @property
    def device(self) -> torch.device:
        """Device of the slabs."""
        device: torch.device = self.layers[0].key_slab.device
        return device

    def set_length(self, length: int) -> None:
        """Declare that the first `length` slots of every layer hold valid keys and values."""
        assert 0 <= length <= self.capacity
        for layer in self.layers:
            layer.set_length(length)

    def write(self, layer: int, start: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Views [H, length, D] of one layer's key and value slots, to write to before `set_length`."""
        slab = self.layers[layer]
        return slab.key_slab[0, :, start : start + length], slab.value_slab[0, :, start : start + length]
