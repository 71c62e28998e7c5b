"""Set-up brings Triton where the kernels' tests need it, and nowhere else."""

from __future__ import annotations

import importlib.util
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
