"""Measure what a sparse pass takes on this machine, for `recompute.policy.PassCosts`."""

from __future__ import annotations

import time

import torch

from desk_rag.kv.cache import SlabCache
from desk_rag.kv.forward.sparse_attention import QueryRows
from desk_rag.kv.forward.sparse_decoder import SparseDecoder
from desk_rag.kv.forward.sparse_rows import ScatterCache, run_rows
from desk_rag.kv.recompute.policy import PassCosts, PassTiming
from desk_rag.model.language_model import LanguageModel

_MAX_ROWS = 256


def measure(
    model: LanguageModel, cache: SlabCache, *, repeat: int = 2, decoder: SparseDecoder | None = None
) -> PassCosts:
    """Time sparse passes over `cache`, whose contents are lost; the best of `repeat` counts after a warm-up.

    Takes as long as prefilling about 700 tokens per repetition. The cache needs capacity for 32 tokens. `decoder`: see
    `run_rows`.
    """
    assert cache.capacity >= 32, "a cache for a question at least"
    for layer in cache.layers:
        # The slots may hold NaN, which some processors compute more slowly.
        layer.key_slab.zero_()
        layer.value_slab.zero_()
    many = min(_MAX_ROWS, cache.capacity // 2)
    sizes = [(16, many), (16, cache.capacity), (many, many), (many, cache.capacity)]
    timings = []
    timed(model, cache, *sizes[0], decoder=decoder)
    for rows, keys in sizes:
        seconds = min(timed(model, cache, rows, keys, decoder=decoder) for _ in range(repeat))
        timings.append(PassTiming(rows, keys, seconds))
    cache.set_length(0)
    return PassCosts.fit(timings)


def timed(
    model: LanguageModel, cache: SlabCache, num_rows: int, keys: int, *, decoder: SparseDecoder | None = None
) -> float:
    """Seconds of one pass of `num_rows` tokens spread evenly over `keys` slots, the last slot included."""
    slots = [keys - 1 - (num_rows - 1 - index) * keys // num_rows for index in range(num_rows)]
    began = time.perf_counter()
    rows = QueryRows.of(model, slots)
    logits = run_rows(model, ScatterCache(cache, rows), [0] * num_rows, rows, decoder=decoder)
    assert logits is not None
    logits.argmax().item()  # waits for the device
    if model.device.type == "cuda":
        torch.cuda.synchronize(model.device)
    return time.perf_counter() - began
