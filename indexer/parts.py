"""Load what background work needs, each part on first use, so that text can be searched before torch is imported.

A process that already answers questions hands over its own parts (`parts_of`), so that there is one model in memory
and one device lock.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from desk_rag.config import Settings
from desk_rag.device_lock import DeviceLock
from desk_rag.documents.chunking import ChunkSize
from desk_rag.indexer.models import Models
from desk_rag.indexer.names import EVERYTHING, MissingWork, missing_work
from desk_rag.model import weights
from desk_rag.model.prompt import load_prompt

if TYPE_CHECKING:
    from desk_rag.answering.engine import AnswerEngine
    from desk_rag.documents.token_counter import PortableCounter
    from desk_rag.kv.serving import ServingModel
    from desk_rag.retrieval.embedding import Embedder
    from desk_rag.store.store import Store

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Parts:
    """Store, tokenizer and loaders for the worker, which calls the loader of a stage whenever that begins."""

    store: Store
    counter: PortableCounter
    size: ChunkSize
    turn: DeviceLock
    load_embedder: Callable[[], Embedder]
    load_model: Callable[[], ServingModel]
    missing: Callable[[], MissingWork] = lambda: EVERYTHING
    """Returns the work to be done, as far as it is known without loading anything."""


def lazy_parts(store: Store, settings: Settings, models: Models | None = None) -> Parts:
    """Return parts that load what `settings` name, through `models` if others in this process use them, too.

    Raises ModelNotFound if the model's tokenizer is missing.
    """
    prompt = load_prompt(weights.resolve(settings.model.name, allow_download=settings.model.allow_download))
    shared = models or Models(store, settings)
    return Parts(
        store=store,
        counter=prompt,
        size=prompt.chunk_size,
        turn=shared.turn,
        load_embedder=shared.embedder,
        load_model=shared.serving,
        missing=lambda: EVERYTHING if shared.is_loaded else missing_work(store, settings),
    )


def parts_of(engine: AnswerEngine) -> Parts:
    """Return the parts of an engine that is already loaded."""
    prompt = engine.model.prompt
    return Parts(
        store=engine.store,
        counter=prompt,
        size=prompt.chunk_size,
        turn=engine.turn,
        load_embedder=lambda: engine.embedder,
        load_model=lambda: engine.serving,
    )


class Loader:
    """Loads parts in threads of their own, so that files are read meanwhile; begin from one thread only."""

    def __init__(self) -> None:
        self._loading: dict[Callable[[], Any], Future[Any]] = {}

    def begin(self, load: Callable[[], T]) -> Future[T]:
        """Return what `load` will return or raise; what is being loaded already is not loaded twice."""
        part = self._loading.get(load)
        if part is None:
            part = self._loading[load] = Future()
            threading.Thread(target=self._load, args=(load, part), name="load-model", daemon=True).start()
        return part

    @property
    def is_busy(self) -> bool:
        """Return whether a part is being loaded."""
        return bool(self._loading)

    def _load(self, load: Callable[[], T], part: Future[T]) -> None:
        try:
            part.set_result(load())
        except Exception as error:
            part.set_exception(error)
        del self._loading[load]  # callers hold the future; kept here, it would keep the model in memory
