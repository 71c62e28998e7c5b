"""Finding by words: what a person types is data, rare words weigh more, names count, scripts without spaces work."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from desk_rag.store.catalog import words
from desk_rag.store.store import Store
from tests.store import made

TEXTS = {
    "/docs/lease.md": "The rent for the flat is 900 euro a month. Invoice INV-2024-0017 was paid.",
    "/docs/cat.txt": "Die Katze schläft auf dem Sofa. Invoice numbers 2024 and 0017 are unrelated; inv is short.",
    "/docs/tokyo.txt": "私は東京都に住んでいます。",
    "/docs/meterReading2023.csv": "gas 1200 water 33",
    "/papers/thai.txt": "สวัสดีครับ",
    "/papers/long.txt": " ".join(["the what is and"] * 50) + " flat",
}


@pytest.fixture
def corpus(store: Store) -> Store:
    for path, text in TEXTS.items():
        store.put_document(made.document(Path(path), [text]), [made.chunk(text)], made.stamp())
    return store


def found(store: Store, query: str, limit: int = 9, under: tuple[Path, ...] = ()) -> list[str]:
    names = []
    for hit in store.search_words(query, limit, under):
        passage = store.passage(hit.chunk_id)
        assert passage is not None
        names.append(passage.path.name)
    return names


@pytest.mark.parametrize(
    ("query", "first"),
    [
        ("What is the rent?", "lease.md"),
        ("how much is the RENT and what is it for", "lease.md"),
        ("INV-2024-0017", "lease.md"),
        ("inv 2024/0017?", "lease.md"),
        ("schlaft", "cat.txt"),
        ("KATZE", "cat.txt"),
        ("東京", "tokyo.txt"),
        ("どこに住んで", "tokyo.txt"),
        ("สวัสดี", "thai.txt"),
        ("meter reading", "meterReading2023.csv"),
        ("reading 2023", "meterReading2023.csv"),
        ("what is the", "long.txt"),
    ],
)
def test_best_hit(corpus: Store, query: str, first: str) -> None:
    assert found(corpus, query)[0] == first


def test_scores_fall_and_limit_and_scope_hold(corpus: Store) -> None:
    hits = corpus.search_words("flat 2024 invoice", 9)
    scores = [hit.score for hit in hits]
    assert scores == sorted(scores, reverse=True) and len(hits) == 3 and scores[-1] > 0
    assert len(corpus.search_words("flat 2024 invoice", 2)) == 2
    assert corpus.search_words("flat", 0) == []
    assert found(corpus, "flat", under=(Path("/papers"),)) == ["long.txt"]
    assert found(corpus, "flat", under=(Path("/pap"),)) == []
    assert set(found(corpus, "flat", under=(Path("/papers"), Path("/docs/lease.md")))) == {"long.txt", "lease.md"}


@pytest.mark.parametrize(
    "query",
    ["", "   ", "?!", '"', '""" AND (', "NEAR(a b, 3", "text:flat", "flat*", "^flat", "{a b}: c", "-flat", "a\0b"]
    + ["\ud800", "flat OR", "NOT flat", "' OR 1=1 --", "x" * 100_000, "word " * 5_000, "٣٤ ½ ²", "\u0301", "🦊", "ⅷ"],
)
def test_no_query_is_an_error(corpus: Store, query: str) -> None:
    corpus.search_words(query, 5)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(max_size=60))
def test_any_text_is_a_query(corpus: Store, query: str) -> None:
    corpus.search_words(query, 5)


def test_operators_do_not_operate(corpus: Store) -> None:
    assert found(corpus, "katze NOT sofa") == ["cat.txt"]
    assert found(corpus, "gas AND nothingelse")[0] == "meterReading2023.csv"


def test_stop_words_are_left_out_only_beside_others() -> None:
    assert words.match_expression("what is the rent") == '"rent"'
    assert words.match_expression("what is the") == '"what" OR "is" OR "the"'
    assert words.match_expression("...") is None


def test_a_long_question_is_cut() -> None:
    expression = words.match_expression(" ".join(f"w{i}" for i in range(500)))
    assert expression is not None and expression.count(" OR ") == words.MOST_TERMS - 1
