"""Sources that are added to an answer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from desk_rag.answering.context import answer_without_sources
from desk_rag.answering.events import Citation, Source, Timings
from desk_rag.answering.questions.one_fact.rewriting import numbered_after
from desk_rag.documents.chunking import ChunkId, Location


def source(number: int, name: str) -> Source:
    return Source(
        number, ChunkId(name), Path(f"/desk/{name}.md"), "", Location(), "", 1.0, warm=None, stale=False
    )  # fmt: skip


def test_a_passage_that_an_answer_has_already_keeps_its_number() -> None:
    done = replace(
        answer_without_sources("?", "", Timings(())), sources=(source(1, "addendum"), source(2, "lease"))
    )
    added = (source(1, "mail"), source(2, "addendum"))
    quotes = [Citation(one.number, one.path, one.location, "") for one in added]
    sources, citations = numbered_after(done, added, quotes)
    assert [(one.number, one.path.stem) for one in sources] == [(1, "addendum"), (2, "lease"), (3, "mail")]
    assert [(one.source_number, one.path.stem) for one in citations] == [(3, "mail"), (1, "addendum")]
