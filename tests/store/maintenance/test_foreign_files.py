"""Foreign files in and around the store stay as they are: links, mounts, look-alike names, swapped directories."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from desk_rag import owned_folder
from desk_rag.cli import store as cli_store
from desk_rag.cli.checks import data_directory as stored
from desk_rag.config import Settings
from desk_rag.errors import ForeignPlace, StoreError
from desk_rag.owned_directory import OwnedDirectory
from desk_rag.owned_folder import Folder
from desk_rag.store.maintenance.data_directory import foreign_files
from desk_rag.store.store import Store
from desk_rag.store.vectors.index import approximate_search_available
from tests.store import made
from tests.store.deleting import NAMESPACE, TEXTS, drive, fill, settings, snapshot, ways
from tests.store.made import kv_files

ROOT = Path(__file__).resolve().parents[3]
FOLDERS = ("kv", f"kv/{NAMESPACE}", "first", "quarantine", "vectors", "models", "logs", "run")
LOOK_ALIKE = (
    "kv/notes.txt",
    f"kv/{NAMESPACE}/ab/{'ab' * 16}.safetensors",
    f"kv/{NAMESPACE}/ab/{'ab' * 16}.77-1.tmp",
    f"kv/{NAMESPACE}/cd/{'ab' * 16}.safetensors",
    f"quarantine/{NAMESPACE}-{'ab' * 16}.1-1.safetensors",
    f"quarantine/{NAMESPACE}-{'ab' * 16}.1-1.{'0' * 16}.safetensors",
    "quarantine/catalog.123.sqlite",
    "quarantine/thesis.md",
    f"vectors/{'1' * 16}.hnsw",
    f"vectors/{'1' * 16}.json",
    f"vectors/{'1' * 16}.hnsw.tmp",
    f"models/{'1' * 32}.safetensors",
    f"models/{'1' * 32}.safetensors.bak",
    f"models/{'1' * 32}.safetensors.1.tmp",
    "models/thesis.md",
    "logs/tui.log.1",
    "logs/tui.log.2",
    "logs/indexer.log.1",
    "run/answering/99999999.lock",
    "run/answering/mine.lock",
    "CACHEDIR.TAG.1.tmp",
    "photos/2025/a.jpg",
)
MORE_FOLDERS = (f"kv/{NAMESPACE}", "quarantine", "logs", "run")


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("template") / "data"
    fill(place)
    return place


@pytest.fixture
def filled(root: Path, template: Path) -> Path:
    shutil.copytree(template, root)
    return root


@pytest.fixture
def foreign(tmp_path: Path) -> Path:
    """A person's own folder, with names like ours among its files."""
    folder = tmp_path / "foreign"
    (folder / "photos").mkdir(parents=True)
    (folder / "thesis.md").write_text("years of work")
    (folder / "photos" / "a.jpg").write_bytes(b"\xff\xd8 a photograph")
    for name in ("tui.log", "tui.log.1", "indexer.log", "writer.lock", "writer.pid", "names.json", f"{'a' * 16}.hnsw"):
        (folder / name).write_text("a person's own")
    (folder / f"{'ab' * 16}.safetensors").write_text("a person's own")
    for path in [folder, *folder.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)
    return folder


def place_of(root: Path, name: str) -> Path:
    return kv_files(root)[0].parent if name == "first" else root / name


def exchange(place: Path, foreign: Path, *, keep: bool) -> None:
    """Put a link in the place of a folder; with `keep` what was in the folder goes along, as a person moves it."""
    if keep:
        shutil.copytree(place, foreign, dirs_exist_ok=True)
    shutil.rmtree(place)
    place.symlink_to(foreign)


@pytest.mark.parametrize("keep", [False, True], ids=["empty", "moved"])
@pytest.mark.parametrize("name", FOLDERS)
def test_no_link_is_followed_out_of_the_data_directory(filled: Path, foreign: Path, name: str, keep: bool) -> None:
    exchange(place_of(filled, name), foreign, keep=keep)
    before = snapshot(foreign)
    drive(filled)
    assert snapshot(foreign) == before


@pytest.mark.parametrize("name", ["kv", f"kv/{NAMESPACE}", "vectors", "run", "logs"])
def test_nor_where_the_system_has_no_directory_handles(
    filled: Path, foreign: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owned_folder, "_BY_HANDLE", False)
    exchange(filled / name, foreign, keep=True)
    before = snapshot(foreign)
    drive(filled)
    assert snapshot(foreign) == before


def test_without_directory_handles_ours_is_still_removed(filled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owned_folder, "_BY_HANDLE", False)
    assert drive(filled) == 0 and not filled.exists()


