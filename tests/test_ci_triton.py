"""Set-up brings Triton where the kernels' tests need it, and nowhere else; it shows on a terminal that pip works."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import pty
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("setup_script_for_triton", ROOT / ".ci" / "setup.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def asked_of_pip(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, *, machine: str, there: list[str], fails: str = ""
) -> list[list[str]]:
    calls: list[list[str]] = []
    monkeypatch.setattr(script.sys, "platform", "linux")
    monkeypatch.setattr(script.platform, "machine", lambda: machine)
    monkeypatch.setattr(script, "ask", lambda program: there)
    monkeypatch.setattr(script, "pip", lambda arguments: calls.append(arguments) or fails)
    script.install_triton()
    return calls


def test_linux_without_a_gpu_gets_it_once(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = [[f"triton=={script.TRITON}", "--no-deps"]]
    assert asked_of_pip(script, monkeypatch, machine="x86_64", there=[]) == wanted
    assert asked_of_pip(script, monkeypatch, machine="x86_64", there=["3.6.0"]) == wanted
    assert asked_of_pip(script, monkeypatch, machine="x86_64", there=[script.TRITON]) == []
    assert asked_of_pip(script, monkeypatch, machine="aarch64", there=[]) == []


def test_without_it_set_up_goes_on_and_says_so(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked_of_pip(script, monkeypatch, machine="x86_64", there=[], fails="    no index")
    printed = capsys.readouterr().out
    assert "going on without triton" in printed
    assert "no index" in printed


@pytest.mark.parametrize(("gpu", "dev", "times"), [(False, True, 1), (True, True, 0), (False, False, 0)])
def test_only_development_without_a_gpu_asks_for_it(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, gpu: bool, dev: bool, times: int
) -> None:
    asked: list[None] = []
    for name in ("make_venv", "install_torch", "install_hnswlib"):
        monkeypatch.setattr(script, name, lambda *_: None)
    monkeypatch.setattr(script, "pip", lambda arguments: "")
    monkeypatch.setattr(script, "ask", lambda program: ["True"])
    monkeypatch.setattr(script, "install_triton", lambda: asked.append(None))
    script.install(gpu=gpu, dev=dev)
    assert len(asked) == times


@pytest.mark.parametrize("terminal", [True, False])
def test_a_long_installation_shows_on_a_terminal_that_it_goes_on(tmp_path: Path, terminal: bool) -> None:
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text("#!/bin/sh\nsleep 2.5\necho no such package >&2\nexit 1\n")
    python.chmod(0o755)
    program = (
        "import pathlib, runpy\n"
        f"names = runpy.run_path({str(ROOT / '.ci' / 'setup.py')!r})\n"
        f"names['pip'].__globals__['VENV'] = pathlib.Path({str(tmp_path)!r})\n"
        "print('told:', names['pip'](['torch']).strip())\n"
    )
    reader, writer = pty.openpty() if terminal else os.pipe()
    done = subprocess.run([sys.executable, "-c", program], stdout=writer, check=True, timeout=60)
    os.close(writer)
    shown = b""
    with contextlib.suppress(OSError):  # a terminal whose last writer has left
        while part := os.read(reader, 4096):
            shown += part
    os.close(reader)
    assert done.returncode == 0 and b"told: no such package" in shown
    assert (b"\r    working for 1 s" in shown) is terminal
    assert (b"\r" in shown.replace(b"\r\n", b"")) is terminal
