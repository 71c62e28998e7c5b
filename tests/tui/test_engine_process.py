"""The engine in a process of its own: nothing that the UI can do is lost, and nothing is left behind."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from desk_rag.answering.conversation.turns import turn_of
from desk_rag.answering.events import Answer, AnswerMode, AnswerText, FilesWaiting, Finished, FirstToken, Retrieved
from desk_rag.config import IdleSettings, IndexSettings, Settings
from desk_rag.documents.status import FileState
from desk_rag.errors import Cancelled, DeskRagError
from desk_rag.indexer.models import Models
from desk_rag.indexer.resident import attending, client, handover, keeping
from desk_rag.indexer.resident.attended import Attended
from desk_rag.indexer.resident.attending import AttendedProcess
from desk_rag.indexer.resident.protocol import PROTOCOL, Connection, Message, has_unix_sockets
from desk_rag.ingest.events import FileEvent, IndexEvent
from desk_rag.store.store import Store
from desk_rag.tui.backend import Freshness
from desk_rag.tui.live_backend import LiveBackend
from desk_rag.tui.management.library_changes import LibraryChanges
from desk_rag.tui.management.session import Session
from desk_rag.tui.turns.comparison import compare
from tests.indexer.conftest import wait_for
from tests.tui.terminal import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not has_unix_sockets(), reason="needs Unix sockets")]
Q = "What colour is the kitchen door?"
_FILES = {
    "house/doors.md": "# Doors\n\nThe kitchen door is painted green. The front door is painted black.\n",
    "house/roof.txt": "The roof was repaired in May 2021. The roofer left a ladder in the garden.\n",
    "cellar.md": "# Cellar\n\nThe cellar door has a lock.\n",
}


class World:
    """A folder, its settings, and the UI's backend over both."""

    def __init__(self, root: Path) -> None:
        self.folder, self.config = root / "docs", root / "config.toml"
        for name, text in _FILES.items():
            (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / name).write_text(text)
        idle = IdleSettings(quiet_seconds=0, cpu_busy_percent=100, on_battery=True)
        self.settings = Settings(data_dir=root / "data", idle=idle, index=IndexSettings(settle_seconds=0))
        self.events: list[IndexEvent] = []
        self.backend = self.another()

    def another(self, **changes: object) -> LiveBackend:
        return LiveBackend(Session(self.settings.model_copy(update=changes), [self.folder], self.config))

    def begin(self) -> None:
        self.backend.start(_nothing, self.events.append)
        wait_for(self.is_warm)

    def is_warm(self) -> bool:
        status = self.backend.status()
        return 0 < status.chunks == status.warm == status.with_vectors and status.files == len(_FILES)

    def process(self) -> psutil.Process:
        own = self.backend._own
        assert isinstance(own, AttendedProcess)
        return psutil.Process(own.pid)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("engine")


@pytest.fixture
def world(root: Path) -> Iterator[World]:
    """A data directory kept through the module, so that the model is checked once."""
    world = World(root)
    yield world
    world.backend.stop()


def _nothing(_: object) -> None:
    pass


def asked(backend: LiveBackend, question: str, **options: object) -> Answer:
    last = list(backend.ask(question, lambda: False, **options))[-1]  # type: ignore[arg-type]
    assert isinstance(last, Finished)
    return last.answer


def ended(process: psutil.Process) -> bool:
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


def test_answers_follow_ups_comparison_stop_and_haste(world: World) -> None:
    """One start for all of them."""
    world.begin()
    backend = world.backend
    events = list(backend.ask(Q, lambda: False, turn=1))
    kinds = [type(event) for event in events]
    assert kinds.index(Retrieved) < kinds.index(FirstToken) < kinds.index(AnswerText) and kinds[-1] is Finished
    first = events[-1].answer  # type: ignore[union-attr]
    follow_up = asked(backend, "And the front door?", turn=2, earlier=(turn_of(first),))
    assert follow_up.asked_as == "What colour is the front door?" and "black" in follow_up.text
    assert [row.num_turns for row in backend.keeper.rows()] == [2]
    assert asked(backend, "/roofer ladder").is_search
    backend.prefetch("When was the roof repaired?")
    done = compare(backend, Q, lambda: False, _nothing)
    assert done.same_words and done.full.answer.mode is AnswerMode.FULL and not done.cached.answer.cold_chunks

    stopping, seen = threading.Event(), []
    for event in backend.ask(Q, stopping.is_set):
        seen.append(event)
        if isinstance(event, FirstToken):
            stopping.set()
    assert isinstance(seen[-1], Finished) and seen[-1].answer.stopped

    with pytest.raises(DeskRagError, match="No indexed folder or file"):
        asked(backend, "What is in @nowhere.md?")
    wait_for(lambda: backend.status().freshness is Freshness.WATCHING)
    assert backend.status().writer == 0 and backend.indexes
    said = keeping.status(world.settings.data_dir)
    assert said is not None and said["pid"] == world.process().pid, "it answers `ask` and a second UI as well"


