"""Names chunk KVs: everything that would make one wrong is in its key, so that a mismatch is a miss.

Knows what identity is made of; knows no disk. Reading and writing call the same functions on the token ids actually
fed.
"""

from __future__ import annotations

import hashlib
import json
from array import array
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from desk_rag.kv.quant import QuantScheme
from desk_rag.kv.types import KVKey, Namespace, TokenHash
from desk_rag.model.language_model import ModelSpec

CAPTURE_VERSION = 1
"""Raise it when what is captured changes: where keys are tapped, how the prefix precedes a chunk, how codes are
made."""


@dataclass(frozen=True, slots=True)
class Identity:
    """The parts of a namespace; changing any single one must change the namespace.

    The compute dtype is left out on purpose: bf16 and fp32 of the same weights differ by less than the int8 codes do,
    and a cache made on the GPU should serve the CPU when the GPU is away.
    """

    weights: str
    adapter: str
    weight_quantization: str
    tokenizer: str
    config: str
    """Canonical JSON of the model's configuration, RoPE fields among it."""
    shape: tuple[int, int, int]
    """num_layers, num_kv_heads, head_dim."""
    prefix: str
    """Hash of the shared prefix's token ids."""
    scheme: str
    """How the layers are coded (QuantScheme.label)."""
    drift_epoch: int = 0
    """Counts how often the drift probe found that library, driver or device compute something else than before."""
    capture_version: int = CAPTURE_VERSION

    def namespace(self) -> Namespace:
        """32 hex digits over all parts, by canonical JSON."""
        text = json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))
        return Namespace(hashlib.blake2b(text.encode(), digest_size=16).hexdigest())


def identify(
    spec: ModelSpec, prefix_ids: Sequence[int], scheme: QuantScheme, *, adapter: str | None = None, drift_epoch: int = 0
) -> Identity:
    """The identity of chunk KV made by this model after this prefix in this coding; the adapter is the model's own."""
    return Identity(
        weights=spec.weights_fingerprint,
        adapter=spec.adapter if adapter is None else adapter,
        weight_quantization=spec.weight_quantization,
        tokenizer=spec.tokenizer_fingerprint,
        config=spec.config_json,
        shape=(spec.num_layers, spec.num_kv_heads, spec.head_dim),
        prefix=hash_tokens(prefix_ids),
        scheme=scheme.label,
        drift_epoch=drift_epoch,
    )


def hash_tokens(token_ids: Sequence[int]) -> TokenHash:
    """32 hex digits over the ids as little-endian int32."""
    data = array("i", token_ids)
    assert data.itemsize == 4
    return TokenHash(hashlib.blake2b(data.tobytes(), digest_size=16).hexdigest())


def kv_key(namespace: Namespace, token_ids: Sequence[int]) -> KVKey:
    """The key of one chunk, from the token ids fed for it, frame included."""
    return KVKey(namespace, hash_tokens(token_ids))
