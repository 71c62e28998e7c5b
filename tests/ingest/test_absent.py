"""What is away is not deleted: folders replaced and restored, many files gone, decisions, clocks, and the bin."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from desk_rag.documents.status import FileState
from desk_rag.ingest.deletions import grace_seconds, missing_files, remove_confirmed
from desk_rag.model.prompt import PromptFormat
from desk_rag.store.catalog.clock import Reading, StoreClock
from desk_rag.store.catalog.deletion_rows import Decision
from desk_rag.store.presence import absent_folders
from desk_rag.store.store import Store
from tests.ingest.absent_world import HOUR, World, absent, removed, waiting
from tests.store import made


@pytest.fixture
def world(tmp_path: Path, prompt: PromptFormat) -> Iterator[World]:
    built = World(tmp_path, prompt)
    yield built
    built.store.close()


def test_a_root_replaced_by_a_stray_file_keeps_everything_and_is_warm_when_back(world: World, tmp_path: Path) -> None:
    world.write(14)
    world.index()
    kv, documents = world.kv(), world.documents()
    world.root.rename(tmp_path / "away")
    world.root.mkdir()
    (world.root / "stray.txt").write_text("Not one of them.\n")
    for _ in range(3):
        events = world.sync()
        assert "another folder or drive is in its place" in absent(events)[world.root]
        assert "its 14 documents are kept" in absent(events)[world.root]
        world.clocks.pass_by(400 * HOUR)
        assert world.path(world.root / "3.txt").state is FileState.UNCHANGED
        assert world.path(world.root / "stray.txt").state is FileState.UNCHANGED
        world.reopen()
    assert (world.documents(), world.kv()) == (documents, kv)
    assert [folder.documents for folder in absent_folders(world.store)] == [14]
    shutil.rmtree(world.root)
    (tmp_path / "away").rename(world.root)
    assert not absent(world.sync()) and not absent_folders(world.store)
    assert (world.documents(), world.kv()) == (documents, kv) and world.is_warm()


def test_a_folder_restored_from_a_backup_is_recognised(world: World, tmp_path: Path) -> None:
    world.write(14)
    world.index()
    kv = world.kv()
    shutil.copytree(world.root, tmp_path / "backup")
    shutil.rmtree(world.root)
    assert absent(world.sync())
    (tmp_path / "backup" / "0.txt").unlink()
    (tmp_path / "backup").rename(world.root)
    events = world.sync()
    assert not absent(events) and removed(events) == 1
    assert world.kv() == kv and world.is_warm()


def test_another_file_system_under_the_same_inode_is_another_folder(world: World) -> None:
    world.write(3)
    world.index()
    (volume,) = world.store.volumes.of(world.root)
    world.store.volumes.put(world.root, [replace(volume, filesystem="uuid 0000-0000")])
    assert not absent(world.sync()), "its documents are all there: a cloned disk"
    world.store.volumes.put(world.root, [replace(volume, filesystem="uuid 0000-0000")])
    for file in world.root.iterdir():
        file.unlink()
    (world.root / "stray.txt").write_text("Not one of them.\n")
    assert absent(world.sync()) and len(world.documents()) == 3


def test_a_purge_forgets_an_absent_folder_and_what_replaced_it_is_indexed(world: World, tmp_path: Path) -> None:
    world.write(14)
    world.index()
    world.root.rename(tmp_path / "away")
    world.root.mkdir()
    (world.root / "stray.txt").write_text("Not one of them.\n")
    world.sync()
    world.store.purge(world.root)
    assert not world.kv() and not world.documents()
    assert not absent(world.sync()) and world.documents() == {world.root / "stray.txt"}


def test_three_deleted_files_go_at_the_next_look(world: World) -> None:
    files = world.write(14)
    world.index()
    for file in files[:3]:
        file.unlink()
    events = world.sync()
    assert (removed(events), waiting(events)) == (3, 0)
    assert len(world.documents()) == 11 and not world.store.deletions.all()


def test_sixty_vanished_files_wait_for_their_share_of_the_grace_period_across_restarts(world: World) -> None:
    files = world.write(80)
    world.index()
    for file in files[:60]:
        file.unlink()
    events = world.sync()
    assert (removed(events), waiting(events)) == (0, 60)
    assert len(world.documents()) == 80 and world.is_warm()
    (missing,) = missing_files(world.store, 72.0)
    assert (missing.waiting, missing.kept, missing.seconds_left) == (60, 0, 54 * HOUR)
    for _ in range(2):
        world.clocks.pass_by(26 * HOUR)
        world.reopen()
        assert removed(world.sync()) == 0
    world.clocks.pass_by(3 * HOUR)
    assert removed(world.sync()) == 60
    assert len(world.documents()) == 20 and not missing_files(world.store, 72.0)


def test_files_that_come_back_end_the_wait_and_are_warm(world: World, tmp_path: Path) -> None:
    world.write(30, "inner")
    world.write(2)
    world.index()
    kv = world.kv()
    (world.root / "inner").rename(tmp_path / "away")
    assert waiting(world.sync()) == 30
    (tmp_path / "away").rename(world.root / "inner")
    assert world.path(world.root / "inner" / "0.txt").state is FileState.UNCHANGED
    assert removed(world.sync()) == 0
    assert not world.store.deletions.all() and world.kv() == kv and world.is_warm()


def test_a_file_written_anew_is_not_missing_any_more(world: World) -> None:
    files = world.write(10)
    world.index()
    for file in files[:8]:
        file.unlink()
    assert waiting(world.sync()) == 8
    files[0].write_text("Something else altogether.\n")
    world.path(files[0])
    assert files[0] not in {deletion.path for deletion in world.store.deletions.all()}


def test_a_clock_set_forward_or_back_ends_no_wait(world: World) -> None:
    files = world.write(60)
    world.index()
    for file in files[:59]:
        file.unlink()
    world.sync()
    for change in (30 * 365 * 24 * HOUR, -60 * 365 * 24 * HOUR):
        world.clocks.set_wall(change)
        assert removed(world.sync()) == 0
    world.clocks.restart(50 * 365 * 24 * HOUR)
    assert removed(world.sync()) == 0, "from one boot to the next a day at most is believed"
    world.clocks.restart(-9 * 365 * 24 * HOUR)
    assert removed(world.sync()) == 0
    (missing,) = missing_files(world.store, 72.0)
    assert 46 * HOUR < missing.seconds_left < 48 * HOUR
    world.clocks.pass_by(48 * HOUR)
    assert removed(world.sync()) == 59


def test_store_time_without_a_boot_id_goes_by_the_wall_clock_day_by_day(world: World) -> None:
    wall = 1_000_000.0
    clock = StoreClock(world.store._database, lambda: Reading(wall, "", 0.0))
    clock.advance()
    before = clock.now()
    wall += 7 * HOUR
    assert clock.now() - before == 7 * HOUR
    wall += 90 * 24 * HOUR
    assert clock.now() - before == 24 * HOUR
    wall = 0.0
    assert clock.now() == before


def test_confirmed_deletions_go_and_kept_ones_stay_until_they_are_confirmed(world: World) -> None:
    inner, outer = world.write(30, "inner"), world.write(30)
    world.index()
    for file in inner + outer[:28]:
        file.unlink()
    assert waiting(world.sync()) == 58
    assert world.store.deletions.decide(world.root / "inner", Decision.KEPT) == 30
    assert world.store.deletions.decide(outer[0], Decision.CONFIRMED) == 1
    assert removed(world.sync()) == 1
    world.clocks.pass_by(1000 * HOUR)
    assert removed(world.sync()) == 27
    world.reopen()
    assert removed(world.sync()) == 0
    (missing,) = missing_files(world.store, 72.0)
    assert (missing.waiting, missing.kept) == (0, 30)
    assert len(world.documents()) == 32
    world.store.deletions.decide(world.root, Decision.CONFIRMED)
    inner[0].write_text("It is there again.\n")
    assert remove_confirmed(world.store) == 29
    assert world.documents() == {inner[0], *outer[28:]}


def test_without_a_grace_period_all_go_at_once_and_nothing_stays_in_the_bin(world: World) -> None:
    files = world.write(30)
    world.index()
    world.settings = world.settings.model_copy(update={"deletion_grace_hours": 0.0})
    for file in files[:29]:
        file.unlink()
    assert removed(world.sync()) == 29
    world.clocks.pass_by(1)
    world.sync()
    assert len(world.kv()) == 1


@pytest.mark.parametrize(
    ("hours", "missing", "known", "expected"),
    [(72, 60, 60, 72), (72, 6, 60, 7.2), (72, 6, 6000, 1), (0.5, 6, 6000, 0.5), (0, 60, 60, 0), (72, 9, 0, 72)],
)
def test_grace_grows_with_the_share_of_the_folder(hours: float, missing: int, known: int, expected: float) -> None:
    assert grace_seconds(hours, missing, known) == pytest.approx(expected * HOUR)


# The bin ----------------------------------------------------------------------------------------------------


def test_a_deleted_file_leaves_text_at_once_and_is_warm_when_it_comes_back(world: World) -> None:
    files = world.write(5)
    world.index()
    kv, text = world.kv(), files[0].read_text()
    files[0].unlink()
    world.sync()
    world.store.checkpoint()
    assert not [file for file in world.data.rglob("*") if file.is_file() and text.strip().encode() in file.read_bytes()]
    assert world.kv() == kv and world.store.counts(made.NS).warm == 4
    world.reopen()  # the writer's start keeps what is in the bin
    assert world.kv() == kv
    files[0].write_text(text)
    world.sync()
    assert world.kv() == kv and world.is_warm()
    world.clocks.pass_by(1000 * HOUR)
    world.sync()
    assert world.kv() == kv, "what came back is in the bin no more"


def test_the_bin_is_emptied_after_the_grace_period_and_by_a_purge(world: World) -> None:
    files = world.write(6)
    world.index()
    files[0].unlink()
    world.sync()
    world.clocks.pass_by(71 * HOUR)
    world.sync()
    assert len(world.kv()) == 6
    world.clocks.pass_by(2 * HOUR)
    world.sync()
    assert len(world.kv()) == 5
    files[1].unlink()
    world.sync()
    assert len(world.kv()) == 5
    world.store.purge(files[2])
    assert len(world.kv()) == 3
    assert world.store.verify().clean


def test_the_bin_is_evicted_first_and_counts_in_the_budget(tmp_path: Path) -> None:
    texts = [f"text {number}" for number in range(8)]
    with Store.open(tmp_path / "data", made.settings(), writer=True) as store:
        for text in texts:
            store.put_document(made.document(tmp_path / text, [text]), made.chunks([text]), made.stamp())
            assert made.warm(store, text)
        full = store.counts().kv_bytes
        store.pin(tmp_path / texts[0])
        for _ in range(9):
            store.note_use([made.chunk_id(texts[0])])  # the most useful of all, until its file is deleted
        store.remove_document(tmp_path / texts[0], keep_kv=True)
        assert store.counts().kv_bytes == full
    size = full // 8
    with Store.open(tmp_path / "data", made.settings(budget_bytes=full), writer=True) as store:
        store.put_document(made.document(tmp_path / "new", ["new"]), made.chunks(["new"]), made.stamp())
        store.note_use([made.chunk_id("new")] * 3)
        assert made.warm(store, "new")
        assert store.counts().kv_bytes <= full
        assert store.has_kv([made.key(text) for text in [*texts, "new"]]) == {
            made.key(text) for text in [*texts[1:], "new"]
        }
        store.remove_document(tmp_path / texts[1], keep_kv=True)
    with Store.open(tmp_path / "data", made.settings(budget_bytes=full - size), writer=True) as store:
        assert store.has_kv([made.key(text) for text in texts]) == {made.key(text) for text in texts[2:]}
        assert store.counts().kv_bytes <= full - size and store.verify().clean


def test_kv_that_another_document_needs_is_not_in_the_bin(tmp_path: Path) -> None:
    with Store.open(tmp_path / "data", made.settings(), writer=True) as store:
        for name in ("one", "two"):
            store.put_document(made.document(tmp_path / name, ["same"]), made.chunks(["same"]), made.stamp())
        assert made.warm(store, "same")
        store.remove_document(tmp_path / "one", keep_kv=True)
        store.empty_bin()
        assert store.has_kv([made.key("same")])
        store.remove_document(tmp_path / "two", keep_kv=True)
        assert store.has_kv([made.key("same")])
        store.empty_bin()
        assert not store.has_kv([made.key("same")]) and not made.kv_files(tmp_path / "data")


def test_a_note_of_the_former_mechanism_is_cleaned_up(tmp_path: Path) -> None:
    with Store.open(tmp_path / "data", made.settings(), writer=True):
        pass
    note = tmp_path / "data" / "run" / "held-removals.json"
    note.write_text('{"0123456789abcdef": [1.0, ["0123456789abcdef"]]}')
    with Store.open(tmp_path / "data", made.settings(), writer=True):
        assert not note.exists()
