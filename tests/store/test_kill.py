"""SIGKILL at any moment of writing: nothing is lost but what was in flight, and nothing wrong is ever read."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from desk_rag.store.store import Store
from tests.store import made

ROUNDS = 220
REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture
def forker() -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.store.kill_child"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=REPOSITORY,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    yield process
    process.communicate()


class Acknowledged:
    """Work reported done to the killed process, and work in flight."""

    def __init__(self) -> None:
        self.documents: dict[str, list[str]] = {}
        self.kv: set[str] = set()
        self.unsure: str | None = None
        """A document whose change was begun and not acknowledged."""

    def note(self, line: str) -> None:
        what, _, rest = line.partition(" ")
        if what in ("putting", "going"):
            self.unsure = rest
        elif what == "gone":
            self.kv -= set(self.documents.pop(rest, ()))
            self.unsure = None
        elif what == "doc":
            path, _, texts = rest.partition(" ")
            self.kv -= set(self.documents.get(path, ())) - set(texts.split("|"))
            self.documents[path] = texts.split("|")
            self.unsure = None
        elif what == "kv":
            self.kv.add(rest)


def one_round(forker: subprocess.Popen[str], root: Path, seed: int, step: int, known: Acknowledged) -> None:
    assert forker.stdin is not None and forker.stdout is not None
    forker.stdin.write(f"{root} {seed} {step}\n")
    forker.stdin.flush()
    for line in forker.stdout:
        what, _, rest = line.rstrip("\n").partition(" ")
        if what == "pid" and not step:
            # From a few milliseconds to some dozen: anywhere in the middle of writing.
            delay = random.Random(seed).uniform(0.001, 0.05)
            threading.Thread(target=kill_after, args=(int(rest), delay)).start()
        if what == "end":
            assert int(rest) == signal.SIGKILL, "the writer ended by itself"
            return
        known.note(line.rstrip("\n"))
    raise AssertionError("the forking process died")


def kill_after(pid: int, delay: float) -> None:
    time.sleep(delay)
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def check(root: Path, known: Acknowledged) -> int:
    """Reopen as the next start would; compare everything that was acknowledged. Returns the hits."""
    with Store.open(root, made.settings(), writer=True) as store:
        report = store.verify()
        assert report.clean, report.problems
        committed: set[str] = set()
        for path, texts in known.documents.items():
            stored = [passage.chunk.text for passage in store.passages_of(Path(path))]
            if path != known.unsure:
                assert stored == texts
        for row in store.documents():
            assert str(row.path) in known.documents or str(row.path) == known.unsure
            committed |= {passage.chunk.text for passage in store.passages_of(row.path)}
        in_flight = set(known.documents.get(known.unsure or "", ()))
        expected = {text for text in known.kv & committed if text not in in_flight}
        texts = sorted(committed)
        got = store.get_kv([made.key(text) for text in texts])
        for text, kv in zip(texts, got, strict=True):
            assert kv is None or made.same(kv, made.kv_for(made.key(text))), f"wrong KV for {text}"
        hits = {text for text, kv in zip(texts, got, strict=True) if kv is not None}
        assert expected <= hits, f"lost: {expected - hits}"
        assert not list(root.rglob("*.tmp")) and not list((root / "quarantine").iterdir())
        files = {path.stem for path in (root / "kv").rglob("*.safetensors")}
        assert files == {str(made.key(text).tokens) for text in hits}, "a file that belongs to nothing"
        known.kv = hits
        if known.unsure is not None:
            known.documents[known.unsure] = [p.chunk.text for p in store.passages_of(Path(known.unsure))]
            known.documents = {path: texts for path, texts in known.documents.items() if texts}
            known.unsure = None
        return len(hits)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_two_hundred_kills_lose_nothing_but_what_was_in_flight(
    forker: subprocess.Popen[str], fast_directory: Path
) -> None:
    root = fast_directory / "data"
    known = Acknowledged()
    hits = 0
    for seed in range(ROUNDS):
        step = 0 if seed % 2 else 1 + seed // 2 % 110  # every other round dies at a chosen system call
        one_round(forker, root, seed, step, known)
        hits += check(root, known)
    assert hits > 5 * ROUNDS, "the rounds hardly wrote anything"
