"""Name the ways of answering that are compared: full prefill, stitched chunks, variants, recompute."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

from desk_rag.errors import ConfigError


class Way(Enum):
    """Treatment of the chunks."""

    FULL = "full"
    """Prefilled with everything that stands before them: the measure of the others."""
    REORDERED = "reordered"
    COMPOSITE = "composite"
    PARALLEL = "parallel"
    ADAPTED = "adapted"
    """Stitched at reordered positions, with the shift that `desk-rag adapt` learned."""
    APE = "ape"
    """As PARALLEL, with attention to the chunks at a lower temperature and scaled down (APE, arXiv 2502.05431)."""
    BLOCK = "block"
    """As REORDERED, of chunks prefilled alone, without the shared prefix (Block-Attention, arXiv 2409.15355)."""
    RECOMPUTE = "recompute"
    """Stitched at reordered positions, then some of their tokens computed anew."""


@dataclass(frozen=True, slots=True)
class Mode:
    """One row of the table."""

    way: Way
    selector: str = ""
    """Selector of the recomputed tokens; RECOMPUTE only."""
    ratio: float = 0.0
    """Requested share of recomputed tokens; RECOMPUTE only."""
    primed: bool = False
    """True to use the prefix variant of each chunk's place; REORDERED and RECOMPUTE only."""

    @property
    def label(self) -> str:
        """'full', 'primed', 'recompute:query:0.2' or 'primed+recompute:query:0.2'; `parse_modes` reads it back."""
        name = f"{self.way.value}:{self.selector}:{self.ratio:g}" if self.way is Way.RECOMPUTE else self.way.value
        if not self.primed:
            return name
        return _PRIMED if self.way is Way.REORDERED else f"{_PRIMED}+{name}"


_PRIMED = "primed"
FULL = Mode(Way.FULL)
STITCHED = (Mode(Way.REORDERED), Mode(Way.COMPOSITE), Mode(Way.PARALLEL))


def parse_modes(text: str, selectors: Sequence[str] = (), ratios: Sequence[float] = (0.2,)) -> tuple[Mode, ...]:
    """'full,reordered,primed+recompute:query:0.2' to modes; a bare 'recompute' is every selector at every ratio.

    Raises ConfigError.
    """
    modes: list[Mode] = []
    for name in (part.strip() for part in text.split(",") if part.strip()):
        primed, rest = _primed(name)
        way, *more = rest.split(":")
        if way not in [each.value for each in Way]:
            raise ConfigError(f"There is no mode '{way}'.", remedy=_known())
        if Way(way) is Way.RECOMPUTE:
            modes += [replace(mode, primed=primed) for mode in _recomputing(name, more, selectors, ratios)]
        elif more:
            raise ConfigError(f"Mode '{name}': only recompute takes a selector and a ratio.", remedy=_known())
        else:
            modes.append(Mode(Way(way), primed=primed))
    if not modes:
        raise ConfigError("No mode was named.", remedy=_known())
    return tuple(dict.fromkeys(modes))


def _primed(name: str) -> tuple[bool, str]:
    """Return whether a mode is primed, and the rest of its name."""
    head, plus, rest = name.partition("+")
    if head != _PRIMED:
        return False, name
    if plus and rest.split(":")[0] != Way.RECOMPUTE.value:
        raise ConfigError(f"Mode '{name}': only recompute goes on top of {_PRIMED}.", remedy=_known())
    return True, rest if plus else Way.REORDERED.value


def _recomputing(name: str, more: list[str], selectors: Sequence[str], ratios: Sequence[float]) -> list[Mode]:
    chosen = [more[0]] if more else list(selectors)
    try:
        shares = [float(more[1])] if len(more) > 1 else list(ratios)
    except ValueError:
        shares = [-1.0]
    if len(more) > 2 or not chosen or not all(0 <= share <= 1 for share in shares):
        raise ConfigError(f"Mode '{name}' is not of the form recompute:SELECTOR:RATIO, ratio 0 to 1.", remedy=_known())
    return [Mode(Way.RECOMPUTE, selector, share) for selector in chosen for share in shares]


def _known() -> str:
    known = ", ".join([*(way.value for way in Way), _PRIMED])
    return f"Known: {known}; for one: --modes full,reordered,recompute:first-k:0.2,primed+recompute:edge-query:0.2"
