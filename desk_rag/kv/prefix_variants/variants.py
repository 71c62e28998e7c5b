"""Prefill each chunk behind 0 to n filler passages, for early and late places in a context.

A model that was not fine-tuned to read chunks that were prefilled apart answers worse from stitched chunk KV. Most of
the loss comes from *how many* chunks a chunk should have had before it, little from what they say (bench/LOG.md). So
the same chunk is prefilled once per variant: variant r stands behind the shared prefix and the first r filler passages.
The chunk at place p of the context, 0 being right behind the prefix, uses the largest variant r <= p. The KV of the
passages themselves never enters an answer's cache. Variant 0 is plain chunk KV, in the same namespace. The setting that
lists the variants is called `rungs`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from desk_rag.config import rungs_of
from desk_rag.errors import ConfigError
from desk_rag.kv.cache import SlabCache
from desk_rag.kv.identity import identify
from desk_rag.kv.prefill import PrefixKV
from desk_rag.kv.prefix_variants.filler_passages import FILLER_PASSAGES
from desk_rag.kv.quant import QuantScheme
from desk_rag.kv.types import Namespace
from desk_rag.model.language_model import LanguageModel
from desk_rag.model.prompt import PromptFormat

PLAIN: tuple[int, ...] = (0,)
"""Variant 0 only, chunks behind the shared prefix alone: the default."""


@dataclass(frozen=True, slots=True)
class PrefixVariant:
    """The tokens that precede a chunk while it is prefilled, and where its KV is stored."""

    count: int
    """Number of filler passages between the shared prefix and the chunk."""
    prefix: PrefixKV
    """KV of shared prefix and passages, for `prefill_chunk`; variant 0 has the shared prefix itself."""
    namespace: Namespace
    """Namespace of the chunk KV prefilled behind it."""


@dataclass(frozen=True, slots=True)
class PrefixVariants:
    """All variants of one model, in ascending order; the first is variant 0."""

    variants: tuple[PrefixVariant, ...]

    @property
    def counts(self) -> tuple[int, ...]:
        """Number of filler passages of each variant."""
        return tuple(variant.count for variant in self.variants)

    @property
    def namespaces(self) -> tuple[Namespace, ...]:
        """Namespace of each variant."""
        return tuple(variant.namespace for variant in self.variants)

    @property
    def is_plain(self) -> bool:
        """True if variant 0 is the only one."""
        return len(self.variants) == 1

    def for_place(self, place: int) -> PrefixVariant:
        """The variant for the chunk at `place`: the largest with at most that many passages."""
        return self.candidates_for(place)[0]

    def candidates_for(self, place: int) -> tuple[PrefixVariant, ...]:
        """Variants that may serve `place`: the right one first, then smaller ones down to variant 0."""
        return tuple(variant for variant in reversed(self.variants) if variant.count <= place)


def parse_variants(counts: str | Sequence[int], setting: str = "rungs") -> tuple[int, ...]:
    """Parse the numbers of filler passages; raises a ConfigError that names `setting`."""
    try:
        return rungs_of(counts)
    except ValueError as error:
        raise ConfigError(f"{setting}: {error}.", remedy="Use 0 alone for ordinary chunk KV.") from error


def variant_prefix_ids(prompt: PromptFormat, count: int, passages: Sequence[str] = FILLER_PASSAGES) -> tuple[int, ...]:
    """Token ids before a chunk of variant `count`: shared prefix and that many passages, framed as chunks."""
    return (*prompt.prefix_ids, *(token for text in passages[:count] for token in prompt.chunk_ids(text)))


def build_prefix_variants(
    model: LanguageModel,
    prefix: PrefixKV,
    counts: Sequence[int],
    scheme: QuantScheme,
    *,
    drift_epoch: int = 0,
    largest: int | None = None,
    passages: Sequence[str] = FILLER_PASSAGES,
) -> PrefixVariants:
    """Prefill the filler passages behind `prefix` and build the variants of `counts`.

    Passages are prefilled one at a time, so that a variant is the same numbers whichever larger ones exist; all
    variants share memory. `largest` is the longest chunk in tokens, frame included; by default the longest that the
    model's prompt allows. Raises ConfigError if such a chunk does not fit into the model's context behind the largest
    variant.
    """
    counts = parse_variants(counts)
    ends = [len(variant_prefix_ids(model.prompt, count, passages)) for count in range(counts[-1] + 1)]
    longest = largest or model.prompt.chunk_size.largest + len(model.prompt.chunk_ids(""))
    if counts[-1] and ends[-1] + longest > model.spec.max_context:
        raise ConfigError(
            f"rungs: {counts[-1]} filler passages take {ends[-1]} of the {model.spec.max_context} positions of "
            f"'{model.spec.name}', which leaves too few for a chunk of {longest} tokens.",
            remedy="Lower the last number of `rungs` under [model].",
        )
    prefilled = _prefill_passages(model, prefix, ends, variant_prefix_ids(model.prompt, counts[-1], passages))
    variants = []
    for count in counts:
        end = ends[count]
        before = prefix if count == 0 else PrefixKV(prefilled.keys[:, :, :end], prefilled.values[:, :, :end])
        ids = variant_prefix_ids(model.prompt, count, passages)
        namespace = identify(model.spec, ids, scheme, drift_epoch=drift_epoch).namespace()
        variants.append(PrefixVariant(count, before, namespace))
    return PrefixVariants(tuple(variants))


def _prefill_passages(model: LanguageModel, prefix: PrefixKV, ends: Sequence[int], ids: Sequence[int]) -> PrefixKV:
    if len(ends) == 1:
        return prefix
    cache = SlabCache(model, ends[-1])
    prefix.write_to(cache)
    cache.set_length(prefix.num_tokens)
    for start, end in zip(ends, ends[1:], strict=False):
        model.forward(torch.tensor(ids[start:end], device=model.device), cache, start, logits=False)
    return PrefixKV(
        torch.stack([layer.key_slab[0] for layer in cache.layers]),
        torch.stack([layer.value_slab[0] for layer in cache.layers]),
    )
