"""Prefill whole prompts from position 0 in every way that this machine has, and find the fastest.

Answers in the mode 'full' and benchmarks use the fastest, so that caches are compared with the best there is.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from desk_rag.errors import OutOfMemory
from desk_rag.kv.cache import SlabCache
from desk_rag.kv.forward.attention import Attention, attend_whole
from desk_rag.kv.forward.fused_decoder import FusedDecoder
from desk_rag.model.language_model import LanguageModel
from desk_rag.model.memory.steps import in_steps, tokens_at_once

STOCK = "transformers"
"""Name of the model's own forward pass."""
Implementation = Callable[[], torch.Tensor]
"""Prefills a prompt; logits [vocab] of its last token, valid until the next pass."""
_TRIALS = 3
_WINDOWED_STEP = 512
"""Tokens that a pass takes even if windows are smaller."""


def implementations(
    model: LanguageModel, cache: SlabCache, fused: FusedDecoder, ids: torch.Tensor
) -> dict[str, Implementation]:
    """Implementations for the prompt ids [tokens], by name; `fused` runs over `cache`."""

    def by_transformers() -> torch.Tensor:
        cache.set_length(0)
        logits = model.forward(ids, cache, 0, logits=True)
        assert logits is not None
        return logits

    def by_fused(attention: Attention | None = None) -> torch.Tensor:
        def run(begin: int, end: int) -> torch.Tensor:
            return fused.run(ids[None, begin:end], begin, attention=attention if begin == 0 else None)[0]

        most = min(tokens_at_once(model, 0, len(ids)), _most_in_windows(fused) or len(ids))
        logits = in_steps(run, len(ids), most, model.device)
        cache.set_length(len(ids))
        return logits

    def by_cudnn() -> torch.Tensor:
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            return by_fused(attend_whole)

    everywhere: dict[str, Implementation] = {"fused": by_fused, STOCK: by_transformers}
    if model.device.type != "cuda" or any(fused.windows):
        return everywhere
    return {**everywhere, "fused, cuDNN": by_cudnn}


def _most_in_windows(fused: FusedDecoder) -> int:
    """Tokens that one pass over sliding windows takes at most; 0 for any number, where no layer has one.

    It reads the window's slots and the pass's own, and masks most of them in long passes.
    """
    sizes = [size for size in fused.windows if size]
    return max(_WINDOWED_STEP, min(sizes)) if sizes else 0


def fastest_of(by_name: dict[str, Implementation]) -> str:
    """Name of the fastest implementation; those that fail are left out if another one works."""
    seconds: dict[str, float] = {}
    if len(by_name) == 1:
        return next(iter(by_name))
    for name, implementation in by_name.items():
        try:
            seconds[name] = min(_timed(implementation) for _ in range(_TRIALS))
        except (RuntimeError, OutOfMemory):
            continue
    return min(seconds, key=lambda name: seconds[name]) if seconds else next(iter(by_name))


def _timed(implementation: Implementation) -> float:
    start_time = time.perf_counter()
    implementation().argmax().item()  # waits for the device
    return time.perf_counter() - start_time