def test_all_ways_remove_what_is_ours(filled: Path) -> None:
    """The other tests show nothing unless each way does its work when nothing is in its way."""
    files = {path.stem for path in kv_files(filled)}
    done = ways(filled)
    assert len(files) == 6
    assert bool(list((filled / "vectors").glob("*.hnsw"))) is approximate_search_available(), "hnswlib is optional"
    done["verify"]()
    assert len(list((filled / "quarantine").iterdir())) == 1
    done["empty quarantine"]()
    assert not list((filled / "quarantine").iterdir()) and len(kv_files(filled)) == 5
    done["vectors"]()
    assert len(kv_files(filled)) == 4
    done["eviction"]()
    assert len(kv_files(filled)) == 2
    done["full disk"]()
    assert not kv_files(filled) and not list((filled / "vectors").iterdir())
    done["purge all"]()
    assert not filled.exists()


@pytest.mark.parametrize("link", ["symbolic", "hard"])
def test_links_to_foreign_files_under_our_names(filled: Path, foreign: Path, link: str) -> None:
    target = foreign / "thesis.md"
    ours = [kv_files(filled)[0], *(filled / "vectors").iterdir()]
    beside = [filled / name for name in LOOK_ALIKE]
    beside += [filled / "drives.json", filled / "run" / "held-removals.json", filled / "logs" / "indexer.log"]
    for path in [*ours, *beside]:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        if link == "symbolic":
            path.symlink_to(target)
        else:
            path.hardlink_to(target)
    before = snapshot(foreign)
    drive(filled)
    assert snapshot(foreign) == before


@pytest.mark.parametrize("link", ["symbolic", "hard"])
@pytest.mark.parametrize("name", ["catalog.sqlite", "catalog.sqlite-wal", "run/writer.lock"])
def test_a_link_that_would_be_written_through_is_refused(filled: Path, foreign: Path, name: str, link: str) -> None:
    path = filled / name
    path.unlink(missing_ok=True)
    if link == "symbolic":
        path.symlink_to(foreign / "thesis.md")
    else:
        path.hardlink_to(foreign / "thesis.md")
    before = snapshot(foreign)
    with pytest.raises(ForeignPlace, match=Path(name).name) as caught:
        Store.open(filled, made.settings(), writer=True)
    assert caught.value.remedy and caught.value.exit_code == 4
    drive(filled)
    assert snapshot(foreign) == before


def test_files_with_names_like_ours_stay_and_are_named(filled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    planted = [filled / name for name in LOOK_ALIKE]
    for path in planted:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"a person's own {path.name}")
    configured = Settings(data_dir=filled, store=settings())
    assert {str(path) for path in foreign_files(filled, None)} == set(map(str, planted))
    (finding,) = stored.other_files(configured)
    assert finding.remedy and str(sorted(planted)[0]) in finding.detail
    assert cli_store.verify(configured, repair=True, subset="1/1", as_json=False) == 0
    said = capsys.readouterr().out
    assert all(str(path) in said for path in planted)
    drive(filled)
    assert all(path.read_text() == f"a person's own {path.name}" for path in planted)
    assert not kv_files(filled) or {path for path in kv_files(filled)} <= set(planted)
    assert not (filled / "catalog.sqlite").exists(), "what is ours is gone"


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("unshare") is None, reason="a mount namespace needs root")
@pytest.mark.parametrize(
    "name", ["kv", "vectors", *(pytest.param(name, marks=pytest.mark.slow) for name in MORE_FOLDERS)]
)
def test_a_mount_in_the_data_directory_is_left_alone(filled: Path, foreign: Path, name: str) -> None:
    before = snapshot(foreign)
    command = ["unshare", "-m", sys.executable, "-m", "tests.store.deleting", str(filled), str(foreign), name]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, cwd=ROOT)
    if done.returncode == 77 or "Operation not permitted" in done.stderr:
        pytest.skip("mounting is not allowed here")
    assert done.returncode == 0, done.stderr
    assert snapshot(foreign) == before


