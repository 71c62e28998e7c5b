"""The whole store through its one doorway: tree, documents, chunk KV, threads, full disk."""

from __future__ import annotations

import logging
import os
import stat
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from desk_rag.documents.status import FileState
from desk_rag.errors import StoreError, StoreFull, UnknownFormat
from desk_rag.store.private_log import PrivateLog
from desk_rag.store.store import Store
from tests.store import made
from tests.store.made import kv_files, warm

A, B = Path("/home/u/a.md"), Path("/home/u/sub/b.md")


# the tree ---------------------------------------------------------------------------------------------------


def test_tree_is_private_and_marked_as_cache(store: Store, root: Path) -> None:
    store.put_document(made.document(A, ["x"]), made.chunks(["x"]), made.stamp())
    warm(store, "x")
    for path in [root, *root.rglob("*")]:
        assert path.stat().st_mode & 0o077 == 0, path
    assert (root / "CACHEDIR.TAG").read_text().startswith("Signature: 8a477f597d28d172789f06886806bc55")


def test_a_log_stays_small_and_private(tmp_path: Path) -> None:
    log = PrivateLog(tmp_path / "data" / "logs", "tui.log", most_bytes=2_000, old_files=2)
    for number in range(500):
        log.emit(logging.makeLogRecord({"msg": f"line {number}", "levelno": logging.WARNING}))
    log.close()
    files = sorted((tmp_path / "data" / "logs").iterdir())
    assert [file.name for file in files] == ["tui.log", "tui.log.1", "tui.log.2"]
    assert all(file.stat().st_size <= 2_000 for file in files) and "line 499" in files[0].read_text()
    if os.name == "posix":
        assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}


def test_importing_the_store_loads_no_torch_and_no_numpy() -> None:
    code = (
        "import sys, desk_rag.store.store, desk_rag.store.types, desk_rag.store.catalog.catalog\n"
        "assert not {'torch', 'numpy', 'hnswlib'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_unusable_directory_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot be used"):
        Store.open(tmp_path / "file" / "data", made.settings(), writer=True)


def test_newer_catalog_is_refused_and_left_alone(root: Path) -> None:
    import sqlite3

    Store.open(root, made.settings(), writer=True).close()
    with sqlite3.connect(root / "catalog.sqlite") as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    before = (root / "catalog.sqlite").read_bytes()
    for writer in (True, False):
        with pytest.raises(UnknownFormat, match="newer desk-rag"):
            Store.open(root, made.settings(), writer=writer)
    assert (root / "catalog.sqlite").read_bytes() == before
    with pytest.raises(UnknownFormat):
        Store.open(root, made.settings(), writer=True)  # the lock was given back: not StoreLocked


def test_damaged_catalog_is_put_aside_and_the_kv_found_again(root: Path) -> None:
    with Store.open(root, made.settings(), writer=True) as store:
        store.put_document(made.document(A, ["x"]), made.chunks(["x"]), made.stamp())
        warm(store, "x")
    (root / "catalog.sqlite").write_bytes(b"not a database at all" * 300)
    with Store.open(root, made.settings(), writer=True) as store:
        assert "replaced by an empty one" in store.notices[0]
        assert store.documents() == []
        store.put_document(made.document(A, ["x"]), made.chunks(["x"]), made.stamp())
        assert made.same(store.get_kv([made.key("x")])[0], made.kv_for(made.key("x")))
        assert store.counts(made.NS).warm == 1 and store.chunks_without_kv(made.NS, 9) == []
        assert store.verify().clean


# documents --------------------------------------------------------------------------------------------------


def test_document_comes_back_as_it_was_put(store: Store) -> None:
    store.put_document(made.document(A, ["one", "two"], "Title"), made.chunks(["one", "two"]), made.stamp())
    row = store.document(A)
    assert row is not None and (row.title, row.state, row.num_chunks) == ("Title", FileState.INDEXED, 2)
    assert row.stamp == made.stamp()
    assert [passage.chunk for passage in store.passages_of(A)] == made.chunks(["one", "two"])
    passage = store.passage(made.chunk_id("two"))
    assert passage is not None and (passage.path, passage.title) == (A, "Title")
    assert store.documents_with_digest(row.digest) == [row] and store.documents_with_digest("") == []


