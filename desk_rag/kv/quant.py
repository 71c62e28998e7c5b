"""Quantize chunk KV to int8 and back, in torch: the reference for every faster path.

Keys are quantized per channel, over the whole chunk or over groups of its tokens, with a zero point: without one a
channel's offset (Qwen2's `k_proj` bias reaches hundreds) would use up the range of the codes (KVQuant, arXiv
2401.18079, section 3.1; KIVI, arXiv 2402.02750). Values are quantized per token and head. Scales and zero points are
fp16. Scales are rounded up and codes are computed from the *rounded* numbers, so fp16 costs no accuracy and no code is
clipped. Codes are rounded to nearest even.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from itertools import groupby

import torch

from desk_rag.kv.types import ChunkKV, Int8Layer, LayerKV, QuantizedKV, RawLayer

_LEVELS = 127
_SMALLEST_SCALE = 2.0**-14
"""Smallest normal fp16; a channel with less variation than this is coded as its zero point."""
_NUMBERS_AT_ONCE = 1 << 22
"""Keys that are quantized at once; several copies of them in fp32 are made meanwhile."""


@dataclass(frozen=True, slots=True)
class LayerScheme:
    """Coding of one layer."""

    raw: bool = False
    """Keep the compute dtype, because the quality gate found int8 too coarse for this layer."""
    group: int | None = None
    """Tokens per group of key scales; None for the whole chunk."""

    @property
    def label(self) -> str:
        """'int8', 'int8g64' or 'raw'."""
        return "raw" if self.raw else "int8" if self.group is None else f"int8g{self.group}"


@dataclass(frozen=True, slots=True)
class QuantScheme:
    """Coding of every layer of a model; part of the namespace."""

    layers: tuple[LayerScheme, ...]

    @classmethod
    def uniform(cls, num_layers: int, layer: LayerScheme | None = None) -> QuantScheme:
        """The same coding for all layers; by default int8 with one scale group per chunk."""
        return cls((layer or LayerScheme(),) * num_layers)

    @property
    def label(self) -> str:
        """'int8*28', or runs such as 'raw*1+int8*26+raw*1'."""
        return "+".join(f"{name}*{len(list(run))}" for name, run in groupby(layer.label for layer in self.layers))


def quantize(chunk: ChunkKV, scheme: QuantScheme, key_zeros: torch.Tensor | None = None) -> QuantizedKV:
    """Quantize a chunk; `key_zeros` [L, H, D] replaces the mid-range zero points (used for comparisons).

    A layer whose scale or zero point overflows fp16 is kept raw. Layers of one coding are quantized together, a few
    million numbers at a time: on a GPU each operation on one layer would take longer to launch than to run.
    """
    assert len(scheme.layers) == chunk.keys.shape[0], "scheme and model differ in layers"
    at_once = max(1, _NUMBERS_AT_ONCE // max(1, chunk.keys[0].numel()))
    layers: list[LayerKV] = []
    for coding, run in groupby(range(len(scheme.layers)), key=lambda index: scheme.layers[index]):
        indices = list(run)
        for start in range(indices[0], indices[-1] + 1, at_once):
            part = slice(start, min(start + at_once, indices[-1] + 1))
            zeros = None if key_zeros is None else key_zeros[part]
            layers += _quantize_layers(chunk.keys[part], chunk.values[part], coding, zeros)
    return QuantizedKV(tuple(layers))


def quantize_layer(keys: torch.Tensor, values: torch.Tensor, scheme: LayerScheme) -> LayerKV:
    """Quantize keys and values [H, T, D] of any float dtype, on their device."""
    return _quantize_layers(keys[None], values[None], scheme, None)[0]


def _quantize_layers(
    keys: torch.Tensor, values: torch.Tensor, scheme: LayerScheme, zeros: torch.Tensor | None
) -> list[LayerKV]:
    """Quantize keys and values [L, H, T, D]; `zeros` [L, H, D] or None."""
    if scheme.raw:
        return [_raw(*layer) for layer in zip(keys, values, strict=True)]
    exact_keys, exact_values = keys.float(), values.float()
    num_tokens = keys.shape[2]
    span = group_span(num_tokens, scheme.group)
    groups = [exact_keys[:, :, start : start + span] for start in range(0, num_tokens, span)]
    middles = [(part.amax(2) + part.amin(2)) / 2 if zeros is None else zeros.float() for part in groups]
    key_zero = torch.stack(middles, 2).to(torch.float16)  # [L, H, G, D]
    residuals = [part - key_zero[:, :, g, None].float() for g, part in enumerate(groups)]
    key_scale = torch.stack([_scale_of(part.abs().amax(2)) for part in residuals], 2)
    value_scale = _scale_of(exact_values.abs().amax(3))  # [L, H, T]
    key_codes = torch.cat([_codes(part, key_scale[:, :, g, None]) for g, part in enumerate(residuals)], 2)
    value_codes = _codes(exact_values, value_scale[..., None])
    numbers = (key_zero, key_scale, value_scale)
    is_finite = torch.stack([part.isfinite().flatten(1).all(1) for part in numbers]).all(0).tolist()
    parts = zip(key_codes, key_scale, key_zero, value_codes, value_scale, strict=True)
    return [
        Int8Layer(*part) if fits else _raw(keys[layer], values[layer])
        for layer, (part, fits) in enumerate(zip(parts, is_finite, strict=True))
    ]


def dequantize_layer(layer: LayerKV) -> tuple[torch.Tensor, torch.Tensor]:
    """Dequantize one layer to fp32: keys before RoPE and values, both [H, T, D]."""
    if isinstance(layer, RawLayer):
        return layer.keys.float(), layer.values.float()
    scale, zero = spread(layer.key_scale, layer.keys.shape[1]), spread(layer.key_zero, layer.keys.shape[1])
    keys = torch.addcmul(zero, layer.keys.float(), scale)
    return keys, layer.values.float() * layer.value_scale.float()[..., None]


def dequantize_into(layer: LayerKV, keys: torch.Tensor, values: torch.Tensor) -> None:
    """Dequantize one layer into `keys` (fp32) and `values` (any float dtype), both [H, T, D]."""
    if isinstance(layer, RawLayer):
        keys.copy_(layer.keys)
        values.copy_(layer.values)
        return
    length = layer.keys.shape[1]
    torch.addcmul(spread(layer.key_zero, length), keys.copy_(layer.keys), spread(layer.key_scale, length), out=keys)
    if values.dtype is torch.float32:
        values.copy_(layer.values).mul_(layer.value_scale.float()[..., None])
    else:  # one rounding: codes and scale are multiplied in fp32
        values.copy_(layer.values.float() * layer.value_scale.float()[..., None])


def move_layer(layer: LayerKV, device: torch.device) -> LayerKV:
    """Copy a layer's codes to `device`; returns the layer itself if it is already there."""
    if layer.keys.device == device:
        return layer
    tensors = (getattr(layer, field.name) for field in fields(layer))
    return type(layer)(*(tensor.to(device, non_blocking=True) for tensor in tensors))


