"""Answers go first: within one process, between processes, and after the answering process was killed."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from desk_rag.device_lock import DeviceLock

CHILD = """
import sys
from pathlib import Path
from desk_rag.device_lock import DeviceLock
turn = DeviceLock(Path(sys.argv[1]))
with turn.answering():
    print("answering", flush=True)
    sys.stdin.readline()
print("done", flush=True)
sys.stdin.readline()
"""


def until(condition: Callable[[], bool], seconds: float = 20.0) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.01)
    return False


@contextmanager
def answering_process(place: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the turn until it reads a line."""
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(place)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "answering\n"
        yield child
    finally:
        child.kill()
        child.communicate()


def say(child: subprocess.Popen[str]) -> None:
    assert child.stdin is not None
    child.stdin.write("\n")
    child.stdin.flush()


def test_another_process_that_answers_is_seen_until_it_is_done(tmp_path: Path) -> None:
    turn = DeviceLock(tmp_path)
    assert not turn.answer_waits()
    with answering_process(tmp_path) as child:
        assert until(turn.answer_waits)
        say(child)
        assert child.stdout is not None
        assert child.stdout.readline() == "done\n"
        # It lives on, but does not answer any more.
        assert until(lambda: not turn.answer_waits())
        assert child.poll() is None


def test_a_killed_process_does_not_hold_the_turn(tmp_path: Path) -> None:
    turn = DeviceLock(tmp_path)
    with answering_process(tmp_path) as child:
        assert until(turn.answer_waits)
        child.send_signal(signal.SIGKILL)
        child.wait()
        assert until(lambda: not turn.answer_waits())
    assert list((tmp_path / "answering").glob("*.lock")) == []
    with turn.answering():
        assert turn.answer_waits()
    assert not turn.answer_waits()


def test_a_process_may_answer_again_after_others_looked_at_its_lock(tmp_path: Path) -> None:
    """Looking removes the lock file of a process that is not answering; its next answer must be seen all the same."""
    looking = DeviceLock(tmp_path)
    with answering_process(tmp_path) as child:
        say(child)
        assert child.stdout is not None
        assert child.stdout.readline() == "done\n"
        assert until(lambda: not looking.answer_waits())
    answering = DeviceLock(tmp_path)
    for _ in range(3):
        with answering.answering():
            assert answering.answer_waits()
        assert not answering.answer_waits()


def test_answering_and_prefilling_exclude_each_other(tmp_path: Path) -> None:
    turn = DeviceLock(tmp_path)
    inside: list[str] = []
    overlaps: list[tuple[str, ...]] = []

    def work(name: str, room: Callable[[], object]) -> None:
        for _ in range(20):
            with room():  # type: ignore[attr-defined]
                inside.append(name)
                if len(inside) > 1:
                    overlaps.append(tuple(inside))
                time.sleep(0.001)
                inside.remove(name)

    rooms = [("answer 1", turn.answering), ("answer 2", turn.answering), ("prefill", turn.prefilling)]
    threads = [threading.Thread(target=work, args=room) for room in rooms]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not any(thread.is_alive() for thread in threads)
    assert overlaps == []
    assert not turn.answer_waits()


def test_an_answer_that_waits_is_seen_by_the_prefill_it_waits_for(tmp_path: Path) -> None:
    turn = DeviceLock(tmp_path)
    started, answered = threading.Event(), threading.Event()

    def answer() -> None:
        started.wait(20)
        with turn.answering():
            answered.set()

    thread = threading.Thread(target=answer)
    thread.start()
    with turn.prefilling():
        assert not turn.answer_waits()
        started.set()
        assert until(turn.answer_waits)
        assert not answered.is_set()
    assert answered.wait(20)
    thread.join(20)
    assert until(lambda: not turn.answer_waits())


def test_an_error_during_an_answer_gives_the_turn_back(tmp_path: Path) -> None:
    turn = DeviceLock(tmp_path)
    with pytest.raises(RuntimeError), turn.answering():
        raise RuntimeError
    assert not turn.answer_waits()
    with turn.prefilling():
        pass


def test_where_nothing_can_be_written_answers_are_made_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("in the way of the directory, as a read-only drive is")
    turn = DeviceLock(tmp_path / "run")
    with turn.answering():
        assert turn.answer_waits()
    assert not turn.answer_waits(), "background work would be stopped for good"


def test_lock_files_are_private(tmp_path: Path) -> None:
    turn = DeviceLock(tmp_path / "run")
    assert (tmp_path / "run" / "answering").stat().st_mode & 0o077 == 0
    with turn.answering():
        (lock,) = (tmp_path / "run" / "answering").iterdir()
        assert lock.stat().st_mode & 0o077 == 0
