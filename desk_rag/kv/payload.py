"""Layout of a KV file's payload: views of its bytes as layers, and offsets for the kernels.

Reads and checks nothing. The header types belong to the store, a layer above: the protocols here name the fields that
loading needs, and the store's dataclasses satisfy them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from desk_rag.kv.types import Int8Layer, LayerKV, QuantizedKV, RawLayer

DTYPES = {"F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32, "I8": torch.int8}
_PARTS = ("keys", "values", "key_scale", "key_zero", "value_scale")
"""Tensor names, in the order of offsets that the kernels expect."""


class TensorSlot(Protocol):
    """One tensor of a layer group; offsets count from the start of the payload."""

    @property
    def part(self) -> str: ...
    @property
    def dtype(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def start(self) -> int: ...
    @property
    def end(self) -> int: ...


class LayerGroup(Protocol):
    """Consecutive layers of one shape: one contiguous byte range that starts at a multiple of 4,096."""

    @property
    def first_layer(self) -> int: ...
    @property
    def num_layers(self) -> int: ...
    @property
    def slots(self) -> Sequence[TensorSlot]: ...
    @property
    def start(self) -> int: ...
    @property
    def end(self) -> int: ...
    @property
    def checksum(self) -> str: ...


class KVHeader(Protocol):
    """The header fields of a KV file that loading needs."""

    @property
    def num_tokens(self) -> int: ...
    @property
    def data_start(self) -> int: ...
    @property
    def groups(self) -> Sequence[LayerGroup]: ...


@dataclass(frozen=True, slots=True)
class ChunkFile:
    """One chunk KV on disk: its path and its header, already read and checked."""

    path: Path
    header: KVHeader

    @property
    def payload(self) -> int:
        """Size of the payload in bytes."""
        return self.header.groups[-1].end

    @property
    def num_layers(self) -> int:
        last = self.header.groups[-1]
        return last.first_layer + last.num_layers


@dataclass(frozen=True, slots=True)
class PayloadLayout:
    """Offsets of every layer's tensors in the payload, and facts that hold for all layers."""

    rows: NDArray[np.int64]
    """[L, 12], as `kernels.place_chunks` reads them: tokens, tokens per scale group, scale groups; offsets from the
    start of the payload to keys and values in bytes, to key_scale, key_zero and value_scale in fp16 elements; four
    zeros for the destination. All zeros for a layer kept in a floating dtype."""
    heads: int
    dim: int
    num_tokens: int
    nbytes: int
    """Size of the payload."""
    is_int8: tuple[bool, ...]
    """One entry per layer."""
    all_int8: bool
    one_group: bool
    """Every int8 layer has a single group of key scales."""
    code_offset_bits: int
    """Bitwise OR of all offsets of codes, in bytes: a power of two that divides it divides every offset."""
    scale_offset_bits: int
    """Bitwise OR of all offsets of key_scale and key_zero, in bytes."""


def layout(header: KVHeader) -> PayloadLayout:
    """Compute every layer's offsets from the layer groups of a header."""
    rows: list[list[int]] = []
    code_offset_bits = scale_offset_bits = 0
    shapes = {slot.shape[1:] for group in header.groups for slot in group.slots if slot.part == "keys"}
    assert len(shapes) == 1, "layers of different shapes"
    ((heads, tokens, dim),) = shapes
    for group in header.groups:
        slots = {slot.part: slot for slot in group.slots}
        if "key_scale" not in slots:
            rows += [[0] * 12] * group.num_layers
            continue
        groups = slots["key_scale"].shape[2]
        sizes = [(slots[part].start, (slots[part].end - slots[part].start) // group.num_layers) for part in _PARTS]
        for index in range(group.num_layers):
            offsets = [start + index * size for start, size in sizes]
            assert not any(offset % 2 for offset in offsets[2:]), "scales are fp16"
            code_offset_bits |= offsets[0] | offsets[1]
            scale_offset_bits |= offsets[2] | offsets[3]
            elements = [*offsets[:2], *(offset // 2 for offset in offsets[2:])]
            rows.append([tokens, -(-tokens // groups), groups, *elements, 0, 0, 0, 0])
    is_int8 = tuple(row[2] > 0 for row in rows)
    one_group = all(row[2] <= 1 for row in rows)
    return PayloadLayout(
        np.array(rows, dtype=np.int64), heads, dim, tokens, header.groups[-1].end, is_int8, all(is_int8), one_group,
        code_offset_bits, scale_offset_bits,
    )  # fmt: skip


def as_quantized(header: KVHeader, payload: torch.Tensor) -> QuantizedKV:
    """View the payload (uint8 [bytes], any device) as a chunk KV; nothing is copied."""
    layers: list[LayerKV] = []
    for group in header.groups:
        views = {
            slot.part: payload[slot.start : slot.end].view(DTYPES[slot.dtype]).view(slot.shape).unbind(0)
            for slot in group.slots
        }
        if "key_scale" in views:
            layers += [
                Int8Layer(keys=k, values=v, key_scale=ks, key_zero=kz, value_scale=vs)
                for k, v, ks, kz, vs in zip(*(views[part] for part in _PARTS), strict=True)
            ]
        else:
            layers += [RawLayer(k, v) for k, v in zip(views["keys"], views["values"], strict=True)]
    return QuantizedKV(tuple(layers))
