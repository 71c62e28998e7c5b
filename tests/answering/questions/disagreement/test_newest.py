"""The days of documents are read once, and anew from a document that has changed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

from desk_rag.answering.questions.disagreement.newest import Writing, day_of
from desk_rag.answering.requirements.dates import in_words
from desk_rag.documents.chunking import Chunk, ChunkId
from desk_rag.documents.location import Location
from desk_rag.store.types import DocumentRow, FileStamp, FileState, Passage

if TYPE_CHECKING:
    from desk_rag.store.store import Store

LEASE = Path("/desk/lease.txt")
STAMP = FileStamp(20, 1, 1, "text", 1)


class OneDocument:
    """A store of one document, which counts how often its text is read."""

    def __init__(self) -> None:
        self.row = DocumentRow(LEASE, "", "aa", STAMP, FileState.INDEXED, "", 1, 0.0)
        self.text, self.reads = "Dear tenant,\nDate: 3 May 2021\nThe rent rises.", 0

    def document(self, path: Path) -> DocumentRow | None:
        """Return the row of the document."""
        return self.row if path == LEASE else None

    def passages_of(self, path: Path) -> list[Passage]:
        """Return its only passage."""
        self.reads += 1
        chunk = Chunk(ChunkId("c"), 0, self.text, 9, Location())
        return [Passage(chunk, path, "", self.row.stamp, self.row.digest)]


def test_a_day_is_read_once_until_the_document_changes() -> None:
    documents = OneDocument()
    store = cast("Store", documents)
    assert [in_words(day_of(store, Writing(LEASE))) for _ in range(3)] == ["3 May 2021"] * 3
    assert documents.reads == 1
    documents.row, documents.text = replace(documents.row, digest="bb"), "Date: 4 June 2022\nThe rent rises."
    assert in_words(day_of(store, Writing(LEASE))) == "4 June 2022"
    assert day_of(store, Writing(Path("/desk/other.txt"))) is None
