"""Produce a first token as others do: full prefill, prefix caching, TurboRAG's and MatKV's loaders.

Full prefill is run in every way this machine offers and the fastest one stands for it. The published loaders end where
theirs do, with all keys and values in one cache; the question is then prefilled by our lean pass, which is kinder to
them than their own code, which rotates the whole cache in the model's eager attention.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import cast

import torch

from desk_rag.bench import load
from desk_rag.bench.harness.clock import Work, in_turns
from desk_rag.bench.harness.report import Spread
from desk_rag.bench.models import synthetic
from desk_rag.bench.models.synthetic import Shape
from desk_rag.kv.cache import SlabCache
from desk_rag.kv.forward import full_prefill
from desk_rag.kv.forward.fused_decoder import FusedDecoder
from desk_rag.kv.loading.layerwise import CacheTarget
from desk_rag.kv.positions import plan
from desk_rag.kv.rope import RotaryTables
from desk_rag.model.language_model import LanguageModel


class FullPrefill:
    """Whole prompts through one model, in the ways it can be done."""

    def __init__(self, model: LanguageModel, cache: SlabCache, tables: RotaryTables) -> None:
        self._model, self._cache = model, cache
        self._lean = FusedDecoder(model, cache.layers, tables, graphs=False)
        self._known: dict[int, tuple[str, dict[str, float]]] = {}

    def ways(self, prompt: torch.Tensor) -> dict[str, Callable[[], int]]:
        """First token of ids [1, N] by each way."""
        prefills = full_prefill.implementations(self._model, self._cache, self._lean, prompt[0])
        return {name: partial(_first_token, prefill) for name, prefill in prefills.items()}

    def fastest(self, prompt: torch.Tensor) -> tuple[str, dict[str, float]]:
        """The name of the fastest way for prompts of this length, and the median seconds of all of them."""
        length = int(prompt.shape[1])
        if length not in self._known:
            works = {name: Work(way) for name, way in self.ways(prompt).items()}
            times = in_turns(works, self._model.device, seconds=0.0, least=2)
            if not times:
                raise RuntimeError(f"no way of full prefill works for {length} tokens")
            medians = {name: Spread.of(one.wall).median for name, one in times.items()}
            self._known[length] = min(medians, key=lambda name: medians[name]), medians
        return self._known[length]

    def behind_prefix(self, prompt: torch.Tensor, prefix_tokens: int) -> int:
        """Prefix caching: the first `prefix_tokens` of the last prompt are still in the cache, the rest is run."""
        return int(self._lean.run(prompt[:, prefix_tokens:], prefix_tokens).argmax())


def _first_token(prefill: full_prefill.Implementation) -> int:
    return int(prefill().argmax())


@dataclass(frozen=True, slots=True)
class TheirFiles:
    """Chunks in TurboRAG's and MatKV's formats, and one large file for the drive's own rate."""

    lengths: tuple[int, ...]
    files: load.Files

    @classmethod
    def write(cls, place: Path, shape: Shape, wanted: Sequence[Sequence[int]], big_bytes: int) -> TheirFiles:
        """Enough chunks for the largest of `wanted`, each a list of chunk lengths; they share what they can."""
        longest = max(wanted, key=sum)
        lengths = list(longest)
        for other in wanted:
            lengths += [length for length in dict.fromkeys(other) if length not in lengths]
        place.mkdir(parents=True, exist_ok=True)
        return cls(tuple(lengths), load._write(place, shape, lengths, big_bytes))

    def covers(self, lengths: Sequence[int]) -> bool:
        """True if a question with chunks of these lengths can be served."""
        return all(self.lengths.count(length) >= lengths.count(length) for length in lengths)

    def of(self, lengths: Sequence[int]) -> load.Files:
        """The files of a question with chunks of these lengths."""
        left = list(enumerate(self.lengths))
        chosen = []
        for length in lengths:
            numbered = next(pair for pair in left if pair[1] == length)
            left.remove(numbered)
            chosen.append(numbered[0])
        files = self.files
        return load.Files(
            tuple(files.ours[index] for index in chosen),
            tuple(files.turborag[index] for index in chosen),
            tuple(files.matkv[index] for index in chosen),
            files.big,
        )

    def loaders(
        self, shape: Shape, lengths: Sequence[int], tables: RotaryTables
    ) -> dict[str, tuple[Callable[[], object], tuple[Path, ...]]]:
        """Return each system's load of one question's chunks, and the files that it reads."""
        files, total = self.of(lengths), sum(lengths)
        device = tables.cos[0].device
        own = RotaryTables((tables.cos[0][:total],), (tables.sin[0][:total],), tables.table_of_layer)
        nowhere = CacheTarget(own, cast("SlabCache", synthetic.Slabs([], 0)), None)
        bench = load.Bench(shape, plan(0, lengths), own, nowhere, device, 1)
        return {
            "TurboRAG's loader": (load._turborag(files, bench), files.turborag),
            "MatKV's loader": (load._matkv(files, bench), files.matkv),
        }
