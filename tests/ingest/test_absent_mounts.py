"""Drives that are mounted inside an indexed folder and go away, each case with real mounts in its own namespace."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.ingest.mount_steps import CASES

ROOT = Path(__file__).resolve().parent.parent.parent


def _namespace() -> list[str]:
    """The words before a command that give it a mount namespace."""
    return ["unshare", "-m"] if os.geteuid() == 0 else ["unshare", "-r", "-m"]


@pytest.fixture(scope="module", autouse=True)
def _may_mount() -> None:
    if not sys.platform.startswith("linux") or shutil.which("unshare") is None:
        pytest.skip("needs Linux with unshare(1)")
    command = [*_namespace(), "mount", "-t", "tmpfs", "drive", "/mnt"]
    tried = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    if tried.returncode:
        pytest.skip(f"nothing may be mounted here: {tried.stderr.strip()}")


_SLOW = {"unmounted_while_a_service_watches"}


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=pytest.mark.slow if case in _SLOW else ()) for case in CASES]
)
def test_drive(case: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [*_namespace(), sys.executable, "-m", "tests.ingest.mount_steps", case, str(tmp_path)], cwd=ROOT,
        capture_output=True, text=True, timeout=170, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
