"""The step of an answer between laid chunks and its first token: decide how much, choose which, compute anew.

Knows the order of these three and which of them may run while chunk KV is still being loaded; each is done elsewhere.
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
    """What the answer goes on with."""

    logits: torch.Tensor
    """[vocab], of the question's last token."""
    selection: Selection
    """What was computed anew; `selection.ratio` is the effective ratio."""
    wanted: float
    """The ratio that was asked for, by the user or by 'auto'."""
    choosing_seconds: float
    """Time of choosing that was not hidden behind loading; the device may go on a little longer."""


@dataclass(frozen=True, slots=True)
class RecomputeRequest:
    """One question over its chunks, in the plan's order."""

    plan: StitchPlan
    texts: Sequence[str]
    chunk_ids: Sequence[Sequence[int]]
    """Frames included."""
    question: str
    question_ids: Sequence[int]


class Recomputer:
    """One engine's knob. As little thread-safe as its model; the auxiliary model works on a thread of its own."""

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
        self._aside = ThreadPoolExecutor(1, thread_name_prefix="auxiliary") if choice.selector in _AUXILIARY else None

    @cached_property
    def decoder(self) -> SparseDecoder | None:
        """The model as row passes want it; worked out once, by the first answer or rehearsal that recomputes."""
        return SparseDecoder.of(self.model)

    def rehearse(self) -> None:
        """Pay one-off costs (a kernel's compilation, measuring what 'auto' needs); the cache's contents are lost."""
        if self.choice.ratio == "auto":
            self._costs = costs.measure(self.model, self.cache, decoder=self.decoder)
        elif self.choice.ratio:
            most = self.cache.capacity
            costs.timed(self.model, self.cache, min(128, most), most, decoder=self.decoder)

    def begin(self, ask: RecomputeRequest, choice: RecomputeChoice | None = None) -> RecomputeHandle:
        """Decide on a ratio and, if its selector can do without the cache, start choosing.

        Comes before the chunks are laid, because what 'auto' has not measured yet it measures now. `choice` is this
        answer's own.
        """
        chosen = choice or self.choice
        ratio = chosen.ratio if chosen.ratio != "auto" else self._automatic(ask)
        stitched = StitchedCache(self.cache, ask.plan)
        context = SelectionContext(
            self.model, stitched, ask.chunk_ids, ask.question_ids, ask.texts, ask.question, self.auxiliary,
            self.decoder if ratio else None,
        )  # fmt: skip
        early: Future[Selection] | None = None
        if ratio and chosen.selector in _AUXILIARY and self._aside is not None:
            early = self._aside.submit(select, chosen.selector, ratio, context)
        return RecomputeHandle(self, context, chosen.selector, ratio, early)

    def close(self) -> None:
        """End the auxiliary model's thread."""
        if self._aside is not None:
            self._aside.shutdown(wait=True)

    def _automatic(self, ask: RecomputeRequest) -> float:
        if self._costs is None:
            self._costs = costs.measure(self.model, self.cache, decoder=self.decoder)
        return choose(ask.question, ask.texts, self._costs, ask.plan, len(ask.question_ids))


@dataclass(frozen=True, slots=True)
class RecomputeHandle:
    """One answer's recompute, decided and not yet done."""

    _by: Recomputer
    _context: SelectionContext
    _selector: SelectorName
    ratio: float
    """What is wanted."""
    _early: Future[Selection] | None

    def prefill(self) -> PrefillResult:
        """Choose, unless that was begun earlier, and run the question's first pass over the laid chunks.

        Call it where the question's first pass belongs: inside of what makes each layer wait for its chunks. May be
        called again after the chunks were laid again. Raises what loading raises.
        """
        began = time.perf_counter()
        if self._early is not None:
            selection = self._early.result()
        else:
            selection = select(self._selector, self.ratio, self._context)
        chosen = time.perf_counter()
        context = self._context
        logits = recompute(
            context.model, context.stitched, context.chunk_ids, context.question_ids, selection, self._by.tables,
            decoder=context.decoder,
        )  # fmt: skip
        return PrefillResult(logits, selection, self.ratio, chosen - began)