def to_host(kv: QuantizedKV) -> QuantizedKV:
    """Copy chunk KV to the CPU, each tensor to memory of its own."""

    def moved(layer: LayerKV) -> LayerKV:
        return type(layer)(*(getattr(layer, field.name).to("cpu", copy=True) for field in fields(layer)))

    with torch.inference_mode(mode=False):
        return QuantizedKV(tuple(moved(layer) for layer in kv.layers))


def dequantize(kv: QuantizedKV) -> ChunkKV:
    """Dequantize all layers to fp32 [L, H, T, D]."""
    layers = [dequantize_layer(layer) for layer in kv.layers]
    return ChunkKV(torch.stack([keys for keys, _ in layers]), torch.stack([values for _, values in layers]))


def group_span(num_tokens: int, group: int | None) -> int:
    """Tokens per group of key scales when a chunk is divided into groups as evenly as possible."""
    if group is None or num_tokens <= group:
        return max(num_tokens, 1)
    num_groups = -(-num_tokens // group)
    return -(-num_tokens // num_groups)


def spread(per_group: torch.Tensor, num_tokens: int) -> torch.Tensor:
    """Expand [H, G, D] to fp32 that broadcasts over tokens: [H, 1, D] for one group, else [H, T, D]."""
    if per_group.shape[1] == 1:
        return per_group.float()
    span = -(-num_tokens // per_group.shape[1])
    return per_group.float().repeat_interleave(span, dim=1)[:, :num_tokens]


def _scale_of(largest: torch.Tensor) -> torch.Tensor:
    """fp16 scale of at least largest / 127, so that no code leaves [-127, 127]."""
    exact = (largest / _LEVELS).clamp_min(_SMALLEST_SCALE)
    rounded = exact.to(torch.float16)
    up = (rounded.view(torch.int16) + 1).view(torch.float16)
    return torch.where(rounded.float() < exact, up, rounded)


def _codes(values: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return torch.round(values / scale.float()).clamp_(-_LEVELS, _LEVELS).to(torch.int8)


def _raw(keys: torch.Tensor, values: torch.Tensor) -> RawLayer:
    # Do not narrow fp32 to bf16: its 8 bits of mantissa lose more than 254 codes over the actual range do.
    return RawLayer(keys.contiguous(), values.contiguous())


def keep_exact(chunk: ChunkKV) -> QuantizedKV:
    """Wrap a chunk without quantization, every layer raw in its own dtype, for comparisons."""
    return QuantizedKV(tuple(RawLayer(k, v) for k, v in zip(chunk.keys, chunk.values, strict=True)))
