"""Passes over several rows: who is served, what a chunk lost by one does to the others, how graphs are filled up."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from desk_rag.answering.kv_connector import CacheTarget
from desk_rag.answering.together.passes import PassWish, Rows
from desk_rag.kv.cache import SlabCache
from desk_rag.kv.forward.fused_decoder import FusedDecoder
from desk_rag.kv.loading.load import ChunksLost
from desk_rag.kv.prefill import prefill_prefix
from desk_rag.kv.rope import build_tables
from tests.models import FAMILIES, build_model

LINES = ([7, 8, 9], [20, 21], [30, 31, 32, 33])


@pytest.fixture
def rows() -> Rows:
    model = build_model(next(family for family in FAMILIES if family.name == "qwen2"))
    prefix, tables = prefill_prefix(model), build_tables(model, 120)
    fused = FusedDecoder(model, SlabCache(model, 120).layers, tables)
    rows = Rows(CacheTarget(model, prefix, tables, None, 0), fused, 4, 120)
    for row in rows.rows:
        row.lay_prefix()
    return rows


def wish(rows: Rows, index: int, before: Callable[[int], None] | None = None) -> PassWish:
    return PassWish(index, list(LINES[index]), rows.rows[index].cache.get_seq_length(), before)


def alone(rows: Rows, index: int) -> torch.Tensor:
    one = wish(rows, index)
    rows.serve([one])
    assert one.is_served and one.error is None
    return one.logits.clone()


def test_a_lost_chunk_ends_the_pass_for_its_own_answer_and_the_others_wait_for_the_next(rows: Rows) -> None:
    expected = [alone(rows, index) for index in range(3)]
    placed: list[int] = []

    def lose(layer: int) -> None:
        if layer == 1:
            raise ChunksLost([0], ["gone"])

    one, other, step = wish(rows, 0, lose), wish(rows, 2, placed.append), wish(rows, 1)
    step.token_ids = [20]
    rows.serve([one, step, other])
    assert isinstance(one.error, ChunksLost) and one.is_served
    assert not other.is_served and not step.is_served and placed == [0, 1]
    one = wish(rows, 0, placed.append)
    rows.serve([one, step, other])
    assert one.is_served and other.is_served and not step.is_served, "questions first, single tokens when all wait so"
    torch.testing.assert_close(one.logits, expected[0], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(other.logits, expected[2], rtol=1e-4, atol=1e-5)
    rows.serve([step])
    assert step.is_served


def test_a_pass_that_fails_fails_for_all_that_are_in_it(rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    def too_short(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    wishes = [wish(rows, index) for index in range(2)]
    monkeypatch.setattr(FusedDecoder, "run", too_short)
    rows.serve(wishes)
    assert all(isinstance(one.error, torch.OutOfMemoryError) and one.is_served for one in wishes)


@pytest.mark.parametrize(("recorded", "ran"), [([], 3), ([1, 4], 4), ([8], 3), ([2, 3, 4], 3)])
def test_a_pass_is_filled_up_to_the_graphs_that_there_are(
    rows: Rows, recorded: list[int], ran: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = [alone(rows, index) for index in range(3)]
    sizes: list[int] = []
    real = FusedDecoder.run

    def counted(self: FusedDecoder, ids: torch.Tensor, *args: object, **options: object) -> torch.Tensor:
        sizes.append(ids.shape[0])
        return real(self, ids, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(FusedDecoder, "recorded", lambda *_: recorded)
    monkeypatch.setattr(FusedDecoder, "run", counted)
    wishes = [wish(rows, index) for index in range(3)]
    rows.serve(wishes)
    assert sizes == [ran]
    for one, logits in zip(wishes, expected, strict=True):
        torch.testing.assert_close(one.logits, logits, rtol=1e-4, atol=1e-5)
