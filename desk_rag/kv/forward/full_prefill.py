"""Prefill whole prompts from position 0 in every way that this machine has, and find the fastest.

Answers in the mode 'full' and benchmarks use the fastest, so that caches are compared with the best there is.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from desk_rag.kv.cache import SlabCache
from desk_rag.kv.forward.attention import attend_whole
from desk_rag.kv.forward.fused_decoder import FusedDecoder
from desk_rag.model.language_model import LanguageModel

STOCK = "transformers"
"""Name of the model's own forward pass."""
Implementation = Callable[[], torch.Tensor]
"""Prefills a prompt; logits [vocab] of its last token, valid until the next pass."""
_TRIALS = 3


def implementations(
    model: LanguageModel, cache: SlabCache, fused: FusedDecoder, ids: torch.Tensor
) -> dict[str, Implementation]:
    """Implementations for the prompt ids [tokens], by name; `fused` runs over `cache`."""

    def by_transformers() -> torch.Tensor:
        cache.set_length(0)
        logits = model.forward(ids, cache, 0, logits=True)
        assert logits is not None
        return logits

    def by_fused(**options: Any) -> torch.Tensor:
        logits = fused.run(ids[None], 0, **options)[0]
        cache.set_length(len(ids))
        return logits

    def by_cudnn() -> torch.Tensor:
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            return by_fused(attention=attend_whole)

    if fused.slides:  # long passes of windows are transformers' own
        return {STOCK: by_transformers}
    everywhere: dict[str, Implementation] = {"fused": by_fused, STOCK: by_transformers}
    return {**everywhere, "fused, cuDNN": by_cudnn} if model.device.type == "cuda" else everywhere


def fastest_of(by_name: dict[str, Implementation]) -> str:
    """Name of the fastest implementation; those that fail are left out if another one works."""
    seconds: dict[str, float] = {}
    if len(by_name) == 1:
        return next(iter(by_name))
    for name, implementation in by_name.items():
        try:
            seconds[name] = min(_timed(implementation) for _ in range(_TRIALS))
        except RuntimeError:
            continue
    return min(seconds, key=lambda name: seconds[name]) if seconds else next(iter(by_name))


def _timed(implementation: Implementation) -> float:
    start_time = time.perf_counter()
    implementation().argmax().item()  # waits for the device
    return time.perf_counter() - start_time
