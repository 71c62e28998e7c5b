"""Open the auxiliary model for selective recompute, with its chunk KV from the same store.

Background prefill writes this model's chunk KV under its own namespace, and it is deleted with its document like any
other. Chunks that are prefilled while answering are kept in memory only.
"""

from __future__ import annotations

from collections.abc import Sequence

from desk_rag.answering.serving_model import prepare
from desk_rag.config import ModelSettings, Settings
from desk_rag.kv.identity import kv_key
from desk_rag.kv.prefix_variants.variants import PLAIN
from desk_rag.kv.recompute.auxiliary_model import AuxiliaryModel, MemoryKVStore
from desk_rag.kv.serving import ServingModel
from desk_rag.kv.types import Namespace, QuantizedKV
from desk_rag.store.store import Store

SMOLLM = "HuggingFaceTB/SmolLM2-135M"
"""The model named 'smollm2-135m' in the settings: the auxiliary model of CacheClip (arXiv 2510.10129)."""
_NAMES = {"smollm2-135m": SMOLLM}


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


def prepare_auxiliary(settings: Settings, name: str = "embedded", device: str = "cpu") -> ServingModel:
    """Load the auxiliary model: 'embedded', 'smollm2-135m', a directory or ORG/NAME.

    It is loaded unquantised. Pass the result to background prefill as well, so that its chunk KV is ready before a
    question needs it. Raises ModelError, ConfigError.
    """
    return prepare(settings.model_copy(update={"model": model_settings(settings, name, device)}))


def model_settings(settings: Settings, name: str, device: str = "cpu") -> ModelSettings:
    """Settings to load the auxiliary model `name` with."""
    plain = {"device": device, "quantization": "none", "adapter": "", "rungs": PLAIN}
    return settings.model.model_copy(update={"name": _NAMES.get(name, name), **plain})


def open_auxiliary(prepared: ServingModel, store: Store) -> AuxiliaryModel:
    """Combine the auxiliary model with its chunk KV in `store`."""
    stored = StoredChunkKV(store, prepared.namespace)
    return AuxiliaryModel(prepared.model, prepared.prefix, stored, prepared.scheme)
