"""Files whose content a cloud service keeps elsewhere are not opened, and what is known of them stays."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from desk_rag.config import IndexSettings, StoreSettings
from desk_rag.documents import document
from desk_rag.documents.status import FileState
from desk_rag.errors import UnreadableDocument
from desk_rag.ingest.events import FileEvent
from desk_rag.ingest.pipeline import index_path
from desk_rag.model.prompt import PromptFormat
from desk_rag.store.store import Store

ONEDRIVE, HIERARCHICAL_STORAGE, ICLOUD = 0x400000, stat.FILE_ATTRIBUTE_OFFLINE, 0x40000000
MARKS = [
    pytest.param({"st_file_attributes": ONEDRIVE}, id="onedrive"),
    pytest.param({"st_file_attributes": HIERARCHICAL_STORAGE}, id="offline"),
    pytest.param({"st_flags": ICLOUD}, id="icloud"),
]


class Cloud:
    """Marks files as online-only, as Windows and macOS do, and notes whether they are opened all the same."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.marked: dict[Path, dict[str, int]] = {}
        self.opened: list[Path] = []
        self._stat, self._open = os.stat, os.open
        monkeypatch.setattr(Path, "stat", lambda path, **named: self.stat(path, **named))
        monkeypatch.setattr(os, "open", self.open)

    def stat(self, path: Path, *, follow_symlinks: bool = True) -> object:
        status = self._stat(path, follow_symlinks=follow_symlinks)
        marks = self.marked.get(path)
        if marks is None:
            return status
        known = {name: getattr(status, name) for name in dir(status) if name.startswith("st_")}
        return SimpleNamespace(**{**known, **marks})

    def open(self, path: str | Path, *arguments: int, **named: int) -> int:
        if Path(path) in self.marked:
            self.opened.append(Path(path))
        return self._open(path, *arguments, **named)


@pytest.fixture
def cloud(monkeypatch: pytest.MonkeyPatch) -> Cloud:
    return Cloud(monkeypatch)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "data", StoreSettings(budget_gib=1, reserve_gib=0), writer=True) as opened:
        yield opened


@pytest.fixture
def lease(tmp_path: Path) -> Path:
    file = tmp_path / "docs" / "lease.txt"
    file.parent.mkdir()
    file.write_text("The lease ends on 30 June.\n")
    return file


def index(store: Store, file: Path, prompt: PromptFormat) -> FileEvent:
    return index_path(store, file, file.parent, prompt, prompt.chunk_size, IndexSettings())


@pytest.mark.parametrize("marks", MARKS)
def test_an_online_only_file_is_named_and_not_opened_until_it_is_here(
    cloud: Cloud, store: Store, prompt: PromptFormat, lease: Path, marks: dict[str, int]
) -> None:
    cloud.marked[lease] = marks
    event = index(store, lease, prompt)
    assert event.state is FileState.FAILED and "is online-only" in event.reason
    assert "Keep it on this computer" in event.reason
    assert cloud.opened == []
    del cloud.marked[lease]
    assert index(store, lease, prompt).state is FileState.INDEXED


@pytest.mark.parametrize("marks", MARKS)
def test_text_of_a_file_stays_when_its_content_moves_to_the_cloud(
    cloud: Cloud, store: Store, prompt: PromptFormat, lease: Path, marks: dict[str, int]
) -> None:
    index(store, lease, prompt)
    cloud.marked[lease] = marks
    os.utime(lease, ns=(1, 1))  # freeing the space may change the file's time
    assert "is online-only" in index(store, lease, prompt).reason
    row = store.document(lease)
    assert row is not None and row.state is FileState.INDEXED and store.search_words("lease", 3)
    assert cloud.opened == []


def test_a_quote_is_not_looked_for_in_an_online_only_file(cloud: Cloud, lease: Path) -> None:
    cloud.marked[lease] = {"st_flags": ICLOUD}
    with pytest.raises(UnreadableDocument, match="online-only"):
        document.read_file(lease, 1000)
    assert cloud.opened == []
