"""The built wheel, installed elsewhere, carries what it needs and nothing else; the set-up script chooses torch."""

from __future__ import annotations

import email
import importlib.util
import os
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from markdown_it import MarkdownIt
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel built from the working tree, with the build back end that is installed (no network)."""
    return build("wheel", ROOT, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source archive, unpacked: a checkout without git and without the links in `desk_rag`."""
    folder = tmp_path_factory.mktemp("sdist")
    with tarfile.open(build("sdist", ROOT, folder)) as archive:
        archive.extractall(folder, filter="data")
    (root,) = (path for path in folder.iterdir() if path.is_dir())
    return root


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The command of a new environment into which the wheel was installed; dependencies come from this one."""
    home = tmp_path_factory.mktemp("installed") / "env"
    venv.EnvBuilder(with_pip=False, symlinks=os.name != "nt").create(home)
    folder = home / ("Scripts" if os.name == "nt" else "bin")
    run(sys.executable, "-m", "pip", f"--python={folder / 'python'}", "install", "--no-deps", "--no-index", str(wheel))
    site = run(str(folder / "python"), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip()
    # Lines of a .pth are not searched for .pth files: the checkout, installed as editable here, stays out.
    shared = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    (Path(site) / "dependencies.pth").write_text("\n".join(sorted(shared)), encoding="utf-8")
    return folder / "desk-rag"


def build(target: str, root: Path, out: Path) -> Path:
    """Build `target` from `root` into `out`."""
    run(sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(out), cwd=root)
    (built,) = out.glob("desk_rag-*.whl" if target == "wheel" else "desk_rag-*.tar.gz")
    return built


def run(*command: str, cwd: Path | None = None, path: Path | None = None) -> str:
    """Return what `command` prints in an environment that knows of no checkout but `path`."""
    environment = {**os.environ, "PYTHONPATH": str(path or ""), "DESK_RAG_DATA_DIR": "/nowhere"}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=390, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_wheel_holds_the_reader_the_samples_and_no_tests(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert len(names) == len(set(names))
    tops = {name.split("/")[0] for name in names}
    assert {name for name in tops if not name.endswith(".dist-info")} == {"desk_rag"}
    for file in ("model.safetensors", "tokenizer.json", "config.json"):
        assert f"desk_rag/_assets/reader/{file}" in names
        assert f"desk_rag/_assets/pointer/deeper/{file}" in names
    assert "desk_rag/_assets/pointer/pointer.safetensors" in names
    assert any(name.startswith("desk_rag/_assets/sample_docs/") for name in names)
    assert "desk_rag/_assets/guides/settings.md" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert not [name for name in names if {"tests", "__pycache__"} & set(name.split("/"))]
    assert not [name for name in names if name.startswith("desk_rag/training/")]
    for folder in ("indexer", "tui"):
        sources = {f"desk_rag/{file.relative_to(ROOT).as_posix()}" for file in (ROOT / folder).rglob("*.py")}
        assert sources and sources <= set(names)
    assert "desk_rag/tui/app.tcss" in names


def test_source_archive_builds_the_same_wheel(unpacked: Path, wheel: Path, tmp_path: Path) -> None:
    again = build("wheel", unpacked, tmp_path)
    assert zipfile.ZipFile(again).namelist() == zipfile.ZipFile(wheel).namelist()


@pytest.mark.parametrize("with_links", [True, False])
def test_ui_and_watcher_are_imported_from_a_checkout(unpacked: Path, tmp_path: Path, with_links: bool) -> None:
    root = ROOT if with_links else unpacked
    assert (root / "desk_rag" / "tui").is_dir() == with_links
    program = "import desk_rag.tui.wording as t, desk_rag.indexer.jobs as i; print(t.__file__, i.__file__, sep='\\n')"
    files = [Path(line).resolve() for line in run(sys.executable, "-c", program, cwd=tmp_path, path=root).splitlines()]
    assert files == [root / "tui" / "wording.py", root / "indexer" / "jobs.py"]


def test_installed_wheel_finds_all_its_parts(installed: Path, tmp_path: Path) -> None:
    program = (
        "import sys, importlib.util, desk_rag.tui.wording, desk_rag.indexer.jobs\n"
        "import desk_rag, desk_rag.assets as a, desk_rag.model.weights as w\n"
        "assert not [name for name in ('tui', 'indexer', 'tests') if importlib.util.find_spec(name)]\n"
        "assert desk_rag.__path__ == [str(a.assets_dir().parent)], desk_rag.__path__\n"
        "assert w.weight_files(w.resolve('embedded', allow_download=False))\n"
        "ours = [m.__file__ for name, m in sys.modules.items() if name.partition('.')[0] == 'desk_rag']\n"
        "print(*ours, sep='\\n')"
    )
    files = run(str(installed.with_name("python")), "-c", program, cwd=tmp_path).splitlines()
    assert len(files) > 4 and all(Path(file).is_relative_to(installed.parent.parent) for file in files)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_installed_command_answers(installed: Path, tmp_path: Path) -> None:
    """From an empty folder: its version, its guides, and a question about one document."""
    assert run(str(installed), "--version", cwd=tmp_path).startswith("desk-rag ")
    assert "settings" in run(str(installed), "help", cwd=tmp_path)
    assert "Windows" in run(str(installed), "help", "install", cwd=tmp_path)
    notes = tmp_path / "notes"
    notes.mkdir()
    (notes / "shed.md").write_text("# Shed\n\nThe key of the shed hangs behind the mirror.\n", encoding="utf-8")
    question = ("ask", "Where does the key of the shed hang?", "--folder", str(notes))
    answer = run(str(installed), "--data-dir", str(tmp_path / "data"), *question, cwd=tmp_path)
    assert "shed.md" in answer and "mirror" in answer


def test_metadata_names_author_extras_and_a_readme_that_stands_alone(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
    metadata = email.message_from_bytes(archive.read(name))
    assert metadata["Author"] == "desk-rag maintainers"
    assert metadata.get_all("Classifier") and metadata["Keywords"]
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert {"ann", "finetune", "gpu", "all"} <= set(metadata.get_all("Provides-Extra"))
    needs = [Requirement(line) for line in metadata.get_all("Requires-Dist")]
    extras = {need.name for need in needs if need.marker and need.marker.evaluate({"extra": "all"})}
    assert extras == {"bitsandbytes", "hnswlib", "onnxruntime", "peft", "rapidocr"}
    readme = MarkdownIt().parse(str(metadata.get_payload()))
    parts = [part for token in readme for part in token.children or ()]
    targets = [str(part.attrs["href"]) for part in parts if part.type == "link_open"]
    assert all(target.startswith("https:") for target in targets), targets
    assert all(part.content for part in parts if part.type == "image"), "its text stands in its place there"


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
    assert asked == [f"{ROOT}[dev,gpu,finetune]", str(ROOT)]


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
    with pytest.raises(setup_script.SetupError) as raised:
        setup_script.install_torch(False)
    assert str(raised.value).count("+cpu here") == 2
    assert "PIP_FIND_LINKS" in str(raised.value)
