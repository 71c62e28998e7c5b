"""Hundreds of files that are moved, copied, saved again or checked out anew: what did not change is not read again."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from desk_rag.config import IndexSettings, StoreSettings
from desk_rag.documents.status import FileState
from desk_rag.ingest.events import FileEvent
from desk_rag.ingest.pipeline import sync_folder
from desk_rag.model.prompt import load_prompt
from desk_rag.store.store import Store

NUM_FILES = 300


class Desk:
    """A folder `docs/old` of many notes, and its store."""

    def __init__(self, place: Path, reader_dir: Path, store: Store) -> None:
        self.docs, self.old, self.store = place / "docs", place / "docs" / "old", store
        self._prompt = load_prompt(reader_dir)
        self.old.mkdir(parents=True)
        for number in range(NUM_FILES):
            (self.old / f"{number}.md").write_text(f"# Note {number}\n\nBarge {number} was painted by Ida.\n")

    def sync(self) -> Counter[FileState]:
        """Sweep, and count the outcomes."""
        events = sync_folder(
            self.store, self.docs, self._prompt, self._prompt.chunk_size, IndexSettings(), lambda: False
        )
        return Counter(event.state for event in events if isinstance(event, FileEvent))

    def times_read(self) -> dict[str, float]:
        """Name of each document and the time at which it was read."""
        return {row.path.name: row.indexed_at for row in self.store.documents() if row.state is FileState.INDEXED}


@pytest.fixture
def desk(tmp_path: Path, reader_dir: Path) -> Iterator[Desk]:
    with Store.open(tmp_path / "data", StoreSettings(budget_gib=1, reserve_gib=0), writer=True) as store:
        yield Desk(tmp_path, reader_dir, store)


def rename_folder(desk: Desk) -> None:
    desk.old.rename(desk.docs / "new")


def move_tree_down(desk: Desk) -> None:
    (desk.docs / "archive" / "2024").mkdir(parents=True)
    desk.old.rename(desk.docs / "archive" / "2024" / "old")


def copy_with_times_and_delete(desk: Desk) -> None:
    shutil.copytree(desk.old, desk.docs / "copy")  # as `cp -rp` and `rsync -a` do
    shutil.rmtree(desk.old)


def change_permissions(desk: Desk) -> None:
    for file in desk.old.iterdir():
        file.chmod(0o600)


def save_through_another_file(desk: Desk) -> None:
    for file in desk.old.iterdir():
        beside = file.with_name(f"{file.name}~")
        beside.write_bytes(file.read_bytes())
        beside.replace(file)


def touch(desk: Desk) -> None:
    for file in desk.old.iterdir():
        os.utime(file)


def git_branch_and_back(desk: Desk) -> None:
    if not shutil.which("git"):
        pytest.skip("needs git")

    def git(*words: str) -> None:
        who = ["-c", "user.name=Ida", "-c", "user.email=ida@example.org", "-c", "gc.auto=0"]
        subprocess.run(["git", *who, *words], cwd=desk.docs, check=True, capture_output=True, timeout=120)

    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "notes")
    git("checkout", "-qb", "other")
    for file in desk.old.iterdir():
        file.write_text("Another text.\n")
    git("commit", "-qam", "others")
    git("checkout", "-q", "-")


@pytest.mark.parametrize(
    ("act", "outcome"),
    [
        (rename_folder, FileState.RENAMED),
        (move_tree_down, FileState.RENAMED),
        (copy_with_times_and_delete, FileState.RENAMED),
        (change_permissions, FileState.UNCHANGED),
        (save_through_another_file, FileState.UNCHANGED),
        (touch, FileState.UNCHANGED),
        (git_branch_and_back, FileState.UNCHANGED),
    ],
)
def test_nothing_is_read_again(act: Callable[[Desk], None], outcome: FileState, desk: Desk) -> None:
    assert desk.sync()[FileState.INDEXED] == NUM_FILES
    before = desk.times_read()
    act(desk)
    counts = desk.sync()
    assert counts[outcome] == NUM_FILES and not counts[FileState.INDEXED] and not counts[FileState.REMOVED], counts
    assert desk.times_read() == before
