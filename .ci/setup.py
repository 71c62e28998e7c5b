"""Makes the environment `.venv` with everything desk-rag needs, and chooses the build of torch that fits.

Standard library only, and syntax old enough to tell a Python that is too old what to do. `make demo` and `make test`
call it; without make:

    python3 .ci/setup.py          what is needed to use desk-rag
    python3 .ci/setup.py --dev    what `make test` needs besides

Which torch (`torch_choices` is the one place):
    NVIDIA GPU present            the build from the package index, which brings CUDA; bitsandbytes too
    Linux without one             the CPU build, without CUDA packages: from the indexes that pip is set up
                                  with, else from PyTorch's own
    macOS, Windows without one    the build from the package index, which is for the CPU there
DESK_RAG_TORCH=cpu or DESK_RAG_TORCH=cuda overrules what is detected.

Triton comes with the CUDA build of torch. On Linux x86-64 without a GPU `--dev` installs it too, because the kernels'
tests run in its interpreter: a wheel of 200 MB, 700 MB installed. Where it cannot be had, those tests are left out.

hnswlib has no ready-made packages: it is compiled where a C++ compiler and Python's headers are, and left out
with one line where not; desk-rag then searches exactly. It is built without -march=native, so that an
environment copied to another processor still runs.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import time
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
OLDEST = (3, 11)
TORCH = "2.13.0"
TRITON = "3.7.1"
"""The one that torch 2.13 brings with CUDA."""
HNSWLIB = "hnswlib>=0.8,<0.9"
CPU_WHEELS = "https://download.pytorch.org/whl/cpu"


class SetupError(Exception):
    """A step failed; the message says which, and what to do."""


def main() -> int:
    """Bring `.venv` up to date; does nothing, within a fraction of a second, when it already is."""
    parser = argparse.ArgumentParser(description="Create or update .venv for desk-rag.")
    parser.add_argument("--dev", action="store_true", help="also install what `make test` needs")
    dev = parser.parse_args().dev
    try:
        check_python()
        gpu = wants_cuda()
        stamp = VENV / (".desk-rag-dev" if dev else ".desk-rag-use")
        wanted = fingerprint(gpu)
        if is_current(stamp, wanted) or (not dev and is_current(VENV / ".desk-rag-dev", wanted)):
            return 0
        install(gpu=gpu, dev=dev)
        stamp.write_text(wanted + "\n", encoding="ascii")
    except SetupError as error:
        print(f"\nSet-up stopped: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nSet-up interrupted; the same command goes on from here.", file=sys.stderr)
        return 130
    return 0


def check_python() -> None:
    """Go on under a newer Python on the PATH if this one is too old; without one say what is missing."""
    if sys.version_info[:2] >= OLDEST:
        return
    for name in ("python3.12", "python3.13", "python3.11", "python3.14"):
        newer = shutil.which(name)
        if newer:
            os.execv(newer, [newer, str(Path(__file__).resolve()), *sys.argv[1:]])
    raise SetupError(
        f"desk-rag needs Python {OLDEST[0]}.{OLDEST[1]} or newer, and {sys.executable} is "
        f"{platform.python_version()}.\n"
        "Install a newer Python, or name one you have: make demo PYTHON=/path/to/python3.11"
    )


def wants_cuda() -> bool:
    """True if this machine wants the CUDA build: an NVIDIA driver is loaded, or nvidia-smi lists a GPU."""
    choice = os.environ.get("DESK_RAG_TORCH", "")
    if choice not in ("", "cpu", "cuda"):
        raise SetupError(f"DESK_RAG_TORCH is '{choice}'; it may be 'cpu' or 'cuda'.")
    if choice:
        return choice == "cuda"
    if Path("/proc/driver/nvidia/version").exists():
        return True
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return False
    try:
        listed = subprocess.run([tool, "-L"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return listed.returncode == 0 and "GPU" in listed.stdout


def torch_choices(gpu: bool) -> list[list[str]]:
    """Arguments for pip, best first; the first that installs is taken."""
    plain = [f"torch=={TORCH}"]
    if gpu or sys.platform != "linux":
        return [plain]
    cpu = f"torch=={TORCH}+cpu"
    choices = [[cpu], [cpu, "--extra-index-url", CPU_WHEELS]]
    # On x86 the plain build would bring several GB of CUDA packages: rather stop than do that.
    return choices if platform.machine() in ("x86_64", "AMD64") else [*choices, plain]


def fingerprint(gpu: bool) -> str:
    """Changes when a new run of this script could install something else."""
    digest = hashlib.sha256()
    for file in (ROOT / "pyproject.toml", Path(__file__).resolve()):
        digest.update(file.read_bytes())
    digest.update(repr((gpu, str(ROOT), sys.version_info[:2])).encode())
    return digest.hexdigest()


def is_current(stamp: Path, wanted: str) -> bool:
    """True if the set-up that `wanted` names was completed."""
    return stamp.is_file() and stamp.read_text(encoding="ascii").strip() == wanted and venv_python().exists()


def venv_python() -> Path:
    """The environment's interpreter."""
    return VENV / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def install(*, gpu: bool, dev: bool) -> None:
    """All steps, in order; each prints one line. Raises SetupError."""
    began = time.monotonic()
    torch = f"the {'CUDA' if gpu else 'CPU'} build of torch {TORCH}"
    print(f"Setting up {VENV} with Python {platform.python_version()} and {torch}.")
    is_there = venv_python().exists()
    print("Most of it is there already." if is_there else "This takes a few minutes, once.", flush=True)
    make_venv()
    install_torch(gpu)
    extras = ",".join(name for name, wanted in (("dev", dev), ("gpu", gpu or dev), ("finetune", dev)) if wanted)
    step("installing desk-rag and the packages it uses")
    failed = pip(["-e", f"{ROOT}[{extras}]" if extras else str(ROOT)])
    if failed:
        raise SetupError(f"desk-rag and its packages could not be installed.\n{failed}")
    install_hnswlib()
    if dev and not gpu:
        install_triton()
    if gpu and ask("import torch; print(torch.cuda.is_available())") != ["True"]:
        step("this torch cannot use the NVIDIA GPU; see assets/guides/install.md")
    print(f"Set-up took {time.monotonic() - began:.0f} s.\n", flush=True)


