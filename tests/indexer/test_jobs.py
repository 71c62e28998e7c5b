from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from desk_rag.errors import Cancelled
from desk_rag.indexer.jobs import Change, FileJob, FileSnapshot, JobQueue, SweepJob

ROOT = Path("/root-a")


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def file_job(name: str, due: float, root: Path = ROOT, change: Change = Change.CHANGED) -> FileJob:
    return FileJob(root / name, root, change, due)


def test_newest_change_of_a_path_wins() -> None:
    clock = Clock()
    queue = JobQueue(clock=clock)
    queue.put(file_job("a", 101))
    queue.put(FileJob(ROOT / "a", ROOT, Change.GONE, 103, FileSnapshot(1, 2)))
    clock.now = 102
    assert queue.take() is None
    clock.now = 103
    job = queue.take()
    assert isinstance(job, FileJob)
    assert (job.change, job.seen) == (Change.GONE, FileSnapshot(1, 2))
    assert queue.take() is None
    assert len(queue) == 0


def test_jobs_come_in_order_of_due_time() -> None:
    clock = Clock()
    queue = JobQueue(clock=clock)
    for name, due in (("c", 103.0), ("a", 101.0), ("b", 102.0)):
        queue.put(file_job(name, due))
    clock.now = 110
    assert [queue.take().path.name for _ in range(3)] == ["a", "b", "c"]  # type: ignore[union-attr]


def test_a_changed_file_goes_before_a_sweep_but_does_not_starve_it() -> None:
    clock = Clock()
    queue = JobQueue(clock=clock)
    queue.put(SweepJob(ROOT, 100))
    queue.put(file_job("a", 102))
    queue.put(file_job("late", 109))
    clock.now = 110
    assert queue.take() == file_job("a", 102)
    assert queue.take() == SweepJob(ROOT, 100)
    assert queue.take() == file_job("late", 109)


def test_take_file_never_gives_a_sweep() -> None:
    clock = Clock()
    queue = JobQueue(clock=clock)
    queue.put(SweepJob(ROOT, 1))
    assert queue.take_file() is None
    queue.put(file_job("a", 99))
    assert queue.take_file() == file_job("a", 99)
    assert queue.take() == SweepJob(ROOT, 1)


def test_a_second_request_does_not_put_a_sweep_off() -> None:
    clock = Clock()
    queue = JobQueue(clock=clock)
    queue.put(SweepJob(ROOT, 101))
    queue.put(SweepJob(ROOT, 150))
    clock.now = 102
    assert queue.take() == SweepJob(ROOT, 101)
    assert queue.take() is None


def test_a_flood_of_one_folder_becomes_one_sweep_of_it() -> None:
    clock = Clock()
    queue = JobQueue(most=10, clock=clock)
    other = Path("/root-b")
    queue.put(file_job("keep", 100, other))
    for n in range(10_000):
        queue.put(file_job(str(n % 500), 100))
        assert len(queue) <= 12
    clock.now = 200
    taken = []
    while (job := queue.take()) is not None:
        taken.append(job)
    assert SweepJob(ROOT, 100) in taken
    assert file_job("keep", 100, other) in taken


def test_a_path_that_changes_all_the_time_does_not_fill_memory() -> None:
    queue = JobQueue()
    for n in range(5000):
        queue.put(file_job("hot", float(n)))
    assert len(queue) == 1
    assert len(queue._order) < 200  # the bound itself is what is tested


def test_a_growing_text_is_waited_for_a_few_times_however_often_it_is_announced() -> None:
    jobs, path = JobQueue(), Path("/docs/canal.log")
    waited = FileJob(path, path.parent, Change.CHANGED, 0.0, FileSnapshot(10, 1), tries=3)
    jobs.put(waited)
    jobs.put(FileJob(path, path.parent, Change.CHANGED, 0.0, FileSnapshot(20, 2)))
    job = jobs.take()
    assert isinstance(job, FileJob)
    assert job.is_settled(FileSnapshot(20, 2)) and job.is_settled(FileSnapshot(30, 3))
    assert not job.is_settled(FileSnapshot(5, 3))
    for other in (replace(job, tries=2), replace(job, path=Path("/docs/canal.pdf"))):
        assert not other.is_settled(FileSnapshot(30, 3))


def test_wait_ends_when_a_job_is_due_and_when_woken() -> None:
    queue = JobQueue()
    queue.put(file_job("a", time.monotonic() + 0.05))
    queue.wait(30)
    assert queue.due()
    queue.take()

    waker = threading.Timer(0.05, queue.wake)
    waker.start()
    began = time.monotonic()
    queue.wait(30)
    assert time.monotonic() - began < 25
    waker.join()


def test_a_job_put_by_another_thread_shortens_a_wait() -> None:
    queue = JobQueue()
    putter = threading.Timer(0.05, queue.put, [file_job("a", time.monotonic())])
    putter.start()
    began = time.monotonic()
    queue.wait(30)
    assert queue.take() is not None
    assert time.monotonic() - began < 25
    putter.join()


def test_work_for_a_user_precedes_jobs_and_hands_over_what_it_yields() -> None:
    queue = JobQueue()
    queue.put(SweepJob(Path("/root"), 0.0))
    results: list[int] = []
    waiting = threading.Thread(target=lambda: results.extend(queue.perform(_two_numbers, lambda: False)))
    waiting.start()
    queue.wait(60)  # ends when the work is queued
    task = queue.take_task()
    assert task is not None and not queue.has_tasks()
    task()
    waiting.join()
    assert results == [1, 2]


def test_work_that_fails_fails_for_whoever_asked() -> None:
    queue = JobQueue()

    def fail(_emit: object) -> None:
        raise ValueError("no")

    taker = threading.Thread(target=lambda: _take_one(queue))
    taker.start()
    with pytest.raises(ValueError, match="no"):
        list(queue.perform(fail, lambda: False))
    taker.join()


def test_work_that_was_stopped_before_it_began_is_never_done() -> None:
    queue, done = JobQueue(), list[int]()
    with pytest.raises(Cancelled):
        list(queue.perform(lambda emit: done.append(1), lambda: True))
    task = queue.take_task()
    assert task is not None
    task()
    assert not done


def _two_numbers(emit: Callable[[int], None]) -> None:
    emit(1)
    emit(2)


def _take_one(queue: JobQueue) -> None:
    queue.wait(60)
    task = queue.take_task()
    assert task is not None
    task()
