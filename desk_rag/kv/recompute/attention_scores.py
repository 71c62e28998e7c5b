"""Score chunk tokens by the question's attention, in a partial pass over a stitched cache that it leaves as it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from desk_rag.kv.forward.sparse_attention import AttentionRecorder, QueryRows
from desk_rag.kv.forward.sparse_decoder import SparseDecoder
from desk_rag.kv.forward.sparse_rows import ScatterCache, run_rows
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
    start, count = plan.next_position, len(question_ids)
    rows = QueryRows.of(model, np.arange(start, start + count))
    chunk_slots = slice(plan.prefix_tokens, plan.num_slots)
    recorder = AttentionRecorder(frozenset(layers), count, lambda weights: fold(weights[..., chunk_slots]))
    cache = ScatterCache(stitched.cache, rows)
    stop_layer = max(layers) + 1
    run_rows(model, cache, question_ids, rows, logits=False, recorder=recorder, stop_layer=stop_layer, decoder=decoder)
    return torch.stack([recorder.weights[layer] for layer in layers])
