"""Names, months and weekdays typed in small letters get the capitals that the documents give them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from desk_rag.config import StoreSettings
from desk_rag.retrieval.capitals import as_in_documents
from desk_rag.store.store import Store
from tests.store import made

TEXTS = {
    "/docs/health.md": "Penicillin makes Bruno ill, and Ola sneezes. Dear Mr Thorne, the roof of the Tern leaks.",
    "/docs/plan.txt": "Roof Works\nThe catalogue for Merriweather left the hall in march step. There Ruth played.",
}


@pytest.fixture
def corpus(tmp_path: Path) -> Iterator[Store]:
    store = Store.open(tmp_path / "data", StoreSettings(), writer=True)
    for path, text in TEXTS.items():
        store.put_document(made.document(Path(path), [text]), [made.chunk(text)], made.stamp())
    yield store
    store.close()


@pytest.mark.parametrize(
    ("typed", "read"),
    [
        ("what makes bruno ill?", "what makes Bruno ill?"),
        ("where is bruno's inhaler", "where is Bruno's inhaler"),
        ("what did merriweather and ola order", "what did Merriweather and Ola order"),
        ("when is Ruths birthday", "when is Ruth's birthday"),
        ("where is brunos coach", "where is Bruno's coach"),
        ("what did mr thorne say", "what did mr Thorne say"),
        ("what did we pay in april 2025 and in may", "what did we pay in April 2025 and in May"),
        ("is there choir on tuesday, 3 march?", "is there choir on Tuesday, 3 March?"),
    ],
)
def test_a_name_gets_its_capital(corpus: Store, typed: str, read: str) -> None:
    assert as_in_documents(corpus, typed) == read


@pytest.mark.parametrize(
    "question",
    [
        "who mends the roof?",  # 'Roof' stands capital in a heading only
        "may we march through the hall?",
        "What does Bruno eat?",
        "who works in the catalogue?",
        "what is penicillin?",  # capital only where a sentence begins
        "where is bruno.md?",
    ],
)
def test_other_words_stay_as_they_were_typed(corpus: Store, question: str) -> None:
    assert as_in_documents(corpus, question) == question
