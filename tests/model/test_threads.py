"""Threads of torch on a CPU: how many, and how long they spin."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

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