def test_equal_chunks_are_shared_and_go_with_their_last_document(store: Store, root: Path) -> None:
    store.put_document(made.document(A, ["same", "mine"]), made.chunks(["same", "mine"]), made.stamp())
    store.put_document(made.document(B, ["same"]), made.chunks(["same"]), made.stamp())
    assert store.counts().chunks == 2
    assert warm(store, "same")
    store.remove_document(A)
    assert store.has_kv([made.key("same")]) == {made.key("same")}
    assert [hit.chunk_id for hit in store.search_words("same mine", 9)] == [made.chunk_id("same")]
    passage = store.passage(made.chunk_id("same"))
    assert passage is not None and passage.path == B
    store.remove_document(B)
    assert store.has_kv([made.key("same")]) == set() and kv_files(root) == []
    assert store.counts(made.NS).kv_bytes == 0 and store.search_words("same", 9) == []


def test_new_content_of_a_path_keeps_what_stayed_the_same(store: Store) -> None:
    store.put_document(made.document(A, ["keep", "old"]), made.chunks(["keep", "old"]), made.stamp())
    for text in ("keep", "old"):
        warm(store, text)
    store.put_document(made.document(A, ["new", "keep"]), made.chunks(["new", "keep"]), made.stamp(30))
    assert [passage.chunk.text for passage in store.passages_of(A)] == ["new", "keep"]
    assert store.has_kv([made.key("keep"), made.key("old")]) == {made.key("keep")}


def test_rename_moves_the_document_and_nothing_else(store: Store) -> None:
    store.put_document(made.document(A, ["x"]), made.chunks(["x"]), made.stamp())
    store.put_document(made.document(B, ["y"]), made.chunks(["y"]), made.stamp())
    warm(store, "x")
    store.rename_document(A, B, made.stamp(99))
    assert store.document(A) is None
    assert [passage.chunk.text for passage in store.passages_of(B)] == ["x"]
    row = store.document(B)
    assert row is not None and row.stamp == made.stamp(99)
    assert store.has_kv([made.key("x")]) and store.passage(made.chunk_id("y")) is None
    assert len(store.search_words("sub", 9)) == 1, "found by the new folder's name"
    store.rename_document(B, Path("/home/u/zebra.md"), made.stamp(99))
    assert store.search_words("sub", 9) == [] and len(store.search_words("Zebra", 9)) == 1
    store.rename_document(Path("/nowhere"), A, made.stamp())
    assert store.document(A) is None


def test_outcomes_are_kept_and_take_the_old_content_away(store: Store) -> None:
    store.put_document(made.document(A, ["x"]), made.chunks(["x"]), made.stamp())
    store.record_outcome(A, FileState.FAILED, "the parser gave up", made.stamp(40))
    store.record_outcome(B, FileState.SKIPPED, "secret: *.pem", None)
    assert store.passages_of(A) == [] and store.search_words("x", 9) == []
    assert [(row.path, row.state, row.reason) for row in store.documents()] == [
        (A, FileState.FAILED, "the parser gave up"),
        (B, FileState.SKIPPED, "secret: *.pem"),
    ]
    counts = store.counts()
    assert (counts.files, counts.failed, counts.skipped, counts.chunks) == (0, 1, 1, 0)
    store.put_document(made.document(A, ["x"]), made.chunks(["x"]), made.stamp(50))
    store.record_outcome(A, FileState.UNCHANGED, "", made.stamp(60))
    row = store.document(A)
    assert row is not None and row.state is FileState.INDEXED and row.stamp == made.stamp(60) and row.num_chunks == 1


def test_paths_that_are_not_utf8_and_text_with_surrogates(store: Store) -> None:
    odd = Path(os.fsdecode(b"/home/u/\xff\xfe na\nme;--.md"))
    text = "broken \udcff text"
    store.put_document(made.document(odd, [text]), [replace(made.chunk("k"), text=text)], made.stamp())
    row = store.document(odd)
    assert row is not None and row.path == odd
    assert store.documents(odd.parent) == [row]
    store.put_document(made.document(A, [text], "\udcff"), [replace(made.chunk("k2"), text=text)], made.stamp())
    assert [row.title for row in store.documents()] == ["?", ""]
    assert [hit.chunk_id for hit in store.search_words("broken", 9)]