def make_venv() -> None:
    """Create `.venv`, also where there is one whose Python does not run or is another version."""
    if venv_python().exists():
        version = ask("import sys, pip; print(*sys.version_info[:2])")
        if version == [str(part) for part in sys.version_info[:2]]:
            return
    step("creating an environment")
    try:
        venv.EnvBuilder(clear=True, with_pip=True, symlinks=os.name != "nt").create(VENV)
    except (OSError, subprocess.CalledProcessError) as error:
        raise SetupError(
            f"{VENV} could not be created: {error}\n"
            "On Debian and Ubuntu the package python3-venv may be missing: apt install python3-venv"
        ) from error


def install_torch(gpu: bool) -> None:
    """Install torch unless a fitting one is there. Raises SetupError when no choice can be had."""
    installed = ask("import torch; print(torch.__version__.split('+')[0], bool(torch.version.cuda))")
    if installed == [TORCH, "True"] or (installed == [TORCH, "False"] and not gpu):
        return
    if installed:  # '==' would count the other build of the same version as installed already
        subprocess.run([str(venv_python()), "-m", "pip", "uninstall", "-y", "-q", "torch"], check=False)
    size = "CUDA build, some 3 GB with its packages" if gpu else "CPU build, some 200 MB"
    step(f"installing torch ({size})")
    reasons = []
    for choice in torch_choices(gpu):
        failed = pip(choice)
        if not failed:
            return
        reasons.append(f"pip install {' '.join(choice)}\n{failed}\n")
    raise SetupError(
        "torch could not be installed.\n" + "".join(reasons) + f"Without access to {CPU_WHEELS}, put the CPU "
        f"wheel of torch {TORCH} into a folder and set PIP_FIND_LINKS to that folder."
    )


def install_hnswlib() -> None:
    """Compile hnswlib where that is possible; a machine where it is not gets one line and exact search."""
    if ask("import hnswlib; print('there')"):
        return
    without = "going on without hnswlib ({}); vectors are then compared one by one, exactly"
    compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    if os.name != "nt" and compiler is None:
        step(without.format("no C++ compiler here"))
    elif os.name != "nt" and not (Path(sysconfig.get_paths()["include"]) / "Python.h").exists():
        step(without.format("Python's headers are not installed"))
    else:
        step("compiling hnswlib")
        # pip's cache could hold a build made with -march=native for another processor.
        if pip([HNSWLIB, "--no-cache-dir"], HNSWLIB_NO_NATIVE="1"):
            step(without.format("it did not compile"))


def install_triton() -> None:
    """For the tests of the kernels; nothing else needs it without a GPU."""
    if sys.platform != "linux" or platform.machine() not in ("x86_64", "AMD64"):
        return
    if ask("import triton; print(triton.__version__)") == [TRITON]:
        return
    step("installing triton, whose interpreter the kernels' tests use (200 MB)")
    # Without its dependencies, of which it has none that these tests need.
    failed = pip([f"triton=={TRITON}", "--no-deps"])
    if failed:
        step(f"going on without triton; the kernels' tests are left out\n{failed}")


def step(what: str) -> None:
    """Tell what happens now."""
    print(f"  {what}", flush=True)


def ask(program: str) -> list[str]:
    """The words that a one-line program prints in the environment; none if it fails."""
    command = [str(venv_python()), "-c", program]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.split()
    except OSError:
        return []


def pip(arguments: list[str], **environment: str) -> str:
    """Run pip install in the environment; '' when it worked, else the end of what it wrote."""
    command = [str(venv_python()), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    began, shows = time.monotonic(), sys.stdout.isatty()  # a log gets no line that changes
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [*command, *arguments], stdout=pipe, stderr=pipe, text=True, env={**os.environ, **environment}
    ) as running:
        try:
            while True:
                try:
                    output, errors = running.communicate(timeout=1)
                    break
                except subprocess.TimeoutExpired:
                    if shows:
                        print(f"\r    working for {time.monotonic() - began:.0f} s", end="", flush=True)
        except BaseException:
            running.kill()
            raise
        finally:
            if shows:
                print("\r" + " " * 30 + "\r", end="", flush=True)
    if running.returncode == 0:
        return ""
    lines = (errors or output).strip().splitlines()
    return "\n".join(f"    {line}" for line in lines[-12:]) or "    pip failed without a word"


if __name__ == "__main__":
    raise SystemExit(main())
