"""Nearest-neighbour search over unit vectors: exact with numpy, approximate with hnswlib.

Vectors are float32 [dim] of length one, so the inner product is the cosine. A label is a non-negative int that names
one vector permanently. Both indexes return (label, cosine) pairs, best first, and never a removed label.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from desk_rag.owned_directory import OwnedDirectory
from desk_rag.owned_folder import create_beside, proven, sync_file
from desk_rag.store.ownership import content_proves

Vectors = NDArray[np.float32]
Matches = list[tuple[int, float]]
"""(label, cosine), best first."""
FILE_VERSION = 1
_M = 16
_EF_BUILD = 200
_EF_SEARCH = 128
_SMALLEST_CAPACITY = 1024
_OVERFETCH = 2
"""Candidates per result, to make up for removed neighbours."""
_ELEMENTS_AT = 6 * 8 + 2 * 4 + 5 * 8


class ExactIndex:
    """All vectors in one matrix; a search compares every one."""

    def __init__(self, dim: int) -> None:
        self._matrix: Vectors = np.zeros((0, dim), dtype=np.float32)
        self._labels: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        self._rows: dict[int, int] = {}
        self._used = 0

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, label: int) -> bool:
        return label in self._rows

    def add(self, labels: Sequence[int], vectors: Vectors) -> None:
        """Add vectors [N, dim] under new labels."""
        need = self._used + len(labels)
        if need > len(self._labels):
            grown = max(need, 2 * len(self._labels), _SMALLEST_CAPACITY)
            matrix = np.zeros((grown, self._matrix.shape[1]), dtype=np.float32)
            matrix[: self._used] = self._matrix[: self._used]
            all_labels = np.full(grown, -1, dtype=np.int64)
            all_labels[: self._used] = self._labels[: self._used]
            self._matrix, self._labels = matrix, all_labels
        self._matrix[self._used : need] = vectors
        self._labels[self._used : need] = labels
        self._rows.update(zip(labels, range(self._used, need), strict=True))
        self._used = need

    def remove(self, labels: Sequence[int]) -> None:
        """Remove labels; unknown ones are ignored. The last vector moves into the gap."""
        for label in labels:
            row = self._rows.pop(label, None)
            if row is None:
                continue
            self._used -= 1
            last = int(self._labels[self._used])
            if row != self._used:
                self._matrix[row] = self._matrix[self._used]
                self._labels[row] = last
                self._rows[last] = row
            self._matrix[self._used] = 0
            self._labels[self._used] = -1

    def search(self, vector: Vectors, limit: int) -> Matches:
        """Return the nearest vectors."""
        return _best(self._matrix[: self._used] @ vector, self._labels[: self._used], limit)

    def search_within(self, vector: Vectors, limit: int, labels: Sequence[int]) -> Matches:
        """Return the nearest of the given labels; those not in the index are ignored."""
        rows = np.array([self._rows[label] for label in labels if label in self._rows], dtype=np.int64)
        return _best(self._matrix[rows] @ vector, self._labels[rows], limit)

    def take(self, limit: int) -> tuple[list[int], Vectors]:
        """Return up to `limit` (labels, vectors) in order of their rows, without removing them."""
        count = min(limit, self._used)
        return [int(label) for label in self._labels[:count]], self._matrix[:count].copy()


class HnswIndex:
    """A graph index: recall just below 1, search time almost independent of the number of vectors."""

    def __init__(self, dim: int) -> None:
        """Create an empty index. Raises ImportError if hnswlib is missing or was built for another CPU."""
        self._dim = dim
        self._index = _hnswlib().Index(space="ip", dim=dim)
        self._index.init_index(
            max_elements=_SMALLEST_CAPACITY, M=_M, ef_construction=_EF_BUILD, random_seed=1, allow_replace_deleted=False
        )
        self._index.set_num_threads(1)
        self._live: set[int] = set()
        self._dead: set[int] = set()

    def __len__(self) -> int:
        return len(self._live)

    def __contains__(self, label: int) -> bool:
        return label in self._live

    @property
    def labels(self) -> frozenset[int]:
        """All labels that can be found."""
        return frozenset(self._live)

    @property
    def mostly_dead(self) -> bool:
        """True if removed vectors outnumber the others, so that rebuilding pays."""
        return len(self._dead) > len(self._live)

    def add(self, labels: Sequence[int], vectors: Vectors) -> None:
        """Add vectors [N, dim] under new labels."""
        need = self._index.get_current_count() + len(labels)
        if need > self._index.get_max_elements():
            self._index.resize_index(max(need, 2 * self._index.get_max_elements()))
        self._index.add_items(vectors, np.asarray(labels, dtype=np.int64), num_threads=1)
        self._live.update(labels)

    def remove(self, labels: Sequence[int]) -> None:
        """Remove labels; unknown ones are ignored.

        The graph still routes through a removed vector; `save` does not write it.
        """
        for label in labels:
            if label in self._live:  # marking one twice raises
                self._live.remove(label)
                self._index.mark_deleted(label)
                self._dead.add(label)

    def search(self, vector: Vectors, limit: int) -> Matches:
        """Return the nearest vectors. Raises RuntimeError if the graph cannot reach enough vectors."""
        limit = min(limit, len(self._live))
        if limit < 1:
            return []
        self._index.set_ef(max(_EF_SEARCH, _OVERFETCH * limit))
        labels, distances = self._index.knn_query(vector, k=limit, num_threads=1)
        return [(int(label), 1.0 - float(distance)) for label, distance in zip(labels[0], distances[0], strict=True)]

    def save(self, path: Path, within: OwnedDirectory | None = None) -> None:
        """Write the index atomically, and its checksum to `path` with suffix .json.

        `within` is the directory below which no link is followed, by default the parent of `path`. Raises ValueError,
        saving nothing, if removed vectors cannot be wiped from the file or a foreign file is in its place.
        """
        within = within or OwnedDirectory(path.parent)
        facts = path.with_suffix(".json")
        with within.opened(path.parent) as folder:
            for file in (path, facts):
                _check_replaceable(within, file)
            temporary, descriptor = create_beside(folder, path.name)
            os.close(descriptor)
            written = folder.reach(temporary)
            try:
                self._index.save_index(str(written))
                if self._dead:
                    _wipe(written, self._dim, self._dead)
                sync_file(written)
                description = {
                    "version": FILE_VERSION,
                    "dim": self._dim,
                    "xxh3": _checksum(written),
                    "labels": sorted(self._live),
                    "dead": sorted(self._dead),
                }
                folder.unlink(facts.name, proven)  # an index file must never stand beside the checksum of another
                folder.replace(temporary, folder, path.name)
                text = json.dumps(description).encode()
                within.write(facts, xxhash.xxh3_64_hexdigest(text).encode() + b"\n" + text)
            finally:
                folder.unlink(temporary, proven)

    @classmethod
    def load(cls, path: Path, dim: int) -> HnswIndex | None:
        """Return a saved index; None if there is no sound one of this dimension.

        The checksum is verified first, because hnswlib trusts the counts and offsets in a file.
        """
        try:
            facts = _facts(path)
            if facts is None or facts["dim"] != dim or facts["xxh3"] != _checksum(path):
                return None
            loaded = cls(dim)
            loaded._index = _hnswlib().Index(space="ip", dim=dim)
            loaded._index.load_index(str(path), max_elements=0)
            loaded._index.set_num_threads(1)
            loaded._live = set(facts["labels"])
            loaded._dead = set(facts["dead"])
        except (OSError, ValueError, KeyError, TypeError, RuntimeError, ImportError):
            return None
        return loaded


def saved_labels(path: Path) -> frozenset[int] | None:
    """Return the labels of a saved index without loading it; None if its .json is missing or damaged."""
    facts = _facts(path)
    return None if facts is None else frozenset(facts["labels"])


def approximate_search_available() -> bool:
    """Return whether hnswlib can be imported."""
    try:
        _hnswlib()
    except ImportError:
        return False
    return True


def _check_replaceable(within: OwnedDirectory, path: Path) -> None:
    entry = within.entry(path)
    if entry is not None and not content_proves(f"vectors/{path.name}")(entry):
        raise ValueError(f"{path} was not written by desk-rag")


def _facts(path: Path) -> dict[str, Any] | None:
    try:
        digest, text = path.with_suffix(".json").read_bytes().split(b"\n", 1)
        if xxhash.xxh3_64_hexdigest(text).encode() != digest:
            return None
        facts = json.loads(text)
        return facts if facts["version"] == FILE_VERSION else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _wipe(path: Path, dim: int, labels: set[int]) -> None:
    """Zero the vectors of removed labels in a saved index, since a vector reveals much of its text.

    Layout after hnswlib 0.8, hnswalg.h, saveIndex: six size_t (level-0 offset, capacity, count, bytes per element,
    label offset, data offset), two 32-bit and five 64-bit fields, then the elements. Raises ValueError for others.
    """
    _, _, count, stride, label_at, data_at = struct.unpack("<6Q", _first_bytes(path, 48))
    elements = np.memmap(path, dtype=np.uint8, mode="r+", offset=_ELEMENTS_AT, shape=(count, stride))
    stored_labels = np.ascontiguousarray(elements[:, label_at : label_at + 8]).view(np.int64)[:, 0]
    is_removed = np.isin(stored_labels, list(labels))
    if int(is_removed.sum()) != len(labels) or data_at + 4 * dim > label_at:
        raise ValueError(f"{path} is not laid out as by hnswlib 0.8")
    elements[is_removed, data_at : data_at + 4 * dim] = 0
    elements.flush()


def _hnswlib() -> ModuleType:
    import hnswlib

    module: ModuleType = hnswlib
    return module


def _best(scores: Vectors, labels: NDArray[np.int64], limit: int) -> Matches:
    if limit < 1 or not len(scores):
        return []
    if limit < len(scores):
        kept = np.argpartition(-scores, limit - 1)[:limit]
        scores, labels = scores[kept], labels[kept]
    order = np.lexsort((labels, -scores))
    return [(int(labels[i]), float(scores[i])) for i in order]


def _first_bytes(path: Path, count: int) -> bytes:
    with path.open("rb") as file:
        return file.read(count)


def _checksum(path: Path) -> str:
    digest = xxhash.xxh3_64()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
