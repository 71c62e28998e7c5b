"""Trees that take "A" and "a" for the same name, as macOS and Windows have, and Windows' links to folders.

What those systems answer is put in the place of what this one does; the rest is real.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from desk_rag.config import IndexSettings, StoreSettings
from desk_rag.documents import discovery
from desk_rag.documents.discovery import LeftOut, examine, walk
from desk_rag.documents.status import FileState
from desk_rag.ingest.events import FileEvent
from desk_rag.ingest.pipeline import index_path, sync_folder
from desk_rag.model.prompt import load_prompt
from desk_rag.store.store import Store

JUNCTION, CLOUD_FOLDER = 0xA0000003, 0x9000001A


@pytest.fixture
def blind_to_case(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are found by any spelling of their names."""
    real = Path.lstat

    def lstat(path: Path) -> os.stat_result:
        try:
            return real(path)
        except FileNotFoundError:
            place = Path(path.anchor)
            for name in path.parts[1:]:
                alike = (known for known in os.listdir(place) if known.casefold() == name.casefold())  # noqa: PTH208
                place /= next(alike, name)
            return real(place)

    monkeypatch.setattr(Path, "lstat", lstat)


class World:
    """A folder, a store and its synchronisation."""

    def __init__(self, place: Path, reader: Path) -> None:
        self.docs, self.prompt = place / "docs", load_prompt(reader)
        (self.docs / "Letters").mkdir(parents=True)
        (self.docs / "Roof.md").write_text("The roofer comes on 14 May.\n")
        for number in range(8):  # more than are removed at once without asking
            (self.docs / "Letters" / f"{number}.md").write_text(f"Letter {number} is about the barge.\n")
        self.store = Store.open(place / "data", StoreSettings(reserve_gib=0), writer=True)

    def sync(self) -> list[FileState]:
        events = sync_folder(self.store, self.docs, self.prompt, self.prompt.chunk_size, IndexSettings(), lambda: False)
        return [event.state for event in events if isinstance(event, FileEvent)]

    def path(self, name: str) -> FileState:
        root, prompt = self.docs, self.prompt
        return index_path(self.store, root / name, root, prompt, prompt.chunk_size, IndexSettings()).state

    def names(self) -> set[str]:
        return {row.path.relative_to(self.docs).as_posix() for row in self.store.documents()}


@pytest.fixture
def world(tmp_path: Path, reader_dir: Path, blind_to_case: None) -> Iterator[World]:
    world = World(tmp_path, reader_dir)
    yield world
    world.store.close()


def test_names_that_are_spelled_otherwise_are_renames(world: World) -> None:
    world.sync()
    (world.docs / "Roof.md").rename(world.docs / "roof.md")
    (world.docs / "Letters").rename(world.docs / "letters")
    states = world.sync()
    assert world.names() == {"roof.md", *(f"letters/{number}.md" for number in range(8))}
    assert states.count(FileState.RENAMED) == 9 and FileState.REMOVED not in states
    assert set(world.sync()) <= {FileState.UNCHANGED}


@pytest.mark.parametrize("order", [("Roof.md", "roof.md"), ("roof.md", "Roof.md")])
def test_a_watcher_that_names_both_spellings_leaves_one(world: World, order: tuple[str, str]) -> None:
    world.sync()
    (world.docs / "Roof.md").rename(world.docs / "roof.md")
    for name in order:
        world.path(name)
    assert {name for name in world.names() if "/" not in name} == {"roof.md"}


def test_a_folder_that_was_named_in_another_spelling_is_no_reason_to_remove(world: World) -> None:
    """The user's spelling of the folder itself counts for nothing, only names below it."""
    other = world.docs.with_name("DOCS")
    assert not discovery.is_other_spelling(other, other / "Roof.md")


def test_names_that_differ_in_case_alone_are_two_files_here(tmp_path: Path) -> None:
    for name in ("Roof.md", "roof.md", "ROOF.MD"):
        (tmp_path / name).write_text(name)
    if len(list(tmp_path.iterdir())) == 3:
        assert not discovery.is_other_spelling(tmp_path, tmp_path / "Roof.md")


def test_a_junction_is_a_link_and_a_folder_of_a_cloud_service_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tags = {}
    for name, tag in (("My Music", JUNCTION), ("OneDrive", CLOUD_FOLDER), ("plain", 0)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "note.md").write_text("The barge was late.\n")
        tags[(tmp_path / name).stat().st_ino] = tag
    real = discovery._has_surrogate_tag
    monkeypatch.setattr(
        discovery, "_has_surrogate_tag",
        lambda status: real(SimpleNamespace(st_reparse_tag=tags.get(status.st_ino, 0))),  # type: ignore[arg-type]
    )  # fmt: skip
    entries = {entry.path.relative_to(tmp_path).as_posix(): entry for entry in walk(tmp_path, IndexSettings())}
    assert set(entries) == {"My Music", "OneDrive/note.md", "plain/note.md"}
    junction = entries["My Music"]
    assert isinstance(junction, LeftOut) and junction.reason == "link to a folder"
    assert examine(tmp_path, tmp_path / "My Music" / "note.md", IndexSettings()) is None
    assert examine(tmp_path, tmp_path / "OneDrive" / "note.md", IndexSettings()) is not None
