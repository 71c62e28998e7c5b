"""The small random models of `desk_rag.bench.models.tiny_models`, and how they speak."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

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

__all__ = ["FAMILIES", "SPECIALS", "VOCABULARY", "Family", "build_model", "byte_prompt", "byte_tokenizer", "stream"]


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
