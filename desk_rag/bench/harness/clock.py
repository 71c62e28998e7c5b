"""Wall clock and CUDA events around pieces of work, taken in turns, so that all of them see the same machine."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch

from desk_rag.bench.harness.report import Spread

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Work:
    """One piece: `before` is not measured, `run` is, and must return only when its result is on the host."""

    run: Callable[[], object]
    before: Callable[[], object] = lambda: None


@dataclass(slots=True)
class Times:
    """Seconds of one piece, in the order of the rounds."""

    wall: list[float] = field(default_factory=list)
    device: list[float] = field(default_factory=list)
    """Between two CUDA events on the computing stream; empty without a GPU."""

    def json(self) -> dict[str, object]:
        """[min, p25, p50, p75, max] in milliseconds."""
        fields: dict[str, object] = {"wall_ms": Spread.of(self.wall).scaled(1e3, 2), "n": len(self.wall)}
        if self.device:
            fields["events_ms"] = Spread.of(self.device).scaled(1e3, 2)
        return fields


def synchronize(device: torch.device) -> None:
    """Wait until the device has done all its work; a CPU has."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def in_turns(
    works: Mapping[str, Work], device: torch.device, *, seconds: float, least: int = 3, most: int = 15
) -> dict[str, Times]:
    """Run every piece once unreported, then in rounds until `seconds` are spent; the order turns from round to round.

    A piece that fails in the unreported round is left out and logged: the others were worth measuring. Between `least`
    and `most` rounds are run whatever the budget.
    """
    began = time.perf_counter()
    running = {name: work for name, work in works.items() if _works(name, work, device)}
    times = {name: Times() for name in running}
    again = time.perf_counter()
    rounds = most
    names = list(running)
    for number in range(most):
        if number >= rounds:
            break
        shift = number % max(1, len(names))
        for name in names[shift:] + names[:shift]:
            wall, event = timed(running[name], device)
            times[name].wall.append(wall)
            if event is not None:
                times[name].device.append(event)
        if number == 0:
            left = seconds - (time.perf_counter() - began)
            rounds = max(least, min(most, 1 + int(left / max(time.perf_counter() - again, 1e-6))))
    return times


def timed(work: Work, device: torch.device) -> tuple[float, float | None]:
    """Seconds by the wall clock, and between CUDA events where there is a GPU."""
    work.before()
    if device.type != "cuda":
        began = time.perf_counter()
        work.run()
        return time.perf_counter() - began, None
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    torch.cuda.synchronize(device)
    began = time.perf_counter()
    first.record()
    work.run()
    took = time.perf_counter() - began
    last.record()
    torch.cuda.synchronize(device)
    return took, first.elapsed_time(last) / 1e3


def _works(name: str, work: Work, device: torch.device) -> bool:
    try:
        timed(work, device)
    except Exception:  # out of memory, a backend that is missing: each raises a type of its own
        _log.exception("%s is left out", name)
        return False
    return True
