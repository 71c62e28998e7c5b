"""Damaged rows are used for nothing, are named, and go without the chunk KV that belongs to them."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from desk_rag.documents.location import Part
from desk_rag.errors import CorruptCatalog, StoreError
from desk_rag.store.catalog import schema
from desk_rag.store.maintenance import sweep
from desk_rag.store.store import Store
from tests.store import made
from tests.store.made import warm

A, B = Path("/docs/a.md"), Path("/docs/b.md")
TEXT = "The yearly service costs 128 crowns, filters included."
OTHER = "The chimney sweep comes in March."
EMBEDDER = "e" * 32


@pytest.fixture
def filled(root: Path) -> Path:
    with Store.open(root, made.settings(), writer=True) as store:
        store.put_document(made.document(A, [TEXT], "Manual"), made.chunks([TEXT]), made.stamp())
        store.put_document(made.document(B, [OTHER]), made.chunks([OTHER]), made.stamp())
        store.put_vectors(EMBEDDER, [made.chunk_id(TEXT), made.chunk_id(OTHER)], np.eye(2, 4, dtype=np.float32))
        assert warm(store, TEXT)
    return root


def change(root: Path, statement: str) -> None:
    """Change a row behind the store's back, as a flipped bit does: SQLite itself finds nothing wrong."""
    with closing(sqlite3.connect(root / "catalog.sqlite")) as connection:
        connection.execute("DROP TRIGGER IF EXISTS none")
        assert connection.execute(statement).rowcount > 0
        connection.commit()


DAMAGES = {
    "text": "UPDATE chunks SET text = replace(text, '128', '928') WHERE id = 1",
    "chunk id": "UPDATE chunks SET chunk_id = replace(chunk_id, substr(chunk_id, 1, 4), 'abcd') WHERE id = 1",
    "path": "UPDATE documents SET path = CAST('/docs/z.md' AS BLOB) WHERE id = 1",
    "title": "UPDATE documents SET title = 'Menial' WHERE id = 1",
    "digest": "UPDATE documents SET digest = 'f' || substr(digest, 2) || 'f' WHERE id = 1",
    "mtime": "UPDATE documents SET mtime_ns = mtime_ns + 1 WHERE id = 1",
    "state": "UPDATE documents SET state = 'indexdd' WHERE id = 1",
    "inode": "UPDATE documents SET inode = 'seven' WHERE id = 1",
    "heading": "UPDATE places SET heading = 'Tip' WHERE document = 1",
    "line": "UPDATE places SET line_start = 9 WHERE document = 1",
    "chunk of a place": "UPDATE places SET chunk = 2 WHERE document = 1",
    "text that is no UTF-8": "UPDATE chunks SET text = CAST(x'ff' || CAST(text AS BLOB) AS TEXT) WHERE id = 1",
}


@pytest.mark.parametrize("what", DAMAGES)
def test_a_damaged_row_is_never_used_and_a_repair_keeps_the_chunk_kv(filled: Path, what: str) -> None:
    change(filled, DAMAGES[what])
    with Store.open(filled, made.settings(), writer=False) as store:
        assert TEXT not in [hit.chunk.text for hit in store.passages_of(A)]
        assert store.passage(made.chunk_id(TEXT)) is None
        assert store.faults() if what != "path" else True
        report = store.verify()
        assert not report.clean and not report.unusable
        assert not any("128" in problem.what for problem in report.problems)
        passage = store.passage(made.chunk_id(OTHER))
        assert passage is not None and passage.path == B
    with Store.open(filled, made.settings(), writer=True) as store:
        assert all(problem.repaired for problem in store.verify(repair=True).problems)
        assert [run.root for run in store.unfinished_runs()] == [None]
    with Store.open(filled, made.settings(), writer=True) as store:
        assert store.verify().clean
        store.put_document(made.document(A, [TEXT], "Manual"), made.chunks([TEXT]), made.stamp())
        store.end_run(Path("/docs"))
        assert store.unfinished_runs() == []
        passage = store.passage(made.chunk_id(TEXT))
        assert passage is not None and (passage.path, passage.title) == (A, "Manual")
        assert made.same(store.get_kv([made.key(TEXT)])[0], made.kv_for(made.key(TEXT)))
        assert store.verify().clean


@pytest.mark.parametrize("what", ["text", "line", "chunk id"])
def test_reading_the_file_again_mends_it_without_a_repair(filled: Path, what: str) -> None:
    change(filled, DAMAGES[what])
    with Store.open(filled, made.settings(), writer=True) as store:
        store.check_some()
        assert store.faults()
        row = store.document(A)
        assert row is not None and row.digest == "" and row.stamp.size == 0  # differs from the file: it is read anew
        store.put_document(made.document(A, [TEXT], "Manual"), made.chunks([TEXT]), made.stamp())
        assert store.faults() == ()
        passage = store.passage(made.chunk_id(TEXT))
        assert passage is not None and passage.chunk.text == TEXT
        assert [hit.chunk_id for hit in store.search_words("yearly service", 1)] == [made.chunk_id(TEXT)]
        assert store.verify().clean
        assert len(made.kv_files(filled)) == 1


