"""Finding by words: what a person types is data, rare words weigh more, names count, scripts without spaces work."""

from __future__ import annotations

import os
import random
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from desk_rag.store.catalog import schema, words
from desk_rag.store.catalog.paths import hold_everything
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


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(max_size=20).map(lambda text: f"{text} flat invoice 2024"))
@example("GA flat invoice 2024")
def test_any_text_is_a_query_beside_frequent_words(corpus: Store, query: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(words, "MOST_SCORED", 2)
        assert "lease.md" in found(corpus, query)


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


ROWS, SCORED = 30_000, 12_000
NO_WEIGHT = 1e-5
"""What a word in more than half of the rows can add to a score."""


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Iterator[sqlite3.Connection]:
    """A catalog of many short passages; its word index has three words that stand in more rows than are scored."""
    place = tmp_path_factory.mktemp("many") / "catalog.sqlite"
    drawn = random.Random(5)
    with closing(sqlite3.connect(place, isolation_level=None)) as connection:
        schema.migrate(connection, place)
        connection.execute("BEGIN")
        connection.executemany(
            "INSERT INTO documents VALUES (?, ?, '', '', 1, 1, '1', '', '', '', 1, 0, '', 0)",
            [(1, b"/docs"), (2, b"/old")],
        )
        connection.executemany(
            "INSERT INTO chunks (id, chunk_id, text, grams, num_tokens, recent) VALUES (?, ?, ?, '', 5, 0)",
            ((row, str(row), _passage(row, drawn)) for row in range(1, ROWS + 1)),
        )
        connection.executemany(
            "INSERT INTO places (document, ordinal, chunk, heading) VALUES (?, ?, ?, '')",
            ((2 if row <= ROWS - 300 else 1, row, row) for row in range(1, ROWS + 1)),
        )
        connection.execute("COMMIT")
        yield connection


def _passage(row: int, drawn: random.Random) -> str:
    planted = {7: "invoice heron", 11: "invoice customer payment", 13: "invoice invoice"}
    if row in planted:
        return planted[row]
    text = ["paper"] * drawn.randint(2, 6)
    text += [word for word, share in (("invoice", 0.6), ("customer", 0.5), ("payment", 0.45)) if drawn.random() < share]
    return " ".join([*text, "heron" if row % 200 == 0 else "stone"])


def searched(
    connection: sqlite3.Connection, question: str, limit: int, under: tuple[Path, ...] = (), most_scored: int = SCORED
) -> dict[str, float]:
    connection.execute("BEGIN")
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(words, "MOST_SCORED", most_scored)
            return {hit.chunk_id: hit.score for hit in words.search(connection, question, limit, under)[0]}
    finally:
        connection.execute("ROLLBACK")


def all_scored(connection: sqlite3.Connection, question: str, under: tuple[Path, ...] = ()) -> dict[str, float]:
    return searched(connection, question, ROWS, under, most_scored=10 * ROWS)


def test_rows_with_a_rare_word_are_all_scored_whatever_frequent_words_stand_beside_it(many: sqlite3.Connection) -> None:
    rows = searched(many, "heron invoice payment customer", 100)
    expected = all_scored(many, "heron invoice payment customer")
    assert next(iter(rows)) == next(iter(expected))
    assert list(rows.values())[:50] == pytest.approx(list(expected.values())[:50], abs=NO_WEIGHT)
    assert rows == pytest.approx({row: expected[row] for row in rows}, abs=NO_WEIGHT)


def test_words_that_cannot_change_the_order_are_not_looked_for(
    many: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    scored, looked_for = words._scored, list[str]()

    def listening(connection: sqlite3.Connection, table: str, expression: str, *rest: Any) -> list[tuple[int, float]]:
        looked_for.extend([expression] if table == "chunk_words" else [])
        return scored(connection, table, expression, *rest)

    monkeypatch.setattr(words, "_scored", listening)
    rows = searched(many, "heron invoice payment customer", 50)
    assert looked_for and not any("invoice" in expression for expression in looked_for), "in more than half of the rows"
    assert not any("NOT" in expression for expression in looked_for), "50 rows with a heron are better than any without"
    best = list(all_scored(many, "heron invoice payment customer").values())[:50]
    assert list(rows.values()) == pytest.approx(best, abs=NO_WEIGHT)
    looked_for.clear()
    searched(many, "heron payment customer", 300)
    assert any("NOT" in expression for expression in looked_for), "150 rows have a heron"


def test_of_frequent_words_rows_with_several_come_first_and_have_their_whole_score(many: sqlite3.Connection) -> None:
    rows = searched(many, "invoice payment customer", 100)
    expected = all_scored(many, "invoice payment customer")
    assert next(iter(rows)) == "11" == next(iter(expected))
    assert rows == pytest.approx({row: expected[row] for row in rows}, abs=NO_WEIGHT)
    assert min(rows.values()) > 0.9 * list(expected.values())[99]


def test_of_one_frequent_word_the_newest_rows_are_scored(many: sqlite3.Connection) -> None:
    rows, expected = searched(many, "invoice", 100), all_scored(many, "invoice")
    assert next(iter(expected)) == "13"
    assert len(rows) == 100 and min(map(int, rows)) > ROWS // 3
    assert rows == pytest.approx({row: expected[row] for row in rows})


@pytest.mark.parametrize("question", ["heron", "heron unheard", "nothing"])
def test_few_rows_are_scored_as_ever(many: sqlite3.Connection, question: str) -> None:
    assert searched(many, question, ROWS) == all_scored(many, question)


@pytest.mark.parametrize("folder", ["/docs", "/old"])
def test_a_folder_limits_frequent_words(many: sqlite3.Connection, folder: str) -> None:
    rows = searched(many, "invoice payment", 3000, (Path(folder),))
    expected = all_scored(many, "invoice payment", (Path(folder),))
    assert rows == pytest.approx({row: expected[row] for row in rows}, abs=NO_WEIGHT)
    assert len(rows) == min(3000, len(expected)) and (folder == "/docs") == (rows.keys() == expected.keys())


_FOLDERS = st.lists(st.sampled_from(["/", "/d", "/d/a", "/d-2", "/d0", "/e/f.md"]).map(Path), max_size=3)
_FILES = st.lists(st.sampled_from(["/d/a/1.md", "/d/2.md", "/d-2/3.md", "/d0/4.md", "/e/f.md", "/d"]), max_size=4)


@settings(max_examples=200, deadline=None)
@given(_FOLDERS, _FILES)
def test_folders_that_hold_everything_are_known_as_such(folders: list[Path], files: list[str]) -> None:
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute("CREATE TABLE documents (path BLOB UNIQUE)")
        connection.executemany("INSERT INTO documents VALUES (?)", [(os.fsencode(file),) for file in set(files)])
        inside = all(any(folder in (Path(file), *Path(file).parents) for folder in folders) for file in files)
        assert hold_everything(connection, folders) == inside


def test_a_search_in_a_thousand_files_is_possible(corpus: Store) -> None:
    files = [Path(f"/docs/{number}.md") for number in range(1000)]
    assert found(corpus, "rent", under=(*files, Path("/docs/lease.md"))) == ["lease.md"]
    assert found(corpus, "rent", under=tuple(files)) == []


def test_a_search_in_all_folders_is_not_limited(many: sqlite3.Connection) -> None:
    traced = list[str]()
    many.set_trace_callback(traced.append)
    limited = searched(many, "invoice payment", 50, (Path("/docs"), Path("/old")))
    many.set_trace_callback(None)
    assert limited == searched(many, "invoice payment", 50)
    assert traced and not any("places.document" in statement for statement in traced)
