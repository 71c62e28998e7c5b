"""Time the named stages of one request, so that time to first token is the sum of its parts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Stopwatch:
    """Collects stages in the order they ran. Time between stages (a consumer drawing the screen) is not counted."""

    def __init__(self, sync: Callable[[], None] | None = None) -> None:
        self._sync = sync
        self.stages: list[tuple[str, float]] = []

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Measure the body as one stage; `sync` is called at its end so that asynchronous work counts."""
        start = time.perf_counter()
        try:
            yield
        finally:
            if self._sync is not None:
                self._sync()
            self.stages.append((name, time.perf_counter() - start))
