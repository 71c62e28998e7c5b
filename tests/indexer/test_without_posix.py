"""Indexing, watching, answering and purging where everything that only POSIX has is hidden (`without_posix.py`)."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/fdinfo").exists(), reason="hides what Linux has, with the help of /proc"),
]
SCENARIO = """
import io, json, signal, sys, threading
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
import watchdog.observers
from watchdog.observers.polling import PollingObserver
watchdog.observers.Observer = PollingObserver
from desk_rag.cli import main

docs, data, config = map(Path, sys.argv[1:])
door = "What colour is the kitchen door?"

def status(data):
    from desk_rag.indexer.resident import keeping
    return keeping.status(data)

def run(*words, out=None):
    shown, said = out or io.StringIO(), io.StringIO()
    with redirect_stdout(shown), redirect_stderr(said):
        code = main.main(["--data-dir", str(data), "--config", str(config), *words])
    print(words, code, shown.getvalue(), said.getvalue(), flush=True)
    assert code == 0, words
    return shown.getvalue()

report = json.loads(run("index", str(docs), "--json"))
assert report["indexed"] == 2 and report["warm"] == 2
cached = json.loads(run("ask", door, "--json", "--private"))
assert "green" in cached["answer"] and cached["warm_chunks"] > 0
(docs / "door.md").write_text("# Doors\\n\\nThe kitchen door is painted blue. The front door is black.\\n")
(docs / "roof.txt").unlink()
pipe = data / "run" / "resident.pipe"
assert "blue" in run("ask", door, "--keep") and pipe.exists()  # answered over what takes the place of the pipe
assert "blue" in run("ask", door) and "pid" in (protocol_status := status(data)), protocol_status
run("index", str(docs))
assert not pipe.exists()
assert "nothing wrong" in run("verify", "--repair")

class Watched(io.StringIO):
    def write(self, text):
        super().write(text)
        if "up to date" in text and not (docs / "shed.md").exists():
            (docs / "shed.md").write_text("# Shed\\n\\nThe shed was built in 1974 by two brothers.\\n")
        elif "shed.md" in text:
            threading.Timer(0.5, signal.raise_signal, [signal.SIGTERM]).start()

shown = run("watch", str(docs), out=Watched())
assert "shed.md (1 chunk)" in shown and shown.endswith("stopped\\n")
assert "1974" in run("ask", "When was the shed built?")
assert "no trace" in run("purge", str(docs), "--verify", "--yes")
run("purge", "--all", "--yes")
assert not data.exists()
"""


class Hidden:
    """Runs programs without POSIX, over one data directory."""

    def __init__(self, folder: Path) -> None:
        self.docs, self.data, self.log = folder / "docs", folder / "data", folder / "open-files.log"
        hooks = folder / "hooks"
        hooks.mkdir()
        self.docs.mkdir()
        shutil.copyfile(Path(__file__).with_name("without_posix.py"), hooks / "sitecustomize.py")
        (self.docs / "door.md").write_text("# Doors\n\nThe kitchen door is painted green. The front door is black.\n")
        (self.docs / "roof.txt").write_text("The roof was repaired in May 2021. The roofer left a ladder.\n")
        config = folder / "config.toml"
        config.write_text("[store]\nreserve_gib = 0.0\n[index]\nsettle_seconds = 0.2\nsweep_seconds = 3.0\n"
                          "deletion_grace_hours = 0\n[idle]\nquiet_seconds = 0\ncpu_busy_percent = 100\n")  # fmt: skip
        self.config = config
        self.environment = {
            **os.environ, "PYTHONPATH": f"{hooks}{os.pathsep}{ROOT}", "OPEN_FILES_LOG": str(self.log),
            "DESK_RAG_TRACEBACK": "1", "OMP_NUM_THREADS": "1",
        }  # fmt: skip

    def python(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *words], cwd=self.docs.parent, env=self.environment, capture_output=True, text=True,
            timeout=170, check=False,
        )  # fmt: skip


@pytest.fixture
def hidden(tmp_path: Path) -> Hidden:
    return Hidden(tmp_path)


def test_the_hiding_itself_works(hidden: Hidden) -> None:
    program = (
        "import os, sys, socket\n"
        "assert hasattr(os, 'preadv') and hasattr(socket, 'AF_UNIX')\n"
        "__name__ = 'desk_rag.made_up'\n"
        "import os, socket\n"
        "assert not hasattr(os, 'preadv') and not hasattr(socket, 'AF_UNIX')\n"
        "file = open('held', 'w')\n"
        "for change in (lambda: os.unlink('held'), lambda: os.replace('held', 'other')):\n"
        "    try: change()\n"
        "    except PermissionError: pass\n"
        "    else: sys.exit('an open file was changed')\n"
        "file.close(); os.unlink('held')"
    )
    ran = hidden.python("-c", program)
    assert ran.returncode == 0, ran.stderr
    hidden.log.unlink()


def test_everything_works_without_posix(hidden: Hidden) -> None:
    ran = hidden.python("-c", SCENARIO, str(hidden.docs), str(hidden.data), str(hidden.config))
    assert ran.returncode == 0 and "Traceback" not in ran.stderr, f"{ran.stdout}\n{ran.stderr}"
    changed_while_open = set(hidden.log.read_text().splitlines()) if hidden.log.exists() else set()
    locks = re.compile(rf"unlink {re.escape(str(hidden.data))}/run/(?:writer|answering/\d+)\.lock")
    # Those are tried under the lock, then again later.
    assert [line for line in sorted(changed_while_open) if not locks.fullmatch(line)] == []
