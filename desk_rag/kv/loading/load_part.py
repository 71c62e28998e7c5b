"""One question's part of a load that several questions share; a chunk that several need is read once."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TypeVar

from desk_rag.kv.loading.load import ChunkLoad, ChunksLost, Load
from desk_rag.kv.types import QuantizedKV

K = TypeVar("K", bound=Hashable)


def distinct(wanted: Sequence[Sequence[K]]) -> tuple[list[K], list[list[int]]]:
    """Return each wanted key once, and for each question the indices of its keys."""
    places = {key: index for index, key in enumerate(dict.fromkeys(key for keys in wanted for key in keys))}
    return list(places), [[places[key] for key in keys] for keys in wanted]


class SharedLoad:
    """A load and the number of questions that have not closed their part of it."""

    def __init__(self, load: Load, parts: Sequence[Sequence[int]]) -> None:
        """`parts` are each question's chunks as indices of the load's."""
        self._load, self._open = load, len(parts)
        self.parts = [LoadPart(self, load, indices) for indices in parts]

    def close_part(self) -> None:
        """Close the load behind the last part."""
        self._open -= 1
        if not self._open:
            self._load.close()


class LoadPart:
    """See `Load`: the same for some of its chunks, with indices of their own."""

    def __init__(self, shared: SharedLoad, load: Load, indices: Sequence[int]) -> None:
        self._shared, self._load, self._indices = shared, load, list(indices)
        self.items: list[ChunkLoad] = [load.items[index] for index in indices]
        """The chunks; those of a shared load stay the same."""
        self._closed = False

    @property
    def wave_ends(self) -> tuple[int, ...]:
        """See `Load`."""
        return self._load.wave_ends

    @property
    def resident(self) -> bool:
        """See `Load`; of all chunks of the shared load."""
        return self._load.resident

    @property
    def nbytes(self) -> int:
        """Payload bytes of these chunks that come from disk or from memory."""
        return sum(item.file.payload for item in self.items if item.file is not None and item.replacement is None)

    def wait(self, wave: int) -> None:
        """Wait until the current stream may use the layers of `wave` of these chunks. Raises ChunksLost."""
        try:
            self._load.wait(wave)
        except ChunksLost:
            if lost := self.missing():
                raise ChunksLost(lost, [self.items[index].lost or "" for index in lost]) from None

    def missing(self) -> list[int]:
        """Indices of the chunks known to be lost and not yet replaced."""
        lost = set(self._load.missing())
        return [own for own, index in enumerate(self._indices) if index in lost]

    def replace(self, index: int, chunk: QuantizedKV) -> None:
        """Use this chunk KV in place of a lost one, for every question that wants it."""
        self._load.replace(self._indices[index], chunk)

    def quantized(self, index: int) -> QuantizedKV:
        """See `Load`."""
        return self._load.quantized(self._indices[index])

    def waited(self) -> float:
        """Seconds for which the questions were stalled by loading."""
        return self._load.waited()

    def close(self) -> None:
        """End this question's part. May be called twice."""
        if not self._closed:
            self._closed = True
            self._shared.close_part()