def test_events_pause_rules_and_forgetting(world: World) -> None:
    world.begin()
    backend, changes = world.backend, LibraryChanges(world.backend.session)
    late = world.folder / "late.txt"
    late.write_text("The gardener's umbrella is striped.\n")
    wait_for(lambda: any(isinstance(event, FileEvent) and event.path == late for event in world.events))
    assert asked(backend, "What is striped?").sources[0].path == late
    late.unlink()
    wait_for(world.is_warm)

    backend.pause(600)
    wait_for(lambda: backend.status().freshness is Freshness.PAUSED)
    excluded = changes.exclude(changes.exclusion(world.folder / "house" / "doors.md", world.folder))
    assert backend.store.document(world.folder / "house" / "doors.md") is None, "although indexing is paused"
    backend.pause(None)
    assert excluded.undo is not None and "no longer" in excluded.undo()
    wait_for(world.is_warm)
    forgotten = changes.forget(world.folder / "house", keep_caches=True)
    assert "Forgot 2 documents" in forgotten.sentence and backend.status().files == len(_FILES) - 2
    assert forgotten.undo is not None and "read again" in forgotten.undo()
    wait_for(world.is_warm)


def test_a_first_index_is_waited_for_and_can_be_hurried(root: Path, tmp_path: Path) -> None:
    world = World(tmp_path)
    (tmp_path / "data").mkdir()
    for number in range(80):
        (world.folder / f"note {number}.md").write_text(f"Note {number}: the garden in week {number}.\n" * 300)
    world.backend.start(_nothing, _nothing)
    try:
        is_waiting = threading.Event()
        seen = []
        for event in world.backend.ask(Q, lambda: False, wait=lambda: not is_waiting.is_set()):
            seen.append(event)
            if isinstance(event, FilesWaiting):
                is_waiting.set()
        assert isinstance(seen[-1], Finished)
        assert sum(isinstance(event, FilesWaiting) for event in seen) <= 2
    finally:
        world.backend.stop()


def test_a_question_whose_engine_ends_before_it_tells_anything_is_asked_again_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.begin()
    backend, real = world.backend, client.answer
    kills_left = 1

    def answer(connection: Connection, stop: Callable[[], bool], **seconds: float) -> Iterator[Message]:
        nonlocal kills_left
        is_killed = False
        for message in real(connection, stop, **seconds):
            if "asked" in message and kills_left:
                kills_left -= 1
                is_killed = True
                world.process().kill()
            if not is_killed:
                yield message

    def restart() -> None:
        wait_for(backend.has_ended)
        backend.start(_nothing, _nothing)

    monkeypatch.setattr(client, "answer", answer)
    restarting = threading.Thread(target=restart)
    restarting.start()
    assert "green" in asked(backend, Q).text and not kills_left
    restarting.join(60)
    kills_left = 2
    restarting = threading.Thread(target=restart)
    restarting.start()
    with pytest.raises(DeskRagError, match="has ended"):
        asked(backend, Q)
    restarting.join(60)


def test_a_long_conversation_is_shortened_and_a_question_too_long_to_send_is_told(world: World) -> None:
    world.begin()
    turn = turn_of(asked(world.backend, Q))
    earlier = (*[replace(turn, answer="green " * 800)] * 99, turn)
    second = world.another()
    try:
        second.start(_nothing, _nothing)
        for backend in (world.backend, second):
            follow_up = asked(backend, "And the front door?", earlier=earlier)
            assert follow_up.asked_as == "What colour is the front door?"
            with pytest.raises(DeskRagError, match="too long"):
                asked(backend, f"{Q} " * 9000)
    finally:
        second.stop()


def test_an_engine_that_is_of_another_version_by_now_is_told(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attending, "greeting", lambda: {"protocol": PROTOCOL, "version": "0"})
    with pytest.raises(DeskRagError, match="has ended: it is version"):
        world.backend.start(_nothing, _nothing)
    own = world.backend._own
    assert isinstance(own, AttendedProcess) and not psutil.pid_exists(own.pid)


