"""The plain way to load chunk KV: whole files read and stitched before the pass; others are compared with it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

from desk_rag.answering.kv_connector import CacheTarget, Candidates, KVConnector, KVLoadHandle
from desk_rag.kv.forward.runner import Pass
from desk_rag.kv.positions import StitchPlan
from desk_rag.kv.types import KVKey, QuantizedKV
from desk_rag.store.store import Store


class WholeFiles(KVConnector):
    """Reads whole files; shares no code of loading with the product."""

    def __init__(self, store: Store, target: CacheTarget) -> None:
        self._store, self._target, self.rates = store, target, None

    def start_load(self, candidates: Candidates) -> WholeFilesHandle:
        return WholeFilesHandle(self._store, self._target)

    def prefetch(self, keys: Sequence[KVKey]) -> None:
        pass

    def cancel_prefetch(self) -> None:
        pass

    def forget(self) -> None:
        pass

    def close(self) -> None:
        pass


class WholeFilesHandle(KVLoadHandle):
    """Chunks read at the first question about them."""

    def __init__(self, store: Store, target: CacheTarget) -> None:
        self._store, self._target = store, target
        self._keys: tuple[KVKey, ...] = ()
        self._chunks: list[QuantizedKV | None] | None = None
        self._prefilled_live: set[int] = set()

    def select(self, keys: Sequence[KVKey]) -> None:
        self._keys = tuple(keys)

    def missing(self) -> list[int]:
        if self._chunks is None:
            self._chunks = self._store.get_kv(self._keys)
        return [index for index, chunk in enumerate(self._chunks) if chunk is None]

    def replace(self, index: int, chunk: QuantizedKV) -> None:
        assert self._chunks is not None, "call missing() first"
        self._chunks[index] = chunk
        self._prefilled_live.add(index)

    def attach(self, plan: StitchPlan, *, by_layers: bool = False) -> AbstractContextManager[Pass]:
        return nullcontext(self._target.fill(plan, [chunk for chunk in self._chunks or [] if chunk is not None]))

    def release(self) -> None:
        pass

    def waited(self) -> float:
        return 0.0

    @property
    def nbytes(self) -> int:
        chunks = enumerate(self._chunks or [])
        return sum(chunk.nbytes for index, chunk in chunks if chunk is not None and index not in self._prefilled_live)

    def close(self) -> None:
        self._chunks = []
