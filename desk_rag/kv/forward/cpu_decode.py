"""Decode step for one token on a CPU, in half the calls that transformers' pass makes.

For plain pre-norm decoders in fp32. In a small model's step over a short context half of the time is not matrix
products but norms, masks and rotation in many calls. Here scores and weights reuse memory between steps; norms of
heads, rotation and the attention's scale are one multiplication; and a long context is read once and in order
(`model.sdpa.one_query`). The matrix products are the modules' own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from desk_rag.kv.cache import SlabCache
from desk_rag.kv.forward.families import is_plain
from desk_rag.kv.forward.projections import qk_norms
from desk_rag.kv.rope import RotaryTables
from desk_rag.model.embedded import threads
from desk_rag.model.language_model import LanguageModel
from desk_rag.model.packed_linear import PackedPart
from desk_rag.model.sdpa import Scratch, one_query

Module = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True, slots=True)
class _Norm:
    """x / sqrt(mean(x^2) + eps) * weight, as x / hypot(|x|, floor) * scaled. (Zhang & Sennrich, arXiv:1910.07467)"""

    scaled: torch.Tensor
    """[E], weight times sqrt(E)."""
    floor: torch.Tensor
    """sqrt(E * eps)."""

    @classmethod
    def of(cls, norm: Any) -> _Norm:
        width = norm.weight.shape[0]
        floor = torch.tensor((width * norm.variance_epsilon) ** 0.5)
        return cls(norm.weight.detach() * width**0.5, floor)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return _scale_by_norm(x, self.floor).mul_(self.scaled)


@dataclass(frozen=True, slots=True)
class _Layer:
    """Modules of one decoder layer, looked up once."""

    module: Any
    """The layer itself; a hook on it means that a pass has to wait for loading."""
    before_attention: _Norm
    inward: Module
    """Projects to queries, keys and values side by side."""
    outward: Module
    before_mlp: _Norm
    widen: Module
    """act(gate) * up."""
    down: Module

    @classmethod
    def of(cls, layer: Any) -> _Layer:
        attention, mlp = layer.self_attn, layer.mlp
        return cls(
            layer, _Norm.of(layer.input_layernorm),
            _fused_product(attention.q_proj, attention.k_proj, attention.v_proj),
            attention.o_proj, _Norm.of(layer.post_attention_layernorm), _fused_mlp_input(mlp), mlp.down_proj,
        )  # fmt: skip


def _fused_product(*modules: Any) -> Module:
    """Products of one input with several matrices, side by side; one product if the matrices are packed."""
    first = modules[0]
    if isinstance(first, PackedPart) and all(getattr(module, "beside", None) is first.beside for module in modules):
        return first.beside.product
    return lambda x: torch.cat([module(x) for module in modules], -1)


def _fused_mlp_input(mlp: Any) -> Module:
    both, act = _fused_product(mlp.gate_proj, mlp.up_proj), mlp.act_fn

    def widen(x: torch.Tensor) -> torch.Tensor:
        gate, up = both(x).chunk(2, -1)
        widened: torch.Tensor = act(gate).mul_(up)
        return widened

    return widen


class DecodeStep:
    """Runs one model over one cache, one token at a time. Not thread-safe."""

    def __init__(self, model: LanguageModel, cache: SlabCache, tables: RotaryTables) -> None:
        """Use `of`, which checks that the model is supported."""
        spec = model.spec
        decoder = model.module.model
        self._cache, self._head = cache, model.module.lm_head
        self._embeddings = decoder.embed_tokens.weight.detach()
        self._slabs = [(layer.key_slab[0], layer.value_slab[0]) for layer in cache.layers]
        self._layers = [_Layer.of(layer) for layer in model.decoder_layers]
        self._last = _Norm.of(decoder.norm)
        self._parameters = spec.num_parameters
        self._heads, self._kv_heads, self._dim = spec.num_heads, spec.num_kv_heads, spec.head_dim
        self._cos, self._sin = tables.cos[0], tables.sin[0]
        self._capacity = min(cache.capacity, tables.num_positions)
        self._floor, self._weights = _head_weights(model)
        self._swapped = self._weights.roll(self._dim // 2, -1)
        self._scratch = Scratch.of(spec.num_heads * cache.capacity)

    @classmethod
    def of(cls, model: LanguageModel, cache: SlabCache, tables: RotaryTables) -> DecodeStep | None:
        """Create a decode step; None for unsupported model families, devices or dtypes, and for compiled layers."""
        if getattr(model.module.model, "compiled", None) is not None:
            return None
        plain = model.device.type == "cpu" and cache.layers[0].key_slab.dtype is torch.float32
        if not plain or model.spec.dtype is not torch.float32 or not is_plain(model):
            return None
        if len(tables.cos) != 1 or 2 * tables.cos[0].shape[1] != model.spec.head_dim:
            return None
        return cls(model, cache, tables)

    @property
    def ready(self) -> bool:
        """False while a layer has hooks, for chunks that are still being loaded or to record something."""
        return not any(layer.module._forward_pre_hooks or layer.module._forward_hooks for layer in self._layers)

    def run(self, token_id: int, start: int) -> torch.Tensor:
        """Append a token at slot and position `start`; logits [vocab]. Slots before it must be filled."""
        assert start < self._capacity, "slab too small: the engine plans its capacity"
        with torch.inference_mode(), threads.for_rows(1, self._parameters):
            hidden = self._embeddings[token_id][None].float()
            for layer, slabs, rotation in zip(self._layers, self._slabs, self._rotations(start), strict=True):
                keys, values = (slab.narrow(1, 0, start + 1) for slab in slabs)
                query = self._project(layer, layer.before_attention(hidden), rotation, keys, values)
                attended = one_query(query, keys, values, self._scratch)
                hidden = layer.outward(attended.view(1, -1)).add_(hidden)
                x = layer.before_mlp(hidden)
                hidden = layer.down(layer.widen(x)).add_(hidden)
            self._cache.set_length(start + 1)
            logits: torch.Tensor = self._head(self._last(hidden))[0]
            return logits

    def _rotations(self, start: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Factors of each layer, both [heads + H, D], that apply norm weight, rotation and attention scale."""
        cos, sin = self._cos[start], self._sin[start]
        cosines, sines = self._weights * torch.cat((cos, cos)), self._swapped * torch.cat((-sin, sin))
        return zip(cosines.unbind(), sines.unbind(), strict=True)

    def _project(
        self,
        layer: _Layer,
        x: torch.Tensor,
        rotation: tuple[torch.Tensor, torch.Tensor],
        keys: torch.Tensor,
        values: torch.Tensor,
    ) -> torch.Tensor:
        """Write the token's key and value at the end of keys, values [H, T, D]; return the query [H, G, D]."""
        heads = layer.inward(x).view(-1, self._dim)
        rows, value = heads[: -self._kv_heads], heads[-self._kv_heads :]
        if self._floor is not None:
            rows = _scale_by_norm(rows, self._floor)
        swapped = rows.roll(self._dim // 2, -1)
        rotated = rows.mul_(rotation[0]).addcmul_(swapped, rotation[1])
        keys.select(1, -1).copy_(rotated[self._heads :])
        values.select(1, -1).copy_(value)
        return rotated[: self._heads].view(self._kv_heads, -1, self._dim)


def _head_weights(model: LanguageModel) -> tuple[torch.Tensor | None, torch.Tensor]:
    """Floor of the head norms, or None without them; and weights [L, heads + H, D].

    The weights are those of the head norms, times the attention's scale for queries.
    """
    spec = model.spec
    dim, heads = spec.head_dim, spec.num_heads
    weights = torch.ones(spec.num_layers, heads + spec.num_kv_heads, dim)
    weights[:, :heads] *= dim**-0.5
    norms = [qk_norms(layer.self_attn) for layer in model.decoder_layers]
    floor = None
    for weight, norm in zip(weights, norms, strict=True):
        if norm is not None:
            weight[:heads] *= norm.query.detach() * dim**0.5
            weight[heads:] *= norm.key.detach() * dim**0.5
            floor = torch.tensor((dim * norm.eps) ** 0.5)
    return floor, weights


def _scale_by_norm(x: torch.Tensor, floor: torch.Tensor) -> torch.Tensor:
    """Divide x [..., E] by sqrt(|x|^2 + floor^2)."""
    length: torch.Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return x / length.hypot_(floor)
