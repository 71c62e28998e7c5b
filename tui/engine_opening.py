"""Open the store and load the models for the UI; files that are new or change are read meanwhile."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from desk_rag.answering.engine import AnswerEngine
from desk_rag.answering.opening import engine_with
from desk_rag.config import Settings
from desk_rag.errors import UNWRITABLE, StoreLocked
from desk_rag.indexer.models import Models
from desk_rag.indexer.parts import lazy_parts
from desk_rag.indexer.service import Service
from desk_rag.store.store import Store

_STOP_SECONDS = 10.0


def open_engine(settings: Settings, folders: Sequence[Path]) -> AnswerEngine:
    """Return an engine that writes to the store unless another process does. Raises ModelError, StoreError."""
    store = _open(settings)
    try:
        if store.writer and store.pause_requested() == math.inf:  # it lasted until this start
            store.request_pause(None)
        models = Models(store, settings)
        with _reading(store, settings, folders, models):
            serving, embedder = models.serving(), models.embedder()
        return engine_with(serving, embedder, store, models.turn, settings)
    except BaseException:
        store.close()
        raise


def _open(settings: Settings) -> Store:
    try:
        return Store.open(settings.data_dir, settings.store, writer=True)
    except (StoreLocked, *UNWRITABLE):
        return Store.open(settings.data_dir, settings.store, writer=False)


@contextmanager
def _reading(store: Store, settings: Settings, folders: Sequence[Path], models: Models) -> Iterator[None]:
    """Read files during the block, which may take minutes; whoever indexes afterwards begins with a look of its own."""
    if not (store.writer and folders):
        yield
        return
    service = Service(lazy_parts(store, settings, models), folders, settings)
    service.start()
    try:
        yield
    finally:
        service.stop(_STOP_SECONDS)
