"""The two halves of a plain decoder layer, before and after its attention, and its weights packed side by side."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import linear

from desk_rag.kv.kernels.fused_inputs import QKNorms, TokenSlots
from desk_rag.kv.kernels.fused_ops import FusedOps
from desk_rag.kv.nf4.choice import MOST_ROWS, Nf4Products, Product

_GATES = {"SiLU": "silu", "SiLUActivation": "silu", "GELUTanh": "gelu", "PytorchGELUTanh": "gelu"}
"""Activations of gates for which there is a fused operation, by their classes' names in torch and transformers."""


@dataclass(frozen=True, slots=True)
class RmsNorm:
    """Weight [E] and epsilon of an RMS norm."""

    weight: torch.Tensor
    """fp32, with 1 added, where the model adds it (Gemma); the module's own parameter elsewhere."""
    eps: float

    @classmethod
    def of(cls, module: Any) -> RmsNorm:
        """The norm of one of transformers' modules."""
        if hasattr(module, "variance_epsilon"):
            return cls(module.weight, module.variance_epsilon)
        return cls(1.0 + module.weight.detach().float(), module.eps)


@dataclass(frozen=True, slots=True)
class Packed:
    """A layer's projections; those of one input are side by side: one matrix product instead of two or three.

    For the few tokens of a question, small products leave most of a GPU idle.
    """

    qkv: Product
    """Product with queries', keys' and values' weights, [(heads + 2 H) * D, E]."""
    out: Product
    gate_up: Product
    """Product with gate and up weights, [2 I, E]."""
    down: Product
    gate: str
    """'silu' or 'gelu' if a fused operation can be used for the gate's activation; empty for others."""
    most_rows: int | None = None
    """Rows above which putting gates side by side would take a copy; None if it never does."""

    @classmethod
    def of(cls, layer: Any, nf4: Nf4Products | None = None) -> Packed | None:
        """Pack the layer's projections, once; its modules keep views of the weights and work as before.

        None if they are neither plain matrices nor, with `nf4`, all in 4 bits, or if only some have biases.
        """
        mlp = layer.mlp
        inward, outward = _inward(layer.self_attn), layer.self_attn.o_proj
        widening = [mlp.gate_up_proj] if hasattr(mlp, "gate_up_proj") else [mlp.gate_proj, mlp.up_proj]
        narrowing, activation = mlp.down_proj, mlp.activation_fn if hasattr(mlp, "activation_fn") else mlp.act_fn
        gate = _GATES.get(type(activation).__name__, "")
        kinds = {type(module).__name__ for module in (*inward, outward, *widening, narrowing)}
        if nf4 is not None and kinds == {"Linear4bit"}:
            return cls(
                nf4.product(inward), nf4.product([outward]), nf4.product(widening), nf4.product([narrowing]), gate,
                MOST_ROWS,
            )  # fmt: skip
        if any(type(module) is not torch.nn.Linear for module in (*inward, *widening)):
            return None
        biased = [module.bias is not None for module in inward]
        if any(biased) != all(biased) or any(module.bias is not None for module in widening):
            return None
        with torch.inference_mode(mode=False), torch.no_grad():
            bias = torch.cat([module.bias for module in inward]) if all(biased) else None
            qkv = functools.partial(linear, weight=_side_by_side(inward), bias=bias)
            gate_up = functools.partial(linear, weight=_side_by_side(widening))
            return cls(qkv, outward, gate_up, narrowing, gate)

    def fuses_gates(self, rows: torch.Tensor) -> bool:
        """True if gates are to be multiplied side by side for these rows [B, N, E]."""
        return bool(self.gate) and (self.most_rows is None or rows.shape[0] * rows.shape[1] <= self.most_rows)