@pytest.mark.parametrize("name", ["kv", f"kv/{NAMESPACE}", "first"])
@pytest.mark.parametrize("way", ["eviction", "start", "verify", "purge", "full disk", "write", "purge all"])
def test_a_directory_exchanged_between_listing_and_removal(
    filled: Path, foreign: Path, name: str, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = place_of(filled, name)
    shutil.copytree(place, foreign, dirs_exist_ok=True)  # the very names that are about to go
    for path in kv_files(filled)[:2]:
        path.with_name(f"{path.stem}.1-1.tmp").write_bytes(b"")
    for path in foreign.rglob("*.safetensors"):
        path.write_bytes(path.read_bytes() + b"a person's own")
    before = snapshot(foreign)
    aside = filled.parent / "aside"
    real: dict[str, Callable[..., object]] = {"unlink": Folder.unlink, "replace": Folder.replace}
    exchanged = []

    def exchanging(call: str) -> Callable[..., object]:
        def then(folder: Folder, *given: object) -> object:
            if not exchanged and place in (folder.path, *folder.path.parents):
                place.rename(aside)
                place.symlink_to(foreign)
                exchanged.append(call)
            return real[call](folder, *given)

        return then

    for call in real:
        monkeypatch.setattr(Folder, call, exchanging(call))
    with suppress(StoreError, OSError):
        ways(filled)[way]()
    assert snapshot(foreign) == before
    assert exchanged or way == "write"


def test_a_thread_that_exchanges_all_the_time(filled: Path, foreign: Path) -> None:
    kv, aside = filled / "kv", filled.parent / "aside"
    shutil.copytree(kv, foreign, dirs_exist_ok=True)
    before = snapshot(foreign)
    done = threading.Event()

    def exchange_for_ever() -> None:
        while not done.is_set():
            for step in (
                lambda: kv.rename(aside), lambda: kv.symlink_to(foreign), kv.unlink, lambda: aside.rename(kv),
            ):  # fmt: skip
                with suppress(OSError):  # the store makes the directory where it finds none
                    step()

    thread = threading.Thread(target=exchange_for_ever)
    thread.start()
    try:
        for _ in range(3):
            for way in ("start", "verify", "write", "eviction"):
                with suppress(StoreError, OSError):
                    ways(filled)[way]()
    finally:
        done.set()
        thread.join()
    assert snapshot(foreign) == before


def test_a_linked_kv_is_refused_by_the_writer_and_passed_over_by_a_reader(filled: Path, foreign: Path) -> None:
    exchange(filled / "kv", foreign, keep=True)
    with pytest.raises(ForeignPlace, match="link") as caught:
        Store.open(filled, made.settings(), writer=True)
    assert "kv_dir" in caught.value.remedy and "[store]" in caught.value.remedy
    with Store.open(filled, made.settings(), writer=False) as reader:
        assert "without stored chunk KV" in reader.kv_away
        assert reader.get_kv([made.key(TEXTS[0])]) == [None] and reader.has_kv([made.key(TEXTS[0])]) == set()
        assert len(reader.search_words("text", 9)) == 6
    (filled / "kv").unlink()
    shutil.copytree(foreign / NAMESPACE, filled / "kv" / NAMESPACE)
    with Store.open(filled, made.settings(), writer=True) as store:
        assert store.kv_away == "" and len(store.has_kv([made.key(text) for text in TEXTS])) == 6


# the source ---------------------------------------------------------------------------------------------------------

BY_PATH = {"unlink", "rmtree", "rmdir", "rename", "renames", "chmod", "fchmod", "lchmod", "truncate", "ftruncate",
           "remove", "removedirs", "touch", "write_bytes", "write_text", "move", "replace"}  # fmt: skip
PACKAGES = ("desk_rag", "indexer", "tui")
APART = ("desk_rag/bench", "desk_rag/training")
"""Programs of developers, which work in folders that they are given and in no data directory."""


def changes_by_path(file: Path) -> list[str]:
    """Calls of functions and methods of `os`, `shutil` and `Path` that remove, rename, re-mode or overwrite."""
    calls = []
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in BY_PATH):
            continue
        owner, arguments = ast.unparse(node.func.value), len(node.args) + len(node.keywords)
        system = owner in ("os", "shutil")
        # str.replace takes two arguments, Path.replace one; list.remove and our own methods are not the system's
        like_path = {"replace": arguments == 1 and not node.keywords, "remove": False, "move": False}
        if system or like_path.get(node.func.attr, not owner.startswith(("folder", "parent"))):
            calls.append(f"{file.relative_to(ROOT)}:{node.lineno}: {ast.unparse(node)[:80]}")
    return calls


OUR_OWN = (
    "_maintenance.unlink", "self.unlink", "_catalog.rename", "_unlink(", "store.rename", "content.truncate(",
    "detokenizer.replace(", "_keeper.rename(", "chats.rename(",
)  # fmt: skip


def test_nothing_else_removes_or_renames_by_path() -> None:
    files = [file for package in PACKAGES for file in sorted((ROOT / package).rglob("*.py"))]
    named = {file: str(file.relative_to(ROOT)) for file in files}
    changing_calls = [
        call for file in files
        if not named[file].startswith(APART) and named[file] != "desk_rag/owned_folder.py"
        for call in changes_by_path(file) if not any(own in call for own in OUR_OWN)
    ]  # fmt: skip
    allowed = {
        "desk_rag/store/catalog/database.py": "path.touch(",  # the catalog, in a directory that was checked
        "desk_rag/finetune/export.py": ".write_text(",  # into the directory made for this export
        "indexer/resident/transports/unix_socket.py": "Path(path).chmod(",  # the socket that it has just bound
        "desk_rag/settings_file.py": "Path(name)",  # a temporary file beside the user's settings file
    }
    left = [
        call for call in changing_calls
        if not any(call.startswith(file) and part in call for file, part in allowed.items())
    ]  # fmt: skip
    assert not left, "\n".join(left)
    assert changes_by_path(ROOT / "desk_rag" / "owned_folder.py"), "the search itself works"


def test_a_name_that_is_no_name_is_refused(tmp_path: Path) -> None:
    with OwnedDirectory(tmp_path).opened() as folder:
        for name in ("..", ".", "", "a/b"):
            with pytest.raises(ValueError, match="no name"):
                folder.unlink(name, lambda _: True)
