"""Say in words what separately cached passages cost the models of a data directory."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class StitchingCost:
    """The measurement that was stored with an adaptation."""

    model: str
    sentence: str


def stitching_costs(data_dir: Path) -> list[StitchingCost]:
    """Return what `desk-rag adapt` measured for each model, and what became of it; loads no weights."""
    from desk_rag.store import adaptations

    costs = []
    for one in adaptations.stored(data_dir).values():
        before, after = one.facts["before"], one.facts["after"]
        sentence = f"{closeness(before['nats'], before['same'])}. {one.facts['reason']}"
        if one.facts["kept"]:
            sentence = (
                f"adapted: {closeness(after['nats'], after['same'])}; "
                f"{before['same']:.1%} and {less_likely(before['nats'])} before"
            )
        costs.append(StitchingCost(one.facts["model"], sentence))
    return costs


def closeness(nats: float, same: float) -> str:
    """Say how near answers from caches come to those of full prefill.

    `nats` is the mean divergence per token, and `same` the share of tokens with the same most probable successor.
    """
    return (
        f"from caches, {same:.1%} of an answer's words and word parts are those of full prefill, "
        f"which are {less_likely(nats)} on average"
    )


def less_likely(nats: float) -> str:
    """Put a divergence from full prefill as the share of their probability that full prefill's tokens lose."""
    return f"{-math.expm1(-nats):.1%} less likely"
