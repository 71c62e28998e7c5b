"""Long lists of paths from the catalog, a part at a time."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from desk_rag.documents.status import FileState
from desk_rag.errors import Cancelled
from desk_rag.store.listing import FolderCounts
from desk_rag.store.store import Store
from tests.store.made import NS, chunks, document, stamp, warm

TOP = Path("/docs")
NAMES = ("a.md", "b/c.md", "b/Übersicht 1.md", "b/d/e.md", "bb/f.md", "z.png")


@pytest.fixture
def filled(store: Store) -> Store:
    for name in NAMES[:-1]:
        store.put_document(document(TOP / name, [name]), chunks([f"text of {name}"]), stamp())
    store.record_outcome(TOP / "z.png", FileState.SKIPPED, "images", stamp())
    store.record_outcome(TOP / "b" / "bad.pdf", FileState.FAILED, "damaged", stamp())
    return store


def paths(store: Store, documents) -> list[str]:  # type: ignore[no-untyped-def]
    return [str(listed.row.path.relative_to(TOP)) for listed in store.listing.rows(documents) if listed]


def test_folders_and_files_of_one_level(filled: Store) -> None:
    listing = filled.listing
    assert paths(filled, listing.in_folder(TOP)) == ["a.md", "z.png"]
    assert listing.subfolders(TOP) == [FolderCounts(TOP / "b", 3, 1, 0), FolderCounts(TOP / "bb", 1, 0, 0)]
    assert listing.subfolders(TOP / "bb") == []
    assert listing.count(TOP) == FolderCounts(TOP, 5, 1, 1)
    assert listing.names_in(TOP) == {b"a.md", b"b", b"bb", b"z.png"}
    assert paths(filled, listing.in_folder(TOP / "b", [FileState.FAILED])) == ["b/bad.pdf"]


def test_words_of_the_path_in_any_case_and_depth(filled: Store) -> None:
    listing = filled.listing
    assert paths(filled, listing.matching(TOP, ["ÜBER", "1"])) == ["b/Übersicht 1.md"]
    assert paths(filled, listing.matching(TOP, ["MD", "d/"])) == ["b/d/e.md"]
    assert paths(filled, listing.matching(TOP, ["docs"])) == [], "the part above the folder is not looked at"
    assert len(listing.matching(None)) == 7
    assert paths(filled, listing.matching(TOP, ["%"])) == []


def test_a_search_ends_when_it_is_not_wanted_any_more(store: Store) -> None:
    looks = 0

    def stop() -> bool:
        nonlocal looks
        looks += 1
        return looks == 2

    for number in range(300):
        store.record_outcome(TOP / f"{number}.png", FileState.SKIPPED, "images", stamp())
    many = ["png"] * 200  # as much work as in a large folder
    with pytest.raises(Cancelled):
        store.listing.matching(TOP, many, stop=stop)
    assert looks == 2, "at once"
    assert len(store.listing.matching(TOP, many)) == 300, "the connection serves the next search"


def test_rows_come_in_order_with_their_warm_chunks_and_gaps(filled: Store) -> None:
    warm(filled, "text of a.md")
    documents = filled.listing.matching(TOP)
    filled.remove_document(TOP / "b" / "c.md")
    rows = filled.listing.rows(documents, NS)
    assert [None if row is None else row.row.path.name for row in rows] == [
        "a.md", "bad.pdf", None, "e.md", "Übersicht 1.md", "f.md", "z.png",
    ]  # fmt: skip
    assert [row.warm for row in rows if row is not None] == [1, 0, 0, 0, 0, 0]


def test_names_that_are_no_text(store: Store) -> None:
    odd = Path(os.fsdecode(b"/docs/od\xff\ndd/fi\xffle.md"))
    store.put_document(document(odd, ["odd"]), chunks(["odd"]), stamp())
    assert [folder.path for folder in store.listing.subfolders(TOP)] == [odd.parent]
    assert paths(store, store.listing.matching(TOP, ["fi"])) == [str(odd.relative_to(TOP))]


def test_every_change_is_counted(filled: Store) -> None:
    before = filled.listing.changes()
    filled.remove_document(TOP / "a.md")
    assert filled.listing.changes() > before
