"""Attention over int8 chunk KV as it was stored: nothing is rotated or widened until the moment it is read.

Knows transformers' attention and cache protocols; knows no file. A cache of this kind keeps only the shared prefix and
what the model has read since the question in the compute dtype; the chunks stay int8 and without position, so one
physical copy serves every position and the context takes about half the memory. The plain part and the chunks are
attended to apart and merged by their log-sum-exp. (LazyAttention, arXiv 2606.04302: deferred rotation; the merge as in
APE, arXiv 2502.05431.) Here is the torch reference, which is also the CPU path; `lazy_triton` is the kernel.

Layers that the quality gate keeps unquantised are materialised in the slab as usual.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.cache_utils import Cache
from transformers.masking_utils import sdpa_mask

from desk_rag.attention import packed_sdpa
from desk_rag.errors import UnsupportedModel
from desk_rag.kv import kernels
from desk_rag.kv.cache import SlabLayer
from desk_rag.kv.prefill import PrefixKV
from desk_rag.kv.quant import dequantize_layer
from desk_rag.kv.rope import RotaryTables, rotate
from desk_rag.kv.stitch import Placement, has_sliding_layers
from desk_rag.kv.types import Int8Layer, QuantizedKV
from desk_rag.model import LanguageModel

NAME = "desk_rag_lazy"
_ATTRIBUTE = "desk_rag_lazy_context"


class Attend(Protocol):
    """Attention of one layer over plain tokens and chunks; see `attend` for shapes."""

    def __call__(
        self, layer: int, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scaling: float
    ) -> torch.Tensor: ...


@dataclass(frozen=True, slots=True)
class LazyContext:
    """The chunks of one answer as they were loaded, and where they stand."""

    chunks: tuple[QuantizedKV, ...]
    """On the computing device; must stay alive and unchanged while the context is used."""
    placements: tuple[Placement, ...]
    tables: RotaryTables

    @property
    def num_tokens(self) -> int:
        return sum(placement.num_tokens for placement in self.placements)

    def is_int8(self, layer: int) -> bool:
        """True if every chunk has that layer as int8; other layers are materialised."""
        return all(isinstance(chunk.layers[layer], Int8Layer) for chunk in self.chunks)

    def positioned(self, layer: int) -> Iterator[tuple[Placement, torch.Tensor, torch.Tensor]]:
        """One layer of every chunk: its place, keys at their positions and values, both fp32 [H, T, D]."""
        table = self.tables.table_of_layer[layer]
        for chunk, placement in zip(self.chunks, self.placements, strict=True):
            keys, values = dequantize_layer(chunk.layers[layer])
            here = slice(placement.position, placement.position + placement.num_tokens)
            yield placement, rotate(keys, self.tables.cos[table][here], self.tables.sin[table][here]), values


class LazyLayer(SlabLayer):
    """A slab that holds prefix and suffix only, and counts the chunks between them as if they were in it."""

    def __init__(self, keys: torch.Tensor, values: torch.Tensor, hidden: int) -> None:
        self.hidden = hidden
        super().__init__(keys, values)

    def get_seq_length(self) -> int:
        """Tokens before the next one, chunks included: positions and masks follow it."""
        return self.length + self.hidden


class LazyCache(Cache):  # type: ignore[misc]
    """One answer's cache: prefix and suffix in slabs, the chunks of `context` where they are."""

    def __init__(self, model: LanguageModel, prefix: PrefixKV, context: LazyContext, room: int) -> None:
        """`room` is the most tokens of question and answer together. Raises UnsupportedModel."""
        _refuse_unsupported(model)
        self.context = context
        super().__init__(layers=[self._layer(model, prefix, index, room) for index in range(model.spec.num_layers)])

    def _layer(self, model: LanguageModel, prefix: PrefixKV, index: int, room: int) -> LazyLayer:
        spec, context = model.spec, self.context
        lazy = context.is_int8(index)
        first = prefix.num_tokens
        length = first + (0 if lazy else context.num_tokens)
        shape = (1, spec.num_kv_heads, length + room, spec.head_dim)
        keys, values = (torch.empty(shape, dtype=spec.dtype, device=model.device) for _ in range(2))
        keys[0, :, :first], values[0, :, :first] = prefix.keys[index], prefix.values[index]
        if not lazy:
            for placement, turned, plain in context.positioned(index):
                slots = slice(placement.slot, placement.slot + placement.num_tokens)
                keys[0, :, slots], values[0, :, slots] = turned.to(spec.dtype), plain.to(spec.dtype)
        layer = LazyLayer(keys, values, context.num_tokens if lazy else 0)
        layer.set_length(length)
        return layer


