"""Forward pass of selected tokens (rows) over a cache that holds the rest of the context.

Each layer writes the new keys and values of all rows into the cache before it attends, so a row at position p sees
slots 0..p: recomputed where they belong to this pass, stored otherwise. Slot and position are the same number here.

Plain decoder families run through `forward.sparse_decoder`; others through transformers' own layers, with our cache and
attention.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from desk_rag.kv.cache import SlabCache
from desk_rag.kv.forward import sparse_attention
from desk_rag.kv.forward.sparse_attention import AttentionRecorder, Numbers, QueryRows
from desk_rag.kv.forward.sparse_decoder import SparseDecoder
from desk_rag.kv.kernels.flash_decoding import FlashAttend
from desk_rag.kv.kernels.upload import upload
from desk_rag.model.language_model import LanguageModel

NAME = "desk_rag_rows"


class StopPass(Exception):
    """Raised to end a pass early; caught by `run_rows`."""


class ScatterCache:
    """View of a cache that scatters new keys and values to the slots of selected rows.

    Passed to transformers as its cache; `SparseDecoder` writes into the slabs itself.
    """

    def __init__(self, cache: SlabCache, rows: QueryRows) -> None:
        assert rows.total <= cache.capacity, "slab too small: the engine plans its capacity"
        self._layers, self._rows = cache.layers, rows

    def slabs(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The layer's key and value slabs, [1, H, slots, D] each."""
        slab = self._layers[layer]
        return slab.key_slab, slab.value_slab

    def filled(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The slots in use of `slabs(layer)` after the rows were written, [1, H, total, D]."""
        return keys.narrow(2, 0, self._rows.total), values.narrow(2, 0, self._rows.total)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """The first row's slot, from which some models (Llama 4) count positions."""
        return int(self._rows.numbers[0])

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Scatter [1, H, R, D] into the slabs and return the slots in use, [1, H, total, D]."""
        keys, values = self.slabs(layer_idx)
        keys.index_copy_(2, self._rows.slots, key_states)
        values.index_copy_(2, self._rows.slots, value_states)
        return self.filled(layer_idx, keys, values)


def run_rows(
    model: LanguageModel,
    cache: ScatterCache,
    token_ids: Numbers,
    rows: QueryRows,
    *,
    logits: bool = True,
    recorder: AttentionRecorder | None = None,
    stop_layer: int | None = None,
    decoder: SparseDecoder | None = None,
) -> torch.Tensor | None:
    """Run `token_ids` [R] as `rows`; returns logits [vocab] of the last row, or None without `logits`.

    The pass ends before layer `stop_layer`, which is then not waited for either. Without `logits` the last layer
    computes only what `recorder` needs. `decoder` is the prepared model; without it one is prepared in every call,
    which takes about a millisecond on a GPU.
    """
    assert len(token_ids) == rows.slots.shape[0], "as many rows as tokens"
    assert stop_layer is None or not logits, "logits need the last layer"
    assert decoder is None or decoder.model is model, "prepared from another model"
    ids = upload(np.asarray(token_ids, np.int64), model.device)
    decoder = SparseDecoder.of(model) if decoder is None else decoder
    with torch.inference_mode():
        try:
            if decoder is not None:
                attention = _RowAttention(rows, recorder, decoder.split)
                return decoder.run(ids, rows.slots, cache, attention, logits=logits, stop_layer=stop_layer)
            return _run_by_modules(model, cache, ids, rows, logits=logits, recorder=recorder, stop_layer=stop_layer)
        except StopPass:
            return None


@dataclass(frozen=True, slots=True)
class _RowAttention:
    """Attention of one pass's rows; implements `forward.sparse_decoder.RowAttention`."""

    rows: QueryRows
    recorder: AttentionRecorder | None
    split: FlashAttend | None

    def record(self, layer: int, query: torch.Tensor, keys: torch.Tensor) -> None:
        sparse_attention.record(self.rows, self.recorder, layer, query, keys, query.shape[3] ** -0.5)

    def attend(self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        return sparse_attention.attend_last(self.rows, query, keys, values, self.split)


def _run_by_modules(
    model: LanguageModel, cache: ScatterCache, ids: torch.Tensor, rows: QueryRows, *, logits: bool,
    recorder: AttentionRecorder | None, stop_layer: int | None,
) -> torch.Tensor | None:  # fmt: skip
    """Run the rows through transformers' own layers, with our cache and attention."""
    # transformers passes a 4-D mask through unchanged; ours holds positions, which `_attend` ignores.
    marker: Any = rows.slots[None, None, :, None]
    kinds = set(getattr(model.module.config, "layer_types", None) or ())
    if kinds - {"full_attention"}:
        marker = dict.fromkeys(("full_attention", *kinds), marker)
    options: dict[str, Any] = {
        "attention_mask": marker, "position_ids": rows.slots[None], "past_key_values": cache, "use_cache": True,
    }  # fmt: skip
    with _attending_by_rows(model, rows, recorder), _stopping_before(model, stop_layer):
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
    rows: QueryRows,
    recorder: AttentionRecorder | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Attention function for transformers: query [1, heads, R, D], key/value [1, H, total, D] -> [1, R, heads, D].

    `s_aux` [heads] are learned sinks: a score per head that takes weight and gives no value.
    """
    scale = query.shape[3] ** -0.5 if scaling is None else scaling
    layer = int(getattr(module, "layer_idx", -1))
    sparse_attention.record(rows, recorder, layer, query, key, scale, sliding_window, softcap, s_aux)
    return sparse_attention.attend(rows, query, key, value, scale, sliding_window, softcap, s_aux), None


@contextmanager
def _attending_by_rows(model: LanguageModel, rows: QueryRows, recorder: AttentionRecorder | None) -> Iterator[None]:
    """While open, the model's layers attend by `_attend`. One caller at a time.

    Rows and recorder are bound here, because layers of some families (StableLM, Nemotron) pass no keywords on.
    """
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, partial(_attend, rows=rows, recorder=recorder))
    config = model.module.config
    before = config._attn_implementation
    config._attn_implementation = NAME
    try:
        yield
    finally:
        config._attn_implementation = before


@contextmanager
def _stopping_before(model: LanguageModel, layer: int | None) -> Iterator[None]:
    if layer is None or layer >= model.spec.num_layers:
        yield
        return

    def end(_module: torch.nn.Module, _inputs: Any) -> None:
        raise StopPass

    with ExitStack() as stack:
        # Prepended so that it runs before hooks that wait for the layer's chunks.
        stack.callback(model.decoder_layers[layer].register_forward_pre_hook(end, prepend=True).remove)
        yield
