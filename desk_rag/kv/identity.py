"""Keys of chunk KV, computed from everything that determines it: a mismatch becomes a cache miss.

Reading and writing call the same functions on the token ids that are run.
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
"""Raise it when what is captured changes: where keys are taken, how the prefix precedes a chunk, the coding."""


@dataclass(frozen=True, slots=True)
class Identity:
    """The parts of a namespace; changing any one of them changes the namespace.

    The compute dtype is left out on purpose: bf16 and fp32 of the same weights differ by less than int8 codes do, and
    KV prefilled on the GPU should serve the CPU when the GPU is not available.
    """

    weights: str
    adapter: str
    weight_quantization: str
    tokenizer: str
    config: str
    """Canonical JSON of the model's configuration, RoPE settings included."""
    shape: tuple[int, int, int]
    """num_layers, num_kv_heads, head_dim."""
    prefix: str
    """Hash of the shared prefix's token ids."""
    scheme: str
    """Coding of the layers (QuantScheme.label)."""
    drift_epoch: int = 0
    """Times the drift probe found that this library, driver or device computes different numbers."""
    capture_version: int = CAPTURE_VERSION

    def namespace(self) -> Namespace:
        """Hash, 32 hex digits, of all parts as canonical JSON."""
        text = json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))
        return Namespace(hashlib.blake2b(text.encode(), digest_size=16).hexdigest())


def identify(
    spec: ModelSpec, prefix_ids: Sequence[int], scheme: QuantScheme, *, adapter: str | None = None, drift_epoch: int = 0
) -> Identity:
    """Identity of chunk KV from this model, prefix and coding; `adapter` is by default the model's own."""
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
    """Hash, 32 hex digits, of the ids as little-endian int32."""
    data = array("i", token_ids)
    assert data.itemsize == 4
    return TokenHash(hashlib.blake2b(data.tobytes(), digest_size=16).hexdigest())


def kv_key(namespace: Namespace, token_ids: Sequence[int]) -> KVKey:
    """Key of one chunk, from the token ids that are run for it, frame included."""
    return KVKey(namespace, hash_tokens(token_ids))
