"""The whole product behind the window: real reader, real store, real indexing of a small folder."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from desk_rag.answering import auxiliary
from desk_rag.answering.conversation.saved import Change
from desk_rag.answering.conversation.turns import Turn, turn_of
from desk_rag.answering.events import Answer, AnswerEvent, AnswerMode, FilesWaiting, Finished, FirstToken, Retrieved
from desk_rag.config import IdleSettings, IndexSettings, Settings
from desk_rag.errors import DeskRagError, ModelError, ModelNotFound
from desk_rag.indexer.resident import attended
from desk_rag.ingest.events import FileEvent
from desk_rag.kv.serving import ServingModel
from desk_rag.store.maintenance import scrubbing
from desk_rag.store.store import Store
from desk_rag.tui.app import DeskRagApp
from desk_rag.tui.backend import Freshness
from desk_rag.tui.live_backend import LiveBackend
from desk_rag.tui.management.library_changes import LibraryChanges
from desk_rag.tui.management.session import Session
from desk_rag.tui.widgets.answer_view import AnswerView
from desk_rag.tui.widgets.source_list import SourceList
from tests.indexer.conftest import wait_for
from tests.loaded_once import loaded_once
from tests.tui.conftest import ask, text_of, until
from tests.tui.terminal import OSC, ROOT, Terminal

_QUESTION = "What colour is the kitchen door?"
_FILES = {
    "house/doors.md": "# Doors\n\nThe kitchen door is painted green. The front door is painted black.\n",
    "house/roof.txt": "The roof was repaired in May 2021. The roofer left a ladder in the garden.\n",
    "bad\x1b]52;c;Zm9v\x07name.md": "# Cellar\n\nThe cellar \x1b[31mdoor\x1b[0m has a lock.\n",
}


@pytest.fixture(scope="module", autouse=True)
def _models_loaded_once() -> Iterator[None]:
    with loaded_once():
        yield


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> tuple[Settings, Path]:
    """A data directory kept through the module, so that the model's gate runs once."""
    root = tmp_path_factory.mktemp("live")
    folder = root / "docs"
    for name, text in _FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    idle = IdleSettings(quiet_seconds=0, cpu_busy_percent=100, on_battery=True)
    return Settings(data_dir=root / "data", idle=idle, index=IndexSettings(settle_seconds=0)), folder


@pytest.fixture
def backend(place: tuple[Settings, Path]) -> Iterator[LiveBackend]:
    settings, folder = place
    live = LiveBackend(Session(settings, [folder]), in_process=True)
    yield live
    live.stop()


def _first(events: list[AnswerEvent], kind: type[AnswerEvent]) -> AnswerEvent:
    return next(event for event in events if isinstance(event, kind))


def warm(backend: LiveBackend) -> bool:
    status = backend.status()
    return 0 < status.chunks == status.warm == status.with_vectors and status.files == len(_FILES)