def test_a_damaged_vector_finds_nothing_and_is_made_anew_after_a_repair(filled: Path) -> None:
    change(filled, "UPDATE vectors SET vector = CAST(x'00000080' || substr(vector, 5) AS BLOB) WHERE seq = 1")
    with Store.open(filled, made.settings(), writer=True) as store:
        hits = store.search_vectors(EMBEDDER, np.array([1, 0, 0, 0], dtype=np.float32), 2)
        assert [hit.chunk_id for hit in hits] == [made.chunk_id(OTHER)]
        assert [fault.what[:7] for fault in store.faults()] == ["Vectors"]
        assert store.verify(repair=True).problems[0].what.startswith("1 vectors")
        assert [chunk.text for chunk in store.chunks_without_vector(EMBEDDER, 9)] == [TEXT]


@pytest.mark.parametrize("how", ["SET dim = 'ninety'", "SET dim = -4", "SET name = 'another'"])
def test_a_damaged_embedder_finds_nothing_and_is_said(filled: Path, how: str) -> None:
    change(filled, f"UPDATE embedders {how}")
    if "name" in how:
        change(filled, "UPDATE embedders SET id = 77")
    with Store.open(filled, made.settings(), writer=False) as store:
        assert store.search_vectors(EMBEDDER, np.array([1, 0, 0, 0], dtype=np.float32), 2) == []
        assert [fault.what[:7] for fault in store.faults()] == ["Vectors"]


def test_nothing_is_made_from_a_damaged_text(filled: Path) -> None:
    change(filled, "UPDATE chunks SET text = 'The chimney sweep comes in Narch.' WHERE id = 2")
    with Store.open(filled, made.settings(), writer=True) as store:
        assert store.chunks_without_kv(made.NS, 9) == []
        assert store.chunks_without_vector("another", 1)[0].text == TEXT


def test_a_word_index_that_lost_a_text_is_found_by_the_sweep(filled: Path) -> None:
    change(filled, f"INSERT INTO chunk_words (chunk_words, rowid, text, grams) VALUES ('delete', 1, '{TEXT}', '')")
    with Store.open(filled, made.settings(), writer=True) as store:
        store.check_some()
        assert [fault.what for fault in store.faults()] == ["The word index does not agree with the texts."]
        store.verify(repair=True)
        assert store.search_words("service", 1) and store.faults() == ()


@pytest.mark.parametrize("small", [2_000, 0])
def test_words_that_the_index_has_lost_are_said_beside_an_answer(
    filled: Path, monkeypatch: pytest.MonkeyPatch, small: int
) -> None:
    monkeypatch.setattr(sweep, "_SMALL", small)
    with Store.open(filled, made.settings(), writer=False) as store:
        store.check_beside_answer()
        assert store.faults() == ()
    lose = f"INSERT INTO chunk_words (chunk_words, rowid, text, grams) VALUES ('delete', 1, '{TEXT}', '')"
    change(filled, lose)
    with Store.open(filled, made.settings(), writer=False) as store:
        store.check_beside_answer()
        assert [fault.what for fault in store.faults()] == ["The word index does not agree with the texts."]
        assert not store.verify().clean


def test_a_zeroed_block_of_the_word_index_is_said_beside_an_answer(filled: Path) -> None:
    change(
        filled,
        "UPDATE chunk_words_data SET block = CAST(substr(block, 1, 40) || zeroblob(16) || substr(block, 57) AS BLOB)"
        " WHERE length(block) > 80",
    )
    with Store.open(filled, made.settings(), writer=False) as store:
        store.check_beside_answer()
        assert [fault.what for fault in store.faults()] == ["The word index does not agree with the texts."]


def test_what_vectors_find_is_looked_for_in_the_word_index(filled: Path) -> None:
    question, chunks = "What does the yearly service cost?", [made.chunk_id(TEXT), made.chunk_id(OTHER)]
    with Store.open(filled, made.settings(), writer=False) as store:
        store.check_words(question, chunks)
        assert store.faults() == ()
    change(filled, f"INSERT INTO chunk_words (chunk_words, rowid, text, grams) VALUES ('delete', 1, '{TEXT}', '')")
    with Store.open(filled, made.settings(), writer=False) as store:
        store.check_words("When does the sweep come?", chunks)
        assert store.faults() == ()
        store.check_words(question, chunks)
        assert [fault.what for fault in store.faults()] == ["The word index does not agree with the texts."]


