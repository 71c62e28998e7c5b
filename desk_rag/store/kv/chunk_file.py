"""One QuantizedKV and one file: written once, atomically; read whole or by layer group, checked before it is believed.

Knows tensors and file descriptors; knows no catalog, no budget and no question of which files should exist.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
import xxhash

from desk_rag.errors import CorruptKV
from desk_rag.kv.types import Int8Layer, KVKey, LayerKV, QuantizedKV, RawLayer
from desk_rag.owned_directory import OwnedDirectory
from desk_rag.owned_folder import create_beside, proven
from desk_rag.store.kv import header as kv_header
from desk_rag.store.kv.buffer_pool import BufferPool, Bytes
from desk_rag.store.kv.header import KVHeader, LayerGroup, LayerShape
from desk_rag.store.layout import BLOCK

_DTYPE_NAMES = {torch.bfloat16: "BF16", torch.float16: "F16", torch.float32: "F32", torch.int8: "I8"}
_DTYPES = {name: dtype for dtype, name in _DTYPE_NAMES.items()}

FileIdentity = tuple[int, int, int, int, int]
"""Device, inode, size, mtime_ns, ctime_ns: while these stand still, so does the content."""
Verified = set[tuple[FileIdentity, int]]
"""Layer groups whose checksum this process has seen to be right. Not kept across restarts."""


@dataclass(frozen=True, slots=True)
class KVImage:
    """A chunk KV ready to be written: header and views of its tensors' bytes, nothing copied yet."""

    header: KVHeader
    buffers: tuple[Bytes, ...]

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return self.header.file_size


def prepare(key: KVKey, kv: QuantizedKV, chunk_ids: Sequence[str], prefill_seconds: float) -> KVImage:
    """Lay a chunk KV out as a file; tensors on a device are fetched, none is changed. Computes the checksums."""
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
    """Put the file at `path`, complete and durable, or leave nothing there. Raises OSError as it came (ENOSPC, ...).

    `within` is the directory below which no link is followed, by default the third above the file. Order after
    FORMAT.md: temporary file beside the target, fsync, rename, fsync of the directory. A new directory's own name is
    durable before anything lies in it: a write that failed must not leave that to the next.
    """
    within = within or OwnedDirectory(path.parents[2])
    for place in (path.parent.parent, path.parent):
        if not place.exists():
            within.make_directory(place)
    with within.opened(path.parent) as folder:
        beside, descriptor = create_beside(folder, path.stem)
        try:
            try:
                _write_all(descriptor, memoryview(kv_header.encode(image.header)))
                for buffer in image.buffers:
                    _write_all(descriptor, buffer.data)
                os.fsync(descriptor)
                if hasattr(os, "posix_fadvise"):
                    # Background work writes gigabytes; the desktop's page cache is not ours to flush.
                    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)
            folder.replace(beside, folder, path.name)
        except BaseException:
            with suppress(OSError):
                folder.unlink(beside, proven)
            raise
        folder.sync()


def read_header(path: Path) -> KVHeader:
    """Read and check the header alone; `groups` then gives the byte range of every layer group (plus `data_start`).

    Raises FileNotFoundError, CorruptKV, UnknownFormat.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        size = os.fstat(descriptor).st_size
        start = np.empty(min(size, BLOCK), dtype=np.uint8)
        _read_exactly(descriptor, start, 0, path)
        length = kv_header.header_length(start[:8].tobytes(), size, str(path))
        raw = start
        if length > len(start):
            raw = np.empty(length, dtype=np.uint8)
            _read_exactly(descriptor, raw, 0, path)
        return kv_header.decode(raw[:length].tobytes(), size, str(path))
    finally:
        os.close(descriptor)


def read(path: Path, key: KVKey, pool: BufferPool, verified: Verified) -> QuantizedKV:
    """Read one chunk KV whole; its tensors are views of one buffer lent by `pool`, which lives as long as they do.

    Raises FileNotFoundError for a miss; CorruptKV or UnknownFormat for a file that must not be used.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        status = os.fstat(descriptor)
        buffer = pool.lend(max(1, status.st_size))
        _read_exactly(descriptor, buffer[: status.st_size], 0, path)
    finally:
        os.close(descriptor)
    length = kv_header.header_length(buffer[:8].tobytes(), status.st_size, str(path))
    header = kv_header.decode(buffer[:length].tobytes(), status.st_size, str(path))
    check_identity(header, key, path)
    identity = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    for group in header.groups:
        if (identity, group.index) not in verified:
            check_group(group, buffer[length + group.start : length + group.end], path)
            verified.add((identity, group.index))
    data = torch.from_numpy(buffer)
    return QuantizedKV(tuple(layer for group in header.groups for layer in layers_of(group, data[length:])))


def check_identity(header: KVHeader, key: KVKey, path: Path) -> None:
    """Raise CorruptKV unless the file is the one that was asked for (a swapped or moved file is not)."""
    if (header.namespace, header.tokens) != (str(key.namespace), str(key.tokens)):
        raise CorruptKV(f"{path} holds the KV of another chunk or model.")


def check_group(group: LayerGroup, content: Bytes, path: Path) -> None:
    """Raise CorruptKV unless `content` (uint8, the group's bytes with its pad) has the checksum of the header."""
    if xxhash.xxh3_64_hexdigest(content.data) != group.checksum:
        last = group.first_layer + group.num_layers - 1
        raise CorruptKV(f"{path} is damaged in layers {group.first_layer} to {last}.")


def layers_of(group: LayerGroup, data: torch.Tensor) -> list[LayerKV]:
    """Return the group's layers as views of `data` (uint8, everything after the header)."""
    tensors = {
        slot.part: data[slot.start : slot.end].view(_DTYPES[slot.dtype]).view(slot.shape) for slot in group.slots
    }
    layers: list[LayerKV] = []
    for index in range(group.num_layers):
        one = {part: tensor[index] for part, tensor in tensors.items()}
        layers.append(Int8Layer(**one) if group.layer.kind == kv_header.INT8 else RawLayer(**one))
    return layers


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
    """Return the bytes of a group in file order: part by part, and within a part layer by layer."""
    views: list[Bytes] = []
    for slot in group.slots:
        for layer in layers:
            tensor: torch.Tensor = getattr(layer, slot.part)
            assert tensor.dtype == _DTYPES[slot.dtype]
            flat = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
            views.append(flat.numpy())
    if group.pad:
        views.append(np.zeros(group.pad, dtype=np.uint8))
    return views


def _write_all(descriptor: int, content: memoryview) -> None:
    while content.nbytes:
        content = content[os.write(descriptor, content) :]


def _read_exactly(descriptor: int, buffer: Bytes, offset: int, path: Path) -> None:
    view = buffer.data
    while view.nbytes:
        count = os.preadv(descriptor, [view], offset)
        if count == 0:
            raise CorruptKV(f"{path} became shorter while it was read.")
        view = view[count:]
        offset += count
