"""How much to recompute, and by which selector: the user's choice, or one made from the question and measured cost.

Knows words, counts and seconds; knows no tensor, so that the command line can name the choices at no cost. What
recompute buys is attention between chunks, which a question needs when no single chunk answers it. Whether it does is
guessed from its words and from where they stand; what it may cost is bounded by what this machine was measured to take.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Literal

import numpy as np

from desk_rag.errors import ConfigError

if TYPE_CHECKING:
    from desk_rag.kv.positions import StitchPlan


class SelectorName(Enum):
    """Who chooses the chunk tokens that are computed anew."""

    FIRST_K = "first-k"
    """The first tokens of every chunk (EPIC, arXiv 2410.15332)."""
    DELTA_KV = "delta-kv"
    """Those whose keys and values at layer 1 differ most from full prefill (CacheBlend, EuroSys 2025)."""
    AUX = "aux"
    """Windows that an auxiliary model's question tokens look at (CacheClip, arXiv 2510.10129), filled to the ratio."""
    AUX_STRICT = "aux-strict"
    """The same with windows exactly as published, which recomputes far less than the ratio says."""
    QUERY = "query"
    """Those that the question looks at over the stitched cache (ProphetKV, arXiv 2602.02579)."""
    EDGE_QUERY = "edge-query"
    """The first few tokens of every chunk, then those that the question looks at. The default."""

    @property
    def needs_cache(self) -> bool:
        """True if it reads the stitched cache; the others can choose while chunk KV is still on its way."""
        return self in {SelectorName.DELTA_KV, SelectorName.QUERY, SelectorName.EDGE_QUERY}


@dataclass(frozen=True, slots=True)
class RecomputeChoice:
    """The knob."""

    ratio: float | Literal["auto"] = 0.0
    """Share of chunk tokens from 0, plain stitching, to 1, full prefill; 'auto' decides per question."""
    selector: SelectorName = SelectorName.EDGE_QUERY

    @classmethod
    def parse(cls, ratio: str, selector: str = SelectorName.EDGE_QUERY.value) -> RecomputeChoice:
        """From the words of a command line or a settings file. Raises ConfigError."""
        names = [name.value for name in SelectorName]
        if selector not in names:
            raise ConfigError(f"There is no selector '{selector}'.", remedy=f"Known: {', '.join(names)}.")
        if ratio == "auto":
            return cls("auto", SelectorName(selector))
        try:
            share = float(ratio)
        except ValueError:
            share = -1.0
        if not 0.0 <= share <= 1.0:
            raise ConfigError(f"recompute '{ratio}' is no share.", remedy="Give a number from 0 to 1, or 'auto'.")
        return cls(share, SelectorName(selector))


@dataclass(frozen=True, slots=True)
class PassTiming:
    """One pass that was measured."""

    rows: int
    keys: int
    """Slots in use at its end."""
    seconds: float


@dataclass(frozen=True, slots=True)
class PassCosts:
    """What a pass takes on this machine with this model: fixed + rows * per_row + rows * keys * per_pair seconds."""

    fixed: float
    per_row: float
    per_pair: float

    @classmethod
    def fit(cls, timings: Sequence[PassTiming]) -> PassCosts:
        """Least squares over at least three passes that differ in size; relative, so that short passes count as well.

        No part of the cost is negative: a part that comes out so is left out and the others are fitted again.
        """
        assert len(timings) >= 3, "a plane through fewer than three points"
        columns = np.array([[1.0, t.rows, t.rows * t.keys] for t in timings])
        seconds = np.array([t.seconds for t in timings])
        kept = [0, 1, 2]
        while True:
            found = np.linalg.lstsq(columns[:, kept] / seconds[:, None], np.ones(len(seconds)), rcond=None)[0]
            if len(kept) == 1 or found.min() >= 0:
                break
            kept.pop(int(found.argmin()))
        parts = dict(zip(kept, found.tolist(), strict=True))
        return cls(parts.get(0, 0.0), parts.get(1, 0.0), parts.get(2, 0.0))

    def seconds(self, rows: int, keys: int) -> float:
        """Predicted time of a pass of `rows` that ends with `keys` slots in use."""
        return self.fixed + rows * self.per_row + rows * keys * self.per_pair


