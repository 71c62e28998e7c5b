"""The whole background service in this process: real store, real parsers, the embedded reader and embedder."""

from __future__ import annotations

import logging
import math
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from desk_rag.config import IndexSettings, ModelSettings, Settings
from desk_rag.device_lock import DeviceLock
from desk_rag.documents import document
from desk_rag.documents.status import FileState, IndexStage
from desk_rag.errors import ModelNotFound
from desk_rag.indexer import worker
from desk_rag.indexer.jobs import SweepJob
from desk_rag.indexer.machine.clock import ClockJump
from desk_rag.indexer.machine.idle import IdleGate
from desk_rag.indexer.parts import Parts
from desk_rag.indexer.service import Service, outermost
from desk_rag.ingest.events import DeletionsWaiting, FileEvent, IndexEvent, IndexFinished, Notice, StageProgress
from desk_rag.ingest.file_update import FileReader
from desk_rag.ingest.pipeline import index_path
from desk_rag.kv.serving import ServingModel
from desk_rag.retrieval.embedding import Embedder, load_embedder
from desk_rag.store.catalog.deletion_rows import Decision
from desk_rag.store.maintenance import scrubbing
from desk_rag.store.store import Store
from tests.indexer.conftest import wait_for
from tests.store import made


@pytest.fixture(scope="module")
def embedder() -> Embedder:
    return load_embedder(ModelSettings(device="cpu"))


class Running:
    """A service and what it said."""

    def __init__(self, store: Store, service: Service, namespace: object, fingerprint: str) -> None:
        self.store, self.service = store, service
        self.namespace, self.fingerprint = namespace, fingerprint
        self.events: list[IndexEvent] = []
        service.subscribe(self.events.append)

    def finished(self, times: int = 1) -> bool:
        return len([e for e in self.events if isinstance(e, IndexFinished)]) >= times

    def states(self, path: Path) -> list[FileState]:
        return [e.state for e in self.events if isinstance(e, FileEvent) and e.path == path]

    def notices(self) -> list[Notice]:
        return [event for event in self.events if isinstance(event, Notice)]

    def counts(self) -> tuple[int, int, int]:
        """chunks, with vectors, warm"""
        counts = self.store.counts(self.namespace, self.fingerprint)  # type: ignore[arg-type]
        return counts.chunks, counts.with_vectors, counts.warm

    def found(self, words: str) -> set[Path]:
        passages = [self.store.passage(hit.chunk_id) for hit in self.store.search_words(words, 10)]
        return {passage.path for passage in passages if passage is not None}


Make = Callable[..., Running]


@pytest.fixture
def make(settings: Settings, docs: Path, embedder: Embedder, prepared: ServingModel) -> Iterator[Make]:
    started: list[Running] = []

    def build(**changes: object) -> Running:
        chosen = settings.model_copy(update={k: v for k, v in changes.items() if k in Settings.model_fields})
        store = Store.open(chosen.data_dir, chosen.store, writer=True)
        parts = Parts(
            store=store,
            counter=prepared.model.prompt,
            size=prepared.model.prompt.chunk_size,
            turn=DeviceLock(chosen.data_dir / "run"),
            load_embedder=changes.get("load_embedder", lambda: embedder),  # type: ignore[arg-type]
            load_model=lambda: prepared,
        )
        gate = changes.get("gate")
        folders = changes.get("watched", [docs])
        service = Service(parts, folders, chosen, gate=gate, tick_seconds=0.1)  # type: ignore[arg-type]
        running = Running(store, service, prepared.namespace, embedder.fingerprint)
        started.append(running)
        return running

    yield build
    for running in started:
        running.service.stop()
        running.store.close()


def test_first_everything_is_findable_then_understood_then_warm(make: Make, docs: Path) -> None:
    running = make()
    running.service.start()
    wait_for(running.finished)
    assert running.counts() == (2, 2, 2)
    stages = [e.stage for e in running.events if isinstance(e, StageProgress)]
    first = [stages.index(stage) for stage in (IndexStage.WORDS, IndexStage.VECTORS, IndexStage.WARM)]
    assert first == sorted(first)
    done = [e for e in running.events if isinstance(e, IndexFinished)][-1]
    assert (done.indexed, done.chunks, done.warm) == (2, 2, 2)


