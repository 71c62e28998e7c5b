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


def coarsest(
    num_layers: int,
    moves: Moves,
    divergence_alone: Callable[[int, LayerScheme], float],
    passes: Callable[[QuantScheme], bool],
    stop: Callable[[], bool],
) -> tuple[QuantScheme, bool]:
    """Return the coarsest coding with at least one move that passes, and whether the search was completed.

    Raw layers pass without a test. When `stop` is true, the coarsest coding that is known to pass is returned.
    """
    order = _Order(num_layers, moves, divergence_alone)
    known, failed = order.last, 0
    number = 1
    while number < order.last:
        if not order.extend(number, stop):
            return order.scheme(known), False
        if passes(order.scheme(number)):
            known = number
            break
        failed, number = number, number * 2
    while known - failed > 1:
        middle = (failed + known) // 2
        if not order.extend(middle, stop):
            return order.scheme(known), False
        if passes(order.scheme(middle)):
            known = middle
        else:
            failed = middle
    return order.scheme(known), True


class _Order:
    """The order in which layers move, as far as it has been determined."""

    def __init__(self, num_layers: int, moves: Moves, divergence_alone: Callable[[int, LayerScheme], float]) -> None:
        self._num_layers, self._moves, self._divergence_alone = num_layers, moves, divergence_alone
        self._layers = list[int]()
        self._steps = [0] * num_layers
        self.last = num_layers * (len(STEPS) - 1)
        """Number of moves after which all layers are raw."""

    def extend(self, count: int, stop: Callable[[], bool]) -> bool:
        """Determine the first `count` moves; False if `stop` became true first."""
        while len(self._layers) < count:
            movable = [index for index, step in enumerate(self._steps) if step < len(STEPS) - 1]
            for index in movable:
                if stop():
                    return False
                self._measure(index)
            worst = max(movable, key=self._measure)
            self._layers.append(worst)
            self._steps[worst] += 1
        return not stop()

    def scheme(self, count: int) -> QuantScheme:
        """Return the coding after `count` moves."""
        if count == self.last:
            return QuantScheme.uniform(self._num_layers, STEPS[-1])
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
