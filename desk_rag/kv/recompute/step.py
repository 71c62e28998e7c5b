"""Selective recompute as a step of an answer: select tokens, recompute them with the question.

Selectors that do not need the stitched cache run while chunk KV is still being loaded.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property

import torch

from desk_rag.kv.cache import SlabCache
from desk_rag.kv.forward.sparse_attention import QueryRows
from desk_rag.kv.forward.sparse_decoder import SparseDecoder
from desk_rag.kv.forward.sparse_rows import ScatterCache, run_rows
from desk_rag.kv.positions import StitchPlan
from desk_rag.kv.recompute.auxiliary_model import AuxiliaryModel
from desk_rag.kv.recompute.policy import RecomputeChoice, SelectorName
from desk_rag.kv.recompute.run import Selection, recompute
from desk_rag.kv.recompute.selectors import SelectionContext, select
from desk_rag.kv.rope import RotaryTables
from desk_rag.kv.stitch import StitchedCache
from desk_rag.model.language_model import LanguageModel

_REHEARSED_ROWS = 128


@dataclass(frozen=True, slots=True)
class PrefillResult:
    """Result of the question's first pass."""

    logits: torch.Tensor
    """[vocab], for the question's last token."""
    selection: Selection
    """The recomputed tokens; `selection.ratio` is the effective ratio."""
    choosing_seconds: float
    """Seconds of selecting that were not hidden behind loading; host time, the device may take longer."""


@dataclass(frozen=True, slots=True)
class RecomputeRequest:
    """One question and its chunks, in the plan's order."""

    plan: StitchPlan
    texts: Sequence[str]
    chunk_ids: Sequence[Sequence[int]]
    """Frames included."""
    question: str
    question_ids: Sequence[int]


class Recomputer:
    """Selective recompute of one engine. Not thread-safe; an auxiliary model runs on its own thread."""

    def __init__(
        self,
        model: LanguageModel,
        cache: SlabCache,
        tables: RotaryTables,
        choice: RecomputeChoice,
        auxiliary: AuxiliaryModel | None = None,
    ) -> None:
        self.model, self.cache, self.tables, self.choice, self.auxiliary = model, cache, tables, choice, auxiliary
        needs_thread = choice.selector.needs_auxiliary
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="auxiliary") if needs_thread else None

    @cached_property
    def decoder(self) -> SparseDecoder | None:
        """The model prepared for sparse passes, once, by the first answer or rehearsal that recomputes."""
        return SparseDecoder.of(self.model)

    def rehearse(self) -> None:
        """Compile kernels ahead of a question by a pass over rows spread evenly; the cache's contents are lost."""
        if not self.choice.ratio:
            return
        capacity = self.cache.capacity
        count = min(_REHEARSED_ROWS, capacity)
        rows = QueryRows.of(self.model, [capacity - 1 - index * capacity // count for index in reversed(range(count))])
        run_rows(self.model, ScatterCache(self.cache, rows), [0] * count, rows, decoder=self.decoder)

    def begin(self, request: RecomputeRequest, choice: RecomputeChoice | None = None) -> RecomputeHandle:
        """Start selecting, if the selector does not need the cache; `choice` replaces the engine's for this answer."""
        chosen = choice or self.choice
        ratio = chosen.ratio
        stitched = StitchedCache(self.cache, request.plan)
        context = SelectionContext(
            self.model, stitched, request.chunk_ids, request.question_ids, request.texts, request.question,
            self.auxiliary, self.decoder if ratio else None,
        )  # fmt: skip
        early: Future[Selection] | None = None
        if chosen.needs_auxiliary and self.auxiliary is not None and self.auxiliary.model is self.model:
            early = Future()  # one pass at a time through one model
            early.set_result(select(chosen.selector, ratio, context))
        elif chosen.needs_auxiliary and self._executor is not None:
            early = self._executor.submit(select, chosen.selector, ratio, context)
        return RecomputeHandle(self, context, chosen.selector, ratio, early)

    def close(self) -> None:
        """Stop the auxiliary model's thread."""
        if self._executor is not None:
            self._executor.shutdown(wait=True)


@dataclass(frozen=True, slots=True)
class RecomputeHandle:
    """Selective recompute of one answer, decided and not yet run."""

    _recomputer: Recomputer
    _context: SelectionContext
    _selector: SelectorName
    ratio: float
    """Requested ratio."""
    _early: Future[Selection] | None

    def prefill(self) -> PrefillResult:
        """Select tokens, unless already done, and run them with the question over the placed chunks.

        Call it in place of the question's first pass, inside the context manager that makes layers wait for their
        chunks. May be called again after the chunks were placed again. Raises what loading raises.
        """
        start_time = time.perf_counter()
        if self._early is not None:
            selection = self._early.result()
        else:
            selection = select(self._selector, self.ratio, self._context)
        selected_time = time.perf_counter()
        context = self._context
        logits = recompute(
            context.model, context.stitched, context.chunk_ids, context.question_ids, selection,
            self._recomputer.tables, decoder=context.decoder,
        )  # fmt: skip
        return PrefillResult(logits, selection, selected_time - start_time)
