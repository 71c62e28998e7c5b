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
    """Where every layer's parts lie in the payload."""

    shape: NDArray[np.int64]
    """[L, 3]: tokens, tokens per scale group, scale groups; zeros for a raw layer."""
    offsets: NDArray[np.int64]
    """[L, 5]: bytes from the start of the payload to keys, values, key_scale, key_zero, value_scale."""
    heads: int
    dim: int
    is_int8: NDArray[np.bool_]
    """[L]: False where the layer is kept in a floating dtype."""
    all_int8: bool


def layout(header: Header) -> Layout:
    """Lay the groups open, layer by layer."""
    shapes: list[tuple[int, int, int]] = []
    offsets: list[list[int]] = []
    heads = dim = 0
    for group in header.groups:
        slots = {slot.part: slot for slot in group.slots}
        _, heads, tokens, dim = slots["keys"].shape
        groups = slots["key_scale"].shape[2] if "key_scale" in slots else 0
        shapes += [(tokens, -(-tokens // groups), groups) if groups else (0, 0, 0)] * group.num_layers
        here = [slots[part] for part in _PARTS if part in slots]
        per_layer = [(slot.start, (slot.end - slot.start) // group.num_layers) for slot in here]
        per_layer += [(0, 0)] * (len(_PARTS) - len(per_layer))
        offsets += [[start + index * size for start, size in per_layer] for index in range(group.num_layers)]
    shape = np.array(shapes, dtype=np.int64)
    is_int8 = shape[:, 2] > 0
    return Layout(shape, np.array(offsets, dtype=np.int64), heads, dim, is_int8, bool(is_int8.all()))


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