def attend(
    layer: int, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scaling: float, context: LazyContext
) -> torch.Tensor:
    """The reference: rotated query [1, heads, N, D], keys and values [1, H, S, D] of prefix and suffix, the N included.

    Every query sees all chunks; of the plain tokens those up to itself. Returns [1, N, heads, D] in the query's dtype.
    """
    _, heads, count, dim = query.shape
    kv_heads, plain = keys.shape[1], keys.shape[2]
    packed = query[0].float().reshape(kv_heads, heads // kv_heads * count, dim) * scaling
    own = torch.arange(plain - count, plain, device=query.device).repeat(heads // kv_heads)
    visible = torch.arange(plain, device=query.device)[None] <= own[:, None]
    scores = (packed @ keys[0].float().mT).masked_fill(~visible, -torch.inf)
    total = _Partial.of(scores, values[0].float())
    for _, turned, whole in context.positioned(layer):
        total = total.merged(_Partial.of(packed @ turned.mT, whole))
    out = total.output.reshape(kv_heads * (heads // kv_heads), count, dim)
    return out.transpose(0, 1)[None].to(query.dtype)


@dataclass(frozen=True, slots=True)
class _Partial:
    """Attention over some of the keys: enough to be merged with attention over others."""

    output: torch.Tensor
    """[H, M, D], normalised over these keys."""
    lse: torch.Tensor
    """[H, M], natural log of the sum of exponentials."""

    @classmethod
    def of(cls, scores: torch.Tensor, values: torch.Tensor) -> _Partial:
        lse = scores.logsumexp(-1)
        return cls((scores - lse[..., None]).exp() @ values, lse)

    def merged(self, other: _Partial) -> _Partial:
        lse = torch.logaddexp(self.lse, other.lse)
        mine, others = (self.lse - lse).exp()[..., None], (other.lse - lse).exp()[..., None]
        return _Partial(self.output * mine + other.output * others, lse)


@contextmanager
def lazily(model: LanguageModel, cache: LazyCache) -> Iterator[None]:
    """While open, `model` attends to the chunks of `cache` where they lie; use it for all passes over this cache."""
    run = _implementation(model, cache)
    before = model.module.config._attn_implementation
    attentions: list[Any] = [layer.self_attn for layer in model.decoder_layers]
    register()
    model.module.set_attn_implementation(NAME)
    try:
        for index, attention in enumerate(attentions):
            if cache.context.is_int8(index):
                setattr(attention, _ATTRIBUTE, run)
        yield
    finally:
        for attention in attentions:
            if hasattr(attention, _ATTRIBUTE):
                delattr(attention, _ATTRIBUTE)
        model.module.set_attn_implementation(before)


def lazy_sdpa(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """The attention function: lazy for layers that have a context, as usual for the others."""
    run: Attend | None = getattr(module, _ATTRIBUTE, None)
    if run is None:
        return packed_sdpa(module, query, key, value, attention_mask, scaling=scaling, **kwargs)
    layer = module.layer_idx
    assert isinstance(layer, int)
    return run(layer, query, key, value, query.shape[-1] ** -0.5 if scaling is None else scaling), None


def register() -> None:
    """Make `lazy_sdpa` available to models under NAME, with its mask for the layers that are not lazy. Idempotent."""
    AttentionInterface.register(NAME, lazy_sdpa)
    AttentionMaskInterface.register(NAME, sdpa_mask)


def _implementation(model: LanguageModel, cache: LazyCache) -> Attend:
    context = cache.context
    if kernels.available(model.device):
        from desk_rag.kv.lazy_triton import LazyKernel

        return LazyKernel.of(context, model.spec.num_kv_heads, model.spec.head_dim)
    return functools.partial(attend, context=context)


def _refuse_unsupported(model: LanguageModel) -> None:
    if has_sliding_layers(model) or model.spec.support.needs_eager:
        raise UnsupportedModel(
            f"'{model.spec.name}' has sliding-window or soft-capped layers, which lazy attention does not cover.",
            remedy="Stitch into an ordinary cache instead, which serves these models exactly.",
        )
