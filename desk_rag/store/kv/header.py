"""Encode, decode and check the header of a KV file (FORMAT.md).

Offsets of groups and tensors are relative to the start of the data. The format is safetensors
(https://github.com/huggingface/safetensors, "Format"). It is written here because the library's writer orders tensors
by dtype and name, while a layer group has to be contiguous. This module does not import torch.
"""

from __future__ import annotations

import json
import math
import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

import xxhash

from desk_rag import __version__
from desk_rag.errors import CorruptKV, UnknownFormat
from desk_rag.store.layout import BLOCK

FORMAT_VERSION = "1"
SMALLEST_GROUP = 1 << 20
"""Smallest layer group in bytes, long enough to be read at the full rate of the drive."""
LARGEST_HEADER = 1 << 20
_READ_AT_ONCE = 8 << 20
INT8 = "int8"
INT8_PARTS = ("key_scale", "key_zero", "keys", "values", "value_scale")
"""Parts in file order; value scales come last, so that codes start at a multiple of D for wide loads."""
RAW_PARTS = ("keys", "values")
DTYPE_BYTES = {"F16": 2, "BF16": 2, "F32": 4, "I8": 1, "U8": 1}
RAW_DTYPES = ("BF16", "F16", "F32")
_CHECKSUM_FIELD = '"header_xxh3":"'
_NO_CHECKSUM = "0" * 16


@dataclass(frozen=True, slots=True)
class LayerShape:
    """Kind and shape of one layer; consecutive layers of equal shape are stacked."""

    kind: str
    """'int8', or the dtype of a raw layer: 'BF16', 'F16', 'F32'."""
    num_kv_heads: int
    num_tokens: int
    head_dim: int
    num_scales: int
    """Token groups of the key scales; 0 for a raw layer."""

    def parts(self, num_layers: int) -> list[tuple[str, str, tuple[int, ...]]]:
        """Return (part, dtype, shape) of a group of `num_layers` such layers, in file order."""
        heads, tokens, dim = self.num_kv_heads, self.num_tokens, self.head_dim
        whole = (num_layers, heads, tokens, dim)
        if self.kind != INT8:
            return [(part, self.kind, whole) for part in RAW_PARTS]
        scales = (num_layers, heads, self.num_scales, dim)
        shapes = (scales, scales, whole, whole, (num_layers, heads, tokens))
        dtypes = ("F16", "F16", "I8", "I8", "F16")
        return list(zip(INT8_PARTS, dtypes, shapes, strict=True))

    @property
    def nbytes(self) -> int:
        """Bytes of one layer."""
        return sum(math.prod(shape) * DTYPE_BYTES[dtype] for _, dtype, shape in self.parts(1))


@dataclass(frozen=True, slots=True)
class TensorSlot:
    """One tensor of a group."""

    part: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """Consecutive layers of one shape, contiguous in the file."""

    index: int
    first_layer: int
    num_layers: int
    layer: LayerShape
    slots: tuple[TensorSlot, ...]
    start: int
    end: int
    """Includes the pad."""
    checksum: str = _NO_CHECKSUM
    """xxh3-64 of the bytes from start to end, hex."""

    @property
    def pad(self) -> int:
        """Zero bytes at the end that bring the next group to a multiple of 4,096."""
        return self.end - self.slots[-1].end


@dataclass(frozen=True, slots=True)
class KVHeader:
    """Contents of a file's header."""

    namespace: str
    tokens: str
    chunk_ids: tuple[str, ...]
    num_tokens: int
    prefill_seconds: float
    groups: tuple[LayerGroup, ...]
    data_start: int = 0

    @property
    def file_size(self) -> int:
        """Bytes of the whole file."""
        return self.data_start + self.groups[-1].end


def plan_groups(layers: Sequence[LayerShape]) -> tuple[LayerGroup, ...]:
    """Divide layers into groups of equal shape and at least 1 MiB where possible, and lay them out."""
    groups: list[LayerGroup] = []
    first = 0
    position = 0
    sizes = [(shape, size) for shape, run in groupby(layers) for size in _split(shape, len(list(run)))]
    for index, (shape, size) in enumerate(sizes):
        group = _lay_out(index, first, size, shape, position, last=index == len(sizes) - 1)
        groups.append(group)
        first += size
        position = group.end
    return tuple(groups)


