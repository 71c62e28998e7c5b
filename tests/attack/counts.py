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
    """Rounds made, how they ended, every promise that did not hold, and what could not be checked."""

    rounds: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)
    no_result: list[str] = field(default_factory=list)
    """Checks that this machine was too slow for: neither kept nor broken."""
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
