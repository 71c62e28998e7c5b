"""Selective recompute as a step of an answer: decide the ratio, select tokens, recompute them with the question.

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
from desk_rag.kv.forward.sparse_decoder import SparseDecoder
from desk_rag.kv.positions import StitchPlan
from desk_rag.kv.recompute import costs
from desk_rag.kv.recompute.auxiliary_model import AuxiliaryModel
from desk_rag.kv.recompute.policy import PassCosts, RecomputeChoice, SelectorName, choose
from desk_rag.kv.recompute.run import Selection, recompute
from desk_rag.kv.recompute.selectors import SelectionContext, select
from desk_rag.kv.rope import RotaryTables
from desk_rag.kv.stitch import StitchedCache
from desk_rag.model.language_model import LanguageModel

_AUXILIARY = frozenset({SelectorName.AUX, SelectorName.AUX_STRICT})


@dataclass(frozen=True, slots=True)
class PrefillResult:
    """Result of the question's first pass."""

    logits: torch.Tensor
    """[vocab], for the question's last token."""
    selection: Selection
    """The recomputed tokens; `selection.ratio` is the effective ratio."""
    wanted: float
    """The ratio requested by the user or by 'auto'."""
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
        self._costs: PassCosts | None = None
        needs_thread = choice.selector in _AUXILIARY
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="auxiliary") if needs_thread else None

    @cached_property
    def decoder(self) -> SparseDecoder | None:
        """The model prepared for sparse passes, once, by the first answer or rehearsal that recomputes."""
        return SparseDecoder.of(self.model)

    def rehearse(self) -> None:
        """Compile kernels and measure what 'auto' needs, ahead of a question; the cache's contents are lost."""
        if self.choice.ratio == "auto":
            self._costs = costs.measure(self.model, self.cache, decoder=self.decoder)
        elif self.choice.ratio:
            capacity = self.cache.capacity
            costs.timed(self.model, self.cache, min(128, capacity), capacity, decoder=self.decoder)

    def begin(self, request: RecomputeRequest, choice: RecomputeChoice | None = None) -> RecomputeHandle:
        """Decide the ratio and, if the selector does not need the cache, start selecting.

        Call it before the chunks are placed: 'auto' may have to measure now, which overwrites the cache. `choice`
        replaces the engine's for this answer.
        """
        chosen = choice or self.choice
        ratio = chosen.ratio if chosen.ratio != "auto" else self._automatic(request)
        stitched = StitchedCache(self.cache, request.plan)
        context = SelectionContext(
            self.model, stitched, request.chunk_ids, request.question_ids, request.texts, request.question,
            self.auxiliary, self.decoder if ratio else None,
        )  # fmt: skip
        early: Future[Selection] | None = None
        if ratio and chosen.selector in _AUXILIARY and self._executor is not None:
            early = self._executor.submit(select, chosen.selector, ratio, context)
        return RecomputeHandle(self, context, chosen.selector, ratio, early)

    def close(self) -> None:
        """Stop the auxiliary model's thread."""
        if self._executor is not None:
            self._executor.shutdown(wait=True)

    def _automatic(self, request: RecomputeRequest) -> float:
        if self._costs is None:
            self._costs = costs.measure(self.model, self.cache, decoder=self.decoder)
        return choose(request.question, request.texts, self._costs, request.plan, len(request.question_ids))


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
        return PrefillResult(logits, selection, self.ratio, selected_time - start_time)
