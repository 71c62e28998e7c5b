"""Small documents and chunk KVs whose content follows from their name, so that any process can tell what is right."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

import torch

from desk_rag.config import GIB, StoreSettings
from desk_rag.documents.chunking import Chunk, ChunkId, Location
from desk_rag.documents.document import Document, SourceFile
from desk_rag.kv.types import Int8Layer, KVKey, LayerKV, Namespace, QuantizedKV, RawLayer, TokenHash
from desk_rag.store.store import Store
from desk_rag.store.types import FileStamp

NS = Namespace("0123456789abcdef" * 2)
OTHER_NS = Namespace("fedcba9876543210" * 2)


def chunk_id(text: str) -> ChunkId:
    return ChunkId(hashlib.blake2b(text.encode(), digest_size=16).hexdigest())


def chunk(text: str, ordinal: int = 0, num_tokens: int = 16) -> Chunk:
    return Chunk(chunk_id(text), ordinal, text, num_tokens, Location("Top › Sub", None, None, ordinal + 1, ordinal + 2))


def chunks(texts: Sequence[str]) -> list[Chunk]:
    return [chunk(text, ordinal) for ordinal, text in enumerate(texts)]


def document(path: Path, texts: Sequence[str], title: str = "") -> Document:
    digest = hashlib.blake2b("\0".join(texts).encode("utf-8", "replace"), digest_size=32).hexdigest()
    return Document(SourceFile(path, 10, 20, digest), title, (), "plain/1", "")


def stamp(mtime_ns: int = 20) -> FileStamp:
    return FileStamp(10, mtime_ns, 7, "1")


def key(name: str, namespace: Namespace = NS) -> KVKey:
    return KVKey(namespace, TokenHash(hashlib.blake2b(name.encode(), digest_size=16).hexdigest()))


def settings(*, budget_bytes: int = GIB, reserve_bytes: int = 0) -> StoreSettings:
    return StoreSettings(budget_gib=budget_bytes / GIB, reserve_gib=reserve_bytes / GIB)


def int8_layer(generator: torch.Generator, heads: int, tokens: int, dim: int, scales: int = 1) -> Int8Layer:
    def codes() -> torch.Tensor:
        return torch.randint(-127, 128, (heads, tokens, dim), generator=generator, dtype=torch.int8)

    def halves(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator).to(torch.float16)

    return Int8Layer(codes(), halves(heads, scales, dim), halves(heads, scales, dim), codes(), halves(heads, tokens))


def raw_layer(
    generator: torch.Generator, heads: int, tokens: int, dim: int, dtype: torch.dtype = torch.bfloat16
) -> RawLayer:
    keys, values = (torch.randn((heads, tokens, dim), generator=generator).to(dtype) for _ in range(2))
    return RawLayer(keys, values)


def kv_for(key: KVKey, *, layers: int = 2, heads: int = 2, tokens: int = 16, dim: int = 8) -> QuantizedKV:
    """The one right chunk KV of a key."""
    generator = torch.Generator().manual_seed(int(str(key.namespace)[:6] + str(key.tokens)[:8], 16))
    return QuantizedKV(tuple(int8_layer(generator, heads, tokens, dim) for _ in range(layers)))


def same_layer(one: LayerKV, other: LayerKV) -> bool:
    if type(one) is not type(other):
        return False
    pairs = [(getattr(one, field.name), getattr(other, field.name)) for field in fields(one)]
    return all(a.dtype == b.dtype and torch.equal(a, b) for a, b in pairs)


def same(one: QuantizedKV | None, other: QuantizedKV) -> bool:
    """Bit for bit."""
    return one is not None and len(one.layers) == len(other.layers) and all(map(same_layer, one.layers, other.layers))


def kv_files(root: Path) -> list[Path]:
    return sorted((root / "kv").rglob("*.safetensors"))


def warm(store: Store, text: str, namespace: str = NS) -> bool:
    """Give a chunk its right KV."""
    name = key(text, Namespace(namespace))
    return store.put_kv(name, kv_for(name), [chunk_id(text)], 0.5)
