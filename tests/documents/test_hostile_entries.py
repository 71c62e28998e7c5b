"""Random trees with hostile entries: each entry is read or named, and none keeps the others from being indexed."""

from __future__ import annotations

import os
import random
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from desk_rag.config import IndexSettings, StoreSettings
from desk_rag.documents.discovery import FoundFile, LeftOut, examine, walk
from desk_rag.documents.document import never
from desk_rag.documents.status import FileState
from desk_rag.ingest.events import FileEvent, IndexFinished
from desk_rag.ingest.pipeline import index_path, sync_folder
from desk_rag.model.prompt import PromptFormat, load_prompt
from desk_rag.store.store import Store
from tests.documents.test_discovery import drop_rights, found, ordinary_user, put, reasons

SETTINGS = IndexSettings()


@pytest.fixture(scope="module")
def prompt(reader_dir: Path) -> PromptFormat:
    return load_prompt(reader_dir)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "data", StoreSettings(budget_gib=1, reserve_gib=0), writer=True) as opened:
        yield opened


def chain(folder: Path, length: int, end: str) -> None:
    """Links link-0.md -> link-1.md -> ... -> `end`."""
    for number in range(length):
        target = f"link-{number + 1}.md" if number < length - 1 else end
        (folder / f"link-{number}.md").symlink_to(target)


def test_loops_and_chains_of_links_are_named(tmp_path: Path) -> None:
    put(tmp_path, "a.md", "sub/b.md")
    (tmp_path / "self.md").symlink_to("self.md")
    (tmp_path / "one.md").symlink_to("two.md")
    (tmp_path / "two.md").symlink_to("one.md")
    (tmp_path / "up.md").symlink_to("..")
    (tmp_path / "sub" / "parent").symlink_to(tmp_path)
    (tmp_path / "round-1").symlink_to("sub/round-2")
    (tmp_path / "sub" / "round-2").symlink_to("../round-1")
    (tmp_path / "through.md").symlink_to("round-1/x.md")
    (tmp_path / "slash.md").symlink_to("a.md/")
    (tmp_path / "long.md").symlink_to("n" * 300)
    for name, length in (("short", 5), ("long", 60), ("endless", 1500)):
        (tmp_path / name).mkdir()
        chain(tmp_path / name, length, "../a.md")
    left_out = reasons(tmp_path)
    loops = [name for name, reason in left_out.items() if reason == "link in a loop, or over too many links"]
    assert {"self.md", "one.md", "two.md", "round-1", "sub/round-2", "through.md", "long/link-0.md"} <= set(loops)
    assert left_out["up.md"] == left_out["sub/parent"] == "link to a folder"
    assert left_out["slash.md"] == "link to nothing that is read" and "long.md" in left_out
    assert {"a.md", "sub/b.md", "short/link-0.md", "endless/link-1499.md"} <= set(found(tmp_path))
    for path in tmp_path.rglob("*"):
        said = examine(tmp_path, path, SETTINGS)
        assert not path.is_symlink() or said is not None, path


def hostile(random_: random.Random, folder: Path, others: list[Path], name: str) -> None:
    """One entry of `folder` that is no plain file; links lead to any entry that was made before."""
    path = folder / name
    somewhere = random_.choice(others)
    kinds: list[Callable[[], object]] = [
        lambda: path.symlink_to(name),
        lambda: path.symlink_to(somewhere),
        lambda: path.symlink_to(os.path.relpath(somewhere, folder)),
        lambda: path.symlink_to(".."),
        lambda: path.symlink_to("/"),
        lambda: path.symlink_to("/proc/self/fd/0"),
        lambda: path.symlink_to(somewhere / "x.md"),
        lambda: path.symlink_to("gone"),
        lambda: path.symlink_to("m" * 255 + "/" + "n" * 300),
        lambda: os.mkfifo(path),
        lambda: bind(path),
        lambda: path.write_bytes(random_.randbytes(200)),
        lambda: path.touch(),
        lambda: Path(os.fsdecode(os.fsencode(folder) + b"/\xff" + os.fsencode(name))).mkdir(),
        lambda: (path.mkdir(), (path / ".gitignore").symlink_to(".gitignore")),
        lambda: (path.mkdir(), (path / "CACHEDIR.TAG").mkdir()),
        lambda: chain(path, random_.randrange(1, 80), "link-0.md") if not path.mkdir() else None,  # type: ignore[func-returns-value]
    ]
    random_.choice(kinds)()
    others.append(path)


