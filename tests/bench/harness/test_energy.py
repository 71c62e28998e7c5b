"""Joules are divided by the work done; pieces of work are timed in turns and a failing one is left out."""

from __future__ import annotations

import time

import pytest
import torch

from desk_rag.bench.harness import energy
from desk_rag.bench.harness.clock import Work, in_turns


class Hundred:
    """A meter of something that draws 100 watts all the time."""

    def joules(self) -> float:
        return 100.0 * time.perf_counter()


def test_joules_are_per_run() -> None:
    prepared: list[int] = []
    used = energy.measure(Hundred(), lambda: time.sleep(0.01), lambda: prepared.append(1), seconds=0.2)
    assert used.watts == pytest.approx(100.0, rel=0.02)
    assert used.joules == pytest.approx(100.0 * used.seconds, rel=0.02)
    assert used.seconds >= 0.01 and used.runs >= 2
    assert len(prepared) == used.runs + 1, "one unreported run, and preparation in front of each"
    assert energy.idle_watts(Hundred(), 0.05) == pytest.approx(100.0, rel=0.02)


def test_there_is_no_meter_without_a_gpu() -> None:
    assert energy.meter_of(torch.device("cpu")) is None


def test_works_take_turns_and_a_failing_one_is_left_out() -> None:
    seen: list[str] = []

    def fail() -> None:
        raise RuntimeError("no such backend")

    works = {"a": Work(lambda: seen.append("a")), "b": Work(lambda: seen.append("b")), "c": Work(fail)}
    times = in_turns(works, torch.device("cpu"), seconds=0.0, least=3)
    assert set(times) == {"a", "b"}
    assert "".join(seen) == "ab" + "ab" + "ba" + "ab"
    assert len(times["a"].wall) == 3 and times["a"].device == []
