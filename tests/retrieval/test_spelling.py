"""Slips in a question are corrected by the words of the documents; real words and known names are left alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from desk_rag.config import StoreSettings
from desk_rag.retrieval.spelling import spelled_as_documents
from desk_rag.store.store import Store
from tests.store import made

TEXTS = {
    "/docs/rooms.md": "The kingfisher room costs 96 crowns. Shutters are painted by Maud Teller.",
    "/docs/people.txt": "Otto Winkel repairs the turbine. Guests may ask Nandakumar about the wedding.",
    "/docs/notes.txt": "We saw mice in the bakehouse, and she smokes in the yard.",
}


@pytest.fixture
def corpus(tmp_path: Path) -> Iterator[Store]:
    store = Store.open(tmp_path / "data", StoreSettings(), writer=True)
    for path, text in TEXTS.items():
        store.put_document(made.document(Path(path), [text]), [made.chunk(text)], made.stamp())
    yield store
    store.close()


def test_a_question_in_another_language_has_no_slips_of_english_words(corpus: Store) -> None:
    german = "Wann werden die Gaste von Nandakumer abgeholt, die Hochzeit und das Bakhouse?"
    assert spelled_as_documents(corpus, "Which shuters cost 96 crowns?") is not None
    assert spelled_as_documents(corpus, "Wann shuters die Zimmer?", in_english=False) is None
    spelled = spelled_as_documents(corpus, german, in_english=False)
    assert spelled is not None and spelled.replaced[0] == ("Nandakumer", "Nandakumar")


@pytest.mark.parametrize(
    ("question", "corrected"),
    [
        ("What does the kingfishr room cost?", "What does the kingfisher room cost?"),
        ("Who repairs the turbne?", "Who repairs the turbine?"),
        ("Who paints the shuters?", "Who paints the shutters?"),
        ("What does Nandakumer know?", "What does Nandakumar know?"),
        ("Kingfishr room: what does it cost?", "Kingfisher room: what does it cost?"),
        ("Waht does the kingfisher room cost?", "What does the kingfisher room cost?"),
        ("how meny mice?", "how many mice?"),
        ("whhich room costs 96 crowns?", "which room costs 96 crowns?"),
    ],
)
def test_a_slip_is_read_as_the_documents_spell_it(corpus: Store, question: str, corrected: str) -> None:
    spelled = spelled_as_documents(corpus, question)
    assert spelled is not None
    assert spelled.question.casefold() == corrected.casefold()
    ((typed, _),) = spelled.replaced
    assert f"“{typed}” was read as" in spelled.notice


@pytest.mark.parametrize(
    "question",
    [
        "What does the kingfisher room cost?",
        "Who is taller?",  # like Teller, but English
        "Who is Wheen?",  # a name
        "Has she a dose?",  # like 'does', but English
        "Is WHOM a firm?",
        "What was done against the rodents?",
        "Who are the smokers?",  # an ending of a word that is English
        "Where is the bakehouses' key?",
        "What does kingfishr.md say?",  # a file name is looked for as it is
        "What does /docs/kingfishr hold?",
    ],
)
def test_english_words_and_file_names_are_no_slips(corpus: Store, question: str) -> None:
    assert spelled_as_documents(corpus, question) is None


def test_a_question_word_of_another_language_is_no_slip_of_an_english_one(corpus: Store) -> None:
    assert spelled_as_documents(corpus, "Hoe hoog is de huur?", in_english=False) is None
    spelled = spelled_as_documents(corpus, "Wat kost de kingfishr?", in_english=False)
    assert spelled is not None and spelled.question == "Wat kost de kingfisher?"


def test_a_name_in_the_question_is_told_from_a_word(corpus: Store) -> None:
    spelled = spelled_as_documents(corpus, "Who repairs it, Otto Winkle?")
    assert spelled is not None and spelled.question == "Who repairs it, Otto Winkel?"
    assert spelled.names == ("Winkle",)
    assert spelled_as_documents(corpus, "Did Mr Turbne come?") is None  # a name is not read as the turbine


def test_the_store_gives_whole_words_although_its_index_holds_stems(corpus: Store) -> None:
    typed = ("kingfishr", "xylophones", "turbine", "rooms", "turbne")
    assert corpus.spellings(typed, "turbne".__eq__) == {"kingfishr": ["kingfisher"]}


def test_a_word_that_is_known_in_another_form_is_no_slip(corpus: Store) -> None:
    corpus.put_document(
        made.document(Path("/docs/gas.txt"), ["Prices rise."]), [made.chunk("Prices rise.")], made.stamp()
    )
    assert spelled_as_documents(corpus, "Why did they revise the bill?") is None


@pytest.mark.parametrize(
    "rule", ["- Quiet hours are from 22:00 to 7:00.", "House rules.\nWe like Quiet and a quiet night."]
)
def test_a_name_is_not_read_as_an_ordinary_word(corpus: Store, rule: str) -> None:
    corpus.put_document(made.document(Path("/docs/rules.md"), [rule]), [made.chunk(rule)], made.stamp())
    assert spelled_as_documents(corpus, "How much does Benno Quist get?") is None
    spelled = spelled_as_documents(corpus, "When are the quist hours?")
    assert spelled is not None and spelled.question == "When are the quiet hours?"
