"""Token vectors in the catalog: kept with their chunk, refused when damaged, gone with it, made anew."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from desk_rag.store.catalog import schema
from desk_rag.store.store import Store
from tests.store import made

A, B = Path("/home/u/a.md"), Path("/home/u/sub/b.md")
DIM = 16
ONE, TWO = "the boiler key hangs in box 14", "the rent is due on the third"
FIRST = np.array([[0xA5, 0x5A], [0xC3, 0x3C], [0x96, 0x69]] * 8, dtype=np.uint8)
SECOND = np.array([[0x0F, 0xF0]], dtype=np.uint8)


def vectors(count: int) -> NDArray[np.float32]:
    return np.eye(count, DIM, dtype=np.float32)


def fill(store: Store) -> None:
    for path, text in ((A, ONE), (B, TWO)):
        store.put_document(made.document(path, [text]), made.chunks([text]), made.stamp())
    store.put_vectors("e", [made.chunk_id(ONE), made.chunk_id(TWO)], vectors(2), [FIRST, SECOND])


def change(root: Path, statement: str) -> None:
    with closing(sqlite3.connect(root / "catalog.sqlite")) as connection:
        assert connection.execute(statement).rowcount > 0
        connection.commit()


def test_they_are_read_as_they_were_written_and_counted(store: Store, root: Path) -> None:
    fill(store)
    ids = [made.chunk_id(text) for text in (ONE, TWO, "unknown")]
    with Store.open(root, made.settings(), writer=False) as reader:
        for opened in (store, reader):
            stored = opened.token_vectors("e", ids)
            assert stored.keys() == set(ids[:2])
            assert np.array_equal(stored[ids[0]], FIRST) and np.array_equal(stored[ids[1]], SECOND)
            assert opened.token_vectors("another", ids) == {} and opened.token_vectors("e", []) == {}
            counts = opened.counts(None, "e")
            assert (counts.with_tokens, counts.token_bytes) == (2, FIRST.size + SECOND.size)
            assert opened.counts(None, "e", [B.parent]).with_tokens == 1
    assert store.chunks_without_token_vectors("e", 9) == []
    assert len(store.chunks_without_token_vectors("another", 9)) == 2


def test_a_second_writing_changes_nothing_and_gone_chunks_are_left_out(store: Store) -> None:
    fill(store)
    ids = [made.chunk_id(ONE), made.chunk_id("gone")]
    store.put_vectors("e", ids, vectors(2), [SECOND, SECOND])
    assert np.array_equal(store.token_vectors("e", ids)[ids[0]], FIRST)
    assert store.counts(None, "e").with_tokens == 2


def test_a_store_that_has_only_vectors_names_what_is_missing(store: Store) -> None:
    for path, text in ((A, ONE), (B, TWO)):
        store.put_document(made.document(path, [text]), made.chunks([text]), made.stamp())
    store.put_vectors("e", [made.chunk_id(ONE), made.chunk_id(TWO)], vectors(2))
    assert store.chunks_without_vector("e", 9) == []
    assert {chunk.text for chunk in store.chunks_without_token_vectors("e", 9)} == {ONE, TWO}
    store.put_vectors("e", [made.chunk_id(ONE)], vectors(1), [FIRST])
    assert [chunk.text for chunk in store.chunks_without_token_vectors("e", 9)] == [TWO]
    assert store.counts(None, "e").with_vectors == 2


def test_a_chunk_without_words_is_done_and_has_nothing_to_compare(store: Store) -> None:
    store.put_document(made.document(A, ["!!!"]), made.chunks(["!!!"]), made.stamp())
    store.put_vectors("e", [made.chunk_id("!!!")], vectors(1), [np.zeros((0, DIM // 8), dtype=np.uint8)])
    assert store.chunks_without_token_vectors("e", 9) == []
    assert store.token_vectors("e", [made.chunk_id("!!!")]) == {}
    assert store.faults() == () and store.verify().clean


@pytest.mark.parametrize(
    "damage",
    [
        "SET signs = CAST(x'00' || substr(signs, 2) AS BLOB)",
        "SET signs = substr(signs, 1, length(signs) - 1)",
        "SET signs = 'text'",
        "SET sum = 'x'",
        "SET bytes = bytes + 2",
        "SET chunk = 77",
    ],
)
def test_damaged_ones_are_used_for_nothing_and_made_anew_after_a_repair(store: Store, root: Path, damage: str) -> None:
    fill(store)
    ids = [made.chunk_id(ONE), made.chunk_id(TWO)]
    change(root, f"UPDATE token_vectors {damage} WHERE id = 1")
    with Store.open(root, made.settings(), writer=False) as reader:
        assert list(reader.token_vectors("e", ids)) == ids[1:]
        assert "77" in damage or [fault.what[:13] for fault in reader.faults()] == ["Token vectors"]
        assert not reader.verify().clean
    assert all(problem.repaired for problem in store.verify(repair=True).problems)
    assert [chunk.text for chunk in store.chunks_without_token_vectors("e", 9)] == [ONE]
    store.put_vectors("e", ids[:1], vectors(1), [FIRST])
    assert np.array_equal(store.token_vectors("e", ids)[ids[0]], FIRST) and store.verify().clean


def test_nothing_of_them_is_left_after_their_document(store: Store, root: Path) -> None:
    fill(store)
    needle = FIRST.tobytes()[:24]

    def raw() -> bytes:
        return b"".join(path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file())

    assert needle in raw(), "the search itself works"
    report = store.purge(A, verify=True)
    assert report.traces == () and needle not in raw()
    assert store.counts(None, "e").with_tokens == 1 and store.verify().clean


def test_a_catalog_of_the_third_schema_gets_the_table(store: Store, root: Path) -> None:
    fill(store)
    store.close()
    with closing(sqlite3.connect(root / "catalog.sqlite")) as connection:
        connection.execute("DROP TABLE token_vectors")
        connection.execute("ALTER TABLE places DROP COLUMN parts")
        connection.execute("ALTER TABLE documents DROP COLUMN ctime_ns")
        connection.execute("PRAGMA user_version = 3")
        connection.commit()
    with Store.open(root, made.settings(), writer=True) as opened:
        assert len(opened.chunks_without_token_vectors("e", 9)) == 2 and opened.chunks_without_vector("e", 9) == []
        assert opened.verify().clean
    with closing(sqlite3.connect(root / "catalog.sqlite")) as connection:
        assert connection.execute("PRAGMA user_version").fetchone()[0] == schema.VERSION
