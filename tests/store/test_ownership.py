"""A data directory is desk-rag's own: nothing of anybody else's is used, moved or deleted."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from desk_rag.errors import StoreError, StoreFull
from desk_rag.owned_directory import OwnedDirectory
from desk_rag.owned_folder import Proof
from desk_rag.store import ownership
from desk_rag.store.layout import Layout
from desk_rag.store.store import Store
from tests.store import made
from tests.store.faults import FullAt

FOREIGN_TAG = "Signature: 8a477f597d28d172789f06886806bc55\n# Made by a build tool.\n"


def everything(place: Path) -> dict[str, str]:
    return {str(p.relative_to(place)): p.read_text("latin-1") if p.is_file() else "" for p in place.rglob("*")}


OTHERS = ["a.txt", "kv/x", "vectors/x.hnsw", "quarantine/b", "models/gpt.safetensors", "logs/mine.log", "CACHEDIR.TAG"]
OTHERS += ["run/job.pid", "kv/0123456789abcdef/ab/c"]


@pytest.mark.parametrize("name", OTHERS)
def test_a_directory_with_other_files_is_refused_and_left_alone(root: Path, name: str) -> None:
    (root / name).parent.mkdir(parents=True)
    (root / name).write_text(FOREIGN_TAG)
    root.chmod(0o755)
    before = everything(root)
    for writer in (True, False):
        with pytest.raises(StoreError, match="holds other files") as caught:
            Store.open(root, made.settings(), writer=writer)
        assert str(root) in caught.value.message and f"'{name}'" in caught.value.message
        assert caught.value.remedy.startswith("Set data_dir to an empty") and caught.value.exit_code == 4
    assert everything(root) == before and root.stat().st_mode & 0o777 == 0o755
    assert not ownership.is_store(root)


@pytest.mark.parametrize("begun", [(), ("kv", "vectors"), ("run/answering", "logs", "models"), ("lost+found",)])
def test_a_creation_that_was_cut_off_goes_on(root: Path, begun: tuple[str, ...]) -> None:
    root.mkdir()
    for name in begun:
        (root / name).mkdir(parents=True)
    if "logs" in begun:
        (root / "logs" / "tui.log.1").write_text("x")
        (root / "run" / "answering" / "77.lock").write_text("")
        (root / "models" / f"{'0a' * 16}.safetensors").write_text("x")
        (root / "CACHEDIR.TAG.77.tmp").write_text("Signa")
    with Store.open(root, made.settings(), writer=True) as store:
        assert store.verify().clean
    assert ownership.is_store(root)


def test_a_creation_cut_off_at_any_call_goes_on(tmp_path: Path) -> None:
    failures = 0
    for step in range(1, 60):
        root = tmp_path / f"data{step}"
        with pytest.MonkeyPatch.context() as patch:
            disk = FullAt(patch, step)
            try:
                Layout(root).create()
            except StoreFull as error:
                assert str(root) in error.message and error.exit_code == 4
                failures += 1
        if disk.calls < step:
            break
        Layout(root).create()
        assert ownership.is_store(root)
    assert failures > 8


def test_a_store_that_lost_its_tag_or_its_catalog_is_still_one(root: Path) -> None:
    Store.open(root, made.settings(), writer=True).close()
    (root / "notes.txt").write_text("put there later")
    for name in (ownership.TAG, ownership.CATALOG):
        (root / name).unlink()
        Store.open(root, made.settings(), writer=True).close()
    assert everything(root)["notes.txt"] == "put there later"


def test_clearing_takes_what_is_ours_and_says_what_is_left(root: Path, tmp_path: Path) -> None:
    away = tmp_path / "away"
    away.mkdir()
    (away / "kept").write_text("kept")
    with Store.open(root, made.settings(), writer=True) as store:
        store.put_document(made.document(Path("/a"), ["x"]), made.chunks(["x"]), made.stamp())
        made.warm(store, "x")
    (root / "drives.json").write_text("{}")
    (root / "a.txt").write_text("hi")
    (root / "mine").mkdir()
    shutil.rmtree(root / "vectors")
    (root / "vectors").symlink_to(away)
    cleared = ownership.clear(root)
    assert cleared.remaining == (root / "a.txt", root / "mine", root / "vectors") and cleared.freed_bytes > 4096
    assert sorted(everything(root)) == ["a.txt", "mine", "vectors"] and (away / "kept").read_text() == "kept"
    (root / "vectors").unlink()
    (root / "a.txt").unlink()
    (root / "mine").rmdir()
    Store.open(root, made.settings(), writer=True).close()
    assert ownership.clear(root).remaining == () and not root.exists()


@pytest.mark.parametrize("tagged", [True, False])
def test_clearing_that_was_cut_off_can_be_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tagged: bool
) -> None:
    real, cut = ownership._unlink, 0
    for step in range(1, 40):
        root = tmp_path / str(step)
        with Store.open(root, made.settings(), writer=True) as store:
            store.put_document(made.document(Path("/a"), ["x"]), made.chunks(["x"]), made.stamp())
            made.warm(store, "x")
        if not tagged:
            (root / ownership.TAG).unlink()
        calls = 0

        def killed(owner: OwnedDirectory, file: Path, proof: Proof, step: int = step) -> int:
            nonlocal calls
            calls += 1
            if calls == step:
                raise KeyboardInterrupt
            return real(owner, file, proof)

        monkeypatch.setattr(ownership, "_unlink", killed)
        try:
            ownership.clear(root)
        except KeyboardInterrupt:
            cut += 1
            if not ownership.is_store(root):
                assert not (root / ownership.CATALOG).exists() and not made.kv_files(root)
                assert ownership.first_foreign(root) is None
            monkeypatch.setattr(ownership, "_unlink", real)
            assert ownership.clear(root).remaining == () and not root.exists()
        else:
            break
    assert cut >= 3 and not root.exists()


def test_files_of_others_in_folders_with_common_names_stay(root: Path) -> None:
    Store.open(root, made.settings(), writer=True).close()
    (root / "models").mkdir(exist_ok=True)
    for name in ("models/gpt.safetensors", "logs/mine.log"):
        (root / name).write_text("mine")
    (root / "models" / f"{'0a' * 16}.safetensors").write_bytes(bytes(8) + b'{"canaries":"","probe":"","told":""}')
    (root / "logs" / "tui.log").write_text("2026-01-02 03:04:05,678 INFO desk_rag: ours")
    assert ownership.clear(root).remaining == (root / "logs", root / "models")
    left = {name for name, text in everything(root).items() if text}
    assert left == {"models/gpt.safetensors", "logs/mine.log"}


def test_a_catalog_of_another_program_makes_no_store(root: Path) -> None:
    root.mkdir()
    (root / ownership.CATALOG).write_text("mine")
    with pytest.raises(StoreError, match="holds other files"):
        Store.open(root, made.settings(), writer=True)
    assert (root / ownership.CATALOG).read_text() == "mine" and not ownership.is_store(root)


def test_another_programs_tag_stays(root: Path) -> None:
    Store.open(root, made.settings(), writer=True).close()
    (root / ownership.TAG).write_text(FOREIGN_TAG)
    assert ownership.clear(root).remaining == (root / ownership.TAG,)
    assert list(root.iterdir()) == [root / ownership.TAG]