def encode(header: KVHeader) -> bytes:
    """Return the bytes before the data, with length and padding; their number does not depend on checksums."""
    table = {"__metadata__": _metadata(header), **_tensors(header.groups)}
    text = json.dumps(table, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % BLOCK)
    digest = xxhash.xxh3_64_hexdigest(text)
    blank = (_CHECKSUM_FIELD + _NO_CHECKSUM).encode()
    assert text.count(blank) == 1
    return struct.pack("<Q", len(text)) + text.replace(blank, (_CHECKSUM_FIELD + digest).encode())


def sized(header: KVHeader) -> KVHeader:
    """Return the header with `data_start` filled in."""
    return replace(header, data_start=len(encode(header)))


def header_length(start: bytes, file_size: int, name: str) -> int:
    """Return the number of bytes before the data, from the first 8 bytes of a file. Raises CorruptKV."""
    if len(start) < 8:
        raise CorruptKV(f"{name} ends within its first 8 bytes.")
    length = 8 + int(struct.unpack("<Q", start[:8])[0])
    if length % BLOCK or length > LARGEST_HEADER or length > file_size:
        raise CorruptKV(f"{name} has a header of impossible length.")
    return length


def read_header(path: Path) -> KVHeader:
    """Read and check the header of a file; `data_start` and `groups` give the byte range of every layer group.

    Raises FileNotFoundError, CorruptKV, UnknownFormat, OSError.
    """
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        raw = file.read(BLOCK)
        length = header_length(raw[:8], size, str(path))
        raw += file.read(max(0, length - len(raw)))
    return decode(raw[:length], size, str(path))


def decode(raw: bytes, file_size: int, name: str) -> KVHeader:
    """Decode and check the bytes before the data (including the length) of the file `name` of `file_size` bytes.

    Raises UnknownFormat for a version other than ours, CorruptKV for everything else that FORMAT.md rejects.
    """
    table = _parse(raw[8:], name)
    meta = table.pop("__metadata__", None)
    if not isinstance(meta, dict) or not all(isinstance(value, str) for value in meta.values()):
        raise CorruptKV(f"{name} has no readable metadata.")
    if meta.get("format_version") != FORMAT_VERSION:
        version = meta.get("format_version")
        raise UnknownFormat(f"{name} has format version {version!r}; this program reads {FORMAT_VERSION}.")
    _check_header_sum(raw[8:], str(meta.get("header_xxh3")), name)
    try:
        header = _header_of(meta, table, len(raw))
    except (KeyError, ValueError, TypeError, IndexError) as error:
        raise CorruptKV(f"{name} has an inconsistent header: {error}.") from error
    if header.file_size != file_size:
        raise CorruptKV(f"{name} has {file_size} bytes, but its header says {header.file_size}.")
    return header


