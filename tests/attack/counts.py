"""Report of one kind of attack."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field


class Skipped(Exception):
    """This machine does not allow the attack; the message says why."""


@dataclass(slots=True)
class Counts:
    """Rounds made, how they ended, and every promise that did not hold."""

    rounds: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)
    skipped: str = ""

    def end(self, outcome: str) -> None:
        """Count one round."""
        self.rounds += 1
        self.outcomes[outcome] += 1


@dataclass(frozen=True, slots=True)
class Budget:
    """Time limit of one kind of attack."""

    seconds: float
    began: float = field(default_factory=time.monotonic)

    def rounds(self, most: int = 1 << 30) -> Iterator[int]:
        """Yield round numbers until the time is spent; one round at least."""
        for number in range(most):
            if number and time.monotonic() - self.began > self.seconds:
                return
            yield number
