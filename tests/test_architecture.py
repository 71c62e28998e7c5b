"""The promises about the whole: import direction, cheap imports, no sockets, short modules."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
HEAVY = {"torch", "transformers", "numpy", "textual", "pydantic", "sentence_transformers", "rich"}


def run_python(program: str, *, env: dict[str, str] | None = None) -> str:
    """Run `program` in a fresh interpreter in the repository; returns its output."""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False,
        env={**os.environ, **(env or {})},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_imports_point_downwards_only() -> None:
    program = "from importlinter.cli import lint_imports_command as run; run(['--no-cache'])"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:]
    assert "0 broken" in done.stdout


@pytest.mark.parametrize(
    "file", [file for package in ("desk_rag", "indexer", "tui") for file in sorted((ROOT / package).rglob("*.py"))],
    ids=lambda file: str(file.relative_to(ROOT)),
)  # fmt: skip
def test_every_module_says_what_it_is_and_stays_short(file: Path) -> None:
    assert ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))), "no docstring"
    assert len(file.read_text(encoding="utf-8").splitlines()) <= 400


def test_help_loads_nothing_heavy() -> None:
    program = (
        "import sys, contextlib, io, json\n"
        "from desk_rag.cli.main import main\n"
        "with contextlib.redirect_stdout(io.StringIO()) as shown: code = main(['--help'])\n"
        "assert code == 0 and 'Exit codes' in shown.getvalue()\n"
        "print(json.dumps(sorted({name.partition('.')[0] for name in sys.modules})))"
    )
    assert not HEAVY & set(json.loads(run_python(program)))


def test_a_question_for_another_process_loads_nothing_that_answers() -> None:
    program = (
        "import sys, json\n"
        "from desk_rag.cli.questions import ask, several\n"
        "from desk_rag.indexer.resident import values\n"
        "print(json.dumps([name for name in sys.modules if name.startswith('desk_rag.')]))"
    )
    loaded = json.loads(run_python(program))
    assert "desk_rag.answering.conversation.turns" in loaded
    answering = ("engine", "context", "evidence", "questions", "conversation.asking", "conversation.follow_up")
    assert not [name for name in loaded if name.removeprefix("desk_rag.answering.").startswith(answering)]
    assert "desk_rag.store.store" not in loaded


def test_importing_the_package_only_says_how_threads_wait_and_when_cycles_are_looked_for(tmp_path: Path) -> None:
    program = (
        "import sys, os, threading, json\n"
        "before = set(sys.modules); environment = dict(os.environ)\n"
        "import desk_rag\n"
        "new = set(sys.modules) - before\n"
        "changed = sorted(set(os.environ.items()) ^ set(environment.items()))\n"
        "print(json.dumps([sorted(new), changed, threading.active_count()]))"
    )
    home = {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)}
    new, changed, threads = json.loads(run_python(program, env=home))
    assert set(new) <= {"desk_rag", "__future__", "gc"}
    assert {name for name, _ in changed} <= {"GOMP_SPINCOUNT", "OPENBLAS_NUM_THREADS"}
    assert threads == 1
    assert not list(tmp_path.iterdir())


_WATCH_SOCKETS = """
import os, sys
def note(event, args):
    if event in ("socket.connect", "socket.bind", "socket.getaddrinfo", "socket.sendto", "socket.gethostbyname"):
        family = getattr(args[0], "family", None)
        if family is None or int(family) != 1:  # a local pipe between two processes is not the network
            fd = os.open(os.environ["SOCKET_LOG"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            os.write(fd, f"{event} {args[1:]!r}\\n".encode())
            os.close(fd)
sys.addaudithook(note)
"""


def test_index_and_answer_open_no_socket(tmp_path: Path) -> None:
    hooks, documents, log = tmp_path / "hooks", tmp_path / "documents", tmp_path / "sockets.log"
    hooks.mkdir()
    documents.mkdir()
    (hooks / "sitecustomize.py").write_text(_WATCH_SOCKETS, encoding="utf-8")
    (documents / "note.md").write_text("# Shed\n\nThe key of the shed hangs behind the mirror.\n", encoding="utf-8")
    env = {**os.environ, "PYTHONPATH": f"{hooks}{os.pathsep}{ROOT}", "SOCKET_LOG": str(log)}
    env.pop("HF_HUB_OFFLINE", None)  # the product must not depend on the tests' own precaution
    control = "import socket, contextlib\nwith contextlib.suppress(OSError): socket.create_connection(('127.0.0.1', 9))"
    subprocess.run([sys.executable, "-c", control], env=env, check=True, timeout=60)
    assert "socket.connect" in log.read_text(encoding="utf-8"), "the hook itself does not work"
    log.unlink()
    command = ["-m", "desk_rag", "--data-dir", str(tmp_path / "data"), "ask", "Where does the key of the shed hang?"]
    done = subprocess.run(
        [sys.executable, *command, "--folder", str(documents), "--json"], env=env, cwd=tmp_path,
        capture_output=True, text=True, timeout=170, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["sources"]
    assert not log.exists(), log.read_text(encoding="utf-8")


def test_what_is_tracked_names_no_machine_and_leaves_no_stubs() -> None:
    places = [f"{place}/" for place in (ROOT, Path.home()) if len(place.parts) > 1]
    unfinished = re.compile(r"\b(?:TO" r"DO|FIX" r"ME|XX" r"X)\b|raise NotImplemented" r"Error")
    offenders = []
    for file in tracked():
        try:
            lines = file.read_text(encoding="utf-8").splitlines()
        except UnicodeDecodeError:
            continue
        for number, line in enumerate(lines, start=1):
            named = any(place in line for place in places)
            if named or (file.suffix == ".py" and unfinished.search(line)):
                offenders.append(f"{file.relative_to(ROOT)}:{number}: {line.strip()[:100]}")
    assert not offenders, "\n".join(offenders)


def tracked() -> list[Path]:
    """The files of the repository, the sample documents and large ones left out."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    names = listed.stdout.splitlines() if listed.returncode == 0 else []
    files = [ROOT / name for name in names] or [*ROOT.glob("*.*"), *ROOT.glob("[dit]*/**/*.py")]
    return [
        file for file in files
        if file.is_file() and file.stat().st_size < 300_000 and "sample_docs" not in file.parts
    ]  # fmt: skip