@pytest.mark.parametrize(
    ("index", "where", "what"),
    [
        ("places_chunk ON places (chunk)", "document <> 1", "An index of the catalog does not agree with its rows."),
        ("", "", "The entry of a document is missing."),
    ],
)
def test_rows_that_have_vanished_are_said_beside_an_answer(filled: Path, index: str, where: str, what: str) -> None:
    if index:
        with closing(sqlite3.connect(filled / "catalog.sqlite")) as connection:
            connection.execute(f"DROP INDEX {index.split()[0]}")
            connection.execute(f"CREATE INDEX {index} WHERE {where}")
            connection.execute("PRAGMA writable_schema = ON")
            connection.execute(
                "UPDATE sqlite_master SET sql = ? WHERE name = ?", (f"CREATE INDEX {index}", index.split()[0])
            )
            connection.commit()
    else:
        change(filled, "DELETE FROM documents WHERE id = 1")
    with Store.open(filled, made.settings(), writer=False) as store:
        store.check_beside_answer()
        assert what in [fault.what for fault in store.faults()]
        assert not store.verify().clean


def test_a_catalog_of_the_first_schema_gets_its_sums(filled: Path) -> None:
    with closing(sqlite3.connect(filled / "catalog.sqlite")) as connection:
        for statement in (
            "DROP TABLE token_vectors",
            "DROP TRIGGER documents_back",
            "DROP TRIGGER chunks_back",
            "DROP TABLE volumes",
            "DROP TABLE deletions",
            "DROP TABLE bin",
            "ALTER TABLE documents DROP COLUMN ctime_ns", "ALTER TABLE documents DROP COLUMN sum",
            "ALTER TABLE documents DROP COLUMN num_places",
            "ALTER TABLE places DROP COLUMN sum", "ALTER TABLE places DROP COLUMN parts",
            "ALTER TABLE vectors DROP COLUMN sum",
            "DELETE FROM state WHERE name IN ('identity', 'changes')",
            "PRAGMA user_version = 1",
        ):  # fmt: skip
            connection.execute(statement)
        connection.commit()
    with Store.open(filled, made.settings(), writer=True) as store:
        passage = store.passage(made.chunk_id(TEXT))
        assert passage is not None and passage.title == "Manual"
        assert store.verify().clean
    with closing(sqlite3.connect(filled / "catalog.sqlite")) as connection:
        assert connection.execute("PRAGMA user_version").fetchone()[0] == schema.VERSION


def test_places_of_the_fourth_schema_stay_until_they_are_read_again(filled: Path) -> None:
    with closing(sqlite3.connect(filled / "catalog.sqlite")) as connection:
        connection.execute("ALTER TABLE places DROP COLUMN parts")
        connection.execute("ALTER TABLE documents DROP COLUMN ctime_ns")
        connection.execute("PRAGMA user_version = 4")
        connection.commit()
    parts = (Part(0, 1, None, None), Part(4, 2, None, None, "Annex"))
    with Store.open(filled, made.settings(), writer=True) as store:
        passage = store.passage(made.chunk_id(TEXT))
        assert passage is not None and passage.chunk.location.parts == () and store.verify().clean
        (chunk,) = made.chunks([TEXT])
        placed = replace(chunk, location=replace(chunk.location, parts=parts))
        store.put_document(made.document(A, [TEXT]), [placed], made.stamp())
    with Store.open(filled, made.settings(), writer=False) as store:
        passage = store.passage(made.chunk_id(TEXT))
        assert passage is not None and passage.chunk.location.parts == parts and store.verify().clean


def test_a_damaged_part_of_a_place_is_noticed(filled: Path) -> None:
    with closing(sqlite3.connect(filled / "catalog.sqlite")) as connection:
        connection.execute("UPDATE places SET parts = '[[0,7,null,null]]'")
        connection.commit()
    with Store.open(filled, made.settings(), writer=False) as store:
        assert store.passage(made.chunk_id(TEXT)) is None and not store.verify().clean


def _emptied(catalog: Path) -> None:
    catalog.write_bytes(b"")


@pytest.mark.parametrize("lose", [_emptied, Path.unlink])
def test_an_emptied_catalog_is_lost_and_not_new(filled: Path, lose: Callable[[Path], None]) -> None:
    lose(filled / "catalog.sqlite")
    for writer in (False, True):
        with Store.open(filled, made.settings(), writer=writer) as store:
            assert store.is_lost
    with Store.open(filled, made.settings(), writer=True) as store:
        store.put_document(made.document(A, [TEXT]), made.chunks([TEXT]), made.stamp())
        assert store.get_kv([made.key(TEXT)])[0] is not None
    with Store.open(filled, made.settings(), writer=False) as store:
        assert not store.is_lost


