"""Ways to code keys and values that `quant` compares; one is the product's own, the others live only here.

Every coding returns what would come back from disk, as keys before RoPE, so that all of them go through the same
stitching.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

import torch

from desk_rag.kv.quant import LayerScheme, QuantScheme, dequantize, group_span, keep_exact, quantize
from desk_rag.kv.rope import RotaryTables, rotate
from desk_rag.kv.types import ChunkKV, QuantizedKV

_SMALLEST_SCALE = 2.0**-14


class Zero(Enum):
    """Offset subtracted from a key channel before it is coded."""

    NONE = "none"
    MIDDLE = "mid-range"
    BIAS = "k_proj bias"


class Axis(Enum):
    """Group of numbers that share one key scale."""

    CHANNEL = "per channel, before RoPE"
    TOKEN_BEFORE = "per token, before RoPE"
    TOKEN_AFTER = "per token, after RoPE"
    CHANNEL_AFTER = "per channel, after RoPE"


@dataclass(frozen=True, slots=True)
class Source:
    """Inputs of a coding besides the chunk."""

    tables: RotaryTables
    start: int
    """Position at which the chunk was prefilled."""
    biases: torch.Tensor | None
    """[L, H, D]; None for models whose k_proj has none, or which normalise keys after it."""


@dataclass(frozen=True, slots=True)
class Coding:
    """One row of the table."""

    bits: int = 8
    axis: Axis = Axis.CHANNEL
    zero: Zero = Zero.MIDDLE
    group: int | None = None

    @property
    def name(self) -> str:
        """Name in the table."""
        size = "whole chunk" if self.group is None else f"groups of {self.group}"
        over = f", {size}" if self.axis in (Axis.CHANNEL, Axis.CHANNEL_AFTER) else ""
        zero = f", zero: {self.zero.value}" if self.axis is Axis.CHANNEL else ""
        return f"int{self.bits} K {self.axis.value}{over}{zero}"

    @property
    def is_product(self) -> bool:
        """True for the coding that desk-rag stores."""
        return self == Coding()

    def applies(self, source: Source) -> bool:
        """False where the coding needs a bias that the model has not."""
        return self.zero is not Zero.BIAS or source.biases is not None

    def apply(self, chunk: ChunkKV, source: Source) -> ChunkKV:
        """The chunk as it would come back from disk: fp32, keys before RoPE."""
        if self.bits == 8 and self.axis is Axis.CHANNEL and self.zero is not Zero.NONE:
            zeros = source.biases if self.zero is Zero.BIAS else None
            scheme = QuantScheme.uniform(chunk.keys.shape[0], LayerScheme(group=self.group))
            return dequantize(quantize(chunk, scheme, zeros))
        keys = torch.stack([self._keys(layer, index, source) for index, layer in enumerate(chunk.keys.float())])
        return ChunkKV(keys, _round_trip(chunk.values.float(), -1, self.bits))

    def bytes_per_token(self, tokens: int, layers: int, heads: int, dim: int) -> float:
        """Payload with fp16 scales and zeros, without a file's header."""
        codes = 2 * dim * self.bits / 8
        value_scale = 2.0
        if self.axis in (Axis.TOKEN_BEFORE, Axis.TOKEN_AFTER):
            return layers * heads * (codes + value_scale + 2.0)
        groups = -(-tokens // group_span(tokens, self.group))
        zeros = 1 if self.axis is Axis.CHANNEL and self.zero is Zero.MIDDLE else 0
        return layers * heads * (codes + value_scale + groups * (1 + zeros) * 2.0 * dim / tokens)

    def _keys(self, keys: torch.Tensor, layer: int, source: Source) -> torch.Tensor:
        """[H, T, D] fp32 of one layer."""
        if self.axis is Axis.TOKEN_BEFORE:
            return _round_trip(keys, -1, self.bits)
        if self.axis is Axis.CHANNEL:
            return self._per_channel(keys, layer, source)
        table = source.tables.table_of_layer[layer]
        columns = slice(source.start, source.start + keys.shape[1])
        cos, sin = source.tables.cos[table][columns], source.tables.sin[table][columns]
        turned = rotate(keys, cos, sin)
        back = (
            _round_trip(turned, -1, self.bits)
            if self.axis is Axis.TOKEN_AFTER
            else _grouped(turned, self.group, lambda part: _round_trip(part, -2, self.bits))
        )
        stretch = cos[:, :1] ** 2 + sin[:, :1] ** 2  # attention scaling, which a rotation back must take off
        return rotate(back, cos / stretch, -sin / stretch)

    def _per_channel(self, keys: torch.Tensor, layer: int, source: Source) -> torch.Tensor:
        def code(part: torch.Tensor) -> torch.Tensor:
            zero = torch.zeros(())
            if self.zero is Zero.MIDDLE:
                zero = (part.amax(1, keepdim=True) + part.amin(1, keepdim=True)) / 2
            elif self.zero is Zero.BIAS:
                assert source.biases is not None
                zero = source.biases[layer][:, None].float()
            zero = zero.half().float()
            return _round_trip(part - zero, -2, self.bits) + zero

        return _grouped(keys, self.group, code)


CODINGS = (
    Coding(),
    Coding(group=128),
    Coding(group=64),
    Coding(group=32),
    Coding(zero=Zero.BIAS),
    Coding(zero=Zero.NONE),
    Coding(axis=Axis.CHANNEL_AFTER),
    Coding(axis=Axis.TOKEN_BEFORE),
    Coding(axis=Axis.TOKEN_AFTER),
    Coding(bits=4),
    Coding(bits=4, group=64),
    Coding(bits=4, group=32),
    Coding(bits=4, zero=Zero.NONE),
    Coding(bits=4, axis=Axis.TOKEN_AFTER),
)


def as_stored(chunk: ChunkKV) -> QuantizedKV:
    """A coding's result in the form that is stitched."""
    return keep_exact(chunk)


def _grouped(keys: torch.Tensor, group: int | None, code: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    return torch.cat([code(part) for part in torch.split(keys, group_span(keys.shape[1], group), dim=1)], 1)


def _round_trip(numbers: torch.Tensor, axis: int, bits: int) -> torch.Tensor:
    """Symmetric codes along `axis`, fp16 scale rounded up, nearest even; back to fp32."""
    levels = 2 ** (bits - 1) - 1
    exact = (numbers.abs().amax(axis, keepdim=True) / levels).clamp_min(_SMALLEST_SCALE)
    rounded = exact.half().float()
    scale = torch.where(rounded < exact, torch.nextafter(exact.half(), torch.tensor(torch.inf).half()).float(), rounded)
    return torch.round(numbers / scale).clamp(-levels, levels) * scale
