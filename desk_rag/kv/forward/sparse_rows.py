"""Some rows of a context through the model over a slab that holds the rest: scattered keys, exact causal visibility.

Knows the model's attention interface, slots and positions; knows no question and no reason why these rows were chosen.
A row at position p sees every slot at positions 0..p, as the layer before it left them or, for rows of the same pass,
as this layer has just computed them: new keys and values are scattered over the slab before a layer's attention.
Slot and position are the same number here, so a key's place in the slab says where it stands.

Plain families take the lean way of `forward.sparse_decoder`; the others run as transformers has them, with our cache
and attention.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers import AttentionInterface

from desk_rag.kv.cache import SlabCache
from desk_rag.kv.forward import sparse_attention
from desk_rag.kv.forward.sparse_attention import Numbers, Probe, Rows
from desk_rag.kv.forward.sparse_decoder import LeanRows
from desk_rag.kv.kernels.flash_decoding import SplitAttend
from desk_rag.kv.kernels.upload import upload
from desk_rag.model.language_model import LanguageModel

NAME = "desk_rag_rows"


class Enough(Exception):
    """Ends a pass early, on purpose; never leaves this module's callers."""


class ScatterCache:
    """A slab for scattered rows: takes a layer's new keys and values where they belong, hands out all of them in order.

    Stands where transformers expects a cache; the lean way writes into the slabs itself.
    """

    def __init__(self, cache: SlabCache, rows: Rows) -> None:
        assert rows.total <= cache.capacity, "slab too small: the engine plans its capacity"
        self._layers, self._rows = cache.layers, rows

    def slabs(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Where new keys and values go, [1, H, slots, D] each."""
        slab = self._layers[layer]
        return slab.key_slab, slab.value_slab

    def filled(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """What is in use of `slabs(layer)` once they lie there, [1, H, total, D]."""
        return keys.narrow(2, 0, self._rows.total), values.narrow(2, 0, self._rows.total)

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Scatter [1, H, R, D] over the slab and return the slots in use, [1, H, total, D]."""
        keys, values = self.slabs(layer_idx)
        keys.index_copy_(2, self._rows.slots, key_states)
        values.index_copy_(2, self._rows.slots, value_states)
        return self.filled(layer_idx, keys, values)


def run_rows(
    model: LanguageModel,
    cache: ScatterCache,
    token_ids: Numbers,
    rows: Rows,
    *,
    logits: bool = True,
    probe: Probe | None = None,
    until: int | None = None,
    lean: LeanRows | None = None,
) -> torch.Tensor | None:
    """One layer-wise pass of `token_ids` [R] as `rows`; logits [vocab] of the last row, or None.

    `until` ends the pass before that layer, which is then not even loaded where loading goes by layers. Without logits
    the last layer's rows are not computed any further than somebody looks. `lean` is what was worked out of the model
    before; it is worked out here otherwise, and every time, which takes about a millisecond on a GPU.
    """
    assert len(token_ids) == rows.slots.shape[0], "as many rows as tokens"
    assert until is None or not logits, "logits come behind the last layer"
    assert lean is None or lean.model is model, "worked out of another model"
    ids = upload(np.asarray(token_ids, np.int64), model.device)
    lean = LeanRows.of(model) if lean is None else lean
    with torch.inference_mode():
        try:
            if lean is not None:
                return lean.run(ids, rows.slots, cache, _Over(rows, probe, lean.split), logits=logits, until=until)
            return _by_modules(model, cache, ids, rows, logits=logits, probe=probe, until=until)
        except Enough:
            return None


@dataclass(frozen=True, slots=True)
class _Over:
    """See `forward.sparse_decoder.Over`."""

    rows: Rows
    probe: Probe | None
    split: SplitAttend | None

    def look(self, layer: int, query: torch.Tensor, keys: torch.Tensor) -> None:
        sparse_attention.look(self.rows, self.probe, layer, query, keys, query.shape[3] ** -0.5)

    def attend(self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        return sparse_attention.attend_last(self.rows, query, keys, values, self.split)


def _by_modules(
    model: LanguageModel, cache: ScatterCache, ids: torch.Tensor, rows: Rows, *, logits: bool, probe: Probe | None,
    until: int | None,
) -> torch.Tensor | None:  # fmt: skip
    """The pass as transformers has it, with our cache and our attention."""
    # A mask of four dimensions is handed through as it is; that it holds positions only `_attend` has to know.
    marker: Any = rows.slots[None, None, :, None]
    kinds = set(getattr(model.module.config, "layer_types", None) or ())
    if "sliding_attention" in kinds:
        marker = dict.fromkeys(("full_attention", "sliding_attention"), marker)
    options: dict[str, Any] = {
        "attention_mask": marker, "position_ids": rows.slots[None], "past_key_values": cache, "use_cache": True,
        "rows": rows, "probe": probe,
    }  # fmt: skip
    with _attending(model), _ending_before(model, until):
        if not logits:
            model.module.model(ids[None], **options)
            return None
        output: torch.Tensor = model.module(ids[None], logits_to_keep=1, **options).logits[0, -1]
        return output


def _attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    *,
    rows: Rows,
    probe: Probe | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """query [1, heads, R, D], key/value [1, kv_heads, total, D] -> [1, R, heads, D]."""
    scale = query.shape[3] ** -0.5 if scaling is None else scaling
    layer = int(getattr(module, "layer_idx", -1))
    sparse_attention.look(rows, probe, layer, query, key, scale, sliding_window, softcap)
    return sparse_attention.attend(rows, query, key, value, scale, sliding_window, softcap), None


@contextmanager
def _attending(model: LanguageModel) -> Iterator[None]:
    """While open, the model's layers attend by rows. One caller at a time, as for every use of a model."""
    AttentionInterface.register(NAME, _attend)
    config = model.module.config
    before = config._attn_implementation
    config._attn_implementation = NAME
    try:
        yield
    finally:
        config._attn_implementation = before


@contextmanager
def _ending_before(model: LanguageModel, layer: int | None) -> Iterator[None]:
    if layer is None or layer >= model.spec.num_layers:
        yield
        return

    def end(_module: torch.nn.Module, _inputs: Any) -> None:
        raise Enough

    with ExitStack() as stack:
        # First of the layer's hooks: one that waits for the layer's keys must not be asked.
        stack.callback(model.decoder_layers[layer].register_forward_pre_hook(end, prepend=True).remove)
        yield
