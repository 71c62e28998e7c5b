"""BERT in bfloat16 on a CPU that multiplies such numbers: autocast's results in two thirds of its time.

Matrices are rounded and packed once instead of before every product, and those of one input are multiplied side by
side. Every operation rounds where autocast does, so that states are equal bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, layer_norm, linear, scaled_dot_product_attention

from desk_rag.model.embedded.bert import Bert

_ROWS = 256
"""Rows that packed matrices are laid out for; others are multiplied rightly too."""

_Product = Callable[[Tensor], Tensor]


class Bf16Bert(nn.Module):
    """Stands where a `Bert` stood and shares its embeddings and norms. For inference only."""

    def __init__(self, bert: Bert) -> None:
        super().__init__()
        self.config, self.embeddings = bert.config, bert.embeddings
        self._layers = [_Layer(layer, bert.config.layer_norm_eps) for layer in bert.encoder["layer"].children()]

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        return torch.device("cpu")

    def forward(
        self, input_ids: Tensor, token_type_ids: Tensor, attention_mask: Tensor | None = None
    ) -> SimpleNamespace:
        """As `Bert.forward`."""
        x = self.embeddings(input_ids, token_type_ids)
        mask = None if attention_mask is None else _additive(attention_mask)
        for layer in self._layers:
            x = layer(x, self.config.num_attention_heads, mask)
        return SimpleNamespace(last_hidden_state=x)


class _Layer:
    def __init__(self, layer: Any, eps: float) -> None:
        own, output = layer.attention["self"], layer.attention["output"]
        self._inward = _packed(own.query, own.key, own.value)
        self._outward = _packed(output.dense)
        self._widen, self._narrow = _packed(layer.intermediate["dense"]), _packed(layer.output.dense)
        self._norms, self._eps = (output.LayerNorm, layer.output.LayerNorm), eps

    def __call__(self, x: Tensor, heads: int, mask: Tensor | None) -> Tensor:
        x = self._norm(0, self._outward(self._attended(x, heads, mask)) + x)
        return self._norm(1, self._narrow(gelu(self._widen(x.bfloat16()))) + x)

    def _attended(self, x: Tensor, heads: int, mask: Tensor | None) -> Tensor:
        parts = self._inward(x.bfloat16()).view(*x.shape[:2], 3, heads, -1)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        return scaled_dot_product_attention(query, key, value, attn_mask=mask).transpose(1, 2).reshape(x.shape)

    def _norm(self, number: int, x: Tensor) -> Tensor:
        norm = self._norms[number]
        return layer_norm(x, (x.shape[-1],), norm.weight, norm.bias, self._eps)


def _additive(known: Tensor) -> Tensor | None:
    """Mask [B, 1, N, N] to be added to scores, of [B, N] that is 0 where a row is filled up; None if no row is."""
    if bool(known.all()):
        return None
    mask = torch.zeros(known.shape, dtype=torch.bfloat16).masked_fill_(known == 0, -torch.inf)
    return mask[:, None, None, :].expand(-1, -1, known.shape[1], -1)


def _packed(*linears: nn.Linear) -> _Product:
    """Product with the matrices side by side: bf16 [..., in] -> bf16 [..., sum of out]."""
    weight = torch.cat([one.weight.detach() for one in linears]).bfloat16()
    bias = torch.cat([one.bias.detach() for one in linears]).bfloat16()
    try:
        packed = torch.ops.mkldnn._reorder_linear_weight(weight, _ROWS)
    except (AttributeError, RuntimeError):  # a torch without oneDNN
        return lambda rows: linear(rows, weight, bias)
    multiply = torch.ops.mkldnn._linear_pointwise.default

    def product(rows: Tensor) -> Tensor:
        result: Tensor = multiply(rows, packed, bias, "none", [], "")
        return result

    return product
