"""Copies between stores: complete and equal, resumable after a kill, nothing foreign or damaged, in the budget."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from desk_rag.config import IndexSettings
from desk_rag.documents import document as documents
from desk_rag.documents.document import Document, SourceFile
from desk_rag.ingest.transfer import Copied, Copy, PathMap
from desk_rag.store.store import Store
from desk_rag.store.types import FileStamp
from tests.store import made

SETTINGS = IndexSettings()
TEXTS = {"a.txt": ["one", "two"], "b/c.txt": ["three"], "b/d.txt": ["four", "one"]}
ALL = sorted({text for texts in TEXTS.values() for text in texts})
EMBEDDER = "embedder"


def quiet(done: int, total: int) -> None:
    """Show no progress."""


class Machines:
    """Two machines: documents at different paths, a warm store on the first, an empty one on the second."""

    def __init__(self, root: Path) -> None:
        self.here, self.there, self.export = root / "here", root / "there", root / "export"
        self.source = Store.open(root / "one", made.settings(), writer=True)
        for name, texts in TEXTS.items():
            path = self.here / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("\n".join(texts))
            origin = documents.digest_file(path, SETTINGS)
            status = path.stat()
            parser = documents.reader_version(path.name, SETTINGS)
            stamp = FileStamp(status.st_size, status.st_mtime_ns, status.st_ino, parser)
            content = Document(SourceFile(path, origin.size, origin.mtime_ns, origin.digest), "", (), parser)
            self.source.put_document(content, made.chunks(texts), stamp)
        shutil.copytree(self.here, self.there)
        self.vectors = {made.chunk_id(text): vector for text, vector in zip(ALL, np.eye(8, dtype="f4"), strict=False)}
        signs = [np.full((3, 1), number, dtype=np.uint8) for number in range(len(ALL))]
        self.source.put_vectors(EMBEDDER, list(self.vectors), np.stack(list(self.vectors.values())), signs)
        for text in ALL:
            assert made.warm(self.source, text)
        self.target_dir = root / "two"

    @property
    def paths(self) -> PathMap:
        return PathMap(((self.here, self.there),))

    def do_export(self, *under: Path) -> Copied:
        with Store.open(self.export, made.settings(), writer=True) as target:
            return Copy(self.source, target, under).export(quiet)

    def do_import(self, budget_bytes: int = 1 << 30, namespaces: tuple[str, ...] = (made.NS,)) -> Copied:
        source = Store.open(self.export, made.settings(), writer=False)
        with source, Store.open(self.target_dir, made.settings(budget_bytes=budget_bytes), writer=True) as target:
            return Copy(source, target).import_(self.paths, namespaces, SETTINGS, quiet)

    def check_target(self, texts: list[str] = ALL) -> None:
        """Check that exactly the copied files are in place, bit for bit."""
        with Store.open(self.target_dir, made.settings(), writer=False) as target:
            keys = [made.key(text) for text in texts]
            for key, kv in zip(keys, target.get_kv(keys), strict=True):
                assert made.same(kv, made.kv_for(key))
            assert len(made.kv_files(self.target_dir)) == len(texts)
            ids = [made.chunk_id(text) for text in texts]
            assert {chunk_id for chunk_id in target.token_vectors(EMBEDDER, ids)} == set(ids)
            for text, chunk_id in zip(texts, ids, strict=True):
                assert target.search_vectors(EMBEDDER, self.vectors[chunk_id], 1)[0].chunk_id == chunk_id
                assert [hit.chunk_id for hit in target.search_words(text, 9)] == [chunk_id]
            assert target.verify().clean

    def rows(self, store: Store) -> list[tuple[str, str, int]]:
        return [(row.path.name, row.digest, row.num_chunks) for row in store.documents()]


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    world = Machines(tmp_path)
    yield world
    world.source.close()


def test_a_store_goes_to_another_machine_whole_and_a_second_time_nothing_is_copied(machines: Machines) -> None:
    counts = machines.do_export()
    assert (counts.documents, counts.caches, counts.damaged) == (3, 4, ()) and counts.copied_bytes > 0
    counts = machines.do_import()
    assert (counts.documents, counts.documents_elsewhere, counts.caches) == (3, 0, 4)
    machines.check_target()
    with Store.open(machines.target_dir, made.settings(), writer=False) as target:
        assert machines.rows(target) == machines.rows(machines.source)
        assert all(row.path.is_relative_to(machines.there) for row in target.documents())
    for counts in (machines.do_export(), machines.do_import()):
        assert (counts.documents, counts.caches, counts.copied_bytes) == (0, 0, 0)
        assert (counts.documents_present, counts.caches_present) == (3, 4)


def test_an_export_can_be_read_by_its_owner_alone(machines: Machines) -> None:
    machines.do_export()
    modes = {path.stat().st_mode & 0o777 for path in [machines.export, *machines.export.rglob("*")] if path.is_file()}
    assert modes == {0o600}
    assert {path.stat().st_mode & 0o777 for path in machines.export.rglob("*") if path.is_dir()} == {0o700}
    assert machines.export.stat().st_mode & 0o777 == 0o700


def test_a_folder_is_exported_alone_and_what_left_it_leaves_the_export(machines: Machines) -> None:
    counts = machines.do_export(machines.here / "b")
    assert (counts.documents, counts.caches) == (2, 3)
    machines.source.remove_document(machines.here / "b" / "c.txt")
    machines.do_export(machines.here / "b")
    with Store.open(machines.export, made.settings(), writer=False) as export:
        assert [row.path.name for row in export.documents()] == ["d.txt"]
        assert b"three" not in b"".join(path.read_bytes() for path in machines.export.glob("catalog.sqlite"))


def test_a_document_that_differs_here_is_left_out_with_its_caches(machines: Machines) -> None:
    machines.do_export()
    changed = machines.there / "b" / "c.txt"
    changed.write_text("THREE")  # as long as before
    (machines.there / "b" / "d.txt").unlink()
    counts = machines.do_import()
    assert (counts.documents, counts.documents_elsewhere) == (1, 2)
    assert (counts.caches, counts.caches_without_text) == (2, 2)
    machines.check_target(["one", "two"])


def test_caches_fit_documents_that_were_indexed_here_at_any_path(machines: Machines) -> None:
    machines.do_export()
    shutil.rmtree(machines.there)
    with Store.open(machines.target_dir, made.settings(), writer=True) as target:
        target.put_document(made.document(Path("/elsewhere"), ["two"]), made.chunks(["two"]), made.stamp())
    counts = machines.do_import()
    assert (counts.documents, counts.caches, counts.caches_without_text) == (0, 1, 3)
    machines.check_target(["two"])


def test_damaged_and_missing_caches_are_named_and_not_copied(machines: Machines) -> None:
    damaged, missing = (machines.source._layout.kv_file(*made_name(text)) for text in ("one", "two"))
    content = bytearray(damaged.read_bytes())
    content[-1] ^= 1
    damaged.write_bytes(content)
    missing.unlink()
    counts = machines.do_export()
    assert counts.caches == 2 and len(counts.damaged) == 2
    assert any(damaged.name in line and "damaged in layers" in line for line in counts.damaged)
    assert any(missing.name in line and "missing" in line for line in counts.damaged)
    exported = Store.open(machines.export, made.settings(), writer=False)
    with exported:
        sound = exported._layout.kv_file(*made_name("three"))
    sound.write_bytes(sound.read_bytes()[:-1])  # cut short on the way
    counts = machines.do_import()
    assert counts.caches == 1 and len(counts.damaged) == 1
    machines.check_target(["four"])


def made_name(text: str) -> tuple[str, str]:
    key = made.key(text)
    return str(key.namespace), str(key.tokens)


def test_caches_of_another_model_stay_out(machines: Machines) -> None:
    made.warm(machines.source, "one", made.OTHER_NS)
    machines.do_export()
    counts = machines.do_import()
    assert (counts.caches, counts.caches_of_other_models) == (4, 1)
    machines.check_target()


def test_the_budget_of_the_target_holds_and_the_most_used_come_first(machines: Machines) -> None:
    for _ in range(3):
        machines.source.note_use([made.chunk_id("three")])
    size = max(path.stat().st_size for path in made.kv_files(machines.source.root))
    machines.do_export()
    blocks = -(-size // 4096) * 4096
    counts = machines.do_import(budget_bytes=blocks)
    assert (counts.caches, counts.caches_without_room) == (1, 3)
    assert sum(path.stat().st_size for path in made.kv_files(machines.target_dir)) <= blocks
    with Store.open(machines.target_dir, made.settings(), writer=False) as target:
        assert target.has_kv([made.key(text) for text in ALL]) == {made.key("three")}


def test_a_foreign_file_in_the_place_of_a_cache_stays(machines: Machines) -> None:
    machines.do_export()
    with Store.open(machines.target_dir, made.settings(), writer=True) as target:
        foreign = target._layout.kv_file(*made_name("one"))
        foreign.parent.mkdir(parents=True)
        foreign.write_text("mine")
        with Store.open(machines.export, made.settings(), writer=False) as source:
            counts = Copy(source, target).import_(machines.paths, {made.NS}, SETTINGS, quiet)
    assert foreign.read_text() == "mine"
    assert (counts.caches, counts.caches_without_room) == (3, 1)


@pytest.mark.skipif(sys.platform == "win32", reason="needs fork")
def test_a_copy_killed_anywhere_goes_on_where_it_was(machines: Machines) -> None:
    machines.do_export()  # for the import; each round exports into a directory of its own
    root = machines.export.parent
    with subprocess.Popen(
        [sys.executable, "-m", "tests.ingest.transfer_child"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        cwd=Path(__file__).parents[2],
    ) as child:  # fmt: skip
        assert child.stdin is not None and child.stdout is not None

        def run(line: str) -> str:
            child.stdin.write(f"{line}\n")
            child.stdin.flush()
            return child.stdout.readline().split()[-1]

        killed = 0
        for step in (1, 3, 6, 10, 15, 21, 28):
            place = root / f"export{step}"
            first = run(f"export {machines.source.root} {place} {step}")
            killed += first == str(int(signal.SIGKILL))
            assert run(f"export {machines.source.root} {place} 0") == "0"
            target = root / f"target{step}"
            renamed = f"{machines.here}={machines.there}"
            first = run(f"import {place} {target} {renamed} {step}")
            killed += first == str(int(signal.SIGKILL))
            assert run(f"import {place} {target} {renamed} 0") == "0"
            machines.target_dir = target
            machines.check_target()
        child.stdin.close()
    assert killed >= 10
