"""How a model runs over one cache: by its own forward pass or by the fused one; and the slab an engine runs over.

Knows passes, slabs and what lies in them; knows no chunk, no file and no text. On a GPU the fused pass takes a fraction
of the launches. On a CPU both are level over many tokens, so there the model's own pass stays but for single ones.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from desk_rag.errors import OutOfMemory
from desk_rag.kv.cache import SlabCache
from desk_rag.kv.forward import fused_decoder
from desk_rag.kv.forward.cpu_decode import DecodeStep
from desk_rag.kv.forward.fused_decoder import FusedDecoder, attend_whole
from desk_rag.kv.loading.layerwise import CacheTarget
from desk_rag.kv.prefill import PrefixKV
from desk_rag.kv.rope import RotaryTables
from desk_rag.model.language_model import LanguageModel

Before = Callable[[int], None]
"""Called with each layer's number; returns when the chunks of that layer are in the slab."""
_USUAL = (1, 16, 32, 48, 64)
"""Tokens of a decode step and of most questions."""
_APART_AT_MOST = 0.3
"""Of the logits' standard deviation: about what two orders of summing in bf16 differ by through 28 layers is 0.2."""
_STEP_APART_AT_MOST = 0.01
"""Of the same; fp32 differs by 1e-5."""
_log = logging.getLogger(__name__)


class Pass(Protocol):
    """One way to run a model over one cache."""

    def forward(self, token_ids: Sequence[int], start: int) -> torch.Tensor:
        """Run ids at positions start..; logits [vocab] of the last one, valid until the next pass.

        Everything before `start` must be in the cache, or come while the pass runs. May raise ChunksLost then.
        """
        ...

    def forward_all(self, token_ids: Sequence[int], start: int) -> torch.Tensor:
        """As `forward`, behind the first pass: logits [N, vocab] of every token, in memory of their own."""
        ...

    def rewind(self, count: int) -> None:
        """Give up the last `count` tokens: the next pass begins where they began."""
        ...


@dataclass(frozen=True, slots=True)
class ModelPass:
    """transformers' own, over whatever it takes for a cache."""

    model: LanguageModel
    cache: Any
    step: DecodeStep | None = None
    """For single tokens over this cache, once nobody waits in front of the layers."""

    def forward(self, token_ids: Sequence[int], start: int) -> torch.Tensor:
        """As in `Pass`."""
        if self.step is not None and len(token_ids) == 1 and self.step.ready:
            return self.step.run(token_ids[0], start)
        ids = torch.tensor(list(token_ids), device=self.model.device)
        logits = self.model.forward(ids, self.cache, start, logits=True)
        assert logits is not None
        return logits

    def forward_all(self, token_ids: Sequence[int], start: int) -> torch.Tensor:
        """As in `Pass`."""
        return self.model.forward_all(torch.tensor(list(token_ids), device=self.model.device), self.cache, start)

    def rewind(self, count: int) -> None:
        """As in `Pass`; layer by layer, because lazy ones count what is not in their slabs, too."""
        for layer in self.cache.layers:
            layer.crop(-count)


class FusedPass:
    """The fused one over a slab; `before` is for the first pass only, behind which every layer is filled."""

    def __init__(self, fused: FusedDecoder, cache: SlabCache, before: Before | None = None) -> None:
        self._fused, self._cache, self._before = fused, cache, before

    def forward(self, token_ids: Sequence[int], start: int) -> torch.Tensor:
        """As in `Pass`."""
        before, self._before = self._before, None
        logits = self._fused.run(torch.tensor([list(token_ids)]), start, before=before)[0]
        self._cache.set_length(start + len(token_ids))
        return logits

    def forward_all(self, token_ids: Sequence[int], start: int) -> torch.Tensor:
        """As in `Pass`; token by token, since the recorded passes keep the last one's logits alone."""
        each = (self.forward([token_id], start + place).clone() for place, token_id in enumerate(token_ids))
        return torch.stack(list(each))

    def rewind(self, count: int) -> None:
        """As in `Pass`."""
        for layer in self._cache.layers:
            layer.crop(-count)


