"""Data types that `kv` and the store exchange: keys, chunk KV before and after quantization.

Shapes in all modules of `kv`: L = num_layers, H = num_kv_heads, T = num_tokens, D = head_dim, G = groups of tokens.
Keys are stored *before* RoPE (after `k_norm` where the model has one). The shared prefix is never part of a chunk.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NewType

import torch

Namespace = NewType("Namespace", str)
"""Hash, 32 hex digits, of everything besides the tokens that determines chunk KV (see kv/identity.py)."""
TokenHash = NewType("TokenHash", str)
"""Hash, 32 hex digits, of the token ids that were run."""


@dataclass(frozen=True, slots=True)
class KVKey:
    """The name of one chunk KV; equal keys mean interchangeable bytes."""

    namespace: Namespace
    tokens: TokenHash


@dataclass(frozen=True, slots=True)
class ChunkKV:
    """One chunk's keys and values as computed, before quantization."""

    keys: torch.Tensor
    """[L, H, T, D], pre-RoPE, compute dtype or fp32."""
    values: torch.Tensor
    """[L, H, T, D]."""

    @property
    def num_tokens(self) -> int:
        return int(self.keys.shape[2])


@dataclass(frozen=True, slots=True)
class Int8Layer:
    """One layer of a chunk as int8 codes: key = code * key_scale + key_zero, value = code * value_scale."""

    keys: torch.Tensor
    """int8 [H, T, D], codes in [-127, 127]."""
    key_scale: torch.Tensor
    """fp16 [H, G, D]; group g covers tokens [g * ceil(T / G), ...)."""
    key_zero: torch.Tensor
    """fp16 [H, G, D]; codes are computed relative to this rounded value."""
    values: torch.Tensor
    """int8 [H, T, D]."""
    value_scale: torch.Tensor
    """fp16 [H, T]."""


@dataclass(frozen=True, slots=True)
class RawLayer:
    """One layer kept in bf16, fp16 or fp32 because int8 failed the quality gate for it."""

    keys: torch.Tensor
    """[H, T, D], pre-RoPE."""
    values: torch.Tensor
    """[H, T, D]."""


LayerKV = Int8Layer | RawLayer


@dataclass(frozen=True, slots=True)
class QuantizedKV:
    """One chunk's KV as it is stored and loaded."""

    layers: tuple[LayerKV, ...]

    @property
    def num_tokens(self) -> int:
        return int(self.layers[0].keys.shape[1])

    @property
    def nbytes(self) -> int:
        """Size of the payload: codes and scales, without file header and padding."""
        total = 0
        for layer in self.layers:
            tensors = [layer.keys, layer.values]
            if isinstance(layer, Int8Layer):
                tensors += [layer.key_scale, layer.key_zero, layer.value_scale]
            total += sum(t.numel() * t.element_size() for t in tensors)
        return total