def test_a_second_ui_shares_the_engine_and_goes_on_without_the_first(world: World) -> None:
    world.begin()
    second = world.another()
    try:
        device = second.start(_nothing, _nothing).device
        assert device == f"process {world.process().pid}"
        assert "green" in asked(second, Q).text and second.status().writer == world.process().pid
        second.pause(600)
        wait_for(lambda: world.backend.status().freshness is Freshness.PAUSED)
        second.pause(None)
        assert not second.has_ended()
        assert world.backend.stop()
        wait_for(second.has_ended)
        assert second.start(_nothing, _nothing).device == "CPU"
        assert "green" in asked(second, Q).text
        wait_for(lambda: second.indexes)
    finally:
        second.stop()
    Store.open(world.settings.data_dir, world.settings.store, writer=True).close()


def test_what_another_command_excluded_stays_out_when_the_engine_is_started_again(world: World) -> None:
    world.begin()
    backend, house = world.backend, world.folder / "house"

    def names() -> set[str]:
        return {row.path.name for row in backend.store.documents() if row.state is FileState.INDEXED}

    world.config.write_text(f"[index]\nexclude = [{json.dumps(str(house) + '/')}]\n")
    wait_for(lambda: names() == {"cellar.md"})  # the engine that runs heeds the file
    world.process().kill()
    wait_for(backend.has_ended)
    began = time.time()
    backend.start(_nothing, world.events.append)
    wait_for(lambda: any(scan.at > began for scan in [backend.store.activity()] if scan is not None))
    wait_for(lambda: backend.status().freshness is Freshness.WATCHING)
    assert names() == {"cellar.md"} and backend.backlog().new == ()
    assert "doors.md" not in str(asked(backend, "Which door is painted green?").sources)
    world.config.unlink()
    wait_for(lambda: names() == {Path(name).name for name in _FILES})


def test_an_engine_that_is_killed_is_started_again_and_no_question_is_lost(world: World) -> None:
    world.begin()
    backend, before = world.backend, world.process()
    before.kill()
    wait_for(backend.has_ended)
    again = threading.Thread(target=backend.start, args=(_nothing, _nothing))
    answers: list[Answer] = []
    asking = threading.Thread(target=lambda: answers.append(asked(backend, Q)))
    asking.start()
    again.start()
    asking.join(60)
    again.join(60)
    assert "green" in answers[0].text and world.process().pid != before.pid
    for _ in range(2):  # an engine that ends again and again is not started for ever
        world.process().kill()
        wait_for(backend.has_ended)
        with suppress(DeskRagError):
            backend.start(_nothing, _nothing)
    with pytest.raises(DeskRagError, match="not loaded"):
        asked(backend, Q)


@pytest.mark.parametrize("moment", ["starting", "loading the model", "ready"])
def test_it_ends_with_a_ui_that_is_killed(world: World, moment: str) -> None:
    code = (
        "import sys, time; from pathlib import Path; from desk_rag.config import Settings\n"
        "from desk_rag.tui.live_backend import LiveBackend; from desk_rag.tui.management.session import Session\n"
        "b = LiveBackend(Session(Settings.model_validate_json(sys.argv[1]), [Path(sys.argv[2])]))\n"
        "b.start(lambda text: print(b._own.pid, text, flush=True), lambda event: None)\n"
        "print(b._own.pid, 'ready', 'torch' in sys.modules, flush=True); time.sleep(600)\n"
    )
    arguments = [sys.executable, "-c", code, world.settings.model_dump_json(), str(world.folder)]
    ui = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert ui.stdout is not None
    try:
        line = next(line for line in ui.stdout if moment in line)
        engine = psutil.Process(int(line.split()[0]))
    finally:
        ui.send_signal(signal.SIGKILL)
        ui.wait()
        ui.stdout.close()
    assert "True" not in line, "only the other process imports torch"
    wait_for(lambda: ended(engine), 30)
    Store.open(world.settings.data_dir, world.settings.store, writer=True).close()


