"""Memory that is handed out in runs, and keeps what is used most."""

from __future__ import annotations

import pytest
import torch

from desk_rag.kv.loading.host_memory import Arena
from desk_rag.model.memory.page_locked import page_lock


def test_it_never_reuses_what_is_in_use() -> None:
    arena = Arena(4 * 4096, pinned=False)
    first, second, third = (arena.reserve(4096) for _ in range(3))
    assert first is not None and second is not None and third is not None
    assert len({extent.start for extent in (first, second, third)}) == 3
    arena.publish(first, "first")
    arena.publish(second, "second")
    arena.release(first)
    arena.release(second)
    assert arena.reserve(3 * 4096) is None, "the third is in use"
    assert arena.holds("first") and arena.holds("second"), "nothing goes for room that would not be enough"
    arena.release(third)
    assert arena.reserve(4 * 4096) is not None
    assert arena.reserve(5 * 4096) is None


def test_it_keeps_the_recently_used() -> None:
    arena = Arena(2 * 4096, pinned=False)
    for key in ("a", "b"):
        extent = arena.reserve(4096)
        assert extent is not None
        arena.publish(extent, key)
        arena.release(extent)
    used = arena.find("a")
    assert used is not None and arena.holds("a") and arena.holds("b")
    arena.release(used)
    assert arena.reserve(4096) is not None
    assert arena.find("b") is None and not arena.holds("b")
    assert arena.find("a") is not None
    assert arena.holds("a")
    arena.discard("a")
    assert not arena.holds("a")


@pytest.mark.gpu
def test_memory_that_cannot_be_page_locked_is_blamed_on_nobody_else() -> None:
    memory = Arena(1 << 20, pinned=True)
    assert memory.pinned
    assert not page_lock(memory.memory), "locked already"
    assert torch.ones(8, device="cuda").sum().item() == 8
    memory.close()
