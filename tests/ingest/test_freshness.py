"""What changed since the last sweep is found in a bounded time, and small files are read, over real files."""

from __future__ import annotations

import os
import shutil
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from desk_rag.config import IndexSettings, Settings
from desk_rag.documents.status import FileState
from desk_rag.ingest import freshness
from desk_rag.ingest.deletions import note_missing
from desk_rag.ingest.explanation import explain
from desk_rag.ingest.freshness import Backlog, look
from desk_rag.ingest.pipeline import index_path, sync_folder
from desk_rag.model.prompt import PromptFormat
from desk_rag.store.store import Store
from tests.store import made

SETTINGS = IndexSettings()
_LONG = 60.0


def never() -> bool:
    return False


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    folder = tmp_path / "docs"
    (folder / "house").mkdir(parents=True)
    (folder / "tools").mkdir()
    (folder / ".gitignore").write_text("*.log\nbuild/\n")
    (folder / "house" / "roof.md").write_text("# Roof\n\nThe roofer comes on 14 May.\n")
    (folder / "house" / "door.txt").write_text("The kitchen door is painted green.\n")
    (folder / "tools" / "debug.log").write_text("left out by a rule\n")
    (folder / "photo.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(100))
    return folder


@pytest.fixture
def store(tmp_path: Path, docs: Path, prompt: PromptFormat) -> Iterator[Store]:
    with Store.open(tmp_path / "data", made.settings(), writer=True) as opened:
        sync(opened, docs, prompt)
        yield opened


def sync(store: Store, docs: Path, prompt: PromptFormat) -> None:
    for _ in sync_folder(store, docs, prompt, prompt.chunk_size, SETTINGS, never):
        pass


def test_nothing_waits_after_a_sweep(store: Store, docs: Path) -> None:
    assert look(store, [docs], SETTINGS, seconds=_LONG) == Backlog(read=2)
    assert look(store, (), SETTINGS, seconds=_LONG) == Backlog(read=2)


def test_a_file_that_was_read_and_no_longer_can_be_is_named(store: Store, docs: Path, prompt: PromptFormat) -> None:
    door = docs / "house" / "door.txt"
    door.chmod(0)
    if os.access(door, os.R_OK):
        pytest.skip("this user may read everything")
    backlog = look(store, [docs], SETTINGS, seconds=_LONG)
    for _ in range(2):
        backlog = freshness.read_small(store, backlog, prompt, prompt.chunk_size, SETTINGS, never)
        assert backlog.notices == (f"1 file changed since it was read and cannot be read any more: {door}",)
    assert "do not allow" in explain(store, door, Settings()).reason
    assert len(store.search_words("kitchen", 5)) == 1
    door.chmod(0o600)
    backlog = look(store, [docs], SETTINGS, seconds=_LONG)
    assert freshness.read_small(store, backlog, prompt, prompt.chunk_size, SETTINGS, never).notices == ()


def test_a_file_behind_a_link_is_gone(store: Store, docs: Path, prompt: PromptFormat, tmp_path: Path) -> None:
    (docs / "house").rename(tmp_path / "elsewhere")
    (docs / "house").symlink_to(tmp_path / "elsewhere")
    backlog = look(store, [docs], SETTINGS, seconds=_LONG)
    assert set(backlog.gone) == {docs / "house" / "door.txt", docs / "house" / "roof.md"}
    freshness.read_small(store, backlog, prompt, prompt.chunk_size, SETTINGS, never)
    assert not store.search_words("kitchen", 5) and (tmp_path / "elsewhere" / "door.txt").exists()


def test_a_file_beyond_those_that_the_catalog_gives_at_once_is_not_new(
    store: Store, docs: Path, prompt: PromptFormat, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a folder of 100,000 files, with fewer."""
    for number in range(20):
        (docs / f"note-{number}.md").write_text(f"# Note {number}\n\nThe key of room {number} hangs on a hook.\n")
    sync(store, docs, prompt)
    monkeypatch.setattr(freshness, "_MOST_ROWS", 3 * freshness.LOOK_SECONDS / _LONG)
    assert look(store, [docs], SETTINGS, seconds=_LONG) == Backlog(read=22)
    (docs / "note-0.md").write_text("# Note\n\nThe key hangs behind the door.\n")
    (docs / "new.md").write_text("A new note.\n")
    assert look(store, [docs], SETTINGS, seconds=_LONG) == Backlog(22, (docs / "new.md",), (docs / "note-0.md",))


def test_new_and_changed_files_are_found_wherever_they_are(store: Store, docs: Path) -> None:
    new = docs / "car" / "2026" / "tyres.md"
    new.parent.mkdir(parents=True)
    new.write_text("The winter tyres are in the cellar.\n")
    changed = docs / "house" / "roof.md"
    changed.write_text("# Roof\n\nThe roofer comes on 21 May.\n")
    assert look(store, (), SETTINGS, seconds=_LONG) == Backlog(2, (new,), (changed,))


def test_a_change_that_keeps_size_and_time_is_seen_by_its_inode(store: Store, docs: Path) -> None:
    path = docs / "house" / "door.txt"
    before = path.stat()
    other = docs / "door.new~"
    other.write_text("The kitchen door is painted black.\n")
    os.utime(other, ns=(before.st_mtime_ns, before.st_mtime_ns))
    other.replace(path)
    assert look(store, (), SETTINGS, seconds=_LONG).changed == (path,)


def test_what_would_not_be_read_does_not_wait(store: Store, docs: Path) -> None:
    (docs / "tools" / "other.log").write_text("by .gitignore\n")
    (docs / "build" / "deep").mkdir(parents=True)
    (docs / "build" / "deep" / "page.md").write_text("in a folder of .gitignore\n")
    (docs / "node_modules" / "x").mkdir(parents=True)
    (docs / "node_modules" / "x" / "readme.md").write_text("in a folder of tools\n")
    (docs / "second.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(100))
    (docs / ".env").write_text("SECRET=1\n")
    (docs / "empty.md").write_text("")
    (docs / "link").symlink_to(docs / "house")
    (docs / "gone.md").symlink_to(docs / "nowhere")
    assert look(store, (), SETTINGS, seconds=_LONG) == Backlog(read=2)


def test_a_file_that_could_not_be_read_waits_again_only_when_it_changes(
    store: Store, docs: Path, prompt: PromptFormat
) -> None:
    broken = docs / "broken.pdf"
    broken.write_bytes(b"%PDF-1.7\nthis is no PDF")
    sync(store, docs, prompt)
    assert look(store, (), SETTINGS, seconds=_LONG) == Backlog(read=2)
    broken.write_bytes(b"%PDF-1.7\nthis is no PDF either")
    assert look(store, (), SETTINGS, seconds=_LONG).changed == (broken,)


def test_an_archive_waits_only_if_somebody_named_it(store: Store, docs: Path, prompt: PromptFormat) -> None:
    for name in ("named.zip", "other.zip"):
        with zipfile.ZipFile(docs / name, "w") as archive:
            archive.writestr("roof.md", "The roofer comes on 14 May.\n")
    assert look(store, (), SETTINGS, seconds=_LONG) == Backlog(read=2)
    index_path(store, docs / "named.zip", docs, prompt, prompt.chunk_size, SETTINGS, by_name=True)
    sync(store, docs, prompt)
    for name in ("named.zip", "other.zip"):
        with zipfile.ZipFile(docs / name, "w") as archive:
            archive.writestr("roof.md", "The roofer comes on 21 May, at noon.\n")
    assert look(store, (), SETTINGS, seconds=_LONG) == Backlog(3, (), (docs / "named.zip",))


def test_only_the_asked_folder_or_file_is_looked_at(store: Store, docs: Path) -> None:
    roof, note = docs / "house" / "roof.md", docs / "note.md"
    roof.write_text("The roofer comes on 28 May, in the morning.\n")
    note.write_text("A note outside the asked folder.\n")
    assert look(store, [docs / "house"], SETTINGS, seconds=_LONG) == Backlog(2, (), (roof,))
    assert look(store, [roof], SETTINGS, seconds=_LONG) == Backlog(1, (), (roof,))
    assert look(store, [docs / "tools"], SETTINGS, seconds=_LONG) == Backlog()


def test_a_look_that_runs_out_of_time_says_so_and_looks_at_hints_first(store: Store, docs: Path) -> None:
    changed = docs / "house" / "roof.md"
    changed.write_text("# Roof\n\nThe roofer comes on 21 May.\n")
    new = docs / "tyres.md"
    new.write_text("The winter tyres are in the cellar.\n")
    assert look(store, (), SETTINGS, seconds=0) == Backlog(2, complete=False)
    hinted = look(store, (), SETTINGS, hints=[new, changed, docs / "gone.md", Path("/elsewhere.md")], seconds=0)
    assert hinted == Backlog(2, (new,), (changed,), complete=False)
    assert hinted.share == "2 of at least 3 files"


def test_files_of_an_absent_folder_are_not_changed(store: Store, docs: Path) -> None:
    docs.rename(docs.with_name("away"))
    assert look(store, (), SETTINGS, seconds=_LONG) == Backlog(read=2)


def test_a_folder_whose_first_index_has_not_begun_is_unread(tmp_path: Path, docs: Path) -> None:
    with Store.open(tmp_path / "fresh", made.settings(), writer=True) as empty:
        backlog = look(empty, [docs], SETTINGS, seconds=_LONG)
    assert backlog.share == "0 of 2 files"
    assert set(backlog.new) == {docs / "house" / "roof.md", docs / "house" / "door.txt"}


def test_small_files_are_read_and_found_by_their_new_words(store: Store, docs: Path, prompt: PromptFormat) -> None:
    (docs / "tyres.md").write_text("The winter tyres are in the cellar.\n")
    (docs / "house" / "roof.md").write_text("# Roof\n\nThe roofer comes on 21 May, says Wilhelmina.\n")
    backlog = look(store, (), SETTINGS, seconds=_LONG)
    left = freshness.read_small(store, backlog, prompt, prompt.chunk_size, SETTINGS, never)
    assert left == Backlog(read=3)
    assert store.search_words("Wilhelmina", 5) and store.search_words("tyres", 5)
    assert look(store, (), SETTINGS, seconds=_LONG) == Backlog(read=3)


def test_a_renamed_file_keeps_its_chunks(store: Store, docs: Path, prompt: PromptFormat) -> None:
    (docs / "house" / "door.txt").rename(docs / "entrance.txt")
    backlog = look(store, (), SETTINGS, seconds=_LONG)
    freshness.read_small(store, backlog, prompt, prompt.chunk_size, SETTINGS, never)
    assert store.document(docs / "house" / "door.txt") is None
    assert store.passages_of(docs / "entrance.txt")


def test_a_new_rule_counts_before_the_answer(store: Store, docs: Path, prompt: PromptFormat) -> None:
    roof, door, log = docs / "house" / "roof.md", docs / "house" / "door.txt", docs / "tools" / "debug.log"

    def answered() -> set[Path]:
        backlog = look(store, [docs], SETTINGS, seconds=_LONG)
        left = freshness.read_small(store, backlog, prompt, prompt.chunk_size, SETTINGS, never)
        assert left.waiting == 0
        return {row.path for row in store.documents(docs) if row.state is FileState.INDEXED}

    assert answered() == {roof, door}
    (docs / "house" / ".deskragignore").write_text("roof.md\n")
    assert answered() == {door} and not store.search_words("roofer", 5)
    (docs / ".deskragignore").write_text("house/\n!*.log\n")
    assert answered() == {log}
    (docs / ".deskragignore").write_text("")
    assert log not in answered()


def test_a_deleted_file_is_forgotten_before_the_answer(store: Store, docs: Path, prompt: PromptFormat) -> None:
    roof = docs / "house" / "roof.md"
    (docs / "house" / "door.txt").write_text("")
    backlog = look(store, [docs], SETTINGS, seconds=_LONG)
    freshness.read_small(store, backlog, prompt, prompt.chunk_size, SETTINGS, never)
    assert not store.search_words("kitchen", 5)
    roof.unlink()
    backlog = look(store, [docs], SETTINGS, seconds=_LONG, hints=[roof])
    assert (backlog.gone, backlog.waiting) == ((roof,), 0)
    left = freshness.read_small(store, backlog, prompt, prompt.chunk_size, SETTINGS, never)
    assert left == Backlog(read=0)
    assert store.document(roof) is None and not store.search_words("roofer", 5)
    assert look(store, [docs], SETTINGS, seconds=_LONG).gone == ()


def test_many_deleted_files_and_those_that_somebody_keeps_are_left_to_the_sweep(
    store: Store, docs: Path, prompt: PromptFormat
) -> None:
    (docs / "house" / "roof.md").unlink()
    note_missing(store, docs)
    assert look(store, [docs], SETTINGS, seconds=_LONG).gone == ()
    for number in range(6):
        (docs / f"{number}.txt").write_text(f"Note {number} on the roof.\n")
    sync(store, docs, prompt)
    for number in range(6):
        (docs / f"{number}.txt").unlink()
    assert look(store, [docs], SETTINGS, seconds=_LONG).gone == ()
    shutil.move(docs, docs.with_name("away"))
    backlog = look(store, [docs], SETTINGS, seconds=_LONG)
    freshness.read_small(store, backlog, prompt, prompt.chunk_size, SETTINGS, never)
    assert store.document(docs / "house" / "door.txt") is not None


def test_many_or_large_files_are_left_to_the_index_and_named(store: Store, docs: Path, prompt: PromptFormat) -> None:
    for number in range(30):
        shutil.copy(docs / "house" / "door.txt", docs / f"copy {number}.txt")
    backlog = look(store, (), SETTINGS, seconds=_LONG)
    assert freshness.read_small(store, backlog, prompt, prompt.chunk_size, SETTINGS, never) == backlog
    assert backlog.notices == ("From 2 of 32 files; 30 are not read yet",)
    one = Backlog(4, (), (docs / "a.md",))
    assert one.share == "" and one.notices[0].startswith("1 file changed since it was read: ")


def test_time_that_other_programs_took_hides_no_new_file(
    store: Store, docs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock jumps as it does for a thread that had to wait; what no time is left for is said."""
    new = docs / "jobs.txt"
    new.write_text("Mend the gate.\n")
    monotonic, waited = time.monotonic, iter([0.0])
    monkeypatch.setattr(time, "monotonic", lambda: monotonic() + next(waited, 0.4))
    assert look(store, (), SETTINGS).new == (new,)
    monkeypatch.setattr(freshness, "_MORE_SECONDS", 0.0)
    waited = iter([0.0])
    hurried = look(store, (), SETTINGS)
    assert not hurried.complete and "could not be looked through for changes in time" in hurried.notices[0]
