"""When an answer leaves its chunks as they were loaded."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest
import torch

from desk_rag.kv.lazy.memory import AttentionPath, choose_attention, path_bytes
from desk_rag.kv.positions import plan
from desk_rag.model.language_model import ModelSpec


def spec(dtype: torch.dtype = torch.bfloat16) -> ModelSpec:
    """Qwen2-7B: 56 KiB a token in bf16."""
    return cast(ModelSpec, SimpleNamespace(fp16_bytes_per_token=4 * 28 * 4 * 128, dtype=dtype))


def test_lazily_a_context_costs_half() -> None:
    where = plan(64, [512] * 32)
    needs = path_bytes(spec(), where, room=256)
    assert needs.materialize - needs.lazy == 57_344 * 16_384
    assert needs.lazy < 0.36 * needs.materialize
    assert needs.lazy > 57_344 * (16_384 // 2 + 64 + 256), "one byte of each number, and the scales"
    assert path_bytes(spec(torch.float32), where, room=256).materialize > 1.6 * needs.materialize


@pytest.mark.parametrize("tokens", [512, 8192, 32_768])
def test_materialised_while_there_is_room(tokens: int) -> None:
    where = plan(64, [tokens])
    needs = path_bytes(spec(), where, room=512).materialize
    assert choose_attention(2 * needs, spec(), where) is AttentionPath.MATERIALIZE
    assert choose_attention(needs, spec(), where) is AttentionPath.LAZY, "no headroom"
    assert choose_attention(0, spec(), where) is AttentionPath.LAZY


def test_a_longer_context_goes_lazily_first() -> None:
    free = 1 << 30
    chosen = [choose_attention(free, spec(), plan(64, [tokens])) for tokens in (2048, 8192, 16_384, 65_536)]
    assert chosen == [AttentionPath.MATERIALIZE] * 2 + [AttentionPath.LAZY] * 2