def test_under_means_at_or_below_and_not_beside(store: Store) -> None:
    paths = ["/d/a", "/d/a/x.md", "/d/a.md", "/d/a b/y.md", "/d/ab/z.md", "/d/a0"]
    for number, path in enumerate(paths):
        store.put_document(made.document(Path(path), [f"t{number}"]), [made.chunk(f"t{number}")], made.stamp())
    assert [str(row.path) for row in store.documents(Path("/d/a"))] == ["/d/a", "/d/a/x.md"]
    assert len(store.documents(Path("/d"))) == len(store.documents(Path("/"))) == len(paths)
    assert store.counts(under=[Path("/d/a"), Path("/d/ab")]).chunks == 3
    assert store.passage(made.chunk_id("t1"), [Path("/d/ab")]) is None


# chunk KV ---------------------------------------------------------------------------------------------------


def test_kv_comes_back_bit_for_bit_in_order_with_misses_between(store: Store) -> None:
    texts = [f"t{i}" for i in range(7)]
    store.put_document(made.document(A, texts), made.chunks(texts), made.stamp())
    for text in texts:
        assert warm(store, text)
    keys = [made.key(text) for text in [*texts, "absent"]][::-1]
    loaded = store.get_kv(keys)
    assert loaded[0] is None
    assert all(made.same(kv, made.kv_for(key)) for kv, key in zip(loaded[1:], keys[1:], strict=True))
    assert store.get_kv([]) == []


def test_another_namespace_is_a_miss(store: Store) -> None:
    store.put_document(made.document(A, ["x"]), made.chunks(["x"]), made.stamp())
    warm(store, "x")
    assert store.get_kv([made.key("x", made.OTHER_NS)]) == [None]
    assert [pending.text for pending in store.chunks_without_kv(made.OTHER_NS, 9)] == ["x"]
    close = made.Namespace(made.NS[:16] + "f" * 16)  # shares the directory
    assert store.get_kv([made.key("x", close)]) == [None]


def test_kv_of_a_chunk_that_is_gone_is_not_kept(store: Store, root: Path) -> None:
    assert not warm(store, "never indexed")
    assert kv_files(root) == [] and store.counts(made.NS).kv_bytes == 0


def test_putting_twice_writes_once_and_links_further_chunks(store: Store, root: Path) -> None:
    texts = ["x", "y"]
    store.put_document(made.document(A, texts), made.chunks(texts), made.stamp())
    warm(store, "x")
    file = kv_files(root)[0]
    before = file.stat()
    assert store.put_kv(made.key("x"), made.kv_for(made.key("x")), [made.chunk_id("y")], 0.5)
    assert file.stat().st_ino == before.st_ino and store.counts(made.NS).warm == 2


def test_pending_order_is_wanted_then_used_then_recent(store: Store) -> None:
    for number, text in enumerate(["old", "new", "used", "wanted"]):
        path = Path(f"/d/{text}")
        store.put_document(made.document(path, [text]), [made.chunk(text)], made.stamp(number if number < 2 else 0))
    store.note_use([made.chunk_id("used")] * 3)
    store.want_kv([made.chunk_id("wanted")])
    assert [chunk.text for chunk in store.chunks_without_kv(made.NS, 9)] == ["wanted", "used", "new", "old"]
    assert [chunk.text for chunk in store.chunks_without_kv(made.NS, 2)] == ["wanted", "used"]
    assert [chunk.text for chunk in store.chunks_without_kv(made.NS, 9, [Path("/d/new")])] == ["new"]
    warm(store, "wanted")
    assert [chunk.text for chunk in store.chunks_without_kv(made.NS, 9)] == ["used", "new", "old"]


def test_file_removed_behind_our_back_is_warmed_again(store: Store, root: Path) -> None:
    store.put_document(made.document(A, ["x"]), made.chunks(["x"]), made.stamp())
    warm(store, "x")
    kv_files(root)[0].unlink()
    assert store.get_kv([made.key("x")]) == [None]
    assert store.counts(made.NS).kv_bytes == 0
    assert [chunk.text for chunk in store.chunks_without_kv(made.NS, 9)] == ["x"]
    assert warm(store, "x") and store.verify().clean


