"""The small random models of `desk_rag.bench.models.tiny_models`, and how they speak."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import pytest
import torch

from desk_rag.answering.generation import Token, decode
from desk_rag.bench.models.tiny_models import (
    FAMILIES,
    SPECIALS,
    VOCABULARY,
    Family,
    build_model,
    byte_prompt,
    byte_tokenizer,
)
from desk_rag.kv.cache import SlabCache
from desk_rag.kv.forward.runner import ModelPass
from desk_rag.model.language_model import LanguageModel

__all__ = [
    "DEVICE",
    "FAMILIES",
    "SPECIALS",
    "VOCABULARY",
    "Family",
    "build_model",
    "byte_prompt",
    "byte_tokenizer",
    "each_family",
    "on_device",
    "stream",
]

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
"""Where Triton's kernels run: on a GPU they are compiled, without one they are interpreted on the CPU."""

_IN_EVERY_RUN = {
    "llama": "nothing but RoPE over whole heads",
    "llama-yarn": "scaled frequencies and attention",
    "llama-mqa": "one head of keys",
    "qwen2": "biases",
    "qwen3": "norm of keys by head",
    "mistral-sliding": "sliding windows in all layers",
    "phi3-partial": "rotary of part of a head, one matrix for queries, keys and values",
    "gemma2": "soft-capped logits",
    "gemma3": "two sets of frequencies",
    "smollm3": "layers without position",
    "olmo2": "norms after the layers, norm of whole keys",
    "glm4": "interleaved rotary",
    "gpt-oss": "learned sinks, mixture of experts",
    "llama4": "norm after the rotation, complex rotary",
}
"""Families of which each has a property that the others lack."""


each_family = pytest.mark.parametrize(
    "family",
    [
        pytest.param(family, id=family.name, marks=() if family.name in _IN_EVERY_RUN else pytest.mark.slow)
        for family in FAMILIES
    ],
)
"""A test of every family; those without a property of their own are marked `slow`."""


def on_device(model: LanguageModel, device: torch.device = DEVICE) -> LanguageModel:
    """Return the model with its weights on another device."""
    return replace(model, module=model.module.to(device), device=device)


def stream(
    model: LanguageModel,
    cache: SlabCache,
    token_ids: Sequence[int],
    start: int,
    *,
    max_new_tokens: int,
    stop: Callable[[], bool],
) -> Iterator[Token]:
    """Read `token_ids` and decode greedily by the model's own forward pass over `cache`."""
    run = ModelPass(model, cache)
    logits, position = run.forward(token_ids, start), start + len(token_ids)
    return decode(model.prompt, run, logits, position, max_new_tokens=max_new_tokens, stop=stop)