@dataclass(frozen=True, slots=True)
class FusedLayer:
    """One decoder layer: its own matrix products, with fused operations between them."""

    module: Any
    packed: Packed | None
    """None to multiply by each projection separately."""
    norms: QKNorms | None
    ops: FusedOps
    before_attention: RmsNorm | None
    """None in families with norms after attention and MLP only (OLMo 2)."""
    before_mlp: RmsNorm | None
    after_attention: RmsNorm | None
    """Norm of the attention's output before it is added, as in Gemma 3; None for most families."""
    after_mlp: RmsNorm | None
    of_projected: tuple[RmsNorm, RmsNorm] | None = None
    """Norms of all queries and of all keys of a token, as in OLMo 2; None for norms by head, and without any."""
    residual: float = 1.0
    """Factor of the results of attention and MLP, before they are added."""

    @classmethod
    def of(cls, module: Any, packed: Packed | None, ops: FusedOps, residual: float = 1.0) -> FusedLayer:
        """The layer of one of transformers' modules."""
        attention = module.self_attn
        norms = [getattr(module, name) if name else None for name in _norm_names(module)]
        before, between, after_attention, after_mlp = (None if norm is None else RmsNorm.of(norm) for norm in norms)
        by_head, projected = qk_norms(attention), None
        if by_head is not None and by_head.query.numel() != attention.head_dim:
            by_head, projected = None, (RmsNorm.of(attention.q_norm), RmsNorm.of(attention.k_norm))
        return cls(
            module, packed, by_head, ops, before, between, after_attention, after_mlp, projected, residual,
        )  # fmt: skip

    def query(
        self,
        hidden: torch.Tensor,
        delta: torch.Tensor | None,
        places: TokenSlots,
        keys: torch.Tensor,
        values: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Run up to the attention: (hidden + delta [B, N, E], rotated query [B, heads, N, D]).

        Writes the tokens' keys and values into the slabs `keys` and `values`.
        """
        hidden, x = add_norm(self.ops, hidden, delta, self.before_attention, self.residual)
        if self.packed is not None:
            projected = self.packed.qkv(x)
        else:
            parts = [part(x) for part in _inward(self.module.self_attn)]
            projected = parts[0] if len(parts) == 1 else torch.cat(parts, -1)
        if self.of_projected is not None:
            projected = self._normed_by_token(projected, *self.of_projected)
        return hidden, self.ops.rotate_scatter(projected, self.norms, places, keys, values)

    def finish(self, hidden: torch.Tensor, attended: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Run from the attention's result [B, N, heads * D] on: (hidden, delta), whose sum the layer returns."""
        module, packed = self.module, self.packed
        multiplied = (module.self_attn.o_proj if packed is None else packed.out)(attended)
        multiplied = self._normed(multiplied, self.after_attention)
        hidden, x = add_norm(self.ops, hidden, multiplied, self.before_mlp, self.residual)
        if packed is None or not packed.fuses_gates(x):
            return hidden, self._normed(module.mlp(x), self.after_mlp)
        gated = self.ops.swiglu if packed.gate == "silu" else self.ops.geglu
        return hidden, self._normed(packed.down(gated(packed.gate_up(x))), self.after_mlp)

    def _normed(self, x: torch.Tensor, norm: RmsNorm | None) -> torch.Tensor:
        return x if norm is None else add_norm(self.ops, x, None, norm)[1]


    def _normed_by_token(self, projected: torch.Tensor, of_query: RmsNorm, of_key: RmsNorm) -> torch.Tensor:
        queries, keys = of_query.weight.numel(), of_key.weight.numel()
        query, key, value = projected.tensor_split((queries, queries + keys), -1)
        parts = ((query.contiguous(), of_query), (key.contiguous(), of_key))
        return torch.cat([*[self._normed(part, norm) for part, norm in parts], value], -1)


def add_norm(
    ops: FusedOps, hidden: torch.Tensor, delta: torch.Tensor | None, norm: RmsNorm | None, delta_scale: float = 1.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """`FusedOps.add_norm` with a norm of the model; (the sum, the sum) without one."""
    if norm is not None:
        return ops.add_norm(hidden, delta, norm.weight, norm.eps, delta_scale)
    total = hidden if delta is None else torch.add(hidden, delta, alpha=delta_scale)
    return total, total


def _inward(attention: Any) -> list[Any]:
    """The modules that make queries, keys and values, in this order."""
    if hasattr(attention, "qkv_proj"):
        return [attention.qkv_proj]
    return [attention.q_proj, attention.k_proj, attention.v_proj]


def _norm_names(layer: Any) -> tuple[str, str, str, str]:
    """Attributes of a layer's norms: before attention, before MLP, after attention, after MLP; empty for none."""
    if hasattr(layer, "pre_feedforward_layernorm"):
        return (
            "input_layernorm", "pre_feedforward_layernorm", "post_attention_layernorm", "post_feedforward_layernorm",
        )  # fmt: skip
    if hasattr(layer, "post_self_attn_layernorm"):  # GLM-4
        return "input_layernorm", "post_attention_layernorm", "post_self_attn_layernorm", "post_mlp_layernorm"
    if not hasattr(layer, "input_layernorm"):
        return "", "", "post_attention_layernorm", "post_feedforward_layernorm"
    return "input_layernorm", "post_attention_layernorm", "", ""


def qk_norms(attention: Any) -> QKNorms | None:
    """Query and key norms of an attention module, as in Qwen3 and Gemma 3; None for other families.

    A scale of the scores other than 1 / sqrt(D) is made part of the query's norm.
    """
    if not hasattr(attention, "q_norm"):
        return None
    query, key = RmsNorm.of(attention.q_norm), RmsNorm.of(attention.k_norm)
    assert query.eps == key.eps, "no family has two"
    scale = attention.scaling * attention.head_dim**0.5
    weight = query.weight if abs(scale - 1) < 1e-6 else query.weight.detach().float() * scale
    return QKNorms(weight, key.weight, query.eps)


def _side_by_side(modules: Sequence[torch.nn.Linear]) -> torch.Tensor:
    """Copy the modules' weights into one matrix and make them views of it; packed ones are left as they are."""
    weights = [module.weight.data for module in modules]
    first, size = weights[0], weights[0].element_size()
    ends = [weight.data_ptr() + weight.numel() * size for weight in weights]
    rows = sum(weight.shape[0] for weight in weights)
    shared = all(weight.untyped_storage().data_ptr() == first.untyped_storage().data_ptr() for weight in weights)
    if shared and all(weight.data_ptr() == end for weight, end in zip(weights[1:], ends[:-1], strict=True)):
        return first.as_strided((rows, first.shape[1]), (first.shape[1], 1))
    packed = torch.cat(weights)
    end = 0
    for module in modules:
        start, end = end, end + module.weight.shape[0]
        module.weight.data = packed[start:end]
    return packed
