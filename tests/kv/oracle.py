"""The oracle of `desk_rag.bench.models.masked`, under the name the tests use."""

from __future__ import annotations

from desk_rag.bench.models.masked import masked_forward, plain_forward

__all__ = ["masked_forward", "plain_forward"]
