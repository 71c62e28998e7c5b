"""Caches of several answers side by side, and the passes that run over all of them that wait for one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from desk_rag.answering.kv_connector import CacheTarget
from desk_rag.kv.cache import SlabCache, SlabRows
from desk_rag.kv.forward.fused_decoder import FusedDecoder
from desk_rag.kv.forward.inputs import Questions, padded
from desk_rag.kv.forward.runner import Before, FusedPass, Pass
from desk_rag.kv.loading import layerwise
from desk_rag.kv.loading.load import ChunksLost


@dataclass(slots=True, eq=False)
class PassWish:
    """A pass that one answer waits for."""

    row: int
    token_ids: list[int]
    start: int
    before: Before | None
    """Called with each layer's index; may raise ChunksLost, which ends the pass for this answer alone."""
    logits: torch.Tensor = field(default_factory=lambda: torch.empty(0))
    """[1, vocab] once it is served, valid until the next pass."""
    error: BaseException | None = None
    is_served: bool = False


class RowPass:
    """Runs the passes of one row together with those of the other rows."""

    def __init__(self, row: int) -> None:
        self._row = row
        self.wait_for: Callable[[PassWish], None] | None = None
        """Waits until a pass has been run; None while no answer uses this row."""

    def run(self, token_ids: torch.Tensor, start: int, *, before: Before | None = None) -> torch.Tensor:
        """Run ids int64 [1, N] from `start` on; logits [1, vocab], valid until the next pass."""
        assert self.wait_for is not None, "no answer uses this row"
        wish = PassWish(self._row, token_ids[0].tolist(), start, before)
        self.wait_for(wish)
        return wish.logits


class Row:
    """One row of the slabs: an answer's cache."""

    def __init__(self, index: int, cache: SlabCache, target: CacheTarget) -> None:
        shift = None if target.slab is None else target.slab.slots.shift
        self.slots = layerwise.CacheTarget.of(target.tables, cache, shift)
        self.cache, self.fused = cache, RowPass(index)
        self._prefix, self._has_prefix = target.prefix, False

    def lay_prefix(self) -> None:
        """Write the shared prefix to its slots unless it is there already."""
        if not self._has_prefix:
            self._prefix.write_to(self.cache)
            self._has_prefix = True

    def run(self, before: Before | None = None) -> Pass:
        """The pass over this row."""
        return FusedPass(self.fused, self.cache, before)


class Rows:
    """The caches of as many answers as are given at once, in one block, and the pass over them."""

    def __init__(self, target: CacheTarget, fused: FusedDecoder, count: int, capacity: int) -> None:
        """Raises torch.OutOfMemoryError."""
        slabs = SlabRows(target.model, count, capacity)
        self._decoder = fused.over(slabs.layers)
        self.rows = [Row(index, cache, target) for index, cache in enumerate(slabs.caches)]

    def serve(self, wishes: Sequence[PassWish]) -> None:
        """Run one pass for those that wait for several tokens, else for all of them."""
        several = [wish for wish in wishes if len(wish.token_ids) > 1]
        together = several or list(wishes)
        try:
            self._run(together)
        except _ChunksAreLost:
            together = [wish for wish in together if wish.error is not None]
        except Exception as error:  # out of memory, mostly: each of them reads less then
            for wish in together:
                wish.error = error
        for wish in together:
            wish.is_served = True

    def _run(self, wishes: Sequence[PassWish]) -> None:
        def before(layer: int) -> None:
            for wish in waiting:
                try:
                    wish.before(layer)  # type: ignore[misc]
                except ChunksLost as error:
                    wish.error = error
            if any(wish.error is not None for wish in waiting):
                raise _ChunksAreLost

        waiting = [wish for wish in wishes if wish.before is not None]
        ran = [*wishes, *[wishes[-1]] * (self._recorded(wishes) - len(wishes))]
        questions = Questions(
            tuple(wish.start for wish in ran), tuple(len(wish.token_ids) for wish in ran),
            tuple(wish.row for wish in ran),
        )  # fmt: skip
        ids = padded([wish.token_ids for wish in ran])
        logits = self._decoder.run(ids, questions, before=before if waiting else None)
        for index, wish in enumerate(wishes):
            wish.logits = logits[index : index + 1]

    def _recorded(self, wishes: Sequence[PassWish]) -> int:
        """Number of questions to run the pass with: slightly more than given if CUDA graphs of that size are recorded.

        The last question then fills the surplus rows; each copy writes the same values to the same slots.
        """
        count = len(wishes)
        sizes = self._decoder.recorded(max(len(wish.token_ids) for wish in wishes))
        return next((size for size in sizes if count <= size <= 2 * count), count)


class _ChunksAreLost(Exception):
    """Chunks of some answers could not be loaded; the pass was not finished for any."""
