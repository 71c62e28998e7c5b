"""What the bytes of a KV file are, seen from the side that loads them: views as layers, and offsets for the kernels.

Knows the tensors' names, shapes and order; reads nothing and checks nothing. The header itself belongs to the store,
which lies above: the protocols here say what of it is needed, and the store's own dataclasses satisfy them.
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
"""In the order in which the kernels want their offsets."""


class Slot(Protocol):
    """One tensor of a group; offsets count from the start of the payload."""

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


class Group(Protocol):
    """Consecutive layers of one shape: one contiguous run, starting at a multiple of 4,096."""

    @property
    def first_layer(self) -> int: ...
    @property
    def num_layers(self) -> int: ...
    @property
    def slots(self) -> Sequence[Slot]: ...
    @property
    def start(self) -> int: ...
    @property
    def end(self) -> int: ...
    @property
    def checksum(self) -> str: ...


class Header(Protocol):
    """What a KV file says about itself."""

    @property
    def num_tokens(self) -> int: ...
    @property
    def data_start(self) -> int: ...
    @property
    def groups(self) -> Sequence[Group]: ...


@dataclass(frozen=True, slots=True)
class ChunkFile:
    """One chunk KV on disk: where, and its header, already read and checked."""

    path: Path
    header: Header

    @property
    def payload(self) -> int:
        """Bytes behind the header."""
        return self.header.groups[-1].end

    @property
    def num_layers(self) -> int:
        last = self.header.groups[-1]
        return last.first_layer + last.num_layers


@dataclass(frozen=True, slots=True)
class Layout:
    """Where every layer's parts lie in the payload, and what follows from it for all layers."""

    rows: NDArray[np.int64]
    """[L, 12]: tokens, tokens per scale group, scale groups; offsets from the start of the payload to keys and values
    in bytes, to key_scale, key_zero and value_scale in units of two; four zeros, for where the layer goes. All zeros
    for a layer that is kept in a floating dtype. (`kernels.place_chunks` reads them so.)"""
    heads: int
    dim: int
    num_tokens: int
    nbytes: int
    """Of the payload."""
    is_int8: tuple[bool, ...]
    """By layer."""
    all_int8: bool
    one_group: bool
    """Every int8 layer has a single group of key scales."""
    codes_at: int
    """All offsets of codes, in bytes, or-ed together: a power of two that divides it divides each of them."""
    scales_at: int
    """Likewise those of key_scale and key_zero, in bytes."""


def layout(header: Header) -> Layout:
    """Lay the groups open, layer by layer."""
    rows: list[list[int]] = []
    codes_at = scales_at = 0
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
            at = [start + index * size for start, size in sizes]
            assert not any(each % 2 for each in at[2:]), "scales are fp16"
            codes_at, scales_at = codes_at | at[0] | at[1], scales_at | at[2] | at[3]
            rows.append([tokens, -(-tokens // groups), groups, *at[:2], *(each // 2 for each in at[2:]), 0, 0, 0, 0])
    is_int8 = tuple(row[2] > 0 for row in rows)
    one_group = all(row[2] <= 1 for row in rows)
    return Layout(
        np.array(rows, dtype=np.int64), heads, dim, tokens, header.groups[-1].end, is_int8, all(is_int8), one_group,
        codes_at, scales_at,
    )  # fmt: skip


def as_quantized(header: Header, payload: torch.Tensor) -> QuantizedKV:
    """The payload (uint8 [bytes], any device) as a chunk KV; nothing is copied."""
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
