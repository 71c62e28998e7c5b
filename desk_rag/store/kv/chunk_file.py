"""Write a chunk KV to a file atomically; read it whole, checking every layer group."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
import xxhash
from numpy.typing import NDArray

from desk_rag.errors import CorruptKV
from desk_rag.kv.payload import DTYPES, as_quantized
from desk_rag.kv.types import KVKey, LayerKV, QuantizedKV, RawLayer
from desk_rag.owned_directory import OwnedDirectory
from desk_rag.owned_folder import READ_BINARY, read_at, replacing, write_all
from desk_rag.store.kv import header as kv_header
from desk_rag.store.kv.header import KVHeader, LayerGroup, LayerShape

_DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}

Bytes = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class KVImage:
    """A chunk KV ready to be written: its header and views of the bytes of its tensors."""

    header: KVHeader
    buffers: tuple[Bytes, ...]

    @property
    def size(self) -> int:
        """Size of the file in bytes."""
        return self.header.file_size


def prepare(key: KVKey, kv: QuantizedKV, chunk_ids: Sequence[str], prefill_seconds: float) -> KVImage:
    """Lay out a chunk KV as a file and compute its checksums; tensors on a GPU are copied to the host."""
    groups = kv_header.plan_groups([_shape(layer) for layer in kv.layers])
    buffers: list[Bytes] = []
    summed: list[LayerGroup] = []
    for group in groups:
        views = _group_bytes(group, kv.layers[group.first_layer : group.first_layer + group.num_layers])
        digest = xxhash.xxh3_64()
        for view in views:
            digest.update(view.data)
        summed.append(replace(group, checksum=digest.hexdigest()))
        buffers += views
    header = KVHeader(
        str(key.namespace), str(key.tokens), tuple(chunk_ids), kv.num_tokens, prefill_seconds, tuple(summed)
    )
    return KVImage(kv_header.sized(header), tuple(buffers))


def write(path: Path, image: KVImage, within: OwnedDirectory | None = None) -> None:
    """Write the file completely and durably, or leave nothing. Raises OSError (ENOSPC, ...).

    `within` is the directory below which no link is followed, by default the third parent of the file. The order is
    that of FORMAT.md, "Order of writes"; the name of a new directory is durable before a file is made in it.
    """
    within = within or OwnedDirectory(path.parents[2])
    for directory in (path.parent.parent, path.parent):
        if not directory.exists():
            within.make_directory(directory)
    with (
        within.opened(path.parent) as folder,
        # Background prefill writes gigabytes, which must not push other programs out of the page cache.
        replacing(folder, path.name, stem=path.stem, keep_cached=False) as descriptor,
    ):
        write_all(descriptor, memoryview(kv_header.encode(image.header)))
        for buffer in image.buffers:
            write_all(descriptor, buffer.data)


def read(path: Path, key: KVKey) -> QuantizedKV:
    """Read a whole chunk KV and check all of it; its tensors are views of one buffer.

    Raises FileNotFoundError for a miss; CorruptKV or UnknownFormat for a file that must not be used.
    """
    header, content = _read_checked(path, (str(key.namespace), str(key.tokens)))
    return as_quantized(header, torch.from_numpy(content))


def image_of(path: Path, name: tuple[str, str], chunk_ids: Sequence[str]) -> KVImage:
    """Read a file of another store and check all of it; return its content, to be written for these chunks.

    Raises as `read` does.
    """
    header, content = _read_checked(path, name)
    return KVImage(kv_header.sized(replace(header, chunk_ids=tuple(chunk_ids))), (content,))


def _read_checked(path: Path, name: tuple[str, str]) -> tuple[KVHeader, Bytes]:
    """Return the header and the bytes behind it."""
    descriptor = os.open(path, READ_BINARY)
    try:
        size = os.fstat(descriptor).st_size
        buffer = np.empty(max(1, size), dtype=np.uint8)
        _read_exactly(descriptor, buffer[:size], 0, path)
    finally:
        os.close(descriptor)
    length = kv_header.header_length(buffer[:8].tobytes(), size, str(path))
    header = kv_header.decode(buffer[:length].tobytes(), size, str(path))
    kv_header.check_identity(header, name, path)
    content = buffer[length:]
    for group in header.groups:
        digest = xxhash.xxh3_64_hexdigest(content[group.start : group.end].data)
        kv_header.check_group(group, digest, path)
    return header, content


def _shape(layer: LayerKV) -> LayerShape:
    heads, tokens, dim = layer.keys.shape
    assert layer.values.shape == layer.keys.shape
    if isinstance(layer, RawLayer):
        assert layer.keys.dtype == layer.values.dtype
        return LayerShape(_DTYPE_NAMES[layer.keys.dtype], heads, tokens, dim, 0)
    num_scales = layer.key_scale.shape[1]
    assert layer.key_scale.shape == layer.key_zero.shape == (heads, num_scales, dim)
    assert layer.value_scale.shape == (heads, tokens)
    return LayerShape(kv_header.INT8, heads, tokens, dim, num_scales)


def _group_bytes(group: LayerGroup, layers: Sequence[LayerKV]) -> list[Bytes]:
    """Return the bytes of a group in file order: part by part, each layer by layer."""
    views: list[Bytes] = []
    for slot in group.slots:
        for layer in layers:
            tensor: torch.Tensor = getattr(layer, slot.part)
            assert tensor.dtype == DTYPES[slot.dtype]
            flat = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
            views.append(flat.numpy())
    if group.pad:
        views.append(np.zeros(group.pad, dtype=np.uint8))
    return views


def _read_exactly(descriptor: int, buffer: Bytes, offset: int, path: Path) -> None:
    view = buffer.data
    while view.nbytes:
        count = read_at(descriptor, view, offset)
        if count == 0:
            raise CorruptKV(f"{path} became shorter while it was being read.")
        view = view[count:]
        offset += count
