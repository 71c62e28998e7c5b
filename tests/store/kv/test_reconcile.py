"""Files and rows at start-up, verification and repair, faults of KV files seen through the store: always a miss."""

from __future__ import annotations

import os
import shutil
import sqlite3
from pathlib import Path

import pytest

from desk_rag.errors import StoreFull
from desk_rag.store.kv import chunk_file
from desk_rag.store.kv import header as kv_header
from desk_rag.store.store import Store
from tests.store import made
from tests.store.faults import FullAt
from tests.store.kv.test_chunk_file import flipped, mixed_kv, rewritten

A = Path("/home/u/a.md")
TEXTS = [f"text {i}" for i in range(6)]


def place(root: Path, text: str, namespace: str = made.NS) -> Path:
    tokens = str(made.key(text).tokens)
    return root / "kv" / namespace[:16] / tokens[:2] / f"{tokens}.safetensors"


def on_disk(root: Path) -> int:
    """Bytes of all files under kv/ and quarantine/, in whole blocks."""
    files = [path for part in ("kv", "quarantine") for path in (root / part).rglob("*") if path.is_file()]
    return sum(-(-path.stat().st_size // 4096) * 4096 for path in files)


@pytest.fixture
def filled(root: Path) -> Path:
    """A closed store with six warm chunks."""
    with Store.open(root, made.settings(), writer=True) as store:
        store.put_document(made.document(A, TEXTS), made.chunks(TEXTS), made.stamp())
        for text in TEXTS:
            assert store.put_kv(made.key(text), made.kv_for(made.key(text)), [made.chunk_id(text)], 0.5)
    return root


def execute(root: Path, statement: str, *values: object) -> None:
    connection = sqlite3.connect(root / "catalog.sqlite")
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute(statement, values)
    connection.commit()
    connection.close()


# start ------------------------------------------------------------------------------------------------------


def test_start_brings_files_and_rows_together_both_ways(filled: Path) -> None:
    execute(filled, "DELETE FROM kv WHERE tokens = ?", made.key(TEXTS[0]).tokens)  # a file without a row: adopted
    place(filled, TEXTS[1]).unlink()  # a row without a file: dropped
    place(filled, TEXTS[2]).with_suffix(".77-0.tmp").write_bytes(b"")  # a write cut off: removed
    stranger = made.key("stranger")
    chunk_file.write(place(filled, "stranger"), chunk_file.prepare(stranger, made.kv_for(stranger), ["00" * 16], 1.0))
    (filled / "kv" / "notes.txt").write_text("not ours")
    place(filled, TEXTS[3]).write_bytes(place(filled, TEXTS[3]).read_bytes()[:-5000])  # another size: quarantined
    execute(filled, "INSERT INTO doomed VALUES (?, ?)", made.NS, made.key(TEXTS[4]).tokens)
    execute(filled, "DELETE FROM kv WHERE tokens = ?", made.key(TEXTS[4]).tokens)  # a delete cut off: finished
    with Store.open(filled, made.settings(), writer=True) as store:
        assert store.verify().clean
        got = store.get_kv([made.key(text) for text in TEXTS])
        assert [kv is not None for kv in got] == [True, False, True, False, False, True]
        assert made.same(got[0], made.kv_for(made.key(TEXTS[0])))
        assert not list(filled.rglob("*.tmp")) and not place(filled, "stranger").exists()
        assert len(list((filled / "quarantine").iterdir())) == 1
        assert (filled / "kv" / "notes.txt").read_text() == "not ours" and "'notes.txt'" in store.notices[-1]
        assert store.counts(made.NS).kv_bytes == on_disk(filled) - 4096, "what is not ours does not count"
        assert len(store.notices) == 3
        assert [chunk.text for chunk in store.chunks_without_kv(made.NS, 9)] == [TEXTS[i] for i in (1, 3, 4)]


def test_what_cut_off_writes_left_goes_and_what_is_being_written_stays(filled: Path) -> None:
    gone = ["vectors/0123456789abcdef.hnsw.tmp", "vectors/0123456789abcdef.json.4194305.tmp", "drives.json.4194305.tmp"]
    gone += [f"models/{'ab' * 16}.safetensors.4194305.tmp", f"models/names.json.{os.getpid()}.tmp"]
    stays = [f"models/names.json.{os.getppid()}.tmp", "models/mine.tmp", "notes.4194305.tmp"]
    for name in gone + stays:
        (filled / name).parent.mkdir(exist_ok=True)
        (filled / name).write_bytes(bytes(9))  # as a power cut leaves them
    Store.open(filled, made.settings(), writer=True).close()
    assert [name for name in gone + stays if (filled / name).exists()] == stays


def test_adopted_files_keep_what_they_cost(filled: Path) -> None:
    execute(filled, "DELETE FROM kv")
    with Store.open(filled, made.settings(), writer=True) as store:
        assert store.counts(made.NS).warm == 6
        estimate = store.estimate(made.NS, 1600, 1.0)
        assert estimate.seconds == pytest.approx(1600 * 0.5 / 16)
    with Store.open(filled, made.settings(), writer=True) as store:
        assert store.notices == ()


def test_files_of_all_models_count_and_no_reader_removes_any(filled: Path) -> None:
    execute(filled, "DELETE FROM kv WHERE tokens = ?", made.key(TEXTS[0]).tokens)
    with Store.open(filled, made.settings(), writer=False) as reader:
        assert made.same(reader.get_kv([made.key(TEXTS[0])])[0], made.kv_for(made.key(TEXTS[0])))
    assert place(filled, TEXTS[0]).exists()


def test_unreferenced_rows_go_unless_the_catalog_was_lost(filled: Path) -> None:
    key = made.key("chunk that is gone")
    path = place(filled, "chunk that is gone")
    path.parent.mkdir(exist_ok=True)
    chunk_file.write(path, chunk_file.prepare(key, made.kv_for(key), ["11" * 16], 1.0))
    execute(filled, "INSERT INTO kv SELECT 99, namespace, ?, ?, num_tokens, prefill_seconds, hits, tick, rank FROM kv"
            " WHERE id = 1", key.tokens, path.stat().st_size)  # fmt: skip
    execute(filled, "INSERT INTO kv_chunks VALUES (?, 99)", "11" * 16)
    place(filled, TEXTS[0]).unlink()
    with Store.open(filled, made.settings(), writer=True) as store:
        assert not path.exists() and store.counts(made.NS).warm == 5
        assert store.verify().clean
    for name in ("catalog.sqlite", "catalog.sqlite-wal", "catalog.sqlite-shm"):
        (filled / name).unlink(missing_ok=True)
    for _ in range(2):
        with Store.open(filled, made.settings(), writer=True) as store:
            assert len(store.has_kv([made.key(text) for text in TEXTS])) == 5


def test_limit_that_shrank_is_kept_at_once(filled: Path) -> None:
    with Store.open(filled, made.settings(budget_bytes=3 * 8192), writer=True) as store:
        assert store.counts(made.NS).kv_bytes == on_disk(filled) == 3 * 8192
        assert store.verify().clean


# faults of files: a miss and quarantine, never a wrong tensor -----------------------------------------------


def check_missed(root: Path, text: str) -> None:
    """The chunk is a miss, the file is put aside, the others answer, and writing it again makes all well."""
    with Store.open(root, made.settings(), writer=True) as store:
        got = store.get_kv([made.key(other) for other in TEXTS])
        for other, kv in zip(TEXTS, got, strict=True):
            assert (kv is None) == (other == text)
            assert kv is None or made.same(kv, made.kv_for(made.key(other)))
        assert not place(root, text).exists() and store.has_kv([made.key(text)]) == set()
        assert len(list((root / "quarantine").glob("*.safetensors"))) == 1
        assert [chunk.text for chunk in store.chunks_without_kv(made.NS, 9)] == [text]
        assert store.counts(made.NS).kv_bytes == on_disk(root)
        assert store.put_kv(made.key(text), made.kv_for(made.key(text)), [made.chunk_id(text)], 0.5)
        assert made.same(store.get_kv([made.key(text)])[0], made.kv_for(made.key(text)))
        assert store.verify().clean


def byte_classes(path: Path) -> dict[str, int]:
    header = kv_header.read_header(path)
    raw = path.read_bytes()
    classes = {"length": 1, "json": 40, "header sum": raw.index(b"header_xxh3") + 16, "space": header.data_start - 9}
    classes["group sum"] = raw.index(b"checksums") + 14
    for slot in header.groups[0].slots:
        classes[slot.part] = header.data_start + slot.start + 1
    return classes


@pytest.mark.parametrize(
    "kind",
    ["length", "json", "header sum", "space", "group sum", "key_scale", "key_zero", "value_scale", "keys", "values"],
)
def test_flip_in_any_class_of_bytes_is_a_miss(filled: Path, kind: str) -> None:
    path = place(filled, TEXTS[2])
    flipped(path, byte_classes(path)[kind])
    check_missed(filled, TEXTS[2])


def test_flip_in_a_pad_and_in_every_group_is_a_miss(store: Store, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_header, "SMALLEST_GROUP", 1024)
    store.put_document(made.document(A, TEXTS), made.chunks(TEXTS), made.stamp())
    key, path = made.key(TEXTS[0]), place(root, TEXTS[0])
    for index in range(8):
        assert store.put_kv(key, mixed_kv(), [made.chunk_id(TEXTS[0])], 1.0)
        assert made.same(store.get_kv([key])[0], mixed_kv())
        header = kv_header.read_header(path)
        flipped(path, header.data_start + header.groups[index].end - 1)  # the pad, in all but the last
        assert store.get_kv([key]) == [None]
    assert len(list((root / "quarantine").iterdir())) == 8


@pytest.mark.parametrize("cut", [0, 5, 4095, 4096, 4097, -1])
def test_truncation_is_a_miss(filled: Path, cut: int) -> None:
    path = place(filled, TEXTS[1])
    with Store.open(filled, made.settings(), writer=True) as store:  # while it is open: start-up would see the size
        path.write_bytes(path.read_bytes()[:cut])
        assert store.get_kv([made.key(TEXTS[1])]) == [None]
        assert not path.exists() and store.verify().clean


def test_two_files_swapped_are_two_misses(filled: Path) -> None:
    one, two = place(filled, TEXTS[0]), place(filled, TEXTS[1])
    aside = one.with_suffix(".aside")
    one.rename(aside)
    two.rename(one)
    aside.rename(two)
    with Store.open(filled, made.settings(), writer=True) as store:
        assert store.get_kv([made.key(TEXTS[0]), made.key(TEXTS[1])]) == [None, None]
        assert len(list((filled / "quarantine").iterdir())) == 2 and store.verify().clean


def test_version_from_the_future_is_a_miss(filled: Path) -> None:
    rewritten(place(filled, TEXTS[3]), {"format_version": "9"})
    check_missed(filled, TEXTS[3])


def test_file_of_another_model_in_our_place_is_a_miss(filled: Path) -> None:
    key = made.key(TEXTS[4], made.OTHER_NS)
    other = filled / "other" / "xx" / "f.safetensors"
    other.parent.parent.mkdir()
    chunk_file.write(other, chunk_file.prepare(key, made.kv_for(key), [made.chunk_id(TEXTS[4])], 0.5))
    shutil.copyfile(other, place(filled, TEXTS[4]))
    check_missed(filled, TEXTS[4])


def test_a_reader_process_puts_bad_files_aside_too(filled: Path) -> None:
    flipped(place(filled, TEXTS[0]), 5000)
    with Store.open(filled, made.settings(), writer=True) as store:
        with Store.open(filled, made.settings(), writer=False) as reader:
            assert reader.get_kv([made.key(TEXTS[0])]) == [None]
        assert store.has_kv([made.key(TEXTS[0])]) == set() and store.verify().clean
        assert store.counts(made.NS).kv_bytes == on_disk(filled)


def test_an_unreadable_file_is_a_miss_and_stays(filled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: object) -> int:
        raise OSError(5, "Input/output error")

    with Store.open(filled, made.settings(), writer=True) as store:
        with monkeypatch.context() as patch:
            patch.setattr(os, "preadv", broken)
            assert store.get_kv([made.key(TEXTS[0])]) == [None]
        assert made.same(store.get_kv([made.key(TEXTS[0])])[0], made.kv_for(made.key(TEXTS[0])))


def test_quarantine_is_emptied_when_text_is_deleted_and_when_room_is_needed(filled: Path) -> None:
    flipped(place(filled, TEXTS[0]), 5000)
    with Store.open(filled, made.settings(budget_bytes=6 * 8192), writer=True) as store:
        store.get_kv([made.key(TEXTS[0])])
        assert len(list((filled / "quarantine").iterdir())) == 1
        store.note_use([made.chunk_id(TEXTS[0])] * 2)
        assert store.put_kv(made.key(TEXTS[0]), made.kv_for(made.key(TEXTS[0])), [made.chunk_id(TEXTS[0])], 0.5)
        assert store.counts(made.NS).warm == 6 and list((filled / "quarantine").iterdir()) == []
        flipped(place(filled, TEXTS[1]), 5000)
        store.get_kv([made.key(TEXTS[1])])
        store.put_document(made.document(A, TEXTS[:-1]), made.chunks(TEXTS[:-1]), made.stamp())
        assert list((filled / "quarantine").iterdir()) == []


# verify -----------------------------------------------------------------------------------------------------


def test_verify_finds_everything_and_repair_mends_it(filled: Path) -> None:
    with Store.open(filled, made.settings(), writer=True) as store:
        report = store.verify()
        assert report.clean and (report.kv_files, report.documents, report.chunks) == (6, 1, 6)
        assert report.kv_bytes == sum(place(filled, text).stat().st_size for text in TEXTS)
        flipped(place(filled, TEXTS[0]), 5100)
        place(filled, TEXTS[1]).unlink()
        place(filled, TEXTS[2]).with_suffix(".1-1.tmp").write_bytes(b"")
        place(filled, TEXTS[3]).write_bytes(b"short")
        shutil.copyfile(place(filled, TEXTS[4]), filled / "kv" / f"{'0' * 32}.safetensors")
        execute(filled, "INSERT INTO chunk_words (chunk_words) VALUES ('delete-all')")
        verification = store.verify()
        assert len(verification.problems) == 5 and not any(problem.repaired for problem in verification.problems)
        assert place(filled, TEXTS[0]).exists(), "a check alone changes nothing"
        mended = store.verify(repair=True)
        assert len(mended.problems) == 5 and all(problem.repaired for problem in mended.problems)
        assert verification.foreign == mended.foreign == (filled / "kv" / f"{'0' * 32}.safetensors",)
        mended.foreign[0].unlink()
        assert store.verify().clean and len(store.search_words("text", 9)) == 6
        assert store.counts(made.NS).kv_bytes == on_disk(filled)
        got = store.get_kv([made.key(text) for text in TEXTS])
        assert [kv is not None for kv in got] == [False, False, True, False, True, True]


def test_subsets_cover_every_file_once(filled: Path) -> None:
    with Store.open(filled, made.settings(), writer=True) as store:
        for text in TEXTS:
            flipped(place(filled, text), 5100)
        reports = [store.verify(subset=(part, 7)) for part in range(1, 8)]
        assert sum(report.kv_files for report in reports) == 6
        problems = sorted(problem.what for report in reports for problem in report.problems)
        assert problems == sorted(problem.what for problem in store.verify().problems)
        with pytest.raises(ValueError, match="subset"):
            store.verify(subset=(0, 7))


# a full disk ------------------------------------------------------------------------------------------------


def test_full_disk_at_every_step_of_a_put_leaves_a_sound_store(filled: Path) -> None:
    text = "one more"
    with Store.open(filled, made.settings(), writer=True) as store:
        store.put_document(made.document(Path("/b"), [text]), [made.chunk(text)], made.stamp())
        before = on_disk(filled)
        failures = 0
        for step in range(1, 40):
            with pytest.MonkeyPatch.context() as patch:
                disk = FullAt(patch, step)
                try:
                    done = store.put_kv(made.key(text), made.kv_for(made.key(text)), [made.chunk_id(text)], 0.5)
                except StoreFull:
                    failures += 1
                    done = False
            if disk.calls < step:
                break  # nothing failed: every step has had its turn
            if done:  # what failed was the making of a directory that was there already
                place(filled, text).unlink()
                store.get_kv([made.key(text)])
            assert on_disk(filled) == before == store.counts(made.NS).kv_bytes
            assert store.verify().clean and store.has_kv([made.key(text)]) == set()
        assert done and failures > 10
        assert made.same(store.get_kv([made.key(text)])[0], made.kv_for(made.key(text)))


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("mount") is None, reason="mounting a small tmpfs needs root")
def test_real_full_disk(tmp_path: Path) -> None:
    import subprocess

    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(disk)], capture_output=True).returncode:
        pytest.skip("mount is not allowed here")
    try:
        with Store.open(disk / "data", made.settings(), writer=True) as store:
            full, number, stored = 0, 0, []
            while full < 5:
                text = f"text {number}"
                number += 1
                try:
                    store.put_document(made.document(Path(f"/{number}"), [text]), [made.chunk(text)], made.stamp())
                    if store.put_kv(made.key(text), made.kv_for(made.key(text)), [made.chunk_id(text)], 0.5):
                        stored.append(text)
                except StoreFull:
                    full += 1
            assert len(stored) > 10 and not list(disk.rglob("*.tmp"))
            kept = [text for text in stored if store.has_kv([made.key(text)])]
            assert kept and all(made.same(store.get_kv([made.key(t)])[0], made.kv_for(made.key(t))) for t in kept)
            for text in kept[: len(kept) // 2]:
                place(disk / "data", text).unlink()
        with Store.open(disk / "data", made.settings(), writer=True) as store:
            assert store.verify().clean
    finally:
        subprocess.run(["umount", str(disk)], check=True)


# damaged rows about sound files -----------------------------------------------------------------------------

DAMAGED_ROWS = {
    "name of the model": "UPDATE namespaces SET name = substr(name, 1, 31) || 'e'",
    "token hash": "UPDATE kv SET tokens = 'ffff' || substr(tokens, 5) WHERE id = 1",
    "token hash that is none": "UPDATE kv SET tokens = 11 WHERE id = 1",
    "size": "UPDATE kv SET bytes = bytes + 4096 WHERE id = 1",
    "link to a chunk": "UPDATE kv_chunks SET chunk_id = 'ffff' || substr(chunk_id, 5) WHERE kv = 1",
    "link to a file": "UPDATE kv_chunks SET kv = 2 WHERE kv = 1",
}


@pytest.mark.parametrize("statement", DAMAGED_ROWS.values(), ids=DAMAGED_ROWS)
def test_a_repair_of_damaged_rows_keeps_every_sound_file_and_links_it_again(filled: Path, statement: str) -> None:
    files = {path.name: path.read_bytes() for path in (filled / "kv").rglob("*.safetensors")}
    execute(filled, statement)
    with Store.open(filled, made.settings(), writer=True) as store:
        store.verify(repair=True)
    with Store.open(filled, made.settings(), writer=True) as store:
        assert store.verify().clean and store.coverage().warm == len(TEXTS)
        for text, kv in zip(TEXTS, store.get_kv([made.key(text) for text in TEXTS]), strict=True):
            assert made.same(kv, made.kv_for(made.key(text)))
    assert {path.name: path.read_bytes() for path in (filled / "kv").rglob("*.safetensors")} == files


def test_a_wrong_size_in_the_catalog_costs_no_sound_file_at_start(filled: Path) -> None:
    execute(filled, "UPDATE kv SET bytes = bytes + 4096 WHERE id = 1")
    with Store.open(filled, made.settings(), writer=True) as store:
        assert store.verify().clean and store.coverage().warm == len(TEXTS)
