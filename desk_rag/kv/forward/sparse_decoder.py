"""Scattered rows through plain pre-norm decoder layers in as few launches as the question's pass takes.

Knows the layers of plain families, their own weights and what lies between the matrix products; knows no reason why
these rows were chosen and no mask. A pass over a fifth of a context is so short on a fast GPU that a processor which
issues a thousand launches takes longer than the GPU takes to run them. The layers are walked here instead of called,
but whoever waits in front of one for its chunks is still asked, and a layer that nobody reads is not begun.

In the last layer only the last row goes on behind its keys: nobody reads what the others would become.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch.nn.functional import linear

from desk_rag.kv.forward.fused_decoder import supports
from desk_rag.kv.forward.projections import Packed, head_norms
from desk_rag.kv.kernels.flash_decoding import SplitAttend, split_attention_for
from desk_rag.kv.kernels.fused_inputs import HeadNorms, Places
from desk_rag.kv.kernels.fused_ops import Glue, PlainGlue, glue_for
from desk_rag.model.language_model import LanguageModel

_log = logging.getLogger(__name__)


class Slabs(Protocol):
    """Where a layer's keys and values are, slot by slot; all [1, H, slots, D]."""

    def slabs(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """What new keys and values of rows are scattered over."""
        ...

    def filled(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """What rows may read of `slabs(layer)`, now that the new ones lie there."""
        ...


class Over(Protocol):
    """What rows do with keys and values; their number and places are known to whoever made it."""

    def look(self, layer: int, query: torch.Tensor, keys: torch.Tensor) -> None:
        """Take note of what query [1, heads, R, D], all rows, sees in keys [1, H, T, D]."""
        ...

    def attend(self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """Attention [1, N, heads * D] of the last N rows, which are all of them or one."""
        ...


@dataclass(frozen=True, slots=True)
class LeanRows:
    """A model as these passes want it: worked out once, kept by whoever keeps the model."""

    model: LanguageModel
    packed: tuple[Packed | None, ...]
    norms: tuple[HeadNorms | None, ...]
    glue: Glue
    split: SplitAttend | None = None
    """For few rows at a context's end, where its kernels are right: torch's operator leaves a GPU idle there."""

    @classmethod
    def of(cls, model: LanguageModel, *, pack: bool | None = None, glue: Glue | None = None) -> LeanRows | None:
        """None for a model that has to run its own way: windows, soft caps, heads that are rotated in part.

        `pack` moves the model's projections side by side (see `Packed`), by default on a GPU only: a CPU gains nothing
        by it, and weights that are still a file's pages would become memory. Where there is no room to move a layer's,
        they stay. `glue` is by default the fastest that fits the model and is right on its device.
        """
        if not supports(model) or not _rotates_whole_heads(model):
            return None
        wanted = model.device.type == "cuda" if pack is None else pack
        packed = tuple(_packed(layer) if wanted else None for layer in model.decoder_layers)
        norms = tuple(head_norms(layer.self_attn) for layer in model.decoder_layers)
        spec = model.spec
        split = split_attention_for(model.device, spec.dtype, spec.num_heads, spec.num_kv_heads, spec.head_dim)
        return cls(model, packed, norms, _fitting(model, norms[0]) if glue is None else glue, split)

    def run(
        self, ids: torch.Tensor, slots: torch.Tensor, slabs: Slabs, over: Over, *, logits: bool, until: int | None
    ) -> torch.Tensor | None:
        """Run ids int64 [R] at ascending slots int64 [R], the last of which is the context's last.

        Returns logits [vocab] of the last row, or None. `until` ends the pass before that layer. Where nothing is to
        come out, the last layer ends with its keys and what `over` sees in them.
        """
        decoder = self.model.module.model
        layers = self.model.decoder_layers[:until]
        hidden, delta = decoder.embed_tokens(ids[None]), None
        places = _places(decoder, hidden, slots)
        layer: Any
        for index, layer in enumerate(layers):
            _arrive(layer)
            hidden, x = self._add_norm(hidden, delta, layer.input_layernorm)
            keys, values = slabs.slabs(index)
            projected = self._projected(index, layer.self_attn, x)
            query = self.glue.rotate_scatter(projected, self.norms[index], places, keys, values)
            keys, values = slabs.filled(index, keys, values)
            over.look(index, query, keys)
            if index == len(layers) - 1:
                if not logits:
                    return None
                query, hidden = query[:, :, -1:], hidden[:, -1:]
            attended = layer.self_attn.o_proj(over.attend(query, keys, values))
            hidden, x = self._add_norm(hidden, attended, layer.post_attention_layernorm)
            delta = self._widened(index, layer.mlp, x)
        _, x = self._add_norm(hidden, delta, decoder.norm)
        told: torch.Tensor = self.model.module.lm_head(x)[0, -1]
        return told

    def _add_norm(
        self, hidden: torch.Tensor, delta: torch.Tensor | None, norm: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return self.glue.add_norm(hidden, delta, norm.weight, norm.variance_epsilon)

    def _projected(self, index: int, attention: Any, x: torch.Tensor) -> torch.Tensor:
        """Queries, keys and values side by side, [1, R, (heads + 2 H) * D]."""
        packed = self.packed[index]
        if packed is not None:
            return linear(x, packed.qkv, packed.qkv_bias)
        return torch.cat([part(x) for part in (attention.q_proj, attention.k_proj, attention.v_proj)], -1)

    def _widened(self, index: int, mlp: Any, x: torch.Tensor) -> torch.Tensor:
        """The layer's MLP."""
        packed = self.packed[index]
        if packed is None or not packed.silu:
            out: torch.Tensor = mlp(x)
        else:
            out = mlp.down_proj(self.glue.swiglu(linear(x, packed.gate_up)))
        return out


def _arrive(layer: torch.nn.Module) -> None:
    """Ask whoever waits in front of a layer: its forward pre-hooks. They see no inputs and may change none."""
    for hook in tuple(layer._forward_pre_hooks.values()):
        assert hook(layer, ()) is None, "a hook that changes a layer's inputs"


def _places(decoder: Any, hidden: torch.Tensor, slots: torch.Tensor) -> Places:
    """Slot and position are one number; the tables are the model's own, of every kind of scaling."""
    cos, sin = (table[0] for table in decoder.rotary_emb(hidden, slots[None]))
    half = sin.shape[-1] // 2
    return Places(slots, cos, torch.cat((-sin[:, :half], sin[:, half:]), -1))


def _rotates_whole_heads(model: LanguageModel) -> bool:
    return 2 * int(model.module.model.rotary_emb.inv_freq.shape[-1]) == model.spec.head_dim


def _packed(layer: Any) -> Packed | None:
    try:
        return Packed.of(layer)
    except torch.OutOfMemoryError as error:
        _log.warning("no room to move a layer's projections side by side, which would be faster: %s", error)
        return None


def _fitting(model: LanguageModel, norms: HeadNorms | None) -> Glue:
    """The kernels if they can be compiled for this model's shapes, which its first pass would do; or the reference."""
    glue = glue_for(model.device, model.spec.dtype)
    if isinstance(glue, PlainGlue):
        return glue
    spec, norm = model.spec, model.module.model.norm
    try:
        with torch.inference_mode():
            hidden = norm.weight.new_zeros((1, 2, norm.weight.shape[0]))
            glue.add_norm(hidden, hidden, norm.weight, norm.variance_epsilon)
            table = norm.weight.new_zeros((2, spec.head_dim))
            places = Places(torch.arange(2, device=model.device), table, table)
            projected = table.new_zeros((1, 2, (spec.num_heads + 2 * spec.num_kv_heads) * spec.head_dim))
            slab = table.new_zeros((1, spec.num_kv_heads, 2, spec.head_dim))
            glue.rotate_scatter(projected, norms, places, slab, slab.clone())
            glue.swiglu(table.new_zeros((1, 2, 2 * int(model.module.config.intermediate_size))))
    except Exception as error:  # a kernel that does not fit this GPU raises a type of Triton's own
        _log.warning("The kernels between matrix products do not fit this model here (%s); torch is used.", error)
        return PlainGlue()
    return glue
