"""Scores of chunk tokens from the answering model: attention of the question, deviation of keys and values.

Both are partial passes over a stitched cache; neither changes the stitched slots.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from desk_rag.kv.forward.sparse_attention import AttentionRecorder, QueryRows
from desk_rag.kv.forward.sparse_decoder import SparseDecoder
from desk_rag.kv.forward.sparse_rows import ScatterCache, StopPass, run_rows
from desk_rag.kv.recompute.run import flat_tokens, require_reordered
from desk_rag.kv.stitch import StitchedCache
from desk_rag.model.language_model import LanguageModel


def question_attention(
    model: LanguageModel,
    stitched: StitchedCache,
    question_ids: Sequence[int],
    layers: Sequence[int],
    *,
    fold: Callable[[torch.Tensor], torch.Tensor] = lambda weights: weights,
    decoder: SparseDecoder | None = None,
) -> torch.Tensor:
    """Attention weights fp32 [len(layers), heads, question, chunk tokens] of the question over the chunks.

    `fold` reduces one layer's [heads, question, chunk tokens]; for a long context the weights of all layers would be
    hundreds of megabytes. Costs a pass of the question through the layers up to the highest of `layers`. The question's
    keys are left behind the chunks, where its own pass overwrites them. `decoder`: see `run_rows`.
    """
    plan = stitched.plan
    require_reordered(plan)
    start, count = plan.next_position, len(question_ids)
    rows = QueryRows.of(model, np.arange(start, start + count))
    chunk_slots = slice(plan.prefix_tokens, plan.num_slots)
    recorder = AttentionRecorder(frozenset(layers), count, lambda weights: fold(weights[..., chunk_slots]))
    cache = ScatterCache(stitched.cache, rows)
    stop_layer = max(layers) + 1
    run_rows(model, cache, question_ids, rows, logits=False, recorder=recorder, stop_layer=stop_layer, decoder=decoder)
    return torch.stack([recorder.weights[layer] for layer in layers])


def deviation(
    model: LanguageModel,
    stitched: StitchedCache,
    chunk_token_ids: Sequence[Sequence[int]],
    depth: int = 1,
    *,
    decoder: SparseDecoder | None = None,
) -> torch.Tensor:
    """KV deviation of each chunk token from full prefill at layer `depth`, fp32 [chunk tokens].

    Squared distances; keys and values each in units of their own mean square, so that neither dominates. Costs `depth`
    layers of full prefill and the projections of one more. (CacheBlend, EuroSys 2025, section 4.3: the deviation of the
    first layers predicts that of deeper ones.) `decoder`: see `run_rows`.
    """
    plan = stitched.plan
    require_reordered(plan)
    rows = QueryRows.of(model, np.arange(plan.prefix_tokens, plan.num_slots))
    recording = _RecordingCache(stitched, rows, depth)
    run_rows(model, recording, flat_tokens(plan, chunk_token_ids), rows, logits=False, decoder=decoder)
    assert recording.recomputed is not None
    chunk_slots = slice(plan.prefix_tokens, plan.num_slots)
    slab = stitched.cache.layers[depth]
    total = torch.zeros(plan.num_slots - plan.prefix_tokens, device=model.device)
    for recomputed, stored in zip(recording.recomputed, (slab.key_slab, slab.value_slab), strict=True):
        exact = recomputed[0, :, chunk_slots].float()
        gap = (exact - stored[0, :, chunk_slots].float()).square().sum((0, 2))
        total += gap / exact.square().sum((0, 2)).mean()
    return total


class _RecordingCache(ScatterCache):
    """Scatters into copies of the slabs, and ends the pass once layer `depth` has written its keys."""

    def __init__(self, stitched: StitchedCache, rows: QueryRows, depth: int) -> None:
        super().__init__(stitched.cache, rows)
        self._depth = depth
        self.recomputed: tuple[torch.Tensor, torch.Tensor] | None = None

    def slabs(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        keys, values = (slab.narrow(2, 0, self._rows.total).clone() for slab in super().slabs(layer))
        return keys, values

    def filled(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if layer == self._depth:
            self.recomputed = keys, values
            raise StopPass
        return keys, values
