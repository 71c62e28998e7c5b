"""Fused forward pass of selected tokens (rows) through plain pre-norm decoder layers.

Like `fused_decoder`, with rows at arbitrary slots. A pass over a fifth of a context is so short on a fast GPU that
issuing the thousand launches of transformers' pass would take longer than running them. Forward pre-hooks of the layers
are called, because they wait for chunks that are still being loaded.

In the last layer only the last row is computed beyond its keys and values; the others are not needed.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from desk_rag.kv.forward.families import is_plain
from desk_rag.kv.forward.projections import FusedLayer, Packed, RmsNorm, add_norm, qk_norms
from desk_rag.kv.kernels.flash_decoding import FlashAttend, flash_decoding_for
from desk_rag.kv.kernels.fused_inputs import QKNorms, TokenSlots
from desk_rag.kv.kernels.fused_ops import FusedOps, TorchOps, fused_ops_for
from desk_rag.model.language_model import LanguageModel

_log = logging.getLogger(__name__)


class Slabs(Protocol):
    """Access to a layer's keys and values by slot, all [1, H, slots, D]."""

    def slabs(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Slabs that the rows' new keys and values are written to."""
        ...

    def filled(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values that the rows attend to, after the new ones were written."""
        ...


class RowAttention(Protocol):
    """Attention of a pass's rows; an implementation knows their slots."""

    def record(self, layer: int, query: torch.Tensor, keys: torch.Tensor) -> None:
        """Record attention weights of query [1, heads, R, D], all rows, over keys [1, H, T, D]."""
        ...

    def attend(self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """Attention [1, N, heads * D] of the last N rows, which are all of them or one."""
        ...


@dataclass(frozen=True, slots=True)
class SparseDecoder:
    """A model prepared for sparse passes; create it once and keep it with the model."""

    model: LanguageModel
    layers: tuple[FusedLayer, ...]
    ops: FusedOps
    split: FlashAttend | None = None
    """Flash-decoding kernel for few rows at a context's end; None where it cannot be used."""

    @classmethod
    def of(cls, model: LanguageModel, *, pack: bool | None = None, ops: FusedOps | None = None) -> SparseDecoder | None:
        """Prepare a model; None if it needs its own pass (sliding windows, soft caps, partial rotary heads).

        `pack` moves the model's projections side by side (see `Packed`), by default on a GPU only: a CPU gains nothing,
        and memory-mapped weights would have to be copied. Layers for which memory is short are left unpacked. `ops` is
        by default the fastest implementation that was proven on the model's device.
        """
        if not is_plain(model) or not _rotates_whole_heads(model):
            return None
        packs = model.device.type == "cuda" if pack is None else pack
        modules: Any = model.decoder_layers
        ops = _fitting(model, qk_norms(modules[0].self_attn)) if ops is None else ops
        layers = tuple(FusedLayer.of(module, _packed(module) if packs else None, ops) for module in modules)
        spec = model.spec
        split = flash_decoding_for(model.device, spec.dtype, spec.num_heads, spec.num_kv_heads, spec.head_dim)
        return cls(model, layers, ops, split)

    def run(
        self,
        ids: torch.Tensor,
        slots: torch.Tensor,
        slabs: Slabs,
        attention: RowAttention,
        *,
        logits: bool,
        stop_layer: int | None,
    ) -> torch.Tensor | None:
        """Run ids int64 [R] at ascending slots int64 [R]; the last one is the last slot of the context.

        Returns logits [vocab] of the last row, or None. The pass ends before layer `stop_layer`. Without `logits` the
        last layer only writes its keys and values and records attention.
        """
        decoder = self.model.module.model
        layers = self.layers[:stop_layer]
        hidden, delta = decoder.embed_tokens(ids[None]), None
        places = _places(decoder, hidden, slots)
        for index, layer in enumerate(layers):
            _call_pre_hooks(layer.module)
            keys, values = slabs.slabs(index)
            hidden, query = layer.query(hidden, delta, places, keys, values)
            keys, values = slabs.filled(index, keys, values)
            attention.record(index, query, keys)
            if index == len(layers) - 1:
                if not logits:
                    return None
                query, hidden = query[:, :, -1:], hidden[:, -1:]
            hidden, delta = layer.finish(hidden, attention.attend(query, keys, values))
        _, x = add_norm(self.ops, hidden, delta, RmsNorm.of(decoder.norm))
        logits_of_last: torch.Tensor = self.model.module.lm_head(x)[0, -1]
        return logits_of_last


def _call_pre_hooks(layer: torch.nn.Module) -> None:
    """Call a layer's forward pre-hooks, which wait for its chunks. They get no inputs and must change none."""
    for hook in tuple(layer._forward_pre_hooks.values()):
        assert hook(layer, ()) is None, "a hook that changes a layer's inputs"


def _places(decoder: Any, hidden: torch.Tensor, slots: torch.Tensor) -> TokenSlots:
    """Slots and rotation tables, from the model's own rotary module; slot and position are equal."""
    cos, sin = (table[0] for table in decoder.rotary_emb(hidden, slots[None]))
    half = sin.shape[-1] // 2
    return TokenSlots(slots, cos, torch.cat((-sin[:, :half], sin[:, half:]), -1))


def _rotates_whole_heads(model: LanguageModel) -> bool:
    return 2 * int(model.module.model.rotary_emb.inv_freq.shape[-1]) == model.spec.head_dim


def _packed(layer: Any) -> Packed | None:
    try:
        return Packed.of(layer)
    except torch.OutOfMemoryError as error:
        _log.warning("Not enough memory to pack a layer's projections; passes will be slower: %s", error)
        return None


def _fitting(model: LanguageModel, norms: QKNorms | None) -> FusedOps:
    """The fused kernels if they compile for this model's shapes (tried here), else the torch reference."""
    ops = fused_ops_for(model.device, model.spec.dtype)
    if isinstance(ops, TorchOps):
        return ops
    spec, norm = model.spec, model.module.model.norm
    try:
        with torch.inference_mode():
            hidden = norm.weight.new_zeros((1, 2, norm.weight.shape[0]))
            ops.add_norm(hidden, hidden, norm.weight, norm.variance_epsilon)
            table = norm.weight.new_zeros((2, spec.head_dim))
            places = TokenSlots(torch.arange(2, device=model.device), table, table)
            projected = table.new_zeros((1, 2, (spec.num_heads + 2 * spec.num_kv_heads) * spec.head_dim))
            slab = table.new_zeros((1, spec.num_kv_heads, 2, spec.head_dim))
            ops.rotate_scatter(projected, norms, places, slab, slab.clone())
            ops.swiglu(table.new_zeros((1, 2, 2 * int(model.module.config.intermediate_size))))
    except Exception as error:  # a kernel that does not fit this GPU raises a type of Triton's own
        _log.warning("The fused kernels cannot be used for this model on this GPU (%s); torch is used.", error)
        return TorchOps()
    return ops