def test_edits_renames_and_deletes_arrive_within_seconds(make: Make, docs: Path) -> None:
    running = make()
    running.service.start()
    wait_for(running.finished)
    (docs / "note.txt").write_text("The spare key hangs behind the barometer now.\n")
    wait_for(lambda: running.found("barometer") == {docs / "note.txt"})
    wait_for(lambda: running.counts() == (2, 2, 2))
    (docs / "letter.md").rename(docs / "roof.md")
    wait_for(lambda: FileState.RENAMED in running.states(docs / "roof.md"))
    assert running.found("roofer") == {docs / "roof.md"}
    (docs / "note.txt").unlink()
    wait_for(lambda: FileState.REMOVED in running.states(docs / "note.txt"))
    assert running.found("barometer") == set()
    assert running.counts() == (1, 1, 1)
    # the rename did no chunk work
    assert FileState.INDEXED not in running.states(docs / "roof.md")


def test_deleted_text_leaves_the_files_while_a_model_is_being_loaded(
    make: Make, prepared: ServingModel, embedder: Embedder, docs: Path, settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(scrubbing, "_EVERY_SECONDS", 2.0)
    loading, is_loaded = threading.Event(), threading.Event()

    def load_slowly() -> Embedder:
        loading.set()
        assert is_loaded.wait(120)
        return embedder

    running, prompt, note = make(load_embedder=load_slowly), prepared.model.prompt, docs / "note.txt"
    note.write_text("The spare key is with Zaphodbeeblebrox.\n")
    index_path(running.store, note, docs, prompt, prompt.chunk_size, IndexSettings())
    assert running.store.checkpoint()
    note.write_text("The spare key hangs behind the barometer.\n")
    os.utime(note, (1_700_000_001, 1_700_000_001))  # it stands still
    running.service.start()
    try:
        assert loading.wait(60)
        wait_for(lambda: "zaphod" not in _stored(settings))
        assert not is_loaded.is_set() and running.found("barometer") == {note}
    finally:
        is_loaded.set()
    wait_for(running.finished)


def test_a_file_is_read_while_a_task_loads_a_model(make: Make, docs: Path, embedder: Embedder) -> None:
    """As when another command hands over an `index`."""
    loading, is_loaded = threading.Event(), threading.Event()

    def load_slowly() -> Embedder:
        loading.set()
        assert not resting.is_set() or is_loaded.wait(120)
        return embedder

    resting = threading.Event()
    running = make(load_embedder=load_slowly)
    running.service.start()
    wait_for(running.finished)
    loading.clear()
    resting.set()
    loaded: list[Embedder] = []

    def ask() -> None:
        loaded.extend(running.service.perform(lambda give: give(running.service.parts_in_task.load_embedder()), bool))

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        assert loading.wait(60)
        (docs / "note.txt").write_text("The spare key hangs behind the barometer.\n")
        wait_for(lambda: running.found("barometer") == {docs / "note.txt"})
        assert not loaded and not running.service.stop(0.1), "the load cannot be interrupted"
    finally:
        is_loaded.set()
    asking.join(30)
    assert loaded == [embedder]


def _stored(settings: Settings) -> str:
    files = settings.data_dir.glob("catalog.sqlite*")
    return b"".join(file.read_bytes() for file in files).decode("latin-1").casefold()


def test_a_file_indexed_by_itself_leaves_once_it_is_deleted(
    make: Make, prepared: ServingModel, tmp_path: Path
) -> None:
    running, prompt = make(), prepared.model.prompt
    place = tmp_path / "elsewhere"
    place.mkdir()
    gone, stays = place / "gone.txt", place / "stays.txt"
    for file in (gone, stays):
        file.write_text(f"The barometer fell: {file.stem}.\n")
        index_path(running.store, file, place, prompt, prompt.chunk_size, IndexSettings())
    assert running.found("barometer") == {gone, stays}
    gone.unlink()
    running.service.start()
    wait_for(lambda: FileState.REMOVED in running.states(gone))
    assert running.found("barometer") == {stays}


def test_files_that_come_together_are_counted_while_they_are_read(make: Make, docs: Path) -> None:
    running = make()
    running.service.start()
    wait_for(running.finished)
    running.events.clear()
    for number in range(20):
        (docs / f"bin-{number}.txt").write_text(f"Bin {number} holds the bolts of the {number}th gate.\n")
    wait_for(lambda: len(running.store.documents(docs)) == 22)
    wait_for(lambda: any(isinstance(event, StageProgress) and event.done == event.total for event in running.events))
    words = [e for e in running.events if isinstance(e, StageProgress) and e.stage is IndexStage.WORDS]
    assert max(event.total for event in words) > 1
    assert all(0 < event.done <= event.total <= 20 for event in words)


def test_a_save_by_delete_and_create_keeps_the_document(make: Make, docs: Path) -> None:
    running = make()
    running.service.start()
    wait_for(running.finished)
    text = (docs / "note.txt").read_text()
    (docs / "note.txt").unlink()
    time.sleep(1)
    (docs / "note.txt").write_text(text)
    (docs / "marker.txt").write_text("Something written after it.\n")
    wait_for(lambda: running.states(docs / "marker.txt"))
    time.sleep(4)  # longer than a vanished file is waited for
    assert FileState.REMOVED not in running.states(docs / "note.txt")
    assert running.found("flower pot") == {docs / "note.txt"}


def test_a_renamed_folder_does_no_chunk_work(make: Make, docs: Path) -> None:
    (docs / "old" / "deep").mkdir(parents=True)
    for n in range(10):
        (docs / "old" / "deep" / f"{n}.txt").write_text(f"Entry {n}: the barge was late again.\n")
    running = make()
    running.service.start()
    wait_for(running.finished)
    before = {row.path.name: row.indexed_at for row in running.store.documents(docs / "old")}
    (docs / "old").rename(docs / "new")
    wait_for(lambda: not running.store.documents(docs / "old") and len(running.store.documents(docs / "new")) == 10)
    assert {row.path.name: row.indexed_at for row in running.store.documents(docs / "new")} == before


def test_a_growing_file_is_read_once_it_stands_still(make: Make, docs: Path, settings: Settings) -> None:
    running = make(index=settings.index.model_copy(update={"settle_seconds": 1.0}))
    running.service.start()
    wait_for(running.finished)
    file = docs / "growing.txt"
    for n in range(20):
        with file.open("a") as out:
            out.write(f"Line {n} about the canal.\n")
        time.sleep(0.1)
    assert FileState.INDEXED not in running.states(file)
    wait_for(lambda: FileState.INDEXED in running.states(file))
    assert running.states(file).count(FileState.INDEXED) == 1
    row = running.store.document(file)
    assert row is not None
    assert row.stamp.size == file.stat().st_size


def test_a_log_that_never_stands_still_is_read_all_the_same(make: Make, docs: Path, settings: Settings) -> None:
    running = make(index=settings.index.model_copy(update={"settle_seconds": 0.1}))
    running.service.start()
    wait_for(running.finished)
    file, stop = docs / "canal.log", threading.Event()

    def write() -> None:
        with file.open("a") as out:
            while not stop.wait(0.02):
                out.write("A barge went through the lock.\n")
                out.flush()

    writer = threading.Thread(target=write)
    writer.start()
    try:
        wait_for(lambda: FileState.INDEXED in running.states(file))
    finally:
        stop.set()
        writer.join()
    wait_for(lambda: (row := running.store.document(file)) is not None and row.stamp.size == file.stat().st_size)


def test_a_pause_holds_everything_and_is_seen_from_outside(make: Make, docs: Path, settings: Settings) -> None:
    running = make()
    with Store.open(settings.data_dir, settings.store, writer=False) as other:
        other.request_pause(time.time() + 3600)
        running.service.start()
        wait_for(lambda: (activity := other.activity()) is not None and activity.waiting.startswith("paused for"))
        assert running.counts() == (0, 0, 0)
        other.request_pause(None)
        wait_for(running.finished)
        assert running.counts() == (2, 2, 2)
        running.service.pause(math.inf)
        wait_for(lambda: (activity := other.activity()) is not None and activity.waiting == "paused")
        (docs / "late.txt").write_text("Written during the pause.\n")
        time.sleep(1.5)
        assert running.store.document(docs / "late.txt") is None
        running.service.pause(None)
        wait_for(lambda: running.store.document(docs / "late.txt") is not None)


def test_a_pause_that_is_over_is_not_told_any_more(make: Make, docs: Path, settings: Settings) -> None:
    """With nothing to do, no later event takes the end of the pause back."""
    running = make()
    running.service.start()
    wait_for(running.finished)
    with Store.open(settings.data_dir, settings.store, writer=False) as other:

        def waiting() -> str | None:
            activity = other.activity()
            return None if activity is None else activity.waiting

        running.service.pause(math.inf)
        wait_for(lambda: waiting() == "paused")
        running.service.pause(None)
        wait_for(lambda: waiting() == "", 10)


class Closed(IdleGate):
    """A gate that another program keeps shut until it is opened."""

    reason = "the GPU is busy (43 %)"

    def may_run(self) -> str:
        return self.reason


def test_warming_waits_for_an_idle_machine_while_files_stay_fresh(make: Make, docs: Path, settings: Settings) -> None:
    gate = Closed(settings.idle)
    running = make(gate=gate)
    running.service.start()
    wait_for(lambda: running.counts() == (2, 2, 0))
    wait_for(lambda: any(isinstance(e, StageProgress) and e.waiting == gate.reason for e in running.events))
    wait_for(lambda: (a := running.store.activity()) is not None and a.waiting == gate.reason)
    (docs / "fresh.txt").write_text("The heron stands in the shallow water.\n")
    wait_for(lambda: running.found("heron") == {docs / "fresh.txt"})
    time.sleep(1.5)
    waiting_events = [e for e in running.events if isinstance(e, StageProgress) and e.waiting]
    assert len(waiting_events) <= 4  # the same reason is not told twice a second
    gate.reason = ""
    wait_for(lambda: running.counts() == (3, 3, 3))


def test_text_that_is_edited_away_leaves_every_file_while_it_runs(
    make: Make, docs: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Although the stages never come to their end: the machine is busy all the time."""
    monkeypatch.setattr(scrubbing, "_EVERY_SECONDS", 0.5)
    running = make(gate=Closed(settings.idle))
    running.service.start()
    wait_for(lambda: running.counts() == (2, 2, 0))
    needles = [word.encode(code) for word in ("Quetzalcoatlus", "quetzalcoatlus") for code in ("utf-8", "utf-16-le")]

    def traces() -> list[bytes]:
        files = [path.read_bytes() for path in settings.data_dir.rglob("*") if path.is_file()]
        return [needle for needle in needles if any(needle in content for content in files)]

    (docs / "note.txt").write_text("The spare key lies under the Quetzalcoatlus.\n")
    wait_for(lambda: running.found("quetzalcoatlus"))
    assert traces(), "the search itself works"
    (docs / "note.txt").write_text("The spare key lies elsewhere now.\n")
    wait_for(lambda: running.found("elsewhere") and not running.found("quetzalcoatlus"))
    wait_for(lambda: not traces(), seconds=30)
    assert not any(isinstance(event, IndexFinished) for event in running.events)


def test_a_stop_ends_the_reading_of_a_long_file(make: Make, docs: Path, settings: Settings) -> None:
    running = make()
    running.service.start()
    wait_for(running.finished)
    (docs / "long.rst").write_text("".join(f"T{number}\n======\n" for number in range(60_000)))
    wait_for(document._parser(settings.index.parser_mib)._lock.locked)
    assert running.service.stop(timeout=30.0)
    assert running.store.document(docs / "long.rst") is None


def test_a_pause_in_the_middle_of_a_file_gives_it_back_and_it_is_read_afterwards(
    make: Make, docs: Path, settings: Settings
) -> None:
    running = make()
    running.service.start()
    wait_for(running.finished)
    (docs / "long.rst").write_text("".join(f"T{number}\n======\n" for number in range(15_000)))
    wait_for(document._parser(settings.index.parser_mib)._lock.locked)
    running.service.pause(math.inf)
    wait_for(lambda: any(isinstance(e, StageProgress) and e.waiting.startswith("paused") for e in running.events))
    assert running.store.document(docs / "long.rst") is None
    running.service.pause(None)
    wait_for(lambda: running.store.document(docs / "long.rst") is not None)


def test_a_stage_that_fails_is_told_and_the_rest_goes_on(make: Make, docs: Path, settings: Settings) -> None:
    def broken() -> Embedder:
        raise ModelNotFound("No embedder here.", remedy="Install one.")

    running = make(load_embedder=broken)
    running.service.start()
    wait_for(lambda: running.counts() == (2, 0, 2))
    assert any(isinstance(e, StageProgress) and "No embedder here." in e.waiting for e in running.events)


def test_a_defect_is_logged_without_document_text_and_does_not_end_the_thread(
    make: Make, docs: Path, settings: Settings
) -> None:
    sentence = " ".join(["SECRET", "from", "a", "document"])

    def defect() -> Embedder:
        raise RuntimeError(sentence)

    running = make(load_embedder=defect)
    running.service.start()
    wait_for(lambda: running.counts() == (2, 0, 2))
    (docs / "late.txt").write_text("Still alive.\n")
    wait_for(lambda: running.found("alive") == {docs / "late.txt"})
    running.service.stop()
    log = settings.data_dir / "logs" / "indexer.log"
    text = log.read_text()
    assert "RuntimeError" in text
    assert sentence not in text
    assert log.stat().st_mode & 0o077 == 0
    assert not logging.getLogger("desk_rag").handlers


def test_an_absent_root_is_told_once_and_comes_back(make: Make, docs: Path, tmp_path: Path) -> None:
    running = make()
    running.service.start()
    wait_for(running.finished)
    docs.rename(tmp_path / "away")
    wait_for(running.notices)
    running.service.sweep()
    time.sleep(4)
    assert running.counts() == (2, 2, 2)
    activity = running.store.activity()
    assert activity is not None and [subject for subject, _, _ in activity.notices] == [f"folder {docs}"]
    (tmp_path / "away").rename(docs)
    (docs / "new.txt").write_text("Back again, says the starling.\n")
    wait_for(lambda: running.found("starling") == {docs / "new.txt"})
    wait_for(lambda: len(running.notices()) > 1)
    gone, back = running.notices()
    assert "its 2 documents are kept and still found" in gone.sentence and "desk-rag purge" in gone.remedy
    assert back.is_over and running.service.notices() == ()
    docs.rename(tmp_path / "away")
    wait_for(lambda: len(running.notices()) == 3)  # the second time it is said again


def test_a_stage_that_fails_is_told_once_with_its_remedy_and_that_it_goes_on(make: Make, embedder: Embedder) -> None:
    broken, tries = True, []

    def load() -> Embedder:
        tries.append(1)
        if broken:
            raise ModelNotFound("There is no embedder at /there.", remedy="Put it back.")
        return embedder

    running = make(load_embedder=load)
    running.service.start()
    wait_for(running.notices)
    (notice,) = running.notices()
    assert notice.sentence == "Making vectors stopped: There is no embedder at /there."
    assert notice.remedy == "Put it back. desk-rag tries again every 60 seconds."
    running.service._worker.begin_stages()
    wait_for(lambda: len(tries) == 2)
    broken = False
    running.service._worker.begin_stages()
    wait_for(lambda: len(running.notices()) == 2)
    assert running.notices()[1].is_over and running.service.notices() == ()


def test_a_run_of_the_stages_that_is_asked_for_while_one_fails_is_not_put_off(make: Make, embedder: Embedder) -> None:
    tries = []

    def load() -> Embedder:
        tries.append(1)
        if len(tries) > 1:
            return embedder
        running.service._worker.begin_stages()
        raise ModelNotFound("There is no embedder at /there.", remedy="Put it back.")

    running = make(load_embedder=load)
    running.service.start()
    wait_for(lambda: running.counts() == (2, 2, 2), 40)


def test_caches_wait_once_enough_was_written_today(make: Make, docs: Path, settings: Settings) -> None:
    running = make(idle=settings.idle.model_copy(update={"write_gib_per_day": 1e-6}))
    running.service.start()
    wait_for(running.notices)
    (notice,) = running.notices()
    assert "waits until midnight" in notice.sentence and "`write_gib_per_day` under [idle]" in notice.remedy
    assert running.store.counts(running.namespace).warm == 1
    assert running.store.written_today() == sum(
        file.stat().st_size for file in (settings.data_dir / "kv").rglob("*.safetensors")
    )
    running.service._settings = settings
    wait_for(running.finished)
    assert running.notices()[1].is_over
    assert running.store.counts(running.namespace).warm == 2


def test_a_periodic_sweep_finds_what_no_event_told(make: Make, docs: Path, settings: Settings) -> None:
    running = make(index=settings.index.model_copy(update={"sweep_seconds": 1.0}))
    running.service._watcher.start = list  # type: ignore[method-assign]  # deaf
    running.service.start()
    wait_for(running.finished)
    (docs / "silent.txt").write_text("Nobody heard the owl.\n")
    wait_for(lambda: running.found("owl") == {docs / "silent.txt"})


def test_the_reading_of_files_does_not_put_off_the_next_look(
    make: Make, docs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A first look at a large folder reads for hours; what is deleted then should be noticed soon."""
    clock = [0.0]
    monkeypatch.setattr(worker, "time", SimpleNamespace(monotonic=lambda: clock[0], time=time.time))
    real = FileReader.bring_up_to_date

    def for_an_hour(*given: object) -> FileEvent:
        clock[0] += 3600
        return real(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(FileReader, "bring_up_to_date", for_an_hour)
    running = make()
    running.service._worker._do(SweepJob(docs, 0.0))
    assert running.found("roofer") and clock[0] == 7200
    assert running.service._worker.next_sweep_of(docs) == 7205


def test_a_changed_ignore_file_is_obeyed(make: Make, docs: Path) -> None:
    running = make()
    running.service.start()
    wait_for(running.finished)
    (docs / ".deskragignore").write_text("note.txt\n")
    wait_for(lambda: running.found("flower pot") == set())


def test_stop_is_quick_even_while_much_is_to_do(make: Make, docs: Path) -> None:
    for n in range(200):
        (docs / f"{n}.txt").write_text(f"Entry {n}. " + "The barge was late again, and nobody knew why. " * 40)
    running = make()
    running.service.start()
    wait_for(lambda: running.store.counts().chunks > 3)
    began = time.monotonic()
    assert running.service.stop()
    assert time.monotonic() - began < 5
    assert not any(thread.name.startswith(("index-", "watch-")) for thread in threading.enumerate())
    counts_at_stop = running.counts()
    running.store.close()
    again = make()
    assert again.counts() == counts_at_stop
    again.service.start()
    wait_for(lambda: len(again.store.documents(docs)) == 202, 120)


def test_it_sleeps_when_there_is_nothing_to_do(make: Make, docs: Path) -> None:
    running = make()
    running.service.start()
    wait_for(running.finished)
    time.sleep(1)
    began, events = time.process_time(), len(running.events)
    time.sleep(3)
    assert time.process_time() - began < 0.6
    assert len(running.events) == events
    assert len(running.service._jobs) == 0


def test_it_sleeps_while_it_is_paused_before_its_first_sweep(make: Make, docs: Path) -> None:
    """The sweep is due all the time, which must not keep the thread awake."""
    running = make()
    running.store.request_pause(time.time() + 3600)
    running.service.start()
    wait_for(lambda: (activity := running.store.activity()) is not None and activity.waiting.startswith("paused"))
    steps, paused = [], running.service._worker._paused
    running.service._worker._paused = lambda: steps.append(1) or paused()  # type: ignore[func-returns-value]
    time.sleep(2)
    assert 0 < len(steps) < 6
    assert running.service._jobs.due(), "there is work to do"


def test_a_removed_folder_tree_disappears(make: Make, docs: Path) -> None:
    (docs / "sub").mkdir()
    (docs / "sub" / "a.txt").write_text("The hedgehog sleeps until March.\n")
    running = make()
    running.service.start()
    wait_for(running.finished)
    shutil.rmtree(docs / "sub")
    wait_for(lambda: running.found("hedgehog") == set())


def test_outermost(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    assert outermost([a / "sub", a, b, a]) == (a, b)
    assert outermost([tmp_path / "ab", a]) == (tmp_path / "ab", a)


def test_clock_jump() -> None:
    clock = ClockJump(1000.0, 50.0)
    assert not clock.jumped(1010.0, 60.0)
    assert clock.jumped(4000.0, 61.0)  # slept: the wall clock went on
    assert not clock.jumped(4001.0, 62.0)
    assert clock.jumped(2000.0, 63.0)  # set back
    assert not clock.jumped(2030.0, 64.0)  # slow drift is no jump


def test_many_files_that_vanish_together_wait_and_go_when_confirmed_elsewhere(make: Make, docs: Path) -> None:
    for n in range(60):
        (docs / f"{n}.txt").write_text(f"Entry {n}: the barge was late again.\n")
    running = make()
    running.service.start()
    wait_for(running.finished)
    kv = {file: file.stat().st_mtime_ns for file in made.kv_files(running.store._layout.root)}
    for n in range(60):
        (docs / f"{n}.txt").unlink()
    wait_for(lambda: any(isinstance(e, DeletionsWaiting) for e in running.events))
    assert len(running.store.documents(docs)) == 62
    assert not [e for e in running.events if isinstance(e, FileEvent) and e.state is FileState.REMOVED]
    with Store.open(running.store._layout.root, made.settings(), writer=False) as beside:
        assert beside.deletions.decide(docs, Decision.CONFIRMED) == 60
    wait_for(lambda: len(running.store.documents(docs)) == 2)
    for n in range(60):
        (docs / f"{n}.txt").write_text(f"Entry {n}: the barge was late again.\n")
    wait_for(lambda: running.counts() == (62, 62, 62))
    assert {file: file.stat().st_mtime_ns for file in made.kv_files(running.store._layout.root)} == kv