class ModelRunner:
    """An engine's slab: how its model runs over it, and whether the shared prefix still lies in it."""

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
    ) -> None:
        """`fused` is the fused pass wherever the model has one; by default on a GPU only. Raises OutOfMemory.

        `known` is what slabs before this one found out about full prefill, and is added to.
        """
        self._model, self._prefix = model, prefix
        try:
            self.cache = SlabCache(model, capacity)
        except torch.OutOfMemoryError as error:
            raise OutOfMemory(
                f"The GPU has no room for a context of {capacity:,} tokens.",
                remedy="Close other programs on the GPU, or lower `context_tokens` under [answer].",
            ) from error
        self.slots = CacheTarget.of(tables, self.cache)
        wanted = model.device.type == "cuda" if fused is None else fused
        whole_heads = len(tables.cos) == 1 and 2 * tables.cos[0].shape[1] == model.spec.head_dim
        fits = wanted and whole_heads and fused_decoder.supports(model)
        self.fused = self._build_fused(tables, graphs) if fits else None
        self.step = None if self.fused is not None else DecodeStep.of(model, self.cache, tables)
        self._has_prefix = False
        self._fastest = {} if known is None else known

    def _build_fused(self, tables: RotaryTables, graphs: bool) -> FusedDecoder | None:
        """None where there is no room to move a layer's projections; those moved so far work as before."""
        try:
            return FusedDecoder(self._model, self.cache.layers, tables, graphs=graphs)
        except torch.OutOfMemoryError as error:
            _log.warning("no room for the fused pass, the model's own is used: %s", error)
            return None

    def run(self, before: Before | None = None) -> Pass:
        """The pass over this slab; `before` only where there is a fused one, others are waited for by their layers."""
        if self.fused is not None:
            return FusedPass(self.fused, self.cache, before)
        assert before is None, "the model's own pass does not call it"
        return ModelPass(self._model, self.cache, self.step)

    def lay_prefix(self) -> None:
        """Have the shared prefix in its slots; written only where something else may have been."""
        if not self._has_prefix:
            self._prefix.write_to(self.cache)
            self._has_prefix = True

    def forget_prefix(self) -> None:
        """Somebody is about to write where the prefix lies."""
        self._has_prefix = False

    def prepare(self, probe_ids: Sequence[int]) -> None:
        """Capture what decode steps and questions of usual length will replay, and prove the fused pass on `probe_ids`.

        Where it fails, or says something else than the model's own pass, it is not used: slower, never wrong. So with
        the decode step, on the first of them.
        """
        if self.fused is None:
            self._prove_step(probe_ids[:1])
            return
        try:
            for count in _USUAL:
                self.fused.prepare(count)
            apart = self._apart(FusedPass(self.fused, self.cache), probe_ids)
        except Exception as error:  # a kernel that does not fit this GPU raises a type of Triton's own
            _log.warning("the fused pass cannot be used here, the model's own is: %s", error)
            self.fused = None
            return
        if not apart < _APART_AT_MOST:
            _log.warning("the fused pass is off by %.2g here, the model's own is used", apart)
            self.fused = None

    def _prove_step(self, probe_ids: Sequence[int]) -> None:
        if self.step is None:
            return
        try:
            apart = self._apart(ModelPass(self._model, self.cache, self.step), probe_ids)
        except (RuntimeError, AttributeError) as error:  # torch without an operator that is asked for
            _log.warning("the decode step cannot be used here, the model's own pass is: %s", error)
            self.step = None
            return
        if not apart < _STEP_APART_AT_MOST:
            _log.warning("the decode step is off by %.2g here, the model's own pass is used", apart)
            self.step = None

    def _apart(self, other: Pass, probe_ids: Sequence[int]) -> float:
        """Root mean square difference of logits to the model's own pass, over the prefix alone, in their standard
        deviations."""
        start = self._prefix.num_tokens
        told = []
        for run in (ModelPass(self._model, self.cache), other):
            self.lay_prefix()
            self.cache.set_length(start)
            told.append(run.forward(probe_ids, start).float().clone())
        return float((told[0] - told[1]).square().mean().sqrt() / told[0].std())

    # Full prefill -------------------------------------------------------------------------------------------------

    def whole(self, prompt_ids: Sequence[int]) -> Callable[[], torch.Tensor]:
        """Full prefill of a prompt from position 0, ready to run: logits [vocab], by what is fastest on this machine.

        Where there is a choice, the first prompt of about this length tries every way, now.
        """
        self.forget_prefix()
        self.cache.set_length(0)
        if self.fused is None:
            run = self.run()
            return lambda: run.forward(prompt_ids, 0)
        ids = torch.tensor(list(prompt_ids), device=self._model.device)
        ways = self._ways(ids, self.fused)
        size = len(prompt_ids).bit_length()
        if size not in self._fastest:
            self._fastest[size] = self._compare(ways)
        return ways[self._fastest[size]]

    def _ways(self, ids: torch.Tensor, fused: FusedDecoder) -> dict[str, Callable[[], torch.Tensor]]:
        def stock() -> torch.Tensor:
            self.cache.set_length(0)
            logits = self._model.forward(ids, self.cache, 0, logits=True)
            assert logits is not None
            return logits

        def leanly(**how: Any) -> torch.Tensor:
            logits = fused.run(ids[None], 0, **how)[0]
            self.cache.set_length(len(ids))
            return logits

        def by_cudnn() -> torch.Tensor:
            with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
                return leanly(attention=attend_whole)

        ways: dict[str, Callable[[], torch.Tensor]] = {"fused": leanly, "transformers": stock}
        return {**ways, "fused, cuDNN": by_cudnn} if self._model.device.type == "cuda" else ways

    def _compare(self, ways: dict[str, Callable[[], torch.Tensor]]) -> str:
        """The name of the fastest way; one that this machine cannot go is none, unless no other is left."""
        seconds: dict[str, float] = {}
        for name, way in ways.items():
            try:
                seconds[name] = min(_timed(way) for _ in range(3))
            except RuntimeError:
                continue
        return min(seconds, key=lambda name: seconds[name]) if seconds else next(iter(ways))


def _timed(way: Callable[[], torch.Tensor]) -> float:
    began = time.perf_counter()
    way().argmax().item()  # waits for the device
    return time.perf_counter() - began
