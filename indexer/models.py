"""Load embedder and language model once for all who need them in a process, and let go of them when idle."""

from __future__ import annotations

import gc
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from desk_rag.config import Settings
from desk_rag.device_lock import DeviceLock
from desk_rag.indexer.names import keep_embedder, keep_namespaces
from desk_rag.model.memory.heap import trim_memory

if TYPE_CHECKING:
    from desk_rag.answering.engine import AnswerEngine
    from desk_rag.kv.serving import ServingModel
    from desk_rag.retrieval.embedding import Embedder
    from desk_rag.store.store import Store


def check(settings: Settings) -> None:
    """Check the model as far as possible without loading it, or the libraries. Raises ModelError subclasses."""
    from desk_rag.model import adapters, weights

    weights.resolve(settings.model.name, allow_download=settings.model.allow_download)
    if settings.model.adapter:
        adapters.inspect(Path(settings.model.adapter))


class Models:
    """The models of one process over one open store; safe to use from several threads."""

    def __init__(
        self,
        store: Store,
        settings: Settings,
        say: Callable[[str], None] = lambda text: None,
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        """`say` takes lines about what a model is measured for at its first use; `stop` ends that, with Cancelled."""
        self.turn = DeviceLock(settings.data_dir / "run")
        """The right to use the device, for whoever runs these models."""
        self._store, self._settings, self._say, self._stop = store, settings, say, stop
        self._lock = threading.RLock()
        self._embedder: Embedder | None = None
        self._serving: ServingModel | None = None
        self._engine: AnswerEngine | None = None
        self._answers = 0
        self._used_at = time.monotonic()

    def embedder(self) -> Embedder:
        """Return the embedder. Raises ModelError subclasses."""
        from desk_rag.retrieval.embedding import load_embedder

        with self._lock:
            self._used_at = time.monotonic()
            if self._embedder is None:
                self._embedder = load_embedder(self._settings.model)
                keep_embedder(self._settings, self._embedder.fingerprint)
            return self._embedder

    def serving(self) -> ServingModel:
        """Return the language model, ready to serve. Raises ModelError subclasses, Cancelled."""
        from desk_rag.answering.auxiliary import prepare_all

        with self._lock:
            if self._serving is None:
                self._serving = prepare_all(self._settings, self._say, self._stop)
                names = self._serving.prefix_variants.namespaces
                keep_namespaces(self._settings, names, self._serving.auxiliary_namespace)
            return self._serving

    @contextmanager
    def engine(self) -> Iterator[AnswerEngine]:
        """Lend the engine for an answer; it stays loaded for the next. Raises ModelError subclasses, ConfigError."""
        from desk_rag.answering.opening import engine_with

        with self._lock:
            if self._engine is None:
                serving, embedder = self.serving(), self.embedder()
                self._engine = engine_with(serving, embedder, self._store, self.turn, self._settings)
            self._answers += 1
            engine = self._engine
        try:
            yield engine
        finally:
            with self._lock:
                self._answers -= 1
                self._used_at = time.monotonic()

    @property
    def is_loaded(self) -> bool:
        """Return whether embedder and language model are in memory."""
        return self._embedder is not None and self._serving is not None

    def idle_seconds(self) -> float:
        """Return how long neither an answer nor a search has needed the models."""
        return 0.0 if self._answers else time.monotonic() - self._used_at

    def release(self) -> None:
        """Let go of everything that no answer is using; memory is free once background work lets go of it, too."""
        with self._lock:
            if self._answers:
                return
            if self._engine is not None:
                self._engine.release()
            self._engine = self._serving = self._embedder = None
        gc.collect()
        torch = sys.modules.get("torch")
        if torch is not None and torch.cuda.is_initialized():
            torch.cuda.empty_cache()
        trim_memory()
