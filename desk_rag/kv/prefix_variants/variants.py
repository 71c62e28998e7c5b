"""One chunk, several KVs: prefilled behind the shared prefix and none, some or many primers, for early and late places.

Knows primers, prefixes and names; knows no store and no question. A model that was never taught to read chunks apart
from each other answers worse from stitched chunk KV, and on the one model that was measured nearly all of that comes
from how many chunks a chunk should have had before it, hardly from what they say. So the same chunk is prefilled once
per *rung*: rung r is behind the shared prefix and the first r primers. A chunk that is laid at place p, 0 being right
behind the prefix, takes the largest rung that is not above p. The primers' own KV is never in an answer's cache; keys
are kept before RoPE as ever, so the stitch does not know of any of this. Rung 0 is plain chunk KV, names included.
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
from desk_rag.kv.prefix_variants.filler_passages import PRIMERS
from desk_rag.kv.quant import QuantScheme
from desk_rag.kv.types import Namespace
from desk_rag.model.language_model import LanguageModel
from desk_rag.model.prompt import PromptFormat

PLAIN: tuple[int, ...] = (0,)
"""Every chunk behind the shared prefix alone: the default."""


@dataclass(frozen=True, slots=True)
class Rung:
    """What a chunk stands behind while it is prefilled."""

    count: int
    """Primers between the shared prefix and the chunk."""
    prefix: PrefixKV
    """Shared prefix and primers, as `prefill_chunk` takes it; rung 0 has the shared prefix itself."""
    namespace: Namespace
    """Of the chunk KV made here."""


@dataclass(frozen=True, slots=True)
class Ladder:
    """The rungs of one model, ascending; the first is rung 0."""

    rungs: tuple[Rung, ...]

    @property
    def counts(self) -> tuple[int, ...]:
        """Primers of every rung."""
        return tuple(rung.count for rung in self.rungs)

    @property
    def is_plain(self) -> bool:
        """Whether there is rung 0 alone."""
        return len(self.rungs) == 1

    def at(self, place: int) -> Rung:
        """The rung of the chunk that is laid at `place`: the largest that is not above it."""
        return self.serving(place)[0]

    def serving(self, place: int) -> tuple[Rung, ...]:
        """The rungs that may serve `place`, the right one first and then those below it, down to rung 0."""
        return tuple(rung for rung in reversed(self.rungs) if rung.count <= place)


def parse_rungs(given: str | Sequence[int], setting: str = "rungs") -> tuple[int, ...]:
    """As `config.rungs_of`, with a ConfigError that names `setting`."""
    try:
        return rungs_of(given)
    except ValueError as error:
        raise ConfigError(f"{setting}: {error}.", remedy="0 alone means chunk KV as it always was.") from error


def primed_ids(prompt: PromptFormat, count: int, primers: Sequence[str] = PRIMERS) -> tuple[int, ...]:
    """Token ids that stand before a chunk on rung `count`: the shared prefix and so many primers, framed as chunks."""
    return (*prompt.prefix_ids, *(token for text in primers[:count] for token in prompt.chunk_ids(text)))


def build_ladder(
    model: LanguageModel,
    prefix: PrefixKV,
    counts: Sequence[int],
    scheme: QuantScheme,
    *,
    drift_epoch: int = 0,
    largest: int | None = None,
    primers: Sequence[str] = PRIMERS,
) -> Ladder:
    """Prefill the primers of `counts` behind `prefix` and name every rung.

    Primers are run one after the other, so that a rung is the same numbers whatever rungs stand above it; all rungs
    share one stretch of memory. `largest` is the longest chunk in tokens, frame included; by default the longest that
    the model's prompt allows. Raises ConfigError where it does not fit into the model's context behind the last rung.
    """
    counts = parse_rungs(counts)
    ends = [len(primed_ids(model.prompt, count, primers)) for count in range(counts[-1] + 1)]
    longest = largest or model.prompt.chunk_size.largest + len(model.prompt.chunk_ids(""))
    if counts[-1] and ends[-1] + longest > model.spec.max_context:
        raise ConfigError(
            f"rungs: {counts[-1]} primers take {ends[-1]} of the {model.spec.max_context} positions of "
            f"'{model.spec.name}', which leaves too few for a chunk of {longest} tokens.",
            remedy="Lower the last of the rungs.",
        )
    whole = _prefill_primers(model, prefix, ends, primed_ids(model.prompt, counts[-1], primers))
    rungs = []
    for count in counts:
        before = prefix if count == 0 else PrefixKV(whole.keys[:, :, : ends[count]], whole.values[:, :, : ends[count]])
        ids = primed_ids(model.prompt, count, primers)
        rungs.append(Rung(count, before, identify(model.spec, ids, scheme, drift_epoch=drift_epoch).namespace()))
    return Ladder(tuple(rungs))


def _prefill_primers(model: LanguageModel, prefix: PrefixKV, ends: Sequence[int], ids: Sequence[int]) -> PrefixKV:
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
