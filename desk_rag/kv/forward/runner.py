"""Run a model over one cache, by transformers' forward pass or by the fused one, whichever is proven and faster.

On a GPU the fused pass takes a fraction of the launches. On a CPU both take equally long over many tokens, so there
transformers' pass is used for all but single tokens.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from desk_rag.errors import OutOfMemory
from desk_rag.kv.cache import SlabCache
from desk_rag.kv.forward import families, full_prefill
from desk_rag.kv.forward.cpu_decode import DecodeStep
from desk_rag.kv.forward.fused_decoder import FusedDecoder
from desk_rag.kv.loading.layerwise import CacheTarget
from desk_rag.kv.prefill import PrefixKV
from desk_rag.kv.rope import RotaryTables
from desk_rag.kv.shift import PlaceShift
from desk_rag.model.language_model import LanguageModel
from desk_rag.model.memory.device import is_out_of_memory
from desk_rag.model.memory.steps import in_steps

Before = Callable[[int], None]
"""Called with each layer's index; returns when the chunks of that layer are in the cache."""
_USUAL_TOKENS = (1, 16, 32, 48, 64)
"""Token counts of a decode step and of most questions."""
_MAX_DEVIATION = 0.3
"""Tolerance in standard deviations of the logits; reordering bf16 sums over 28 layers gives about 0.2."""
_MAX_STEP_DEVIATION = 0.01
"""Tolerance for the fp32 decode step, in the same unit; its actual deviation is about 1e-5."""
_log = logging.getLogger(__name__)


class Pass(Protocol):
    """One implementation to run a model over one cache."""

    @property
    def reads_at_once(self) -> bool:
        """True if `forward_all` is one pass, not one for every token."""
        ...

    def forward(self, token_ids: Sequence[int], start: int) -> torch.Tensor:
        """Run ids from position `start` on; logits [vocab] of the last one, valid until the next pass.

        Slots before `start` must be filled, or be filled while the pass runs, which may raise ChunksLost.
        """
        ...

    def forward_all(self, token_ids: Sequence[int], start: int) -> torch.Tensor:
        """Run ids after the first pass; logits [N, vocab] of every token, in memory of their own."""
        ...

    def rewind(self, count: int) -> None:
        """Drop the last `count` tokens: the next pass starts where they started."""
        ...


@dataclass(frozen=True, slots=True)
class ModelPass:
    """transformers' own forward pass, over any cache it accepts."""

    model: LanguageModel
    cache: Any
    step: DecodeStep | None = None
    """Faster step for single tokens over this cache, used when no layer has hooks."""
    reads_at_once: bool = True

    def forward(self, token_ids: Sequence[int], start: int) -> torch.Tensor:
        """See `Pass`."""
        if self.step is not None and len(token_ids) == 1 and self.step.ready:
            return self.step.run(token_ids[0], start)
        ids = torch.tensor(list(token_ids), device=self.model.device)
        logits = self.model.forward(ids, self.cache, start, logits=True)
        assert logits is not None
        return logits

    def forward_all(self, token_ids: Sequence[int], start: int) -> torch.Tensor:
        """See `Pass`."""
        return self.model.forward_all(torch.tensor(list(token_ids), device=self.model.device), self.cache, start)

    def rewind(self, count: int) -> None:
        """See `Pass`; layer by layer, because lazy layers also count tokens outside their slabs."""
        for layer in self.cache.layers:
            layer.crop(-count)


class RunsFused(Protocol):
    """Runner of one question's fused pass: the decoder, or one row of several (`answering.together`)."""

    def run(self, token_ids: torch.Tensor, start: int, *, before: Before | None = None) -> torch.Tensor:
        """See `FusedDecoder.run`."""
        ...


class Slab(Protocol):
    """The cache of one answer, and the pass over it."""

    @property
    def cache(self) -> SlabCache: ...

    @property
    def slots(self) -> CacheTarget: ...

    @property
    def fused(self) -> RunsFused | None: ...

    def lay_prefix(self) -> None:
        """Write the shared prefix to its slots unless it is there already."""
        ...

    def run(self, before: Before | None = None) -> Pass:
        """The pass over this cache."""
        ...


