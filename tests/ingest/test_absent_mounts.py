"""Drives that are mounted inside an indexed folder and go away, each case with real mounts in its own namespace."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ingest.mount_steps import CASES

ROOT = Path(__file__).resolve().parent.parent.parent


def _namespace() -> list[str]:
    """The words before a command that give it a mount namespace."""
    return ["unshare", "-m"] if os.geteuid() == 0 else ["unshare", "-r", "-m"]


@pytest.fixture(scope="module")
def steps() -> Iterator[subprocess.Popen[str]]:
    """A process in a mount namespace of its own that runs one case after the other."""
    if not sys.platform.startswith("linux") or shutil.which("unshare") is None:
        pytest.skip("needs Linux with unshare(1)")
    command = [*_namespace(), "mount", "-t", "tmpfs", "drive", "/mnt"]
    tried = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    if tried.returncode:
        pytest.skip(f"nothing may be mounted here: {tried.stderr.strip()}")
    with subprocess.Popen(
        [*_namespace(), sys.executable, "-m", "tests.ingest.mount_steps"], cwd=ROOT, stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, text=True, bufsize=1, env={**os.environ, "OMP_NUM_THREADS": "1"},
    ) as process:  # fmt: skip
        yield process
        process.kill()


_SLOW = {"unmounted_while_a_service_watches"}


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=pytest.mark.slow if case in _SLOW else ()) for case in CASES]
)
def test_drive(case: str, steps: subprocess.Popen[str], tmp_path: Path) -> None:
    assert steps.stdin is not None and steps.stdout is not None
    steps.stdin.write(f"{case} {tmp_path}\n")
    assert steps.stdout.readline() == "0\n", (tmp_path / "said").read_text(encoding="utf-8")[-4000:]
