"""Chunk files with random values in the store's own format, written when first asked for and kept until the end.

Every question gets files of its own, so that eight questions read eight times as much.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from desk_rag.bench.models import synthetic
from desk_rag.bench.models.synthetic import Shape
from desk_rag.kv.payload import ChunkFile
from desk_rag.kv.types import KVKey, Namespace, QuantizedKV, TokenHash
from desk_rag.store.kv import chunk_file
from desk_rag.store.kv import header as kv_header

_NAMESPACE = Namespace("0" * 32)


class ChunkPool:
    """Files of one model shape under one directory."""

    def __init__(self, place: Path, shape: Shape) -> None:
        self._place, self._shape = place, shape
        self._files: dict[int, list[ChunkFile]] = {}
        self._made: dict[int, QuantizedKV] = {}
        self._written = 0

    def of_question(self, lengths: Sequence[int], question: int) -> list[ChunkFile]:
        """Chunks of these lengths that belong to no other question of the same lengths."""
        next_index = {length: question * lengths.count(length) for length in set(lengths)}
        files = []
        for length in lengths:
            files.append(self._file(length, next_index[length]))
            next_index[length] += 1
        return files

    def payload(self, lengths: Sequence[int]) -> int:
        """Bytes that a load of chunks of these lengths brings; nothing is written for it."""
        return sum(synthetic.header(self._shape, length).groups[-1].end for length in lengths)

    def _file(self, length: int, index: int) -> ChunkFile:
        files = self._files.setdefault(length, [])
        while len(files) <= index:
            files.append(self._write(length))
        return files[index]

    def _write(self, length: int) -> ChunkFile:
        if length not in self._made:
            _, _, self._made[length] = synthetic.chunk(self._shape, length, torch.device("cpu"))
        number = self._written
        self._written += 1
        path = self._place / "chunks" / f"{number % 256:02x}" / f"{number}.safetensors"
        path.parent.parent.mkdir(parents=True, exist_ok=True)
        key = KVKey(_NAMESPACE, TokenHash(f"{number:032x}"))
        chunk_file.write(path, chunk_file.prepare(key, self._made[length], ["0"], 0.1))
        return ChunkFile(path, kv_header.read_header(path))
