"""Measure how soon the UI reacts, in a real terminal: `python -m tests.tui.latency [FOLDER] [--load] [--silent]
[--beside]`.

Prints seconds on the clock and CPU seconds of the UI and its engine, and of a new Python that only imports torch, for
comparison; compiled modules are kept, as they are where the program is installed. With --load, a busy loop runs on
every core meanwhile; with --silent, nothing is typed before it is ready to answer; with --beside, a `watch` with its
models loaded answers for the UI.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import psutil

from tests.tui.terminal import ROOT, Terminal

_KEYS = 200
_IDLE_SECONDS = 15.0
_F6 = "\x1b[17~"
_BUSY = "while True: pass"


class Stopwatch:
    """One program from its start."""

    def __init__(self, folder: Path, data: Path) -> None:
        self.begun = time.perf_counter()
        environment = {"DESK_RAG_DATA_DIR": str(data), "XDG_CONFIG_HOME": str(data)}
        self.terminal = Terminal(["-m", "desk_rag", str(folder)], columns=120, rows=36, env=environment)
        self.process = psutil.Process(self.terminal.pid)

    def cpu(self) -> float:
        """Return the CPU seconds of the process and its engine so far."""
        processes = [self.process, *self.process.children()]
        times = [times for process in processes if (times := _times(process)) is not None]
        return float(sum(one.user + one.system for one in times))

    def when(self, name: str, condition: Callable[[], bool], since: float | None = None) -> None:
        """Wait for `condition` and print the time and the CPU time."""
        since = self.begun if since is None else since
        end = time.perf_counter() + 240
        while not condition():
            assert time.perf_counter() < end, f"{name}: not seen; the screen:\n{self.terminal.text}"
            self.terminal.pause(0.004)
        print(f"{name:<34} {time.perf_counter() - since:6.2f} s   {self.cpu():6.2f} CPU s since the start", flush=True)

    def echo(self, name: str) -> None:
        """Print how long a typed letter takes to the screen, at the median and the 99th percentile."""
        waits = []
        for number in range(_KEYS):
            letter = "abcdefghij"[number % 10]
            begun, drawn = time.perf_counter(), len(self.terminal.raw)
            self.terminal.send(letter)
            while letter.encode() not in self.terminal.raw[drawn:]:
                self.terminal.pause(0.001)
                assert time.perf_counter() - begun < 20, self.terminal.text
            waits.append(1000 * (time.perf_counter() - begun))
            self.terminal.pause(0.02)
        self.terminal.send("\x03")
        waits.sort()
        print(f"{name:<34} {statistics.median(waits):6.1f} ms median, {waits[int(0.99 * len(waits)) - 1]:.0f} ms p99, "
              f"{waits[-1]:.0f} ms longest", flush=True)  # fmt: skip

    def ask(self, name: str, question: str) -> None:
        """Print how long a question takes to the first word on the screen."""
        done = self.terminal.text.count("first word")
        begun = time.perf_counter()
        self.terminal.send(f"{question}\r")
        self.when(name, lambda: self.terminal.text.count("first word") > done, begun)


def _pause_left(screen: str) -> str:
    """Return what the status bar says of the pause."""
    return screen.partition("paused, ")[2].partition(" left")[0]


def _times(process: psutil.Process) -> psutil._common.pcputimes | None:
    try:
        return process.cpu_times()
    except psutil.NoSuchProcess:
        return None


def measure(folder: Path, data: Path, *, types: bool) -> None:
    """Run the program once and print what was measured."""
    watch = Stopwatch(folder, data)
    terminal = watch.terminal
    try:
        watch.when("first frame", lambda: "Ask about your files" in terminal.text)
        watch.when("the whole screen", lambda: "f1 Help" in terminal.text)
        if types:
            watch.echo("key to screen while loading")
        watch.when("ready to answer", lambda: "embedded reader" in terminal.text)
        watch.ask("first question to first word", "When was the dishwasher repaired?")
        terminal.pause(1)
        watch.ask("second question to first word", "Who repaired the dishwasher?")
        watch.echo("key to screen afterwards")
        if "paused" not in terminal.text:  # by the run before
            terminal.send(_F6)
        watch.when("paused", lambda: "paused" in terminal.text, time.perf_counter())
        left = _pause_left(terminal.text)  # in minutes; they are drawn once a minute, which is no idle redraw
        watch.when("a minute of the pause later", lambda: _pause_left(terminal.text) != left, time.perf_counter())
        terminal.pause(5)
        cpu, drawn = watch.cpu(), len(terminal.raw)
        terminal.pause(_IDLE_SECONDS)
        used = 100 * (watch.cpu() - cpu) / _IDLE_SECONDS
        print(f"{'idle':<34} {used:6.2f} % of a core, {len(terminal.raw) - drawn} bytes drawn in {_IDLE_SECONDS:.0f} s")
        begun = time.perf_counter()
        terminal.send("\x11")
        terminal.wait(30)
        print(f"{'quit':<34} {time.perf_counter() - begun:6.2f} s")
    finally:
        terminal.close()


@contextmanager
def watching(folder: Path, data: Path) -> Iterator[None]:
    """Run `watch` until the end, from when it answers questions."""
    from desk_rag.indexer.resident import keeping

    environment = {**os.environ, "DESK_RAG_DATA_DIR": str(data), "XDG_CONFIG_HOME": str(data)}
    command = [sys.executable, "-m", "desk_rag", "watch", str(folder)]
    with subprocess.Popen(command, env=environment, cwd=ROOT, stdout=subprocess.DEVNULL) as process:
        try:
            while "pid" not in (keeping.status(data) or {}):
                time.sleep(0.2)
            yield
        finally:
            process.terminate()


def torch_seconds() -> float:
    """Return the CPU seconds of a Python that imports torch and ends."""
    code = "import torch, os; print(sum(os.times()[:2]))"
    return float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)


def main() -> None:
    """Measure a start with a new index, then one with the index there."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT / "assets" / "sample_docs")
    parser.add_argument("--load", action="store_true")
    parser.add_argument("--silent", action="store_true")
    parser.add_argument("--beside", action="store_true")
    options = parser.parse_args()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # or 300 modules are compiled again at each start
    cores = os.cpu_count() or 1
    busy = [subprocess.Popen([sys.executable, "-c", _BUSY]) for _ in range(cores if options.load else 0)]
    try:
        with tempfile.TemporaryDirectory() as data:
            beside = watching(options.folder, Path(data)) if options.beside else nullcontext()
            with beside:
                for name in ("beside watch",) if options.beside else ("new index", "index there"):
                    print(f"== {name}; load {os.getloadavg()[0]:.1f}; import torch: {torch_seconds():.2f} CPU s")
                    measure(options.folder, Path(data), types=not options.silent)
    finally:
        for process in busy:
            process.kill()


if __name__ == "__main__":
    main()
