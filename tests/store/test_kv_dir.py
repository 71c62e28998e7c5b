"""Chunk KV on another drive: checked, marked, and away without anything being forgotten."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from desk_rag.cli import store as cli_store
from desk_rag.cli.checks import data_directory as stored
from desk_rag.cli.folders import purging
from desk_rag.config import Settings
from desk_rag.errors import StoreError
from desk_rag.store.ownership import KV_MARKER, KV_RECORD, TAG
from desk_rag.store.store import Store
from tests.store import made
from tests.store.deleting import NAMESPACE, TEXTS, drive, fill, settings, snapshot
from tests.store.made import kv_files

KEYS = [made.key(text) for text in TEXTS]


@pytest.fixture
def big(tmp_path: Path) -> Path:
    place = tmp_path / "big" / "desk-rag-kv"
    place.mkdir(parents=True)
    return place


@pytest.fixture
def apart(root: Path, big: Path) -> Path:
    """A closed store whose chunk KV lies in `big`."""
    fill(root, big)
    return root


def test_chunk_kv_goes_to_kv_dir_and_nothing_else_does(apart: Path, big: Path) -> None:
    assert not kv_files(apart) and len(list((big / NAMESPACE).rglob("*.safetensors"))) == 6
    names = {path.name for path in big.iterdir()}
    assert names == {NAMESPACE, "quarantine", TAG, KV_MARKER} and big.stat().st_mode & 0o777 == 0o700
    marker, record = json.loads((big / KV_MARKER).read_text()), json.loads((apart / KV_RECORD).read_text())
    assert marker["id"] == record["id"] and record["path"] == str(big)
    with Store.open(apart, settings(big), writer=True) as store:
        assert store.kv_away == "" and store.notices == () and store.verify().clean
        assert all(made.same(kv, made.kv_for(key)) for kv, key in zip(store.get_kv(KEYS), KEYS, strict=True))
        assert store.verify().foreign == ()


def test_all_ways_remove_what_is_ours_there_too(apart: Path, big: Path) -> None:
    assert drive(apart, big) == 0
    assert not apart.exists() and not list(big.iterdir())


@pytest.mark.parametrize("name", ["thesis.md", f"{NAMESPACE}/ab/{'ab' * 16}.safetensors", "sub/a.jpg", KV_MARKER, TAG])
def test_a_directory_with_other_files_is_refused(root: Path, big: Path, name: str) -> None:
    (big / name).parent.mkdir(parents=True, exist_ok=True)
    (big / name).write_text("a person's own")
    big.chmod(0o755)
    before = snapshot(big)
    with pytest.raises(StoreError, match="other files") as caught:
        Store.open(root, settings(big), writer=True)
    assert str(big) in caught.value.message and name in caught.value.message and caught.value.remedy
    drive(root, big)
    assert snapshot(big) == before


def test_foreign_files_that_come_later_stay_and_are_named(apart: Path, big: Path) -> None:
    planted = [big / "thesis.md", big / NAMESPACE / "ab" / f"{'ab' * 16}.safetensors", big / "quarantine" / "a.jpg"]
    for path in planted:
        path.parent.mkdir(exist_ok=True)
        path.write_text("a person's own")
    with Store.open(apart, settings(big), writer=True) as store:
        assert set(store.verify().foreign) == set(planted) and store.verify().clean
    (finding,) = stored.other_files(Settings(data_dir=apart, store=settings(big)))
    assert str(planted[0]) in finding.detail
    drive(apart, big)
    assert {path for path in big.rglob("*") if path.is_file()} == set(planted)
    assert all(path.read_text() == "a person's own" for path in planted)


def test_a_link_a_missing_and_a_relative_kv_dir_are_refused(root: Path, big: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(big)
    root.mkdir()
    for place, word in [(link, "link"), (tmp_path / "none", "not a directory"), (Path("big"), "absolute")]:
        with pytest.raises(StoreError, match=word):
            Store.open(root, settings(place), writer=True)
    for place in (root, root.parent, root / "sub"):
        place.mkdir(exist_ok=True)
        with pytest.raises(StoreError, match="overlap"):
            Store.open(root, settings(place), writer=True)
    assert not list(big.iterdir())


def test_the_kv_dir_of_another_data_directory_is_refused(apart: Path, big: Path, tmp_path: Path) -> None:
    before = snapshot(big)
    with pytest.raises(StoreError, match="another data directory"):
        Store.open(tmp_path / "other", settings(big), writer=True)
    drive(tmp_path / "other", big)
    assert snapshot(big) == before


@pytest.mark.parametrize("left", ["nothing", "mount point"])
def test_while_the_drive_is_away_nothing_is_forgotten(
    apart: Path, big: Path, left: str, capsys: pytest.CaptureFixture[str]
) -> None:
    away = big.with_name("away")
    big.rename(away)
    if left == "mount point":
        big.mkdir()
    before = snapshot(away)
    with Store.open(apart, settings(big), writer=True) as store:
        assert str(big) in store.kv_away and "nothing is lost" in store.kv_away
        assert store.get_kv(KEYS) == [None] * 6 and store.has_kv(KEYS) == set()
        assert len(store.search_words("text", 9)) == 6
        assert store.chunks_without_kv(made.NS, 9) == [] and not made.warm(store, TEXTS[0])
        assert store.counts(made.NS).warm == 6 and store.verify(repair=True).clean
        store.remove_document(Path("/home/u/sub/3.md"))
    with Store.open(apart, settings(big, budget_bytes=8192), writer=True) as store:
        assert store.counts(made.NS).warm == 5, "a small budget evicts nothing that cannot be reached"
    configured = Settings(data_dir=apart, store=settings(big))
    assert cli_store.status(configured, as_json=False) == 0
    assert any(str(big) in finding.detail for finding in stored.kv_dir(configured))
    assert "away      The chunk KV directory" in capsys.readouterr().out
    assert snapshot(away) == before and not (left == "mount point" and list(big.iterdir()))
    if big.exists():
        big.rmdir()
    away.rename(big)
    with Store.open(apart, settings(big), writer=True) as store:
        assert store.kv_away == "" and len(store.has_kv(KEYS)) == 5
        assert len(list((big / NAMESPACE).rglob("*.safetensors"))) == 5, "what was deleted meanwhile is gone now"
        assert store.verify().clean


def test_a_drive_that_goes_and_comes_back_while_the_store_is_open(apart: Path, big: Path) -> None:
    away = big.with_name("away")
    with Store.open(apart, settings(big), writer=True) as store:
        big.rename(away)
        big.mkdir()
        assert store.get_kv(KEYS) == [None] * 6 and "is no longer the directory" in store.kv_away
        store.remove_document(Path("/home/u/sub/3.md"))
        assert not list(big.iterdir()) and len(list(away.rglob("*.safetensors"))) == 6
        big.rmdir()
        away.rename(big)
        assert store.kv_away == "" and len(store.has_kv(KEYS)) == 5
        assert sum(kv is not None for kv in store.get_kv(KEYS)) >= 5
    with Store.open(apart, settings(big), writer=True) as store:
        assert len(list(big.rglob("*.safetensors"))) == 5 and store.verify().clean


def test_chunk_kv_is_moved_there_by_hand_and_stays_warm(root: Path, big: Path) -> None:
    fill(root)
    with pytest.raises(StoreError, match="still holds chunk KV") as caught:
        Store.open(root, settings(big), writer=True)
    assert f"mv '{root / 'kv'}'/* '{big}'/" in caught.value.remedy
    shutil.move(root / "kv" / NAMESPACE, big / NAMESPACE)
    with Store.open(root, settings(big), writer=True) as store:
        assert len(store.has_kv(KEYS)) == 6 and store.verify().clean
    for setting in (None, big.parent):
        with pytest.raises(StoreError, match="is kept in"):
            Store.open(root, settings(setting), writer=True)
        with Store.open(root, settings(setting), writer=False) as reader:
            assert "is kept in" in reader.kv_away and reader.get_kv(KEYS) == [None] * 6
    moved = big.with_name("moved")
    big.rename(moved)
    with Store.open(root, settings(moved), writer=True) as store:
        assert len(store.has_kv(KEYS)) == 6


def test_a_set_up_that_was_cut_off_goes_on(root: Path, big: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from desk_rag.owned_directory import OwnedDirectory

    real, cut = OwnedDirectory.write, 0
    for step in range(1, 9):
        calls = 0

        def killed(self: OwnedDirectory, path: Path, content: bytes, step: int = step) -> None:
            nonlocal calls
            calls += path.name in (KV_MARKER, KV_RECORD, TAG)
            if calls == step:
                raise KeyboardInterrupt
            real(self, path, content)

        data, place = root / str(step), big / str(step)
        place.mkdir()
        data.parent.mkdir(exist_ok=True)
        with monkeypatch.context() as patch:
            patch.setattr(OwnedDirectory, "write", killed)
            try:
                Store.open(data, settings(place), writer=True).close()
            except KeyboardInterrupt:
                cut += 1
        Store.open(data, settings(place), writer=True).close()
        with Store.open(data, settings(place), writer=True) as store:
            assert store.kv_away == "" and store.notices == ()
    assert cut == 5


def test_purge_all_says_what_it_could_not_reach(apart: Path, big: Path, capsys: pytest.CaptureFixture[str]) -> None:
    away = big.with_name("away")
    big.rename(away)
    configured = Settings(data_dir=apart, store=settings(big))
    assert purging.purge(configured, None, None, check=False, sure=True, as_json=False) == 4
    assert str(big) in capsys.readouterr().out and not apart.exists() and len(list(away.rglob("*.safetensors"))) == 6


def test_doctor_refuses_a_kv_dir_that_indexing_would_refuse(root: Path, big: Path) -> None:
    (big / "letter.md").write_text("mine")
    chosen = Settings(data_dir=root, store=settings(big))
    with pytest.raises(StoreError, match="holds other files, such as 'letter.md'"):
        stored.kv_dir(chosen)
    fill(root)
    with pytest.raises(StoreError, match="holds other files"):
        stored.kv_dir(chosen)
