"""What a pass of chosen rows takes on this machine, measured with passes nobody needs.

Knows clocks and the row pass; decides nothing. A few short passes over a cache are enough for the three numbers of
`recompute.policy.Costs`; whoever answers questions may go on adding the passes that are made anyway.
"""

from __future__ import annotations

import time

import torch

from desk_rag.kv.cache import SlabCache
from desk_rag.kv.forward.sparse_attention import Rows
from desk_rag.kv.forward.sparse_decoder import LeanRows
from desk_rag.kv.forward.sparse_rows import ScatterCache, run_rows
from desk_rag.kv.recompute.policy import Costs, Timed
from desk_rag.model.language_model import LanguageModel

_MOST_ROWS = 256


def measure(model: LanguageModel, cache: SlabCache, *, repeat: int = 2, lean: LeanRows | None = None) -> Costs:
    """Time row passes over `cache`, whose contents are lost; the best of `repeat` counts, the first is not reported.

    Takes about 700 rows' worth of prefill per repetition. The cache needs room for 32 tokens. `lean`: see `run_rows`.
    """
    assert cache.capacity >= 32, "a cache for a question at least"
    for layer in cache.layers:
        # Whatever lay there might be NaN, which some processors compute more slowly.
        layer.key_slab.zero_()
        layer.value_slab.zero_()
    most = min(_MOST_ROWS, cache.capacity // 2)
    sizes = [(16, most), (16, cache.capacity), (most, most), (most, cache.capacity)]
    timings = []
    timed(model, cache, *sizes[0], lean=lean)
    for rows, keys in sizes:
        seconds = min(timed(model, cache, rows, keys, lean=lean) for _ in range(repeat))
        timings.append(Timed(rows, keys, seconds))
    cache.set_length(0)
    return Costs.fit(timings)


def timed(model: LanguageModel, cache: SlabCache, rows: int, keys: int, *, lean: LeanRows | None = None) -> float:
    """Seconds of one pass of `rows` evenly spread over `keys` slots, the last slot among them."""
    slots = [keys - 1 - (rows - 1 - index) * keys // rows for index in range(rows)]
    began = time.perf_counter()
    where = Rows.of(model, slots)
    logits = run_rows(model, ScatterCache(cache, where), [0] * rows, where, lean=lean)
    assert logits is not None
    logits.argmax().item()  # waits for the device
    if model.device.type == "cuda":
        torch.cuda.synchronize(model.device)
    return time.perf_counter() - began
