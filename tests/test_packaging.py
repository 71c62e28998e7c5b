"""The built wheel, installed elsewhere, carries what it needs and nothing else; the set-up script chooses torch."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel built from the working tree, with the build back end that is installed (no network)."""
    out = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", str(ROOT), "--no-deps", "--no-build-isolation", "-q", "-w", str(out)],
        check=True, capture_output=True, timeout=150,
    )  # fmt: skip
    (built,) = out.glob("desk_rag-*.whl")
    return built


def test_wheel_holds_the_reader_the_samples_and_no_tests(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names}
    assert {name for name in tops if not name.endswith(".dist-info")} == {"desk_rag", "indexer", "tui"}
    for file in ("model.safetensors", "tokenizer.json", "config.json"):
        assert f"desk_rag/_assets/reader/{file}" in names
    assert "desk_rag/_assets/pointer/pointer.safetensors" in names
    assert any(name.startswith("desk_rag/_assets/sample_docs/") for name in names)
    assert "desk_rag/_assets/guides/settings.md" in names
    assert "tui/app.tcss" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert not [name for name in names if "test" in name.split("/")[0] or "__pycache__" in name]


def test_wheel_installed_elsewhere_finds_its_assets(wheel: Path, tmp_path: Path) -> None:
    target = tmp_path / "elsewhere"
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "-q", "--target", str(target), str(wheel)],
        check=True, capture_output=True, timeout=150,
    )  # fmt: skip
    program = (
        "import desk_rag, desk_rag.assets as a, desk_rag.model.weights as w\n"
        "print(desk_rag.__file__); print(a.assets_dir()); print(len(w.weight_files(w.resolve('embedded', "
        "allow_download=False))))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(target)},
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    package, assets, weights = done.stdout.splitlines()
    assert Path(package).is_relative_to(target)
    assert Path(assets) == target / "desk_rag" / "_assets"
    assert int(weights) >= 1


@pytest.fixture
def setup_script() -> Iterator[ModuleType]:
    spec = importlib.util.spec_from_file_location("setup_script", ROOT / ".ci" / "setup.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module


def test_no_gpu_never_takes_a_build_with_cuda(setup_script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setup_script.sys, "platform", "linux")
    monkeypatch.setattr(setup_script.platform, "machine", lambda: "x86_64")
    choices = setup_script.torch_choices(gpu=False)
    assert choices and all(choice[0].endswith("+cpu") for choice in choices)
    assert setup_script.torch_choices(gpu=True) == [[f"torch=={setup_script.TORCH}"]]


def test_gpu_is_seen_through_nvidia_smi(
    setup_script: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if Path("/proc/driver/nvidia/version").exists():
        pytest.skip("this machine has a real NVIDIA driver")
    monkeypatch.delenv("DESK_RAG_TORCH", raising=False)
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 'GPU 0: Some GPU (UUID: GPU-1)'\n", encoding="ascii")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}/usr/bin{os.pathsep}/bin")
    assert setup_script.wants_cuda()
    tool.write_text("#!/bin/sh\necho 'NVIDIA-SMI has failed'\nexit 9\n", encoding="ascii")
    assert not setup_script.wants_cuda()
    monkeypatch.setenv("DESK_RAG_TORCH", "cuda")
    assert setup_script.wants_cuda()
    monkeypatch.setenv("DESK_RAG_TORCH", "rocm")
    with pytest.raises(setup_script.SetupError, match="rocm"):
        setup_script.wants_cuda()


def test_torch_of_the_setup_is_the_torch_of_the_package(setup_script: ModuleType) -> None:
    import tomllib

    from packaging.requirements import Requirement

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [Requirement(line) for line in project["dependencies"]]
    (torch,) = [requirement for requirement in wanted if requirement.name == "torch"]
    assert torch.specifier.contains(setup_script.TORCH)
    assert project["optional-dependencies"]["ann"] == [setup_script.HNSWLIB]


def test_second_set_up_does_nothing(setup_script: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    done: list[dict[str, bool]] = []
    monkeypatch.setattr(setup_script, "VENV", tmp_path)
    monkeypatch.setattr(setup_script, "install", lambda **how: done.append(how))
    monkeypatch.setattr(setup_script, "wants_cuda", lambda: False)
    monkeypatch.setattr(setup_script, "venv_python", lambda: Path(sys.executable))
    for arguments, runs in (([], 1), ([], 1), (["--dev"], 2), (["--dev"], 2), ([], 2)):
        monkeypatch.setattr(sys, "argv", ["setup.py", *arguments])
        assert setup_script.main() == 0
        assert len(done) == runs
    monkeypatch.setattr(setup_script, "wants_cuda", lambda: True)
    assert setup_script.main() == 0
    assert len(done) == 3, "a GPU that was added asks for another torch"


def test_the_tests_get_every_extra_and_users_none(
    setup_script: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    for step in ("make_venv", "install_hnswlib", "install_triton"):
        monkeypatch.setattr(setup_script, step, lambda: None)
    monkeypatch.setattr(setup_script, "install_torch", lambda gpu: None)
    monkeypatch.setattr(setup_script, "pip", lambda arguments: asked.append(arguments[-1]) or "")
    for dev in (True, False):
        setup_script.install(gpu=False, dev=dev)
    assert asked == [f"{ROOT}[dev,quant,finetune]", str(ROOT)]


def test_without_a_compiler_set_up_goes_on(
    setup_script: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(setup_script, "ask", lambda program: [])
    setup_script.install_hnswlib()
    assert "going on without hnswlib (no C++ compiler here)" in capsys.readouterr().out


def test_torch_that_cannot_be_had_is_explained(setup_script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setup_script, "ask", lambda program: [])
    monkeypatch.setattr(setup_script, "pip", lambda arguments: f"    no {arguments[0]} here")
    monkeypatch.setattr(setup_script.sys, "platform", "linux")
    with pytest.raises(setup_script.SetupError) as told:
        setup_script.install_torch(False)
    assert str(told.value).count("+cpu here") == 2
    assert "PIP_FIND_LINKS" in str(told.value)