RATIOS = (1.0, 0.5, 0.3, 0.2, 0.15, 0.1, 0.05)
_UNNOTICED = 0.12
"""Seconds that nobody waits for: below them an answer's first word seems to come at once."""
_SPEED_UP = 3.5
"""How much faster than full prefill an answer with recompute has to stay."""
_WANTED = (0.0, 0.1, 0.2)
"""Ratio by number of cues that the question needs several chunks; the last one for all beyond."""


def choose(question: str, texts: Sequence[str], costs: PassCosts, plan: StitchPlan, question_tokens: int = 32) -> float:
    """The ratio for one question over `texts`, the chunks of `plan`.

    No cue, no recompute. With cues the ratio follows their number, lowered to what keeps the pass 3.5 times faster than
    full prefill, unless all the extra time would go unnoticed: then it is raised as far as that holds.
    """
    found = cues(question, texts)
    wanted = _WANTED[min(found, len(_WANTED) - 1)]
    chunk_tokens = plan.num_slots - plan.prefix_tokens
    if not wanted or len(texts) < 2 or not chunk_tokens:
        return 0.0
    keys = plan.num_slots + question_tokens
    plain, full = costs.seconds(question_tokens, keys), costs.seconds(keys, keys)

    def affordable(ratio: float) -> bool:
        took = costs.seconds(question_tokens + round(ratio * chunk_tokens), keys)
        return took - plain <= _UNNOTICED or (ratio <= wanted and took * _SPEED_UP <= full)

    return next((rung for rung in RATIOS if affordable(rung)), 0.0)


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_ASKING = _words("who whom whose what which when where why how")
_JOINING = _words(
    "both neither either together altogether total sum difference compare compared than same also "
    "before after between first earlier later earliest latest most least all each every other"
)
_CHANGED = _words(
    "now still really instead actually currently new newly changed former original originally previously updated "
    "corrected"
)
_EMPTY = _words(
    "the a an of in on at to for from by with and or is are was were be been do does did has have had it its this "
    "that these those he she they him his her their i me my we us our you your not no there can could should would "
    "will"
)
_OPENING = 2
"""Words at a question's beginning, where a question word asks and does not yet refer to something else."""
_RARE = 2
"""Chunks that may hold a word before it says nothing about where the answer is."""
_STEM = 5
"""Letters by which forms of one word are taken for the same; enough for most, in most languages with letters."""


def cues(question: str, texts: Sequence[str]) -> int:
    """How many signs there are that no single chunk answers `question`; 0 to 4.

    A second question word, or a clause that says which thing is meant; words that join, compare or speak of a change;
    a rare word of the question, or two, that the chunk with most of them lacks and another has. The first two know
    English, the others no language. (Of written questions that need two chunks, 5 chunks to read, about 75 % show a
    sign; of those that need one, 10 to 33 %.)
    """
    words = [word.casefold() for word in re.findall(r"\w+", question)]
    referring = (_ASKING | {"that"}).intersection(words[_OPENING:])
    content = {word[:_STEM] for word in words if len(word) > 2 and word not in _EMPTY | _ASKING | _JOINING}
    held = [{word[:_STEM] for word in re.findall(r"\w+", text.casefold())} for text in texts]
    rare = {word for word in content if 0 < sum(word in stems for stems in held) <= _RARE}
    elsewhere = _scattered(rare, held)
    signs = (bool(referring), bool((_JOINING | _CHANGED).intersection(words)), elsewhere > 0, elsewhere > 1)
    return sum(signs)


def _scattered(wanted: set[str], held: Sequence[set[str]]) -> int:
    """How many of the `wanted` words that any chunk has are missing from the chunk that has most of them."""
    present = [wanted & words for words in held]
    return len(set[str]().union(*present)) - max((len(words) for words in present), default=0)
