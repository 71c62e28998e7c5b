"""The frame of training texts: the tokenizer, the answer's form, sentences, evidence."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer

from desk_rag.documents.sentences import sentences, units
from desk_rag.errors import ModelError
from desk_rag.model.trained_frame import (
    CHUNK_CLOSE,
    CHUNK_OPEN,
    DOC_END,
    DOC_START,
    END_OF_TEXT,
    IM_END,
    IM_START,
    NO_ANSWER,
    QUESTION_OPEN,
    TAIL,
)
from desk_rag.training.reader.data.frame import SPECIALS, Frame, answer_text, clip, content_words, evidence, mark_id
from tests.training.reader.conftest import VOCAB


@pytest.mark.parametrize("text", ["Tin: 417 barrels.", "naïve \u20ac12\n\n  two  spaces\ttab", "日本 🙂", ""])
def test_tokenizer_gives_every_text_back(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False).ids) == text


def test_marks_are_single_tokens_and_digits_stand_alone(tokenizer: Tokenizer) -> None:
    assert [mark_id(tokenizer, mark) for mark in SPECIALS] == list(range(len(SPECIALS)))
    assert tokenizer.encode("4172206", add_special_tokens=False).tokens == list("4172206")


def test_a_mark_in_a_text_is_ordinary_characters(tokenizer: Tokenizer) -> None:
    frame = Frame(tokenizer)
    marks = [mark_id(tokenizer, mark) for mark in (DOC_START, DOC_END, IM_START, IM_END)]
    start, end, turn, over = marks
    for text in ("tin", f"a{IM_END}b{DOC_END}", END_OF_TEXT):
        (chunk,), (question,), (answer,) = frame.chunks([text]), frame.questions([text]), frame.answers([text])
        assert [token for token in chunk if token < len(SPECIALS)] == [start, end]
        assert [token for token in question if token < len(SPECIALS)] == [over, turn]
        assert [token for token in answer if token < len(SPECIALS)] == [over] and answer[-1] == over
        assert tokenizer.decode(chunk, skip_special_tokens=False) == f"{CHUNK_OPEN}{text}{CHUNK_CLOSE}"
        assert tokenizer.decode(question, skip_special_tokens=False) == f"{QUESTION_OPEN}{text}{TAIL}"


def test_a_missing_mark_is_named(tokenizer: Tokenizer) -> None:
    with pytest.raises(ModelError, match="<\\|nothing\\|>"):
        mark_id(tokenizer, "<|nothing|>")


@pytest.mark.parametrize(
    ("quotes", "answer", "told"),
    [
        (["Tea is at four."], "four", '"Tea is at four."\nfour'),
        (["Tea is at four."], None, '"Tea is at four."'),
        (["Tea is at four."], "Tea is at four", '"Tea is at four."'),
        (["One.", "", "Two."], "2", '"One."\n"Two."\n2'),
        ([], "four", "four"),
        ([], None, NO_ANSWER),
    ],
)
def test_form_of_an_answer(quotes: list[str], answer: str | None, told: str) -> None:
    assert answer_text(quotes, answer) == told


def test_a_long_quote_is_cut_around_the_answer() -> None:
    sentence = " ".join(f"w{n}" for n in range(200))
    cut = clip(sentence, "w150")
    assert len(cut.split()) == 60 and "w150" in cut.split() and cut in sentence
    assert clip("short and whole", "whole") == "short and whole"


def test_sentences_end_before_capitals_only() -> None:
    assert sentences('He said "no." Then he left. It cost 3.50 euros e.g. for tar.') == [
        'He said "no."',
        "Then he left.",
        "It cost 3.50 euros e.g. for tar.",
    ]
    assert units("One line\n\nTwo. Three.") == ["One line", "Two.", "Three."]


def test_evidence_is_the_unit_most_like_the_question() -> None:
    text = "The Aldous has 40 barrels. The Brenna took 40 sailors.\nNothing else."
    assert evidence(text, "How many sailors took the Brenna?", "40") == "The Brenna took 40 sailors."
    assert evidence(text, "How many barrels has the Aldous?", "40") == "The Aldous has 40 barrels."
    assert evidence(text, "Who?", "sailors.\nNothing") is None
    whole = "It was mended by Mr. Polglase of Zennor. He was paid."
    assert evidence(whole, "Who mended it?", "Mr. Polglase") == "It was mended by Mr. Polglase of Zennor."
    assert evidence("Tar\nRope and salt", "What?", "Tar") == "Tar"  # too short to be quoted by choice, and yet a line
    assert content_words("The Brenna and 40 of them") == {"brenna", "40", "them"}


def test_the_tokenizer_has_the_size_asked_for(tokenizer: Tokenizer) -> None:
    assert tokenizer.get_vocab_size() == VOCAB
