"""Deleted text is gone from every file of the store, by a search of the raw bytes."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from desk_rag.store.catalog.deletion_rows import Decision
from desk_rag.store.store import Store
from tests.store import made
from tests.store.made import kv_files, warm

A, B = Path("/home/u/a.md"), Path("/home/u/sub/b.md")


def raw(root: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file())


def test_nothing_of_a_removed_document_is_left_in_any_file(store: Store, root: Path) -> None:
    canary = "Zaphodbeeblebrox42 owes 1234567 quatloos"
    store.put_document(made.document(A, [canary], "Secretcanarytitle"), [made.chunk(canary)], made.stamp())
    others = [f"other text number {i} about rent and gardens" for i in range(300)]
    store.put_document(made.document(B, others), made.chunks(others), made.stamp())
    store.put_vectors("e", [made.chunk_id(canary)], np.full((1, 8), 0.123456789, dtype=np.float32))
    vector = (np.full((1, 8), 0.123456789, dtype=np.float32) / np.float32(0.123456789 * math.sqrt(8))).tobytes()
    warm(store, canary)
    codes = made.kv_for(made.key(canary)).layers[0].keys.numpy().tobytes()
    needles = [b"Zaphod", b"zaphod", b"quatloos", b"ecretcanary", vector[:16], codes[:64]]
    needles += [made.chunk_id(canary).encode()]
    assert all(needle in raw(root) for needle in needles), "the search itself works"
    store.remove_document(A)
    assert store.checkpoint()
    for needle in needles:
        assert needle not in raw(root), needle
    assert len(store.search_words("gardens", 500)) == 300 and store.verify().clean


def test_purge_takes_a_folder_and_proves_it(store: Store, root: Path) -> None:
    for number in range(5):
        text = f"Xylophonistenkongress {number} in Wuppertal with many details"
        store.put_document(made.document(Path(f"/d/in/{number}"), [text]), [made.chunk(text)], made.stamp())
        warm(store, text)
    kept = "Xylophonistenkongress elsewhere"
    store.put_document(made.document(Path("/d/out"), [kept]), [made.chunk(kept)], made.stamp())
    report = store.purge(Path("/d/in"), verify=True)
    assert (report.documents, report.chunks, report.kv_files, report.verified, report.traces) == (5, 5, 5, True, ())
    assert report.freed_bytes > 0 and kv_files(root) == []
    assert [row.path for row in store.documents()] == [Path("/d/out")]


def test_short_texts_are_searched_for_too(store: Store, root: Path) -> None:
    store.put_document(made.document(A, ["blue moth"]), [made.chunk("blue moth")], made.stamp())
    (root / "logs" / "leak.log").write_text("... blue moth ...")
    report = store.purge(A, verify=True)
    assert report.verified and report.traces == (str(root / "logs" / "leak.log"),) and report.unsearched == 0


def test_what_cannot_be_looked_for_is_no_proof(store: Store) -> None:
    texts = ["moth", "said by both of them", "documents"]
    store.put_document(made.document(A, texts), made.chunks(texts), made.stamp())
    store.put_document(made.document(B, texts[1:2]), made.chunks(texts[1:2]), made.stamp())
    report = store.purge(A, verify=True)
    assert (report.verified, report.traces, report.unsearched) == (False, (), 3)
    texts = ["sub/b.md", "garden fence"]  # the path of another document is no trace
    store.put_document(made.document(A, texts), made.chunks(texts), made.stamp())
    report = store.purge(A, verify=True)
    assert (report.verified, report.traces, report.unsearched) == (True, (), 1)


def test_purge_says_where_text_is_left(store: Store, root: Path) -> None:
    text = "Unmistakable sentence about the heliotrope collection"
    store.put_document(made.document(A, [text]), [made.chunk(text)], made.stamp())
    (root / "logs" / "leak.log").write_text(f"... {text} ...")
    assert store.purge(A, verify=True).traces == (str(root / "logs" / "leak.log"),)


def test_nothing_is_computed_for_documents_that_are_about_to_be_removed(store: Store) -> None:
    """Unless another document holds the same text, or the user decides to keep them."""
    shared, gone, here = "rent is due monthly", "only in the file that is gone", "only in the file that is here"
    store.put_document(made.document(A, [shared, gone]), made.chunks([shared, gone]), made.stamp())
    store.put_document(made.document(B, [shared, here]), made.chunks([shared, here]), made.stamp())
    everything, staying = {shared, gone, here}, {shared, here}

    def waiting() -> list[set[str]]:
        lists = (
            store.chunks_without_vector("e", 9),
            store.chunks_without_token_vectors("e", 9),
            store.chunks_without_kv(made.NS, 9),
        )
        numbers = store.missing_vectors("e"), store.missing_vectors("e", "token_vectors"), store.missing_kv(made.NS)
        assert numbers == tuple(map(len, lists))
        return [{chunk.text for chunk in each} for each in lists]

    assert waiting() == [everything] * 3
    store.deletions.put(Path("/home/u"), [A])
    assert waiting() == [staying] * 3
    store.deletions.decide(A, Decision.KEPT)
    assert waiting() == [everything] * 3
    store.deletions.decide(A, Decision.CONFIRMED)
    assert waiting() == [staying] * 3
