"""Threads of torch on a CPU: how many, and how long they spin."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from desk_rag.model.embedded import threads

_SCRIPT = """
import desk_rag, os
import psutil, torch
from desk_rag.config import ModelSettings
from desk_rag.model.loading import load_model
load_model(ModelSettings(device="cpu", threads={threads}))
print(torch.get_num_threads(), os.environ.get("GOMP_SPINCOUNT", ""), max(1, (psutil.cpu_count(logical=False) or 2) - 1))
"""


def _loaded(threads: int, **variables: str) -> tuple[int, str, int]:
    inherited = {
        name: value
        for name, value in os.environ.items()
        if name not in ("OMP_NUM_THREADS", "GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
    }
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT.format(threads=threads)],
        env=inherited | variables,
        capture_output=True,
        text=True,
        check=True,
    )
    count, spins, most = done.stdout.split(" ")
    return int(count), spins, int(most)


def test_one_core_is_left_to_others_and_threads_spin_shortly() -> None:
    count, spins, most = _loaded(0)
    assert count == most
    assert spins == "1000"


@pytest.mark.parametrize(
    ("threads", "variables", "count", "spins"),
    [
        (0, {"OMP_NUM_THREADS": "2", "GOMP_SPINCOUNT": "7"}, 2, "7"),
        (1, {"OMP_NUM_THREADS": "2", "OMP_WAIT_POLICY": "active"}, 1, ""),
    ],
)
def test_settings_and_the_environment_decide(threads: int, variables: dict[str, str], count: int, spins: str) -> None:
    assert _loaded(threads, **variables)[:2] == (count, spins)


@pytest.fixture
def three_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(threads, "_settled", [])
    before = torch.get_num_threads()
    threads.settle(3)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("rows", "parameters", "count"),
    [(1, 30_000_000, 1), (64, 30_000_000, 1), (65, 30_000_000, 3), (1, 1_500_000_000, 3)],
)
@pytest.mark.usefixtures("three_threads")
def test_one_thread_multiplies_few_rows_of_a_small_model(rows: int, parameters: int, count: int) -> None:
    with threads.for_rows(rows, parameters):
        assert torch.get_num_threads() == count
    assert torch.get_num_threads() == 3


@pytest.mark.usefixtures("three_threads")
def test_a_thread_that_began_with_one_uses_all_for_many_rows() -> None:
    with threads.one(), ThreadPoolExecutor(1) as pool:
        counts = pool.submit(_counts).result()
    assert counts == (1, 3)


def _counts() -> tuple[int, int]:
    alone = torch.get_num_threads()
    with threads.for_rows(1000, 30_000_000):
        return alone, torch.get_num_threads()


@pytest.mark.usefixtures("three_threads")
def test_a_helper_keeps_to_one_and_other_threads_to_theirs() -> None:
    with ThreadPoolExecutor(1, initializer=threads.keep_to_one) as helper:
        assert helper.submit(torch.get_num_threads).result() == 1
        with ThreadPoolExecutor(1) as another:
            assert another.submit(torch.get_num_threads).result() == 3
        assert helper.submit(torch.get_num_threads).result() == 1
    assert torch.get_num_threads() == 3
