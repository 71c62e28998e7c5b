"""Open the auxiliary model for selective recompute, with its chunk KV from the same store.

Background prefill writes this model's chunk KV under its own namespace, after that of the answering model and within
the same budget, and it is deleted with its document like any other. An answer does not wait for chunk KV that is
missing: it selects without this model, and `Recompute.fill` prefills it afterwards. A model that is its own auxiliary
is loaded once and has one namespace.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from desk_rag.answering.serving_model import never, prepare, say_nothing
from desk_rag.config import ModelSettings, Settings
from desk_rag.kv.identity import kv_key
from desk_rag.kv.prefix_variants.variants import PLAIN
from desk_rag.kv.recompute.auxiliary_model import AuxiliaryModel, MemoryKVStore
from desk_rag.kv.recompute.policy import AUXILIARY_NAMES, RecomputeChoice
from desk_rag.kv.serving import ServingModel
from desk_rag.kv.types import Namespace, QuantizedKV
from desk_rag.store.store import Store


class StoredChunkKV(MemoryKVStore):
    """Chunk KV from memory, else from the store."""

    def __init__(self, store: Store, namespace: Namespace) -> None:
        super().__init__()
        self._store, self._namespace = store, namespace

    def get(self, chunks: Sequence[tuple[int, ...]]) -> list[QuantizedKV | None]:
        """Return the KV of each chunk, None for those without. See `kv.recompute.auxiliary_model.ChunkKVStore`."""
        chunk_kvs = super().get(chunks)
        missing = [index for index, kv in enumerate(chunk_kvs) if kv is None]
        stored = self._store.get_kv([kv_key(self._namespace, chunks[index]) for index in missing]) if missing else []
        for index, kv in zip(missing, stored, strict=True):
            chunk_kvs[index] = kv
        return chunk_kvs

    def has(self, chunks: Sequence[tuple[int, ...]]) -> list[bool]:
        """Return whether the KV of each chunk is in memory or, by the catalog, on disk."""
        in_memory = super().has(chunks)
        keys = [kv_key(self._namespace, token_ids) for token_ids in chunks]
        missing = [key for key, kept in zip(keys, in_memory, strict=True) if not kept]
        stored = self._store.has_kv(missing) if missing else set()
        return [kept or key in stored for key, kept in zip(keys, in_memory, strict=True)]


def prepare_auxiliary(
    settings: Settings,
    name: str = "embedded",
    device: str = "cpu",
    *,
    beside: ServingModel | None = None,
    say: Callable[[str], None] = say_nothing,
    stop: Callable[[], bool] = never,
) -> ServingModel:
    """Load the auxiliary model: 'embedded', 'smollm2-135m', a directory or ORG/NAME.

    It is loaded unquantised, unless it is the model that already answers (`beside`). Raises ModelError, ConfigError.
    """
    chosen = model_settings(settings, name, device)
    same = chosen.model_copy(update={"device": settings.model.device, "rungs": settings.model.rungs})
    if beside is not None and same == settings.model:
        return beside
    return prepare(settings.model_copy(update={"model": chosen}), say, stop)


def prepare_all(
    settings: Settings, say: Callable[[str], None] = say_nothing, stop: Callable[[], bool] = never
) -> ServingModel:
    """Load and prepare the answering model, with its auxiliary if the settings ask for one, as `prepare` does.

    Raises ModelError, ConfigError, Cancelled.
    """
    serving = prepare(settings, say, stop)
    if not RecomputeChoice.of(settings.answer).needs_auxiliary:
        return serving
    auxiliary = prepare_auxiliary(settings, settings.answer.auxiliary, beside=serving, say=say, stop=stop)
    return replace(serving, auxiliary=auxiliary)


def model_settings(settings: Settings, name: str, device: str = "cpu") -> ModelSettings:
    """Settings to load the auxiliary model `name` with."""
    plain = {"device": device, "quantization": "none", "adapter": "", "rungs": PLAIN}
    return settings.model.model_copy(update={"name": AUXILIARY_NAMES.get(name, name), **plain})


def open_auxiliary(prepared: ServingModel, store: Store) -> AuxiliaryModel:
    """Combine the auxiliary model with its chunk KV in `store`."""
    stored = StoredChunkKV(store, prepared.namespace)
    return AuxiliaryModel(prepared.model, prepared.prefix, stored, prepared.scheme)
