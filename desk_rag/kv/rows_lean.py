"""Plain pre-norm decoder layers in about half the launches that transformers takes; used for passes of scattered rows.

Knows the layers of four families and their own weights; knows no slots. A pass over a fifth of a context is so short on
a fast GPU that the processor which issues its launches takes longer than the GPU, so norms are one launch each and the
rotation three. The modules stay in place and only what they run is exchanged, so that whoever waits in front of a
layer for its chunks still does.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Protocol

import torch
from torch.nn.functional import rms_norm

from desk_rag.kv.stitch import has_sliding_layers
from desk_rag.model import LanguageModel

_PLAIN = frozenset({"llama", "mistral", "qwen2", "qwen3"})


class Attend(Protocol):
    """Attention of one layer: query [1, heads, R, D], keys and values [1, H, T, D] -> [1, R, heads, D]."""

    def __call__(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float
    ) -> torch.Tensor: ...


@contextmanager
def lean_layers(model: LanguageModel, attend: Attend) -> Iterator[bool]:
    """While open, the model's layers run lean and attend by `attend`; yields False, and does nothing, for others."""
    if model.spec.support.model_type not in _PLAIN or has_sliding_layers(model):
        yield False
        return
    with ExitStack() as stack:
        for index, layer in enumerate(model.decoder_layers):
            assert "forward" not in vars(layer), "somebody else has exchanged this layer"
            # An attribute of the instance hides the class's method until it is deleted again.
            layer.forward = partial(_forward, layer, index, attend)
            stack.callback(delattr, layer, "forward")
        yield True


def _forward(
    layer: Any,
    index: int,
    attend: Attend,
    hidden: torch.Tensor,
    *,
    position_embeddings: tuple[torch.Tensor, torch.Tensor],
    past_key_values: Any,
    **_: Any,
) -> torch.Tensor:
    """hidden [1, R, E] -> [1, R, E]; what the layer's own `forward` computes, up to rounding."""
    attention = layer.self_attn
    x = _normed(hidden, layer.input_layernorm)
    shape = (*x.shape[:2], -1, attention.head_dim)
    query, key, value = (part(x).view(shape) for part in (attention.q_proj, attention.k_proj, attention.v_proj))
    if hasattr(attention, "q_norm"):
        query, key = _normed(query, attention.q_norm), _normed(key, attention.k_norm)
    cos, sin = position_embeddings
    half = sin.shape[-1] // 2
    signed = torch.cat((-sin[..., :half], sin[..., half:]), -1)[:, :, None]
    query, key = (_turned(t, cos[:, :, None], signed).transpose(1, 2) for t in (query, key))
    keys, values = past_key_values.update(key, value.transpose(1, 2), index)
    attended = attend(index, query, keys, values, attention.scaling)
    hidden = hidden + attention.o_proj(attended.reshape(*x.shape[:2], -1))
    return hidden + layer.mlp(_normed(hidden, layer.post_attention_layernorm))  # type: ignore[no-any-return]


def _normed(x: torch.Tensor, norm: Any) -> torch.Tensor:
    return rms_norm(x, norm.weight.shape, norm.weight, norm.variance_epsilon)


def _turned(x: torch.Tensor, cos: torch.Tensor, signed: torch.Tensor) -> torch.Tensor:
    """x [1, R, heads, D]; halves change places by rolling, and the first half's minus is in the table."""
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, -1), signed)
