"""A week of watching in two minutes: clocks run fast while files change, a drive goes and the computer sleeps."""

from __future__ import annotations

import random
import threading
import time as real_time
from pathlib import Path

import psutil
import pytest

from desk_rag.config import Settings
from desk_rag.device_lock import DeviceLock
from desk_rag.indexer import jobs, notices, service, worker
from desk_rag.indexer.jobs import JobQueue
from desk_rag.indexer.machine import idle
from desk_rag.indexer.parts import Parts
from desk_rag.indexer.service import Service
from desk_rag.ingest import pipeline
from desk_rag.ingest.events import Notice
from desk_rag.kv.serving import ServingModel
from desk_rag.retrieval.embedding import Embedder, load_embedder
from desk_rag.store.catalog import clock, coordination
from desk_rag.store.store import Store
from tests.indexer.conftest import wait_for

_HOUR, _DAY, _WEEK = 3600.0, 86_400.0, 7 * 86_400.0
_SPEED = 6000.0
_KEPT = 8
"""Files that are never deleted, so that no change counts as a mass deletion."""


class FastTime:
    """The module `time` with clocks that run 6,000 times as fast, and may jump as after a suspend."""

    def __init__(self) -> None:
        self._began, self._wall, self._asleep = real_time.monotonic(), real_time.time(), 0.0

    def monotonic(self) -> float:
        return (real_time.monotonic() - self._began) * _SPEED

    def time(self) -> float:
        return self._wall + self.monotonic() + self._asleep

    def sleep(self, seconds: float) -> None:
        real_time.sleep(seconds / _SPEED)

    def suspend(self, seconds: float) -> None:
        self._asleep += seconds

    def strftime(self, form: str) -> str:
        return real_time.strftime(form, real_time.localtime(self.time()))

    def __getattr__(self, name: str) -> object:
        return getattr(real_time, name)


class FastCondition(threading.Condition):
    """A condition that waits in fast time."""

    def wait(self, timeout: float | None = None) -> bool:
        return super().wait(None if timeout is None else timeout / _SPEED)


class FastThreading:
    Condition = FastCondition


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> FastTime:
    fast = FastTime()
    for module in (jobs, notices, service, worker, idle, clock, coordination, pipeline):
        monkeypatch.setattr(module, "time", fast)
    monkeypatch.setattr(jobs, "threading", FastThreading)
    monkeypatch.setattr(JobQueue.__init__, "__defaults__", (10_000, fast.monotonic))
    return fast


@pytest.fixture(scope="module")
def embedder() -> Embedder:
    return load_embedder(Settings().model)


class Desk:
    """Files that somebody works on."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.random = folder, random.Random(4)
        for number in range(_KEPT + 8):
            self.write(folder / f"note-{number}.md")

    def write(self, file: Path) -> None:
        words = [f"Item {self.random.randrange(10**6)} costs {self.random.randrange(500)} crowns."
                 for _ in range(self.random.randrange(1, 6))]  # fmt: skip
        file.write_text(f"# {file.stem}\n\n" + "\n\n".join(words) + "\n")

    def work(self) -> None:
        """One hour's changes."""
        files = sorted(self.folder.glob("*.md"))
        match self.random.randrange(5):
            case 0:
                self.write(self.folder / f"note-{self.random.randrange(10**6)}.md")
            case 1 if len(files) > _KEPT:
                self.random.choice(files[_KEPT:]).unlink()
            case 2 if len(files) > _KEPT:
                self.random.choice(files[_KEPT:]).rename(self.folder / f"note-{self.random.randrange(10**6)}.md")
            case _:
                self.write(self.random.choice(files))


def content(store: Store) -> dict[str, list[str]]:
    return {
        row.path.name: [passage.chunk.chunk_id for passage in store.passages_of(row.path)] for row in store.documents()
    }


def in_use() -> tuple[int, int]:
    process = psutil.Process()
    return process.num_fds(), process.memory_info().rss


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(not hasattr(psutil.Process, "num_fds"), reason="counts file descriptors")
def test_a_week_leaves_the_index_right_and_nothing_grows(
    fast: FastTime, settings: Settings, tmp_path: Path, embedder: Embedder, prepared: ServingModel
) -> None:
    folder = tmp_path / "desk"
    folder.mkdir()
    desk = Desk(folder)
    settings = settings.model_copy(
        update={"index": settings.index.model_copy(update={"sweep_seconds": 300.0, "settle_seconds": 2.0})}
    )
    notices: list[Notice] = []
    prompt = prepared.model.prompt
    with Store.open(settings.data_dir, settings.store, writer=True) as store:
        parts = Parts(
            store, prompt, prompt.chunk_size, DeviceLock(settings.data_dir / "run"), lambda: embedder, lambda: prepared
        )
        running = Service(parts, [folder], settings, tick_seconds=0.01)
        running.subscribe(lambda event: notices.append(event) if isinstance(event, Notice) else None)
        running.start()
        hour, after_a_day, written = 0, (0, 0), set()
        while fast.monotonic() < _WEEK:
            hour += 1
            match hour % 24:
                case 3:
                    running.pause(fast.time() + _HOUR)
                case 9:
                    fast.suspend(2 * _HOUR)
                case 15:
                    folder.rename(tmp_path / "away")
                case 17:
                    (tmp_path / "away").rename(folder)
                case 16:
                    pass
                case _:
                    desk.work()
            if hour == 24:
                after_a_day = in_use()
            written.add(store.written_today())
            next_hour = hour * _HOUR
            wait_for(lambda until=next_hour: fast.monotonic() >= until)  # type: ignore[misc]
        if not folder.exists():
            (tmp_path / "away").rename(folder)
        running.pause(None)
        names = {file.name for file in folder.glob("*.md")}
        wait_for(lambda: set(content(store)) == names)
        wait_for(lambda: not running.is_working())
        after_a_week = in_use()
        assert running.stop(30 * _SPEED)
        week = content(store)
        assert store.verify().clean and running.notices() == ()
        counts = store.counts(prepared.namespace, embedder.fingerprint)
        assert counts.chunks == counts.with_vectors == counts.warm
    with Store.open(tmp_path / "anew", settings.store, writer=True) as second_store:
        for _ in pipeline.sync_folder(second_store, folder, prompt, prompt.chunk_size, settings.index, lambda: False):
            pass
        assert week == content(second_store)
    assert hour > 150, "the machine was too slow for the clocks"
    away = [notice for notice in notices if not notice.is_over]
    assert len(notices) == 2 * len(away) and 5 <= len(away) <= 8  # once a day, and as often that it is back
    assert 0 in written and len(written) > 20  # the count of written bytes begins anew each day
    assert after_a_week[0] <= after_a_day[0] + 8
    assert after_a_week[1] <= after_a_day[1] + 150 * 1024**2
    assert sum(file.stat().st_size for file in (settings.data_dir / "logs").glob("*")) < 2_000_000
