"""Objections to a sentence: nothing new, a statement of a program, nothing of the kind asked for."""

from __future__ import annotations

import pytest

from desk_rag.answering.requirements.answer_kinds import asks_whether
from desk_rag.answering.requirements.objections import Objections, definition_asked, names_code
from desk_rag.answering.requirements.places import Place


@pytest.mark.parametrize(
    ("question", "sentence", "objected"),
    [
        ("Why are keys stored before the rotary position?", "Keys are stored before the rotary position.", True),
        ("Why are keys stored before the rotary position?", "So a chunk can stand at any place.", False),
        ("What are the shutters?", "Shutters", True),  # a heading
        ("Are the keys stored?", "The keys are stored.", False),  # it says yes
        ("How do I remove a folder?", "def remove_folder(store: Store, path: Path) -> None:", True),
        ("How do I remove a folder?", 'return f"{self.reason}: `purge FOLDER` removes it"', True),
        ("How do I remove a folder?", "return to the list and press x", False),
        ("How do I remove a folder?", "from desk_rag.store import remove_folder", True),
        ("How do I remove a folder?", "folder = store.remove(path)", True),
        ("Which function removes a folder?", "def remove_folder(store: Store, path: Path) -> None:", False),
        ("How do I remove a folder?", "If you want to remove one, run purge.", False),
        ("How many seats has a bench?", "BENCH_SEATS = 7", False),
        ("What is a chunk?", "A chunk row lives as long as a document holds it.", True),
        ("What is a chunk?", "Chunks are findable by words at once.", True),
        ("What is a chunk?", "A *chunk* is a passage of a document.", False),
        ("What is a chunk?", "word: chunk; means: a run of a document's text", False),
        ("What is a stitched context?", "Chunks in a stitched context do not see each other.", True),
        ("What is the rent?", "We pay 900 euros for the flat.", False),
        ("How many sockets?", "Sanjay proposes 14 sockets in the hall.", True),
        ("How many sockets?", "They settle on ten.", False),
        ("How many sockets does Sanjay propose?", "Sanjay proposes 14 sockets in the hall.", False),
        ("What is the phone number of the viola teacher?", "Etienne Dufresne, Phone: 0555 190 336", True),
        ("What is the phone number of Dufresne?", "Etienne Dufresne, Phone: 0555 190 336", False),
        ("When was it paid?", "Date: 2024-05-06", True),
        ("When was it written?", "Date: 2024-05-06", False),
        ("How many boats may the shed hold?", "FEW, MANY = 60, 2_400", True),
        ("How much disk space do the photographs need?", "on paper: 461; from the disk: 73", True),
        ("How much disk space do the photographs need?", "photographs_gib = 20.0", False),
        ("How much memory does it need?", "It takes 2.4 GB once loaded.", False),
        ("What is a chunk?", "chunk: ContextChunk", True),
        ("Which languages do we speak at home?", "We speak of the garden.", True),
        ("Which languages do we speak at home?", "With grandmother we speak Danish.", False),
        ("When does the market open?", "The market opens on the chapel meadow.", True),
        ("When does the market open?", "It opens on the chapel meadow at nine.", False),
    ],
)
def test_objections(question: str, sentence: str, objected: bool) -> None:
    assert (Objections(question).penalty(sentence) > 0) is objected


def test_a_question_that_names_code_is_told_from_one_in_plain_words() -> None:
    assert names_code("What does put_chunk do?")
    assert names_code("Which module turns chunks into int8?")
    assert not names_code("How do I remove a folder?")


def test_words_of_a_program_lose_where_the_question_is_in_plain_words() -> None:
    program, guide = Place("", "purging", 0, is_code=True), Place("", "privacy", 0)
    docstring, plain = "Delete the chats of a data directory.", Objections("How do I delete a chat?")
    assert plain.of_origin(program, docstring) > 0 == plain.of_origin(guide, docstring)
    assert plain.of_origin(program, "MOST_CHATS = 40") == 0
    assert Objections("Which function deletes a chat?").of_origin(program, docstring) == 0


def test_a_definition_is_asked_for_with_an_indefinite_article() -> None:
    definition = definition_asked("What is a chunk?")
    assert definition is not None
    assert definition.search("Words\n\nA *chunk* is a passage of a document.")
    assert not definition.search("A chunk row lives as long as a document holds it.")
    assert definition_asked("What is the chunk?") is None


def test_a_question_for_yes_or_no_is_recognised() -> None:
    assert asks_whether("Does it send anything?")
    assert not asks_whether("What does it send?")