class FusedPass:
    """The fused pass over a slab cache; `before` is called in the first pass only."""

    reads_at_once = False

    def __init__(self, fused: RunsFused, cache: SlabCache, before: Before | None = None) -> None:
        self._fused, self._cache, self._before = fused, cache, before

    def forward(self, token_ids: Sequence[int], start: int) -> torch.Tensor:
        """See `Pass`."""
        ids, count = torch.tensor([list(token_ids)]), len(token_ids)

        def run(begin: int, end: int) -> torch.Tensor:
            before = self._before if begin == 0 else None  # all chunks are placed by the first step
            return self._fused.run(ids[:, begin:end], start + begin, before=before)[0]

        try:
            logits = in_steps(run, count, count, self._cache.device)
        finally:
            self._before = None
        self._cache.set_length(start + count)
        return logits

    def forward_all(self, token_ids: Sequence[int], start: int) -> torch.Tensor:
        """See `Pass`; token by token, because recorded passes return only the last token's logits."""
        logits = [self.forward([token_id], start + index).clone() for index, token_id in enumerate(token_ids)]
        return torch.stack(logits)

    def rewind(self, count: int) -> None:
        """See `Pass`."""
        for layer in self._cache.layers:
            layer.crop(-count)


class ModelRunner:
    """An engine's cache and the pass that its model runs over it; tracks whether the prefix is in it."""

    def __init__(
        self,
        model: LanguageModel,
        prefix: PrefixKV,
        tables: RotaryTables,
        capacity: int,
        *,
        fused: bool | None = None,
        graphs: bool = True,
        known: dict[int, str] | None = None,
        shift: PlaceShift | None = None,
    ) -> None:
        """`fused` uses the fused pass wherever the model supports it; by default on a GPU only. Raises OutOfMemory.

        `known` holds the fastest implementation of full prefill by prompt size, as measured by earlier runners; it is
        updated.
        """
        self._model, self._prefix = model, prefix
        try:
            self.cache = SlabCache(model, capacity)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            raise OutOfMemory(
                f"There is not enough free memory for a context of {capacity:,} tokens.",
                remedy="Close other programs that use it, or lower `context_tokens` under [answer].",
            ) from error
        self.slots = CacheTarget.of(tables, self.cache, shift)
        use_fused = model.device.type == "cuda" if fused is None else fused
        fits = use_fused and families.supports(model)
        self.fused = self._build_fused(tables, graphs) if fits else None
        self.step = None if self.fused is not None else DecodeStep.of(model, self.cache, tables)
        self._has_prefix = False
        self._fastest = {} if known is None else known

    def _build_fused(self, tables: RotaryTables, graphs: bool) -> FusedDecoder | None:
        """Build the fused pass; None if memory is too short to pack the projections."""
        try:
            return FusedDecoder(self._model, self.cache.layers, tables, graphs=graphs)
        except torch.OutOfMemoryError as error:
            _log.warning("Not enough memory for the fused pass; transformers' pass is used: %s", error)
            return None

    def run(self, before: Before | None = None) -> Pass:
        """The pass over this cache; `before` is allowed with the fused pass only, others wait by layer hooks."""
        if self.fused is not None:
            return FusedPass(self.fused, self.cache, before)
        assert before is None, "the model's own pass does not call it"
        return ModelPass(self._model, self.cache, self.step)

    def lay_prefix(self) -> None:
        """Write the shared prefix to its slots unless it is there already."""
        if not self._has_prefix:
            self._prefix.write_to(self.cache)
            self._has_prefix = True

    def forget_prefix(self) -> None:
        """Declare that the prefix's slots are about to be overwritten."""
        self._has_prefix = False

    def prepare(self, probe_ids: Sequence[int]) -> None:
        """Record graphs for usual token counts and compare the fused pass with transformers' on `probe_ids`.

        A pass that fails or differs is not used: slower, never wrong. On a CPU compiled layers are checked instead, or
        the decode step on the first id.
        """
        if self.fused is None:
            self._check_compiled(probe_ids)
            self._check_step(probe_ids[:1])
            return
        try:
            for count in _USUAL_TOKENS:
                self.fused.prepare(count)
            deviation = self._deviation(FusedPass(self.fused, self.cache), probe_ids)
        except Exception as error:  # a kernel that does not fit this GPU raises a type of Triton's own
            _log.warning("The fused pass cannot be used on this machine; transformers' pass is used: %s", error)
            self.fused = None
            return
        if not deviation < _MAX_DEVIATION:
            _log.warning("The fused pass differs from the reference by %.2g; transformers' pass is used", deviation)
            self.fused = None

    def _check_compiled(self, probe_ids: Sequence[int]) -> None:
        """Compare the embedded reader's compiled layers with its own modules."""
        decoder = self._model.module.model
        compiled = getattr(decoder, "compiled", None)
        if compiled is None:
            return
        actual = self._probe(ModelPass(self._model, self.cache), probe_ids)
        decoder.compiled, differ = None, False
        try:
            deviation = _difference(self._probe(ModelPass(self._model, self.cache), probe_ids), actual)
            differ = not deviation < _MAX_STEP_DEVIATION
        finally:  # a pass that fails, for want of memory say, tells nothing about them
            if not differ:
                decoder.compiled = compiled
        if not differ:
            return
        _log.warning("The compiled layers differ from the reference by %.2g; torch's operations are used", deviation)
        self.step = DecodeStep.of(self._model, self.cache, self.slots.tables)

    def _check_step(self, probe_ids: Sequence[int]) -> None:
        if self.step is None:
            return
        try:
            deviation = self._deviation(ModelPass(self._model, self.cache, self.step), probe_ids)
        except (RuntimeError, AttributeError) as error:  # torch without a required operator
            _log.warning("The decode step cannot be used on this machine; transformers' pass is used: %s", error)
            self.step = None
            return
        if not deviation < _MAX_STEP_DEVIATION:
            _log.warning("The decode step differs from the reference by %.2g; transformers' pass is used", deviation)
            self.step = None

    def _deviation(self, other: Pass, probe_ids: Sequence[int]) -> float:
        """RMS difference of logits from transformers' pass behind the prefix, in their standard deviations."""
        return _difference(self._probe(ModelPass(self._model, self.cache), probe_ids), self._probe(other, probe_ids))

    def _probe(self, run: Pass, probe_ids: Sequence[int]) -> torch.Tensor:
        """Logits [vocab] of a pass behind the prefix."""
        self.lay_prefix()
        self.cache.set_length(self._prefix.num_tokens)
        return run.forward(probe_ids, self._prefix.num_tokens).float().clone()

    # Full prefill -------------------------------------------------------------------------------------------------

    def whole(self, prompt_ids: Sequence[int]) -> Callable[[], torch.Tensor]:
        """Return a function that prefills a prompt from position 0 by the fastest implementation; logits [vocab].

        The first prompt of about this length times every implementation now.
        """
        self.forget_prefix()
        self.cache.set_length(0)
        if self.fused is None:
            run = self.run()

            def prefill() -> torch.Tensor:
                self.cache.set_length(0)
                return run.forward(prompt_ids, 0)

            return prefill
        ids = torch.tensor(list(prompt_ids), device=self._model.device)
        implementations = full_prefill.implementations(self._model, self.cache, self.fused, ids)
        size = len(prompt_ids).bit_length()
        if size not in self._fastest:
            self._fastest[size] = full_prefill.fastest_of(implementations)
        return implementations[self._fastest[size]]


def _difference(expected: torch.Tensor, actual: torch.Tensor) -> float:
    """RMS difference of logits in standard deviations of `expected`."""
    return float((expected - actual).square().mean().sqrt() / expected.std())
