"""The small random models of `desk_rag.bench.models.tiny_models`, under the name the tests use."""

from __future__ import annotations

from desk_rag.bench.models.tiny_models import (
    FAMILIES,
    SPECIALS,
    VOCABULARY,
    Family,
    build_model,
    byte_prompt,
    byte_tokenizer,
)

__all__ = ["FAMILIES", "SPECIALS", "VOCABULARY", "Family", "build_model", "byte_prompt", "byte_tokenizer"]
