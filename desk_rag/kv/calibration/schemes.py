"""Find the coarsest coding of a model's layers that passes a test, with few tests.

Layers move one step finer, one at a time: always the layer that causes the largest divergence when it alone is
quantized. What a layer causes alone does not depend on the others, so each of its steps is measured once, and the order
of all moves follows. More moves never make a cache worse; hence the fewest moves that pass are found by doubling their
number until a coding passes, and then by bisection.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from desk_rag.kv.quant import LayerScheme, QuantScheme

STEPS = (LayerScheme(), LayerScheme(group=64), LayerScheme(raw=True))


@dataclass(slots=True)
class Moves:
    """Divergences measured so far, which a later search need not measure again."""

    alone: dict[str, float] = field(default_factory=dict)
    """KL by layer and step, keyed 'LAYER:STEP'."""


class OutOfTime(Exception):
    """The time for the search is spent; raised by what measures, caught by `coarsest`."""


def coarsest(
    num_layers: int,
    moves: Moves,
    divergence_alone: Callable[[int, LayerScheme], float],
    passes: Callable[[QuantScheme], bool],
) -> tuple[QuantScheme, bool]:
    """Return the coarsest coding with at least one move that passes, and whether the search was completed.

    Raw layers pass without a test. If a measurement raises OutOfTime, the coarsest coding that is known to pass is
    returned.
    """
    order = _Order(num_layers, moves, divergence_alone)
    known, failed, number = order.last, 0, 1
    try:
        while number < order.last and not passes(order.scheme(number)):
            failed, number = number, number * 2
        known = min(number, order.last)
        while known - failed > 1:
            middle = (failed + known) // 2
            if passes(order.scheme(middle)):
                known = middle
            else:
                failed = middle
    except OutOfTime:
        return order.scheme(known), False
    return order.scheme(known), True


class _Order:
    """The order in which layers move, as far as it has been determined."""

    def __init__(self, num_layers: int, moves: Moves, divergence_alone: Callable[[int, LayerScheme], float]) -> None:
        self._num_layers, self._moves, self._divergence_alone = num_layers, moves, divergence_alone
        self._layers = list[int]()
        self._steps = [0] * num_layers
        self.last = num_layers * (len(STEPS) - 1)
        """Number of moves after which all layers are raw."""

    def scheme(self, count: int) -> QuantScheme:
        """Return the coding after `count` moves; measures those that are not known yet, unless all layers are raw."""
        if count == self.last:
            return QuantScheme.uniform(self._num_layers, STEPS[-1])
        while len(self._layers) < count:
            movable = [index for index, step in enumerate(self._steps) if step < len(STEPS) - 1]
            worst = max(movable, key=self._measure)
            self._layers.append(worst)
            self._steps[worst] += 1
        return _after(self._num_layers, self._layers[:count])

    def _measure(self, index: int) -> float:
        """Divergence of a layer at its present step, measured once."""
        step = self._steps[index]
        key = f"{index}:{STEPS[step].label}"
        if key not in self._moves.alone:
            self._moves.alone[key] = self._divergence_alone(index, STEPS[step])
        return self._moves.alone[key]


def _after(num_layers: int, moved: Sequence[int]) -> QuantScheme:
    return QuantScheme(tuple(STEPS[moved.count(index)] for index in range(num_layers)))
