"""Open the store and load the models that an answer engine needs."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from desk_rag.answering.auxiliary import open_auxiliary, prepare_all
from desk_rag.answering.engine import AnswerEngine
from desk_rag.answering.serving_model import say_nothing
from desk_rag.config import Settings
from desk_rag.device_lock import DeviceLock
from desk_rag.kv.serving import ServingModel
from desk_rag.retrieval.embedding import EMBEDDED, Embedder, load_embedder
from desk_rag.store.store import Store


def open_engine(settings: Settings, *, writer: bool, say: Callable[[str], None] = say_nothing) -> AnswerEngine:
    """Open the store and load embedder and model; `say` takes lines about the progress.

    Raises StoreLocked, ModelError subclasses, ConfigError.
    """
    store = Store.open(settings.data_dir, settings.store, writer=writer)
    try:
        turn = DeviceLock(settings.data_dir / "run")
        serving, embedder = _load(settings, say)
        return engine_with(serving, embedder, store, turn, settings)
    except BaseException:
        store.close()
        raise


def _load(settings: Settings, say: Callable[[str], None]) -> tuple[ServingModel, Embedder]:
    """Load both models; the embedder that ships beside the answering model, because it imports no large library."""
    if settings.model.embedder != EMBEDDED:
        return prepare_all(settings, say), load_embedder(settings.model)
    with ThreadPoolExecutor(1, "load-embedder") as thread:
        embedder = thread.submit(load_embedder, settings.model)
        return prepare_all(settings, say), embedder.result()


def engine_with(
    serving: ServingModel, embedder: Embedder, store: Store, turn: DeviceLock, settings: Settings
) -> AnswerEngine:
    """Return an engine over an open store and loaded models. Raises ModelError subclasses, ConfigError."""
    auxiliary = None if serving.auxiliary is None else open_auxiliary(serving.auxiliary, store)
    return AnswerEngine(serving, embedder, store, turn, settings, auxiliary=auxiliary)
