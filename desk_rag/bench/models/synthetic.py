"""Random chunk KV of published shapes: latency does not depend on the values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from desk_rag.bench.harness import report
from desk_rag.errors import ConfigError
from desk_rag.kv import payload
from desk_rag.kv.cache import SlabLayer
from desk_rag.kv.rope import RotaryTables
from desk_rag.kv.types import Int8Layer, QuantizedKV
from desk_rag.store.kv import header as kv_header


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of a model that decide the cost of its chunk KV."""

    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int

    def float_bytes(self, tokens: int) -> int:
        """Keys and values of that many tokens in bf16 or fp16."""
        return 4 * self.num_layers * self.num_kv_heads * self.head_dim * tokens


SHAPES = {
    "qwen2.5-1.5b": Shape(28, 12, 2, 128),
    "qwen2.5-3b": Shape(36, 16, 2, 128),
    "qwen2-7b": Shape(28, 28, 4, 128),
    "llama-3.2-1b": Shape(16, 32, 8, 64),
    "llama-3.2-3b": Shape(28, 24, 8, 128),
    "llama-3.1-8b": Shape(32, 32, 8, 128),
    "qwen3-4b": Shape(36, 32, 8, 128),
    "llama-3.1-70b": Shape(80, 64, 8, 128),
}
"""Shapes from the models' own config.json."""


def shape_of(name: str) -> Shape:
    """The shape of that name. Raises ConfigError."""
    if name not in SHAPES:
        raise ConfigError(f"There is no shape '{name}'.", remedy=f"Known: {', '.join(SHAPES)}.")
    return SHAPES[name]


def lengths(tokens: int, chunk: int) -> list[int]:
    """Chunks of `chunk` tokens that make `tokens` together; the last one may be shorter."""
    return [min(chunk, tokens - start) for start in range(0, tokens, chunk)]


def header(shape: Shape, tokens: int) -> kv_header.KVHeader:
    """The header that the store would write for such a chunk, coded as int8 over the whole chunk."""
    layer = kv_header.LayerShape(kv_header.INT8, shape.num_kv_heads, tokens, shape.head_dim, 1)
    groups = kv_header.plan_groups([layer] * shape.num_layers)
    return kv_header.sized(kv_header.KVHeader("0" * 32, "0" * 32, ("0",), tokens, 0.1, groups))


def chunk(shape: Shape, tokens: int, device: torch.device) -> tuple[kv_header.KVHeader, torch.Tensor, QuantizedKV]:
    """(header, payload uint8, the payload as a chunk KV): random codes, scales and zeros of ordinary size."""
    head = header(shape, tokens)
    # Whole blocks of 4,096 bytes, as the loader lends them.
    data = torch.randint(0, 256, (-(-head.groups[-1].end // 4096) * 4096,), dtype=torch.uint8, device=device)
    kv = payload.as_quantized(head, data)
    for layer in kv.layers:
        assert isinstance(layer, Int8Layer)
        layer.key_scale.uniform_(0.01, 0.02)
        layer.key_zero.normal_()
        layer.value_scale.uniform_(0.01, 0.02)
    return head, data, kv


def tables(shape: Shape, positions: int, device: torch.device) -> RotaryTables:
    """cos and sin with base 1,000,000."""
    half = shape.head_dim // 2
    rates = 1_000_000.0 ** -(torch.arange(half, device=device) / half)
    angle = torch.arange(positions, device=device)[:, None] * rates
    return RotaryTables((angle.cos().contiguous(),), (angle.sin().contiguous(),), (0,) * shape.num_layers)


@dataclass(frozen=True, slots=True)
class Slabs:
    """The part of a cache that kernels and reference need, without a model."""

    layers: Sequence[SlabLayer]
    capacity: int

    @classmethod
    def of(cls, shape: Shape, capacity: int, device: torch.device, dtype: torch.dtype) -> Slabs:
        size = (1, shape.num_kv_heads, capacity, shape.head_dim)
        layers = [
            SlabLayer(*(torch.zeros(size, dtype=dtype, device=device) for _ in range(2)))
            for _ in range(shape.num_layers)
        ]
        return cls(layers, capacity)

    def write(self, layer: int, start: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Write as `SlabCache.write` does."""
        slab = self.layers[layer]
        return slab.key_slab[0, :, start : start + length], slab.value_slab[0, :, start : start + length]


def milliseconds(spread: report.Spread) -> str:
    """Median for a table."""
    return f"{spread.median * 1e3:.3f}" if spread.median < 0.01 else f"{spread.median * 1e3:.1f}"