def bind(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as opened:
        here = os.open(path.parent, os.O_RDONLY)
        try:
            opened.bind(f"/proc/self/fd/{here}/{path.name}")  # the path itself may be too long for a socket
        finally:
            os.close(here)


def build(root: Path, seed: int) -> set[Path]:
    """A tree of hostile entries among plain files; returns the plain files."""
    random_ = random.Random(seed)
    folders, others, plain = [root], [root], set()
    for number in range(random_.randrange(10, 50)):
        folder = random_.choice(folders)
        match random_.randrange(4):
            case 0:
                folders.append(folder / f"folder{number}")
                folders[-1].mkdir()
                others.append(folders[-1])
            case 1:
                file = folder / f"plain{number}.md"
                file.write_text(f"The keeper of lighthouse number {number} has a boat.\n")
                plain.add(file)
                others.append(file)
            case _:
                hostile(random_, folder, others, f"odd{number}{random_.choice(('.md', '.txt', '', '.pdf'))}")
    return plain


@pytest.mark.parametrize("seed", range(60))
def test_every_entry_is_read_or_named(tmp_path: Path, seed: int) -> None:
    plain = build(tmp_path, seed)
    items = list(walk(tmp_path, SETTINGS))
    read = {item.path for item in items if isinstance(item, FoundFile)}
    named = {item.path for item in items if isinstance(item, LeftOut)}
    assert plain <= read, "plain files are always read"
    assert not read & named and len(items) == len(read) + len(named), "each once"
    assert all(item.reason for item in items if isinstance(item, LeftOut))
    for folder, folders, files in os.walk(tmp_path):
        links = [name for name in folders if Path(folder, name).is_symlink()]
        for path in (Path(folder, name) for name in files + links):
            if path.name != ".gitignore":
                assert path in read | named, path
                assert type(examine(tmp_path, path, SETTINGS)) is (FoundFile if path in read else LeftOut), path
    assert all(path.is_file() for path in read)


@pytest.mark.parametrize("seed", [3, 14, 15])
def test_a_hostile_tree_is_indexed_around_its_entries(
    prompt: PromptFormat, store: Store, tmp_path: Path, seed: int
) -> None:
    docs = tmp_path / "docs"
    docs.mkdir()
    plain = build(docs, seed)
    (docs / "self.md").symlink_to("self.md")
    events = list(sync_folder(store, docs, prompt, prompt.chunk_size, SETTINGS, never))
    states = {event.path: event.state for event in events if isinstance(event, FileEvent)}
    assert isinstance(events[-1], IndexFinished)
    assert {states[path] for path in plain} <= {FileState.INDEXED}
    row = store.document(docs / "self.md")
    assert row is not None and row.state is FileState.SKIPPED and "loop" in row.reason
    for path in states:
        index_path(store, path, docs, prompt, prompt.chunk_size, SETTINGS)
    again = list(sync_folder(store, docs, prompt, prompt.chunk_size, SETTINGS, never))
    assert not [event for event in again if isinstance(event, FileEvent) and event.state is FileState.INDEXED]


def test_what_may_not_be_looked_at_is_named_and_the_rest_is_read() -> None:
    with ordinary_user() as root:
        put(root, "listed/a.md", "closed/b.md", "open/c.md")
        (root / "into.md").symlink_to(root / "closed" / "b.md")
        (root / "listed").chmod(0o444)  # names can be listed, and nothing can be learned of them
        (root / "closed").chmod(0)
        drop_rights()
        assert found(root) == ["open/c.md"]
        left_out = reasons(root)
        assert left_out["closed"] == left_out["listed/a.md"] == "permission denied"
        assert "permission denied" in left_out["into.md"]
        for name in ("listed/a.md", "closed/b.md", "into.md"):
            said = examine(root, root / name, SETTINGS)
            assert isinstance(said, LeftOut) and "permission denied" in said.reason


def test_a_stop_ends_a_walk_through_empty_folders(tmp_path: Path) -> None:
    for number in range(300):
        (tmp_path / str(number)).mkdir()
    looks = iter(range(1000))
    assert list(walk(tmp_path, SETTINGS, lambda: next(looks) >= 10)) == []
    assert next(looks) < 20


def test_a_hard_link_is_left_out_only_where_its_other_name_is_a_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, root, backup = tmp_path / "home", tmp_path / "root", tmp_path / "backup"
    put(home, ".ssh/config", ".netrc", "letter.md")
    put(root, "mine.md", "twice.md")
    backup.mkdir()
    monkeypatch.setenv("HOME", str(home))
    os.link(home / ".ssh" / "config", root / "innocent.txt")
    os.link(home / ".netrc", root / "other.txt")
    os.link(root / "mine.md", backup / "mine.md")  # as backups and package managers do
    os.link(root / "twice.md", root / "again.md")
    assert found(root) == ["again.md", "mine.md", "twice.md"]
    assert reasons(root)["innocent.txt"] == f"secret: another name (hard link) of {home / '.ssh' / 'config'}"
    assert isinstance(examine(root, root / "other.txt", SETTINGS), LeftOut)
    assert "innocent.txt" in found(root, IndexSettings(exclude=("!innocent.txt",)))
