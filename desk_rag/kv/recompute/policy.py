"""Ratio and selector of selective recompute: the user's choice, or 'auto' by question and measured cost.

Imports no torch, so that the command line can list the choices quickly. Recompute restores attention between chunks,
which a question needs when no single chunk answers it. 'auto' guesses from the question's words whether it does, and
bounds the cost by what was measured on this machine.
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
    """How the chunk tokens to recompute are selected."""

    FIRST_K = "first-k"
    """The first tokens of every chunk (EPIC, arXiv 2410.15332)."""
    DELTA_KV = "delta-kv"
    """Tokens whose keys and values at layer 1 differ most from full prefill (CacheBlend, EuroSys 2025)."""
    AUX = "aux"
    """Windows that an auxiliary model's question attends to (CacheClip, arXiv 2510.10129), filled to the ratio."""
    AUX_STRICT = "aux-strict"
    """As `AUX` with windows exactly as published, which recompute far less than the ratio says."""
    QUERY = "query"
    """Tokens that the question attends to over the stitched cache (ProphetKV, arXiv 2602.02579)."""
    EDGE_QUERY = "edge-query"
    """The first few tokens of every chunk, then those that the question attends to. The default."""

    @property
    def needs_cache(self) -> bool:
        """True if it reads the stitched cache; others can select while chunk KV is still being loaded."""
        return self in {SelectorName.DELTA_KV, SelectorName.QUERY, SelectorName.EDGE_QUERY}


@dataclass(frozen=True, slots=True)
class RecomputeChoice:
    """Ratio and selector of one engine or answer."""

    ratio: float | Literal["auto"] = 0.0
    """Share of chunk tokens from 0, plain stitching, to 1, full prefill; 'auto' decides per question."""
    selector: SelectorName = SelectorName.EDGE_QUERY

    @classmethod
    def parse(cls, ratio: str, selector: str = SelectorName.EDGE_QUERY.value) -> RecomputeChoice:
        """Parse values of the command line or the settings file. Raises ConfigError."""
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
    """Measured time of one pass."""

    rows: int
    keys: int
    """Slots in use at its end."""
    seconds: float


@dataclass(frozen=True, slots=True)
class PassCosts:
    """Cost model of a pass: fixed + rows * per_row + rows * keys * per_pair seconds."""

    fixed: float
    per_row: float
    per_pair: float

    @classmethod
    def fit(cls, timings: Sequence[PassTiming]) -> PassCosts:
        """Fit at least three passes of different sizes by least squares of relative errors.

        A term that comes out negative is dropped, and the others are fitted again.
        """
        assert len(timings) >= 3, "three unknowns need three measurements"
        columns = np.array([[1.0, t.rows, t.rows * t.keys] for t in timings])
        seconds = np.array([t.seconds for t in timings])
        terms = [0, 1, 2]
        while True:
            solution = np.linalg.lstsq(columns[:, terms] / seconds[:, None], np.ones(len(seconds)), rcond=None)[0]
            if len(terms) == 1 or solution.min() >= 0:
                break
            terms.pop(int(solution.argmin()))
        costs = dict(zip(terms, solution.tolist(), strict=True))
        return cls(costs.get(0, 0.0), costs.get(1, 0.0), costs.get(2, 0.0))

    def seconds(self, rows: int, keys: int) -> float:
        """Predicted time of a pass of `rows` that ends with `keys` slots in use."""
        return self.fixed + rows * self.per_row + rows * keys * self.per_pair


RATIOS = (1.0, 0.5, 0.3, 0.2, 0.15, 0.1, 0.05)
_UNNOTICED = 0.12
"""Seconds of extra delay of the first word that users do not notice."""
_SPEED_UP = 3.5
"""Minimum speed-up over full prefill that an answer with recompute keeps."""
_RATIO_BY_CUES = (0.0, 0.1, 0.2)
"""Ratio by the number of cues that a question needs several chunks; the last entry also for more cues."""


def choose(question: str, texts: Sequence[str], costs: PassCosts, plan: StitchPlan, question_tokens: int = 32) -> float:
    """Choose the ratio for one question over `texts`, the chunks of `plan`.

    Without cues nothing is recomputed. Otherwise the number of cues sets the ratio. It is lowered until the pass is 3.5
    times faster than full prefill, or raised as long as the extra time stays unnoticed.
    """
    target = _RATIO_BY_CUES[min(cues(question, texts), len(_RATIO_BY_CUES) - 1)]
    chunk_tokens = plan.num_slots - plan.prefix_tokens
    if not target or len(texts) < 2 or not chunk_tokens:
        return 0.0
    keys = plan.num_slots + question_tokens
    plain, full = costs.seconds(question_tokens, keys), costs.seconds(keys, keys)

    def affordable(ratio: float) -> bool:
        seconds = costs.seconds(question_tokens + round(ratio * chunk_tokens), keys)
        return seconds - plain <= _UNNOTICED or (ratio <= target and seconds * _SPEED_UP <= full)

    return next((ratio for ratio in RATIOS if affordable(ratio)), 0.0)


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
"""Number of first words in which a question word is the question itself, not a relative clause."""
_RARE = 2
"""Maximum number of chunks that contain a word for it to count as rare."""
_STEM = 5
"""Number of first letters by which two words count as forms of the same word."""


def cues(question: str, texts: Sequence[str]) -> int:
    """Count cues, 0 to 4, that no single chunk answers `question`.

    One for a second question word or a relative clause; one for words that join, compare or speak of a change; one and
    two for rare words of the question that the chunk with most of them lacks and another chunk has. The first two cues
    are for English only. How often they occur: bench/LOG.md, "Cues for recompute".
    """
    words = [word.casefold() for word in re.findall(r"\w+", question)]
    referring = (_ASKING | {"that"}).intersection(words[_OPENING:])
    content = {word[:_STEM] for word in words if len(word) > 2 and word not in _EMPTY | _ASKING | _JOINING}
    chunk_stems = [{word[:_STEM] for word in re.findall(r"\w+", text.casefold())} for text in texts]
    rare = {word for word in content if 0 < sum(word in stems for stems in chunk_stems) <= _RARE}
    elsewhere = _num_elsewhere(rare, chunk_stems)
    signs = (bool(referring), bool((_JOINING | _CHANGED).intersection(words)), elsewhere > 0, elsewhere > 1)
    return sum(signs)


def _num_elsewhere(stems: set[str], chunk_stems: Sequence[set[str]]) -> int:
    """Number of `stems` that occur in some chunk but not in the chunk with most of them."""
    present = [stems & words for words in chunk_stems]
    return len(set[str]().union(*present)) - max((len(words) for words in present), default=0)