def test_many_threads_at_once(store: Store) -> None:
    texts = [f"chunk number {i}" for i in range(24)]
    store.put_document(made.document(A, texts), made.chunks(texts), made.stamp())
    errors: list[BaseException] = []

    def work(part: int) -> None:
        try:
            for text in texts[part::4]:
                warm(store, text)
                got = store.get_kv([made.key(other) for other in texts])
                for other, kv in zip(texts, got, strict=True):
                    assert kv is None or made.same(kv, made.kv_for(made.key(other)))
                store.note_use([made.chunk_id(text)])
                store.put_document(made.document(Path(f"/d/{text}"), [text]), [made.chunk(text)], made.stamp())
                assert store.search_words("number", 3)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(part,)) for part in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert store.counts(made.NS).warm == 24 and store.verify().clean


# disk full --------------------------------------------------------------------------------------------------


def test_reserve_larger_than_free_space_is_a_full_disk(root: Path) -> None:
    with Store.open(root, made.settings(reserve_bytes=1 << 60), writer=True) as store:
        store.put_document(made.document(A, ["x"]), made.chunks(["x"]), made.stamp())
        with pytest.raises(StoreFull, match="no room"):
            warm(store, "x")
        assert store.counts(made.NS).budget_bytes == 0


LIMITED = """
import resource, sys
from pathlib import Path
from desk_rag.errors import StoreFull
from desk_rag.store.store import Store
from tests.store import made
from tests.store.made import kv_files, warm
resource.setrlimit(resource.RLIMIT_FSIZE, (600_000, 600_000))
root = Path(sys.argv[1])
with Store.open(root, made.settings(), writer=True) as store:
    store.put_document(made.document(Path("/a"), ["small", "large"]), made.chunks(["small", "large"]), made.stamp())
    small, large = made.key("small"), made.key("large")
    assert store.put_kv(small, made.kv_for(small), [made.chunk_id("small")], 1.0)
    for _ in range(2):
        try:
            store.put_kv(large, made.kv_for(large, tokens=512, layers=10, dim=64), [made.chunk_id("large")], 1.0)
        except StoreFull as error:
            print(error.message)
"""


def test_file_size_limit_of_the_system_is_a_full_disk(root: Path) -> None:
    done = subprocess.run([sys.executable, "-c", LIMITED, str(root)], capture_output=True, text=True, check=True)
    assert done.stdout.count("The disk is full") == 2
    with Store.open(root, made.settings(), writer=True) as store:
        assert store.verify().clean and len(kv_files(root)) == 1
        assert made.same(store.get_kv([made.key("small")])[0], made.kv_for(made.key("small")))


def test_kv_tensors_do_not_change_when_the_file_goes(store: Store) -> None:
    store.put_document(made.document(A, ["x"]), made.chunks(["x"]), made.stamp())
    warm(store, "x")
    kv = store.get_kv([made.key("x")])[0]
    store.remove_document(A)
    assert made.same(kv, made.kv_for(made.key("x")))
    assert kv is not None and kv.layers[0].keys.dtype == torch.int8


def test_clock_that_jumps_back_changes_nothing(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(place: Path) -> list[set[str]]:
        kept = []
        with Store.open(place, made.settings(budget_bytes=12 * 8192), writer=True) as store:
            texts = [f"t{i}" for i in range(24)]
            store.put_document(made.document(A, texts), made.chunks(texts), made.stamp())
            for text in texts:
                store.note_use([made.chunk_id(text)] * 2)
                warm(store, text)
                store.get_kv([made.key(texts[0]), made.key(texts[3])])
                kept.append({other for other in texts if store.has_kv([made.key(other)])})
        return kept

    steady = run(root)
    jumps = iter(range(10**9, 0, -3600))
    monkeypatch.setattr(time, "time", lambda: float(next(jumps)))
    assert run(root.with_name("jumping")) == steady


def test_coverage_reports_on_the_fullest_model_without_loading_one(store: Store) -> None:
    empty = store.coverage()
    assert (empty.warm, empty.with_vectors) == (0, 0)
    store.put_document(made.document(A, ["one", "two", "three"]), made.chunks(["one", "two", "three"]), made.stamp())
    assert warm(store, "one")
    assert warm(store, "two")
    assert warm(store, "three", namespace="e" * 32)
    store.put_vectors("some embedder", [made.chunk_id("one")], np.eye(1, 4, dtype=np.float32))
    full = store.coverage()
    assert (full.chunks, full.warm, full.with_vectors) == (3, 2, 1)
