"""The process that `ask --keep` leaves behind, as a real process: when it starts, makes way, frees memory and ends."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from desk_rag.answering.conversation.turns import Request
from desk_rag.answering.events import Finished
from desk_rag.config import ResidentSettings, Settings
from desk_rag.errors import StoreLocked
from desk_rag.indexer.resident import client, keeping, values
from desk_rag.indexer.resident.answers import Resident
from desk_rag.indexer.resident.protocol import Message, NoResident
from desk_rag.indexer.resident.server import Server
from desk_rag.kv.serving import ServingModel
from desk_rag.store.store import Store
from tests.indexer.conftest import wait_for
from tests.store import made

pytestmark = pytest.mark.skipif(os.name == "nt", reason="uses signals and Unix sockets")


@pytest.fixture
def settings(settings: Settings) -> Settings:
    with Store.open(settings.data_dir, settings.store, writer=True) as store:
        texts = ["The kitchen door is painted green."]
        path = Path("/docs/door.md")
        store.put_document(made.document(path, texts), made.chunks(texts), made.stamp())
    return settings


@pytest.fixture
def kept(settings: Settings) -> Iterator[Callable[[Settings], psutil.Process]]:
    processes: list[psutil.Process] = []

    def ensure(chosen: Settings) -> psutil.Process:
        assert keeping.ensure(chosen) == ""
        status = keeping.status(chosen.data_dir)
        assert status is not None and status["kept"]
        processes.append(psutil.Process(int(str(status["pid"]))))
        return processes[-1]

    yield ensure
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()
            process.wait()


def ended(process: psutil.Process) -> bool:
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


def test_it_starts_once_and_makes_way_for_a_writer(
    settings: Settings, kept: Callable[[Settings], psutil.Process]
) -> None:
    process = kept(settings)
    assert kept(settings).pid == process.pid
    assert process.net_connections("inet") == [] and os.getsid(process.pid) != os.getsid(0)
    with pytest.raises(StoreLocked):
        Store.open(settings.data_dir, settings.store, writer=True)
    keeping.make_way(settings.data_dir)
    Store.open(settings.data_dir, settings.store, writer=True).close()
    wait_for(lambda: ended(process))
    assert keeping.status(settings.data_dir) is None


def test_one_with_other_settings_is_replaced(settings: Settings, kept: Callable[[Settings], psutil.Process]) -> None:
    process = kept(settings)
    other = settings.model_copy(update={"answer": settings.answer.model_copy(update={"top_k": 3})})
    assert kept(other).pid != process.pid
    wait_for(lambda: ended(process))


def test_a_process_that_does_other_work_is_left_alone(settings: Settings) -> None:
    def handle(request: Message, stop: Callable[[], bool]) -> Iterator[Message]:
        return resident.handle(request, stop)

    resident = Resident(settings, lambda: None, lambda: None, lambda: False, tuple)  # type: ignore[arg-type,return-value]
    server = Server(settings.data_dir, handle)
    assert server.start() == ""
    keeping.make_way(settings.data_dir)
    other = settings.model_copy(update={"answer": settings.answer.model_copy(update={"top_k": 3})})
    assert keeping.ensure(other) == ""
    status = keeping.status(settings.data_dir)
    assert status is not None and status["pid"] == os.getpid() and not status["kept"]
    server.stop()


def test_it_says_why_it_cannot_start(settings: Settings) -> None:
    with Store.open(settings.data_dir, settings.store, writer=True):
        assert str(os.getpid()) in keeping.ensure(settings)
    missing = settings.model_copy(update={"model": settings.model.model_copy(update={"name": "/nowhere/model"})})
    assert "/nowhere/model" in keeping.ensure(missing)


def test_settings_mean_the_same_in_any_directory(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "one" / "model").mkdir(parents=True)
    (tmp_path / "two" / "model").mkdir(parents=True)
    relative = settings.model_copy(update={"model": settings.model.model_copy(update={"name": "./model"})})
    monkeypatch.chdir(tmp_path / "one")
    first = values.settings_key(relative)
    absolute = values.with_absolute_paths(relative)
    monkeypatch.chdir(tmp_path / "two")
    assert values.settings_key(relative) != first
    assert values.settings_key(absolute) == first


@pytest.mark.slow
def test_it_frees_memory_when_idle_loads_again_and_ends(
    settings: Settings, prepared: ServingModel, prepared_dir: Path, kept: Callable[[Settings], psutil.Process]
) -> None:
    shutil.copytree(prepared_dir / "models", settings.data_dir / "models", dirs_exist_ok=True)
    brief = settings.model_copy(update={"resident": ResidentSettings(free_minutes=0.03, exit_minutes=0.3)})
    process = kept(brief)
    assert ask(brief) == "green"
    loaded = process.memory_info().rss
    wait_for(lambda: process.memory_info().rss < loaded - 50 * 1024**2)
    assert ask(brief) == "green"
    assert process.memory_info().rss > loaded - 50 * 1024**2
    wait_for(lambda: ended(process))
    with pytest.raises(NoResident):
        ask(brief)


def ask(settings: Settings) -> str:
    message: dict[str, object] = {"do": "ask", "request": values.plain(Request("What colour is the kitchen door?"))}
    message |= {"wait": True, "index_first": False, "settings": values.settings_key(settings)}
    _, *messages = client.request(settings.data_dir, message)
    finished = values.to_event(messages[-1])
    assert isinstance(finished, Finished)
    return finished.answer.text.split()[-1].strip(".").lower()