def test_an_empty_store_is_not_lost(filled: Path, tmp_path: Path) -> None:
    with Store.open(filled, made.settings(), writer=True) as store:
        store.purge(Path("/docs"))
    for root in (filled, tmp_path / "new"):
        with Store.open(root, made.settings(), writer=True) as store:
            assert not store.is_lost


def test_changes_that_a_damaged_log_has_lost_are_missed_until_a_run_ends(filled: Path) -> None:
    before = (filled / "catalog.sqlite").read_bytes()
    with Store.open(filled, made.settings(), writer=True) as store:
        store.remove_document(B)
    (filled / "catalog.sqlite").write_bytes(before)
    with Store.open(filled, made.settings(), writer=False) as store:
        assert [fault.what for fault in store.faults()] == ["The last changes of the catalog were lost."]
    with Store.open(filled, made.settings(), writer=True) as store:
        assert store.unfinished_runs()[0].reason == "the last changes of the catalog were lost"
    with Store.open(filled, made.settings(), writer=True) as store:
        assert store.faults() == () and store.unfinished_runs()
        store.end_run(Path("/docs"))
        assert not store.unfinished_runs()


def test_a_catalog_that_cannot_be_read_is_begun_anew_with_its_chunk_kv(filled: Path) -> None:
    content = bytearray((filled / "catalog.sqlite").read_bytes())
    content[4096 * 2 :] = bytes(len(content) - 4096 * 2)
    (filled / "catalog.sqlite").write_bytes(content)
    with pytest.raises(CorruptCatalog) as caught, Store.open(filled, made.settings(), writer=False) as store:
        store.verify()
        store.search_words("service", 3)
    assert "Close" not in caught.value.remedy and "verify --repair" in caught.value.remedy
    with Store.reset_catalog(filled, made.settings()) as store:
        assert store.verify().clean and len(made.kv_files(filled)) == 1
        store.put_document(made.document(A, [TEXT]), made.chunks([TEXT]), made.stamp())
        assert store.get_kv([made.key(TEXT)])[0] is not None


def test_no_error_quotes_a_document(filled: Path) -> None:
    change(filled, DAMAGES["text that is no UTF-8"])
    with Store.open(filled, made.settings(), writer=False) as store:
        for ask in (
            lambda: store.passages_of(A),
            lambda: store.search_words("yearly", 3),
            lambda: store.chunks_without_kv(made.OTHER_NS, 3),
            lambda: store.verify(),
        ):
            try:
                ask()
            except StoreError as error:
                assert "crowns" not in str(error)


@pytest.mark.parametrize("writer", [True, False])
@pytest.mark.parametrize(
    ("name", "word", "other"),
    [("chunks", "KEY AUTOINCREMENT", "KEa AUTOINCREMENT"), ("places", "DELETE CASCADE", "DELETE RESTRICT"),
     ("chunks_added", "new.text", "new.grams"), ("documents_digest", "(digest)", "(size)")],
)  # fmt: skip
def test_a_definition_that_means_something_else_is_a_damaged_catalog(
    filled: Path, name: str, word: str, other: str, writer: bool
) -> None:
    with closing(sqlite3.connect(filled / "catalog.sqlite")) as connection:
        connection.execute("PRAGMA writable_schema = ON")
        statement = "UPDATE sqlite_master SET sql = replace(sql, ?, ?) WHERE name = ? AND instr(sql, ?)"
        assert connection.execute(statement, (word, other, name, word)).rowcount == 1
        connection.commit()
    if writer:  # set aside and built anew; the chunk KV stays
        with Store.open(filled, made.settings(), writer=True) as store:
            assert any("damaged" in notice for notice in store.notices) and not store.documents()
        assert list((filled / "kv").rglob("*.safetensors"))
    else:
        with pytest.raises(CorruptCatalog):
            Store.open(filled, made.settings(), writer=False)



@pytest.mark.parametrize("writer", [False, True])
def test_a_schema_that_is_no_text_any_more_is_a_damaged_catalog(filled: Path, writer: bool) -> None:
    catalog = filled / "catalog.sqlite"
    content = catalog.read_bytes()
    assert content.count(b"CREATE TABLE namespaces") == 1
    catalog.write_bytes(content.replace(b"CREATE TABLE namespaces", b"CREATE TABLE name\xe3paces"))
    try:
        Store.open(filled, made.settings(), writer=writer).close()
    except CorruptCatalog as error:
        assert "verify --repair" in error.remedy
    Store.reset_catalog(filled, made.settings()).close()
    with Store.open(filled, made.settings(), writer=True) as store:
        assert store.verify().clean
