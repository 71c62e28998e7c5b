"""The share of its score that a passage keeps by the kind of its file and the form of its sentences."""

from __future__ import annotations

from pathlib import Path

import pytest

from desk_rag.answering.questions.nearest import of_form
from desk_rag.documents.chunking import Chunk, ChunkId, Location
from desk_rag.retrieval.search import RetrievedChunk
from desk_rag.store.types import FileStamp, Passage


def share(question: str, path: str, text: str = "some words") -> float:
    chunk = Chunk(ChunkId("0" * 32), 0, text, 3, Location())
    return of_form(question, RetrievedChunk(Passage(chunk, Path(path), "", FileStamp(1, 2, 3, "p")), 1.0, 1, 1, 0.5))


@pytest.mark.parametrize(
    ("question", "order"),
    [
        ("How do I remove a folder?", ["/r/guide.md", "/r/store/rules.py", "/r/tests/test_rules.py"]),
        ("Which function removes a folder?", ["/r/store/rules.py", "/r/tests/test_rules.py"]),
    ],
)
def test_prose_goes_before_code_and_code_before_tests(question: str, order: list[str]) -> None:
    shares = [share(question, path) for path in order]
    assert shares == sorted(shares, reverse=True) and len(set(shares)) == len(shares)


def test_a_question_about_tests_or_code_keeps_them() -> None:
    assert share("Which tests remove a folder?", "/r/tests/test_rules.py") == 1.0
    assert share("Which function removes a folder?", "/r/guide.md") == share("Which function?", "/r/store/rules.py")


def test_a_passage_that_says_what_something_is_goes_before_others() -> None:
    question = "What is a covenant?"
    assert share(question, "/r/law.md", "A covenant is a promise in a deed.") == 1.0
    assert share(question, "/r/law.md", "A covenant of this lease forbids noise.") < 1.0
