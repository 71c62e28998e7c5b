"""Run `desk-rag watch` by the real clock beside somebody who works: `python -m tests.indexer.hour --minutes 60`.

A file is written, changed, renamed or deleted at intervals, and it is timed when the catalog shows it. Every minute a
question goes to the process, whose memory, descriptors and threads are read. Once each, work is paused, the folder goes
away, and the process is stopped as in a suspend. At the end the index must equal one built anew, `verify` must be
clean, and nothing may have grown. Prints one JSON line; exit code 1 if something is wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil

from desk_rag.config import StoreSettings
from desk_rag.store.store import Store

ROOT = Path(__file__).resolve().parents[2]
_LONGEST_WAIT = 120.0
_KEPT = 12
_GROWTH = 64 * 1024**2
"""Bytes of memory that the process may have gained since its tenth minute."""


class Desk:
    """A folder that somebody works in, the process that watches it, and what was seen of both."""

    def __init__(self, place: Path, seed: int) -> None:
        self.place, self.docs, self.data = place, place / "docs", place / "data"
        self.random = random.Random(seed)
        self.docs.mkdir()
        (place / "config.toml").write_text("[store]\nreserve_gib = 0.0\n[index]\ndeletion_grace_hours = 0\n")
        for number in range(_KEPT):
            self.write(self.docs / f"note-{number}.md", number)
        self.delays: list[float] = []
        self.delays_after: dict[str, float] = {}
        self.late: list[str] = []
        self.answers: list[tuple[bool, float]] = []
        self.usage: list[tuple[int, int, int]] = []
        watch = self.command("watch", str(self.docs))
        self.process = subprocess.Popen(watch, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.lines: list[str] = []
        threading.Thread(target=lambda: self.lines.extend(self.process.stdout or ()), daemon=True).start()

    def command(self, *words: str, data: Path | None = None) -> list[str]:
        program = [sys.executable, "-m", "desk_rag", "--data-dir", str(data or self.data)]
        return [*program, "--config", str(self.place / "config.toml"), *words]

    def write(self, file: Path, number: int) -> None:
        rows = [f"Shelf {self.random.randrange(10**6)} holds {self.random.randrange(90)} jars." for _ in range(20)]
        file.write_text(f"# Order {number}\n\nOrder {number} was paid by Ida Lund.\n\n" + "\n\n".join(rows) + "\n")

    def change(self, number: int, after: str = "") -> None:
        """Change one file, and wait until the catalog shows it; a delay `after` a disturbance is kept apart."""
        files = sorted(self.docs.glob("*.md"))
        match self.random.randrange(5):
            case 0 if len(files) > _KEPT:
                file = self.random.choice(files[_KEPT:])
                file.unlink()
                self.time_until(after, f"{file.name} deleted", lambda: file.name not in self.content())
            case 1 if len(files) > _KEPT:
                file = self.random.choice(files[_KEPT:])
                other = file.with_name(f"renamed-{number}.md")
                file.rename(other)
                names = {file.name, other.name}
                self.time_until(after, f"{other.name} renamed", lambda: names & set(self.content()) == {other.name})
            case kind:
                file = self.random.choice(files) if kind == 2 else self.docs / f"order-{number}.md"
                self.write(file, number)
                text = f"Order {number} was"
                self.time_until(after, f"{file.name} written", lambda: text in self.content().get(file.name, ""))

    def time_until(self, after: str, what: str, condition: Callable[[], bool]) -> None:
        began = time.monotonic()
        while not condition():
            if time.monotonic() - began > _LONGEST_WAIT:
                self.late.append(what)
                return
            time.sleep(0.1)
        if after:
            self.delays_after[after] = round(time.monotonic() - began, 2)
        else:
            self.delays.append(time.monotonic() - began)

    def content(self, data: Path | None = None) -> dict[str, str]:
        with Store.open(data or self.data, StoreSettings(reserve_gib=0), writer=False) as store:
            return {row.path.name: "\n".join(passage.chunk.text for passage in store.passages_of(row.path))
                    for row in store.documents()}  # fmt: skip

    def ask(self, number: int) -> None:
        """Ask about a file that is written now, so that the answer must be made from it."""
        number = 900_000 + number
        (self.docs / "latest.md").write_text(f"# Parcel\n\nParcel {number} was sent to Gunnar Friis.\n")
        began = time.monotonic()
        ran = subprocess.run(
            self.command("ask", "--private", "--json", f"To whom was parcel {number} sent?"), cwd=ROOT, timeout=300,
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        answer = json.loads(ran.stdout or "{}")
        right = "Gunnar Friis" in str(answer.get("answer")) and str(number) in json.dumps(answer)
        self.answers.append((right, time.monotonic() - began))

    def look(self) -> None:
        """Read the memory of the process and its children, its descriptors and its threads."""
        process = psutil.Process(self.process.pid)
        self.usage.append((process.memory_info().rss, process.num_fds(), process.num_threads()))

    def pause(self) -> None:
        subprocess.run(self.command("pause", "1m"), cwd=ROOT, check=True, capture_output=True)

    def leave(self) -> None:
        """Take the folder away for half a minute; its documents must stay."""
        before = set(self.content())
        self.docs.rename(self.place / "away")
        time.sleep(30)
        if set(self.content()) != before:
            self.late.append("documents of an absent folder were removed")
        (self.place / "away").rename(self.docs)

    def suspend(self) -> None:
        self.process.send_signal(signal.SIGSTOP)
        time.sleep(60)
        self.process.send_signal(signal.SIGCONT)

    def end(self) -> list[str]:
        """Stop watching; return what is wrong."""
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(60)
        wrong = [] if code == 0 else [f"watch ended with {code}"]
        verify = subprocess.run(self.command("verify"), cwd=ROOT, capture_output=True, text=True, check=False)
        wrong += [] if verify.returncode == 0 else [verify.stdout + verify.stderr]
        index = self.command("index", "--no-kv", str(self.docs), data=self.place / "anew")
        subprocess.run(index, cwd=ROOT, check=True, capture_output=True)
        if self.content() != self.content(self.place / "anew"):
            wrong.append("the index differs from one built anew")
        return wrong


def run(place: Path, minutes: float, seed: int) -> dict[str, object]:
    """Work for so many minutes; return the figures."""
    desk = Desk(place, seed)
    while not any(line.startswith("watching") for line in desk.lines):
        assert desk.process.poll() is None
        time.sleep(0.2)
    time.sleep(5)
    began, done, number = time.monotonic(), set[str](), 0
    disturbances = {"pause": (0.3, desk.pause), "absent": (0.5, desk.leave), "suspend": (0.7, desk.suspend)}
    asked = 0.0
    while (now := time.monotonic() - began) < 60 * minutes:
        number, after = number + 1, ""
        for name, (part, disturb) in disturbances.items():
            if now > part * 60 * minutes and name not in done:
                done.add(name)
                disturb()
                after = name
        desk.change(number, after)
        if time.monotonic() - began >= asked:
            asked += 60
            desk.ask(number)
            desk.look()
            print(json.dumps(figures(desk, time.monotonic() - began)), file=sys.stderr, flush=True)
        time.sleep(desk.random.uniform(5, 15))
    cpu = psutil.Process(desk.process.pid).cpu_times()
    result = {**figures(desk, time.monotonic() - began), "cpu_seconds": round(cpu.user + cpu.system)}
    return {**result, "wrong": [*grown(desk), *desk.end()]}


def grown(desk: Desk) -> list[str]:
    """Return what the process uses more of than in its tenth minute, and what it answered wrongly or too late."""
    early, last = desk.usage[min(10, len(desk.usage) - 1)], desk.usage[-1]
    wrong = list(desk.late)
    wrong += ["a question was answered wrongly"] if not all(right for right, _ in desk.answers) else []
    wrong += ["memory grew"] if last[0] > early[0] + _GROWTH else []
    wrong += ["descriptors grew"] if last[1] > early[1] + 4 else []
    return wrong + (["threads grew"] if last[2] > early[2] + 4 else [])


def figures(desk: Desk, seconds: float) -> dict[str, object]:
    """Return what was seen so far."""
    delays, waits = sorted(desk.delays), sorted(wait for _, wait in desk.answers)
    memory = [rss for rss, _, _ in desk.usage]
    return {
        "minutes": round(seconds / 60, 1), "changes": len(delays), "late": desk.late,
        "seconds_until_indexed": _spread(delays), "after": desk.delays_after,
        "asked": len(waits), "right": sum(right for right, _ in desk.answers),
        "ask_seconds": _spread(waits), "memory_mib": [round(rss / 1024**2) for rss in memory],
        "descriptors": [count for _, count, _ in desk.usage], "threads": [count for _, _, count in desk.usage],
    }  # fmt: skip


def _spread(values: Sequence[float]) -> list[float]:
    """Return the median, the 95th percentile and the largest."""
    if not values:
        return []
    return [round(statistics.median(values), 2), round(values[int(0.95 * (len(values) - 1))], 2), round(values[-1], 2)]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.indexer.hour", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    os.environ.update(OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1", PYTHONPATH=str(ROOT))
    with tempfile.TemporaryDirectory(prefix="desk-rag-hour-") as folder:
        result = run(Path(folder), options.minutes, options.seed)
    print(json.dumps(result))
    sys.exit(1 if result["wrong"] else 0)
