"""Ratio and selector of selective recompute, as the user chose them.

Imports no torch, so that the command line can list the choices quickly. Recompute restores attention between chunks,
which a question needs when no single chunk answers it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from desk_rag.config import AnswerSettings
from desk_rag.errors import ConfigError

SMOLLM = "HuggingFaceTB/SmolLM2-135M"
"""The auxiliary model of CacheClip (arXiv 2510.10129)."""
AUXILIARY_NAMES = {"smollm2-135m": SMOLLM}
"""Short names of auxiliary models in the settings."""


class SelectorName(Enum):
    """Methods that select the chunk tokens to recompute; others, for comparison, are in `bench/baselines/selectors`."""

    AUX = "aux"
    """Windows that an auxiliary model's question attends to (CacheClip, arXiv 2510.10129), filled to the ratio."""
    AUX_STRICT = "aux-strict"
    """`AUX` with windows exactly as published, which recompute far less than the ratio says."""
    EDGE_QUERY = "edge-query"
    """The first few tokens of every chunk, then those that the question attends to. The default."""

    @property
    def needs_cache(self) -> bool:
        """True if it reads the stitched cache; others can select while chunk KV is still being loaded."""
        return self is SelectorName.EDGE_QUERY

    @property
    def needs_auxiliary(self) -> bool:
        """True if an auxiliary model selects."""
        return self in {SelectorName.AUX, SelectorName.AUX_STRICT}


@dataclass(frozen=True, slots=True)
class RecomputeChoice:
    """Ratio and selector of one engine or answer."""

    ratio: float = 0.0
    """Share of chunk tokens from 0, plain stitching, to 1, full prefill."""
    selector: SelectorName = SelectorName.EDGE_QUERY

    @property
    def needs_auxiliary(self) -> bool:
        """True if answers by this choice need an auxiliary model."""
        return bool(self.ratio) and self.selector.needs_auxiliary

    @classmethod
    def of(cls, settings: AnswerSettings) -> RecomputeChoice:
        """Return the choice of the settings."""
        return cls(settings.recompute, SelectorName(settings.selector))

    @classmethod
    def parse(cls, ratio: str, selector: str = SelectorName.EDGE_QUERY.value) -> RecomputeChoice:
        """Parse values of the command line or the settings file. Raises ConfigError."""
        names = [name.value for name in SelectorName]
        if selector not in names:
            raise ConfigError(f"There is no selector '{selector}'.", remedy=f"Known: {', '.join(names)}.")
        try:
            share = float(ratio)
        except ValueError:
            share = -1.0
        if not 0.0 <= share <= 1.0:
            raise ConfigError(f"recompute '{ratio}' is no share.", remedy="Give a number from 0 to 1.")
        return cls(share, SelectorName(selector))
