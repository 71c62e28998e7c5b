"""The auxiliary model of a data directory: loaded, made ready like any other, its chunk KV taken from the same store.

Knows settings, the store and how a model is prepared; the looking is done in `kv.auxiliary`. What it reads on disk was
put there by background prefill under the auxiliary model's own namespace, and goes with its document like all chunk KV;
what it has to prefill itself stays in memory.
"""

from __future__ import annotations

from collections.abc import Sequence

from desk_rag.answering.serving_model import Prepared, prepare
from desk_rag.config import ModelSettings, Settings
from desk_rag.kv.identity import kv_key
from desk_rag.kv.prefix_variants.variants import PLAIN
from desk_rag.kv.recompute.auxiliary_model import AuxiliaryModel, MemoryKVStore
from desk_rag.kv.types import Namespace, QuantizedKV
from desk_rag.store.store import Store

SMOLLM = "HuggingFaceTB/SmolLM2-135M"
"""What the name 'smollm2-135m' stands for: the auxiliary model of CacheClip (arXiv 2510.10129)."""
_NAMES = {"smollm2-135m": SMOLLM}


class StoreShelf(MemoryKVStore):
    """Memory first, then the store."""

    def __init__(self, store: Store, namespace: Namespace) -> None:
        super().__init__()
        self._store, self._namespace = store, namespace

    def get(self, chunks: Sequence[tuple[int, ...]]) -> list[QuantizedKV | None]:
        """See `kv.recompute.auxiliary_model.ChunkKVStore`."""
        found = super().get(chunks)
        missing = [index for index, kv in enumerate(found) if kv is None]
        stored = self._store.get_kv([kv_key(self._namespace, chunks[index]) for index in missing]) if missing else []
        for index, kv in zip(missing, stored, strict=True):
            found[index] = kv
        return found


def prepare_auxiliary(settings: Settings, name: str = "embedded", device: str = "cpu") -> Prepared:
    """Load the auxiliary model: 'embedded', 'smollm2-135m', a directory or ORG/NAME; unquantised.

    Give what comes back to background prefill as well (model, prefix, namespace, scheme), so that its chunk KV is
    there before it is asked for. Raises ModelError, ConfigError.
    """
    return prepare(settings.model_copy(update={"model": model_settings(settings, name, device)}))


def model_settings(settings: Settings, name: str, device: str = "cpu") -> ModelSettings:
    """The settings under which the auxiliary model `name` is loaded."""
    plain = {"device": device, "quantization": "none", "adapter": "", "rungs": PLAIN}
    return settings.model.model_copy(update={"name": _NAMES.get(name, name), **plain})


def open_auxiliary(prepared: Prepared, store: Store) -> AuxiliaryModel:
    """The auxiliary model with its chunk KV."""
    return AuxiliaryModel(prepared.model, prepared.prefix, StoreShelf(store, prepared.namespace), prepared.gate.scheme)