def test_a_folder_is_forgotten_while_the_engine_loads(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It holds the right to write meanwhile; a whole indexed folder that is purged is not read again either."""
    world, other, loads, may_load = World(tmp_path), tmp_path / "other", threading.Event(), threading.Event()
    other.mkdir()
    (other / "boat.md").write_text("The boat is moored in Kiel.\n")
    shutil.copytree(root / "data" / "models", tmp_path / "data" / "models", dirs_exist_ok=True)
    serving = Models.serving

    def waiting(models: Models) -> object:
        loads.set()
        assert may_load.wait(60)
        return serving(models)

    monkeypatch.setattr(Models, "serving", waiting)
    engine = Attended(world.settings, [world.folder, other], world.config)
    starting = threading.Thread(target=engine.start, args=(_nothing, _nothing))
    starting.start()
    assert loads.wait(60)
    store = Store.open(world.settings.data_dir, world.settings.store, writer=False)
    try:
        wait_for(lambda: len(store.documents()) == len(_FILES) + 1)
        world.config.write_text(f"[index]\nexclude = [{json.dumps(str(world.folder / 'house') + '/')}]\n")
        for path, documents in ((world.folder / "house", 2), (other, 1)):
            report, left_out = handover.purge(world.settings, path, check=False)
            assert report.documents == documents and left_out
        may_load.set()
        starting.join(60)
        wait_for(lambda: not engine.state().is_reading)
        assert {row.path.name for row in store.documents() if row.state is FileState.INDEXED} == {"cellar.md"}
    finally:
        may_load.set()
        store.close()
        engine.stop()


def test_quitting_while_it_loads_ends_it(world: World) -> None:
    loading, failures = threading.Event(), []

    def start() -> None:
        try:
            world.backend.start(lambda text: loading.set() if "loading" in text else None, _nothing)
        except DeskRagError as error:
            failures.append(error)

    starting = threading.Thread(target=start)
    starting.start()
    assert loading.wait(60)
    process = world.process()
    world.backend.stop()
    assert ended(process)
    starting.join(30)
    assert not starting.is_alive() and failures


def test_what_it_printed_last_is_told(world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit('no room for the libraries')\n")
    monkeypatch.setattr(attending, "environment", lambda: {**os.environ, "PYTHONPATH": str(tmp_path)})
    with pytest.raises(DeskRagError, match="no room for the libraries") as raised:
        world.backend.start(_nothing, _nothing)
    assert raised.value.exit_code == 5 and raised.value.remedy


@pytest.mark.parametrize("kills", [1, 2])
def test_an_engine_killed_while_it_starts_is_started_again_once(world: World, kills: int) -> None:
    said: list[str] = []

    def report(text: str) -> None:
        said.append(text)
        if "loading the libraries" in text and said.count(text) <= kills:
            world.process().kill()

    if kills == 1:
        world.backend.start(report, _nothing)
        assert "green" in asked(world.backend, Q).text
    else:
        with pytest.raises(DeskRagError, match="ended while it started") as raised:
            world.backend.start(report, _nothing)
        assert "started twice" in raised.value.remedy
    assert said.count("starting again") == 1


@pytest.mark.parametrize("moment", ["before it confirms", "while it answers"])
def test_a_question_to_a_suspended_engine_can_be_stopped(world: World, moment: str) -> None:
    world.begin()
    process, stop = world.process(), threading.Event()
    if moment == "before it confirms":
        process.suspend()
    events = world.backend.ask(Q, stop.is_set, AnswerMode.FULL)
    try:
        if moment == "while it answers":
            assert next(event for event in events if isinstance(event, Retrieved))
            process.suspend()
        threading.Timer(0.3, stop.set).start()
        with pytest.raises(Cancelled):
            list(events)
    finally:
        process.resume()
    assert "green" in asked(world.backend, Q).text


def test_a_kept_process_answers_until_the_engine_of_the_ui_is_loaded(world: World) -> None:
    world.begin()
    world.backend.stop()
    assert keeping.ensure(world.settings) == ""
    kept = psutil.Process(int(str((keeping.status(world.settings.data_dir) or {})["pid"])))
    backend = world.backend = world.another()
    backend.launch()
    started = backend.start(_nothing, _nothing)
    assert started.device == f"process {kept.pid}"
    assert "green" in asked(backend, Q).text and kept.is_running()
    wait_for(backend.has_ended, 60)
    assert backend.start(_nothing, _nothing).device != started.device and world.process().pid != kept.pid
    assert "green" in asked(backend, Q).text
    wait_for(lambda: ended(kept), 30)
    wait_for(lambda: backend.indexes, 30)


def test_a_kept_process_that_ends_while_the_engine_loads_loses_no_question(world: World) -> None:
    world.begin()
    world.backend.stop()
    assert keeping.ensure(world.settings) == ""
    kept = psutil.Process(int(str((keeping.status(world.settings.data_dir) or {})["pid"])))
    backend = world.backend = world.another()
    assert backend.start(_nothing, _nothing).device == f"process {kept.pid}"
    kept.kill()
    answers: list[Answer] = []
    asking = threading.Thread(target=lambda: answers.append(asked(backend, Q)))
    asking.start()
    wait_for(backend.has_ended, 30)
    backend.start(_nothing, _nothing)
    asking.join(60)
    assert "green" in answers[0].text
