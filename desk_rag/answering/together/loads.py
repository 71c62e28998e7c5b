"""Load the chunk KV of several answers together, so that a chunk which several of them need is read once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from desk_rag.answering.kv_connector import CacheTarget, Candidates, KVConnector, KVLoadHandle
from desk_rag.kv.loading.load_part import LoadPart
from desk_rag.kv.types import KVKey
from desk_rag.store.store import Store


@dataclass(slots=True, eq=False)
class LoadWish:
    """Request of one answer to look up its chunks and begin to load them."""

    keys: list[KVKey]
    loads: list[tuple[LoadPart, frozenset[int]]] = field(default_factory=list)
    """Set when served: the answer's part of the load, and the indices of chunks that are faster to prefill."""
    error: BaseException | None = None
    is_served: bool = False


class MemberConnector(KVConnector):
    """Connector of one of several answers; the chunk KV in memory belongs to `connector`."""

    def __init__(
        self, connector: KVConnector, store: Store, target: CacheTarget, wait_for: Callable[[LoadWish], None]
    ) -> None:
        super().__init__(store, target, connector.loader)
        self._connector, self._wait_for = connector, wait_for

    def start_load(self, candidates: Candidates) -> KVLoadHandle:
        """Return a handle whose loading starts with `select`, when the others' chunks are settled too."""
        return _MemberLoad(self._store, self._target, self._connector, self._wait_for)

    def forget(self) -> None:
        """See `KVConnector`."""
        self._connector.forget()


class _MemberLoad(KVLoadHandle):
    """See `KVLoadHandle`."""

    def __init__(
        self, store: Store, target: CacheTarget, connector: KVConnector, wait_for: Callable[[LoadWish], None]
    ) -> None:
        super().__init__(store, target, connector.loader, [], connector.loader.start([]), None)
        self._wait_for = wait_for

    def select(self, keys: Sequence[KVKey]) -> None:
        """Settle the answer's chunks, and start loading them with those of the others."""
        wish = LoadWish(list(keys))
        self._wait_for(wish)
        self._load.close()
        self._keys = wish.keys
        ((self._load, self.faster_anew),) = wish.loads


def serve(connector: KVConnector, wishes: Sequence[LoadWish]) -> None:
    """Start one load for all of them."""
    try:
        loads = connector.start_shared([wish.keys for wish in wishes])
    except Exception as error:  # no room, or the drive is gone: each answer says it or reads less
        for wish in wishes:
            wish.error = error
    else:
        for wish, load in zip(wishes, loads, strict=True):
            wish.loads.append(load)
    for wish in wishes:
        wish.is_served = True