def _split(shape: LayerShape, count: int) -> list[int]:
    per_group = -(-SMALLEST_GROUP // max(1, shape.nbytes))
    if count < 2 * per_group:
        return [count]
    sizes = [per_group] * (count // per_group)
    sizes[-1] += count % per_group
    return sizes


def _lay_out(index: int, first: int, size: int, shape: LayerShape, start: int, *, last: bool) -> LayerGroup:
    slots = []
    position = start
    for part, dtype, dims in shape.parts(size):
        end = position + math.prod(dims) * DTYPE_BYTES[dtype]
        slots.append(TensorSlot(part, dtype, dims, position, end))
        position = end
    end = position if last else -(-position // BLOCK) * BLOCK
    return LayerGroup(index, first, size, shape, tuple(slots), start, end)


def _metadata(header: KVHeader) -> dict[str, str]:
    groups = header.groups
    scheme = []
    for shape, run in groupby(groups, key=lambda group: group.layer):
        kind = f"{INT8}/{shape.num_scales}" if shape.kind == INT8 else shape.kind.lower()
        scheme.append(f"{kind}x{sum(group.num_layers for group in run)}")
    return {
        "format_version": FORMAT_VERSION,
        "producer": f"desk-rag {__version__}",
        "namespace": header.namespace,
        "key": header.tokens,
        "chunks": ",".join(header.chunk_ids),
        "num_tokens": str(header.num_tokens),
        "num_layers": str(sum(group.num_layers for group in groups)),
        "scheme": ",".join(scheme),
        "prefill_ms": f"{header.prefill_seconds * 1000:.3f}",
        "checksums": ",".join(group.checksum for group in groups),
        "header_xxh3": _NO_CHECKSUM,
    }


def check_content(path: Path, name: tuple[str, str]) -> None:
    """Read a KV file through and raise CorruptKV or UnknownFormat unless every byte of it is right."""
    header = read_header(path)
    check_identity(header, name, path)
    with path.open("rb") as file:
        file.seek(header.data_start)
        for group in header.groups:
            digest = xxhash.xxh3_64()
            left = group.end - group.start
            while left and (block := file.read(min(left, _READ_AT_ONCE))):
                digest.update(block)
                left -= len(block)
            check_group(group, digest.hexdigest(), path)


def check_identity(header: KVHeader, name: tuple[str, str], path: Path) -> None:
    """Raise CorruptKV unless the file has this namespace and token hash, which a swapped or moved file has not."""
    if (header.namespace, header.tokens) != name:
        raise CorruptKV(f"{path} holds the KV of another chunk or model.")


def check_group(group: LayerGroup, digest: str, path: Path) -> None:
    """Raise CorruptKV unless `digest`, of the group's bytes with its pad, is the checksum in the header."""
    if digest != group.checksum:
        last = group.first_layer + group.num_layers - 1
        raise CorruptKV(f"{path} is damaged in layers {group.first_layer} to {last}.")


def _tensors(groups: Sequence[LayerGroup]) -> dict[str, object]:
    """Return the table of tensors as written in the file, in file order."""
    table: dict[str, object] = {}
    for group in groups:
        for slot in group.slots:
            table[f"{group.index}.{slot.part}"] = _entry(slot.dtype, slot.shape, slot.start, slot.end)
        if group.pad:
            table[f"{group.index}.pad"] = _entry("U8", (group.pad,), group.slots[-1].end, group.end)
    return table


def _entry(dtype: str, shape: tuple[int, ...], start: int, end: int) -> dict[str, object]:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [start, end]}


def _parse(text: bytes, name: str) -> dict[str, object]:
    try:
        table = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CorruptKV(f"{name} has a header that is not JSON.") from error
    if not isinstance(table, dict):
        raise CorruptKV(f"{name} has a header that is not a JSON object.")
    return table


def _check_header_sum(text: bytes, digest: str, name: str) -> None:
    blank = text.replace((_CHECKSUM_FIELD + digest).encode(), (_CHECKSUM_FIELD + _NO_CHECKSUM).encode(), 1)
    if len(digest) != 16 or xxhash.xxh3_64_hexdigest(blank) != digest:
        raise CorruptKV(f"{name} has a damaged header.")


def _header_of(meta: dict[str, str], table: dict[str, object], data_start: int) -> KVHeader:
    sums = meta["checksums"].split(",")
    shapes = [_shape_of_group(table, index) for index in range(len(sums))]
    groups: list[LayerGroup] = []
    first = position = 0
    for index, ((shape, size), checksum) in enumerate(zip(shapes, sums, strict=True)):
        group = _lay_out(index, first, size, shape, position, last=index == len(shapes) - 1)
        groups.append(replace(group, checksum=checksum))
        first += size
        position = group.end
    header = KVHeader(
        namespace=meta["namespace"],
        tokens=meta["key"],
        chunk_ids=tuple(part for part in meta["chunks"].split(",") if part),
        num_tokens=int(meta["num_tokens"]),
        prefill_seconds=float(meta["prefill_ms"]) / 1000,
        groups=tuple(groups),
        data_start=data_start,
    )
    # Laying out the groups again must give exactly the table that was read: names, dtypes, shapes, offsets, order.
    if list(_tensors(header.groups).items()) != list(table.items()):
        raise ValueError("its tensors are not laid out as the format requires")
    if first != int(meta["num_layers"]) or any(shape.num_tokens != header.num_tokens for shape, _ in shapes):
        raise ValueError("its tensors do not match its number of layers or tokens")
    return header


def _shape_of_group(table: dict[str, object], index: int) -> tuple[LayerShape, int]:
    dtype, (num_layers, heads, tokens, dim) = _dtype_and_shape(table[f"{index}.keys"])
    if min(num_layers, heads, tokens, dim) < 1:
        raise ValueError("a tensor is empty")
    if dtype in RAW_DTYPES:
        return LayerShape(dtype, heads, tokens, dim, 0), num_layers
    if dtype != "I8":
        raise ValueError(f"keys of dtype {dtype}")
    _, scales = _dtype_and_shape(table[f"{index}.key_scale"])
    if scales[2] < 1:
        raise ValueError("no key scales")
    return LayerShape(INT8, heads, tokens, dim, scales[2]), num_layers


def _dtype_and_shape(entry: object) -> tuple[str, tuple[int, ...]]:
    if not isinstance(entry, dict):
        raise ValueError("a tensor without a description")
    shape = tuple(entry["shape"])
    if not all(type(size) is int for size in shape):
        raise ValueError("a shape that is not whole numbers")
    return str(entry["dtype"]), shape
