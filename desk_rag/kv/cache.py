"""Attention cache preallocated per layer (a slab), written in place and reused from answer to answer.

Has the methods that transformers' models call on a cache, without importing that library. Appending copies only the new
token, cropping changes a number, and stitching writes straight into the slab; transformers' own DynamicLayer
concatenates the whole cache for every token. For models with sliding-window layers slot and position must be equal,
because their masks count slots.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from desk_rag.model.language_model import LanguageModel


class SlabLayer:
    """One layer's keys and values: buffers [1, H, capacity, D], of which the first `length` slots are in use."""

    is_sliding = is_compileable = False
    only_appends = True
    """True if `update` does nothing else, so that a pass may write the slab itself and then set the length."""
    hidden = 0
    """Tokens that count as if they were in the slab (see `lazy.cache`)."""

    def __init__(self, keys: torch.Tensor, values: torch.Tensor) -> None:
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

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Number of keys that `query_length` further tokens see, and the first of them."""
        return self.get_seq_length() + query_length, 0

    def crop(self, tokens_to_remove: int) -> None:
        """Drop the last -tokens_to_remove slots (transformers passes a negative number)."""
        assert -self.length <= tokens_to_remove <= 0, "crop takes the number of slots to remove, negative"
        self.set_length(self.length + tokens_to_remove)


class LayerCache:
    """A cache made of layers, with what transformers' models ask of one."""

    is_compileable = False

    def __init__(self, layers: Sequence[SlabLayer]) -> None:
        self.layers = list(layers)

    def __len__(self) -> int:
        return len(self.layers)

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append to one layer (`SlabLayer.update`)."""
        return self.layers[layer_idx].update(key_states, value_states, *args, **kwargs)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Tokens before the next one."""
        return self.layers[layer_idx].get_seq_length() if self.layers else 0

    get_query_offset = get_seq_length

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        """Return `SlabLayer.get_mask_sizes` of one layer."""
        return self.layers[layer_idx].get_mask_sizes(query_length)

    def crop(self, tokens_to_remove: int) -> None:
        """Crop every layer as `SlabLayer.crop` does."""
        for layer in self.layers:
            layer.crop(tokens_to_remove)

    def get_max_length(self, layer_idx: int | None = None) -> int:
        """No limit, in transformers' words; the engine plans the capacity."""
        return -1

    @property
    def is_sliding(self) -> list[bool]:
        """False for every layer: slabs keep all tokens, and masks make windows."""
        return [layer.is_sliding for layer in self.layers]

    @property
    def is_linear(self) -> list[bool]:
        """False for every layer: they keep keys and values."""
        return [False] * len(self.layers)

    is_dummy = is_linear


class SlabCache(LayerCache):
    """Preallocated cache of all layers."""

    def __init__(self, model: LanguageModel, capacity: int, dtype: torch.dtype | None = None) -> None:
        self.capacity = capacity
        super().__init__(_layers(model, 1, capacity, dtype))

    @classmethod
    def over(cls, layers: Sequence[SlabLayer]) -> SlabCache:
        """The cache of one row of slabs."""
        cache = cls.__new__(cls)
        LayerCache.__init__(cache, layers)
        cache.capacity = layers[0].key_slab.shape[2]
        return cache

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


class SlabRows:
    """Caches of several questions in one block per layer, so that one pass can run over all of them."""

    def __init__(self, model: LanguageModel, rows: int, capacity: int) -> None:
        self.layers = _layers(model, rows, capacity)
        """Layers with slabs [rows, H, capacity, D]."""
        self.caches = [
            SlabCache.over(
                [SlabLayer(layer.key_slab[row : row + 1], layer.value_slab[row : row + 1]) for layer in self.layers]
            )
            for row in range(rows)
        ]


def _layers(model: LanguageModel, rows: int, capacity: int, dtype: torch.dtype | None = None) -> list[SlabLayer]:
    spec = model.spec
    shape = (rows, spec.num_kv_heads, capacity, spec.head_dim)

    def slab() -> torch.Tensor:
        return torch.empty(shape, dtype=dtype or spec.dtype, device=model.device)

    return [SlabLayer(slab(), slab()) for _ in range(spec.num_layers)]
