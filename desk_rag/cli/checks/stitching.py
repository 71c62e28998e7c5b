"""Say what separately cached passages cost the models of a data directory."""

from __future__ import annotations

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
        sentence = f"{before['nats']:.4f} nats per token from full prefill, {before['same']:.1%} of tokens the same"
        if one.facts["kept"]:
            sentence += f"; adapted: {after['nats']:.4f} nats, {after['same']:.1%}"
        else:
            sentence += f"; as it is. {one.facts['reason']}"
        costs.append(StitchingCost(one.facts["model"], sentence))
    return costs