@pytest.mark.slow
def test_files_are_read_and_old_text_leaves_the_data_directory_while_the_model_is_loaded(
    place: tuple[Settings, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, folder = place[0], tmp_path / "edited"
    folder.mkdir()
    note, loading, end = folder / "note.md", threading.Event(), threading.Event()
    note.write_text("The spare key is with Zaphodbeeblebrox.\n")
    real = auxiliary.prepare_all

    def slowly(settings: Settings, say: Callable[[str], None], stop: Callable[[], bool]) -> ServingModel:
        loading.set()
        assert end.wait(120)
        return real(settings, say, stop)

    monkeypatch.setattr(auxiliary, "prepare_all", slowly)
    monkeypatch.setattr(scrubbing, "_EVERY_SECONDS", 1.0)
    backend = LiveBackend(Session(settings, [folder]), in_process=True)
    starting = threading.Thread(target=backend.start, args=(lambda _: None, lambda _: None))
    starting.start()
    try:
        assert loading.wait(60)
        wait_for(lambda: _holds(settings, b"zaphodbeeblebrox"))
        note.write_text("The spare key hangs behind the barometer.\n")
        wait_for(lambda: _holds(settings, b"barometer") and not _holds(settings, b"zaphodbeeblebrox"))
        assert starting.is_alive()
    finally:
        end.set()
        starting.join(60)
    assert backend.indexes and backend.store.search_words("barometer", 1)
    assert backend.stop()


def _holds(settings: Settings, word: bytes) -> bool:
    return any(word in file.read_bytes().lower() for file in settings.data_dir.rglob("*") if file.is_file())


@pytest.mark.slow
def test_the_first_question_of_a_new_user_waits_for_the_files(place: tuple[Settings, Path], tmp_path: Path) -> None:
    """It is asked while the folder is looked through for the first time, with the file that answers it far behind."""
    settings, _ = place
    folder = tmp_path / "new"
    folder.mkdir()
    for number in range(60):
        (folder / f"note {number}.md").write_text(f"Note {number}: the garden and the weather in week {number}.\n")
    (folder / "a door.md").write_text("# Doors\n\nThe kitchen door is painted green.\n")
    os.utime(folder / "a door.md", (1_000_000_000, 1_000_000_000))  # the oldest file is read last
    backend = LiveBackend(Session(settings, [folder]), in_process=True)
    backend.start(lambda text: None, lambda event: None)
    try:
        events = list(backend.ask(_QUESTION, lambda: False))
        left = backend.backlog()
    finally:
        backend.stop()
    assert isinstance(events[-1], Finished)
    answer = events[-1].answer
    assert answer.found and "green" in answer.text and answer.backlog is None, answer.notices
    assert left.waiting == 0
    assert all(isinstance(event, FilesWaiting) for event in events[: events.index(_first(events, Retrieved))])


@pytest.mark.slow
def test_second_process_attaches_and_may_pause(backend: LiveBackend, place: tuple[Settings, Path]) -> None:
    """The store has one writer; who comes later reads, sees its progress and may ask it to pause."""
    settings, folder = place
    backend.start(lambda text: None, lambda event: None)
    wait(lambda: warm(backend))
    assert backend.status().writer == 0
    second = LiveBackend(Session(settings, [folder]))
    assert second.start(lambda text: None, lambda event: None).device == f"process {os.getpid()}"
    try:
        wait(lambda: second.status().freshness is Freshness.WATCHING)
        assert second.status().writer == os.getpid()
        events = list(second.ask(_QUESTION, lambda: False))
        assert isinstance(events[0], Retrieved) and isinstance(events[-1], Finished)
        assert events[-1].answer.sources[0].path.name == "doors.md"
        second.pause(600)
        status = backend.status()
        assert status.freshness is Freshness.PAUSED
        assert status.paused_seconds is not None and 590 < status.paused_seconds <= 600
        second.pause(None)
        assert backend.status().freshness is not Freshness.PAUSED
    finally:
        assert second.stop()
    assert backend.stop() and backend.stop(), "safe to call twice"


@pytest.mark.slow
def test_who_came_second_goes_on_when_the_first_has_ended(
    backend: LiveBackend, place: tuple[Settings, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """New files are found again, chunk KV is kept again, and the lock is free once the second has ended too."""
    monkeypatch.setattr(attended, "_TRY_SECONDS", 0.2)
    settings, folder = place
    late = folder / "late.txt"
    backend.start(lambda text: None, lambda event: None)
    wait(lambda: warm(backend))
    fewer = settings.answer.model_copy(update={"max_new_tokens": 60})  # so that it needs an engine of its own
    session = Session(settings.model_copy(update={"answer": fewer}), [folder])
    second, heard = LiveBackend(session, in_process=True), []
    second.start(lambda text: None, heard.append)
    try:
        wait(lambda: second.status().writer == os.getpid())
        assert backend.stop()
        late.write_text("The gardener's umbrella is striped.\n")
        wait(lambda: second.status().freshness is Freshness.WATCHING and second.status().files == len(_FILES) + 1)
        status = second.status()
        assert status.writer == 0 and status.warm == status.chunks == len(_FILES) + 1
        assert any(isinstance(event, FileEvent) and event.path == late for event in heard)
        answer = list(second.ask("What is striped?", lambda: False))[-1]
        assert isinstance(answer, Finished) and answer.answer.sources[0].path == late
        second.pause(600)
        assert second.status().freshness is Freshness.PAUSED
        second.pause(None)
    finally:
        late.unlink(missing_ok=True)
        assert second.stop()
    with Store.open(settings.data_dir, settings.store, writer=True) as store:
        store.remove_document(late)


def test_a_second_one_that_ends_first_takes_nothing_over(
    backend: LiveBackend, place: tuple[Settings, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attended, "_TRY_SECONDS", 0.1)
    settings, folder = place
    with Store.open(settings.data_dir, settings.store, writer=True):
        backend.start(lambda text: None, lambda event: None)
        assert backend.stop()
    time.sleep(0.5)
    Store.open(settings.data_dir, settings.store, writer=True).close()


def test_document_and_stop_early(backend: LiveBackend, place: tuple[Settings, Path]) -> None:
    backend.start(lambda text: None, lambda event: None)
    wait(lambda: warm(backend))
    chunks = backend.document(place[1] / "house" / "doors.md")
    assert "kitchen door is painted green" in chunks[0].text
    assert list(backend.document(place[1] / "never.md")) == []
    stopping = threading.Event()
    events = []
    for event in backend.ask(_QUESTION, stopping.is_set):
        events.append(event)
        if isinstance(event, FirstToken):
            stopping.set()
    assert isinstance(events[-1], Finished) and events[-1].answer.stopped


@pytest.mark.slow
def test_a_full_disk_and_a_folder_that_goes_away_are_said(place: tuple[Settings, Path], tmp_path: Path) -> None:
    settings, folder = place
    own = tmp_path / "docs"
    shutil.copytree(folder, own)
    store = settings.store.model_copy(update={"reserve_gib": 1e6})  # no disk has as much free
    full = LiveBackend(
        Session(settings.model_copy(update={"data_dir": tmp_path / "data", "store": store}), [own]), in_process=True
    )
    full.start(lambda text: None, lambda event: None)
    try:
        wait(lambda: full.status().no_caches == "disk full: 3 chunks without cache, so answers are slower")
        wait(lambda: not full.status().is_reading)
        own.rename(tmp_path / "away")
        wait(lambda: full.status().absent == (own,))
        last = list(full.ask(_QUESTION, lambda: False))[-1]
        assert isinstance(last, Finished) and last.answer.found and last.answer.sources[0].absence is not None
        (tmp_path / "away").rename(own)
        wait(lambda: full.status().absent == ())
    finally:
        full.stop()


@pytest.mark.slow
def test_an_index_whose_folder_is_away_at_the_start_can_be_asked(tmp_path: Path) -> None:
    documents, data = tmp_path / "docs", tmp_path / "data"
    documents.mkdir()
    (documents / "doors.md").write_text(_FILES["house/doors.md"])
    command = [sys.executable, "-m", "desk_rag"]
    subprocess.run([*command, "index", "--no-kv", str(documents), "--data-dir", str(data)], check=True, cwd=ROOT)
    documents.rename(tmp_path / "unplugged")
    terminal = Terminal(["-m", "desk_rag", str(documents), "--data-dir", str(data)], columns=118, rows=32)
    try:
        terminal.until(lambda: "Ask about your files" in terminal.text)
        terminal.send(f"{_QUESTION}\r")
        terminal.until(lambda: "docs is not there now; nothing of it is removed" in terminal.text, 90)
        terminal.until(lambda: "ahead of time" in terminal.text, 90)
        assert "green" in terminal.text and "its folder is not connected" in terminal.text
        terminal.send("\x11")
        assert terminal.wait() == 0
    finally:
        terminal.close()


def test_follow_up_names_and_plain_search(backend: LiveBackend) -> None:
    backend.start(lambda text: None, lambda event: None)
    deadline = time.monotonic() + 60
    while not warm(backend) and time.monotonic() < deadline:
        time.sleep(0.1)

    def asked(question: str, turn: int, earlier: tuple[Turn, ...] = ()) -> Answer:
        last = list(backend.ask(question, lambda: False, turn=turn, earlier=earlier))[-1]
        assert isinstance(last, Finished)
        return last.answer

    first = asked("When was the roof repaired?", 1)
    second = asked("And what colour is the kitchen door? @doors.md", 2, (turn_of(first),))
    assert "green" in second.text and [path.name for path in second.limited_to] == ["doors.md"]
    third = asked("And the front door?", 3, (turn_of(first), turn_of(second)))
    assert third.asked_as == "What colour is the front door?" and "black" in third.text
    assert [path.name for path in third.limited_to] == ["doors.md"], "it leans on a limited question"
    assert [row.num_turns for row in backend.keeper.rows()] == [3]
    saved = backend.keeper.chat(1).turns[2].sources
    assert saved and all(backend.change_of(source) is Change.NONE for source in saved)
    listed = asked("/roofer ladder", 4)
    assert listed.is_search and [source.path.name for source in listed.sources] == ["roof.txt"]
    assert listed.text == "1 passage with all of these words."
    assert [row.num_turns for row in backend.keeper.rows()] == [3], "a search is not saved"
    assert {path.name for path, is_folder in backend.names().all() if is_folder} == {"docs", "house"}


@pytest.mark.parametrize("in_process", [True, False])
def test_failed_start_leaves_the_store_free(place: tuple[Settings, Path], tmp_path: Path, in_process: bool) -> None:
    settings, folder = place
    model = settings.model.model_copy(update={"name": str(tmp_path / "nothing")})
    broken = LiveBackend(Session(settings.model_copy(update={"model": model}), [folder]), in_process=in_process)
    with pytest.raises(DeskRagError, match="nothing") as raised:
        broken.start(lambda text: None, lambda event: None)
    assert raised.value.remedy and raised.value.exit_code == ModelNotFound.exit_code
    with pytest.raises(ModelError, match="not loaded"):
        broken.ask("x", lambda: False)
    assert broken.stop()


@pytest.mark.slow
def test_the_real_program_in_a_terminal(place: tuple[Settings, Path]) -> None:
    settings, folder = place
    code = (
        "import sys; from pathlib import Path; from desk_rag.config import Settings;"
        "from desk_rag.tui.opening import run; from desk_rag.tui.management.session import Session;"
        "sys.exit(run(Session(Settings.model_validate_json(sys.argv[1]), [Path(sys.argv[2])])))"
    )
    terminal = Terminal(["-c", code, settings.model_dump_json(), str(folder)], columns=118, rows=32)
    try:
        terminal.until(lambda: "Ask about your files" in terminal.text, 10)
        terminal.send(f"{_QUESTION}\r")
        terminal.until(lambda: "waits" in terminal.text or "first word" in terminal.text, 20)
        terminal.until(lambda: "ahead of time" in terminal.text, 90)
        assert "house/doors.md" in terminal.text and "green" in terminal.text
        terminal.signal(signal.SIGTERM)
        assert terminal.wait(20) == 143
    finally:
        terminal.close()
    assert terminal.was_restored()
    assert b"Zm9v" not in terminal.raw
    assert [found for found in OSC.findall(terminal.raw) if not found.startswith(b"\x1b]22;")] == []
    log = settings.data_dir / "logs" / "tui.log"
    assert stat.S_IMODE(log.stat().st_mode) == 0o600
    assert "Traceback" not in log.read_text()


def test_without_a_folder_the_ui_opens_those_in_the_index(tmp_path: Path) -> None:
    folder = tmp_path / "lighthouse"
    folder.mkdir()
    (folder / "lamp.txt").write_text("The lamp turns every nine seconds.\n", encoding="utf-8")
    program = ["-m", "desk_rag", "--data-dir", str(tmp_path / "data")]
    subprocess.run([sys.executable, *program, "index", str(folder), "--no-kv"], check=True, capture_output=True)
    terminal = Terminal(program, columns=118, rows=32)
    try:
        terminal.until(lambda: "lighthouse" in terminal.text and "1 file" in terminal.text, 90)
        assert "No folder is chosen" not in terminal.text
        terminal.signal(signal.SIGTERM)
        assert terminal.wait(20) == 143
    finally:
        terminal.close()


async def test_index_ask_and_compare(backend: LiveBackend, place: tuple[Settings, Path]) -> None:
    app = DeskRagApp(backend, [place[1]])
    async with app.run_test(size=(118, 32)) as pilot:
        await until(pilot, lambda: "embedded reader · CPU" in text_of(app, "#model"), 90)
        filled = "3 files · found by meaning 100% · read ahead 100%"
        await until(pilot, lambda: filled in text_of(app, "#status"), 60)
        assert "watching" in text_of(app, "#status") or "starting" in text_of(app, "#status")
        await ask(pilot, _QUESTION)
        view = app._chat.query_one(AnswerView)
        await until(pilot, lambda: view.over, 60)
        assert view.answer is not None and view.answer.mode is AnswerMode.CACHED
        assert view.answer.sources[0].path.name == "doors.md"
        assert "green" in view.answer.text or any("green" in c.quote for c in view.answer.citations)
        assert view.answer.warm_chunks == len(view.answer.sources) == 3
        assert "3 of 3 passages read ahead of time" in text_of(app, "TimingLine")
        await until(pilot, lambda: "house/doors.md · line" in text_of(app, "#preview-title"))
        assert "\x1b" not in "".join(
            str(app._chat.query_one(SourceList).get_option_at_index(i).prompt) for i in range(3)
        )
        await pilot.press("f7")
        await until(pilot, lambda: view.over and view.comparison is not None, 60)
        assert view.comparison is not None
        assert view.comparison.cached.answer.cold_chunks == 0, "a fresh run with all caches"
        assert view.comparison.full.answer.mode is AnswerMode.FULL
        assert "Both give the same words and quotes." in text_of(app, ".bars")


def wait(condition) -> None:  # type: ignore[no-untyped-def]
    """Poll until `condition` holds."""
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, "did not happen within 60 s"
        time.sleep(0.05)


@pytest.mark.slow
def test_a_rule_written_in_the_library_is_obeyed_at_once_and_taken_back(
    place: tuple[Settings, Path], tmp_path: Path
) -> None:
    """The running index drops what is excluded, keeps its caches, and has both back after the undo."""
    settings, folder = place
    doors = folder / "house" / "doors.md"
    live = LiveBackend(Session(settings, [folder], tmp_path / "config.toml"), in_process=True)
    try:
        live.start(lambda text: None, lambda event: None)
        wait(lambda: warm(live))
        changes = LibraryChanges(live.session)
        done = changes.exclude(changes.exclusion(doors, folder))
        wait(lambda: live.store.document(doors) is None or live.store.document(doors).state.value == "skipped")  # type: ignore[union-attr]
        assert done.undo is not None and "no longer" in done.undo()
        wait(lambda: warm(live))
        forgotten = changes.forget(folder / "house", keep_caches=True)
        assert "Forgot 2 documents" in forgotten.sentence and live.status().files == len(_FILES) - 2
        assert forgotten.undo is not None and "read again" in forgotten.undo()
        wait(lambda: warm(live))
    finally:
        live.stop()
    assert (tmp_path / "config.toml").read_text().strip() in ("", "[index]")


@pytest.mark.slow
def test_a_rule_written_into_the_settings_file_holds_for_the_next_question_and_search(
    place: tuple[Settings, Path], tmp_path: Path
) -> None:
    settings, folder = place
    file = tmp_path / "config.toml"
    live = LiveBackend(Session(settings, [folder], file), in_process=True)

    def asked(question: str) -> Answer:
        last = list(live.ask(question, lambda: False))[-1]
        assert isinstance(last, Finished)
        return last.answer

    try:
        live.start(lambda text: None, lambda event: None)
        wait(lambda: warm(live))
        assert asked("/roofer").sources
        file.write_text('[index]\nexclude = ["house/roof.txt"]\n')
        assert not asked("/roofer").sources
        file.write_text('[index]\nexclude = ["house/"]\n')
        answer = asked(_QUESTION)
        assert not answer.citations and "doors.md" not in {source.path.name for source in answer.sources}
        file.write_text("")
        assert "green" in asked(_QUESTION).text
        wait(lambda: warm(live))
    finally:
        live.stop()
