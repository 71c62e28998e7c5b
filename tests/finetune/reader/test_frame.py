"""The frame of training texts: the tokenizer, the answer's form, sentences, evidence."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer

from desk_rag.errors import ModelError
from desk_rag.finetune.reader.frame import (
    SPECIALS,
    answer_text,
    chunk_text,
    clip,
    content_words,
    evidence,
    mark_id,
    question_text,
    sentences,
    units,
)
from desk_rag.trained_frame import DOC_END, DOC_START, IM_END, NO_ANSWER
from tests.finetune.reader.conftest import VOCAB


@pytest.mark.parametrize("text", ["Tin: 417 barrels.", "naïve \u20ac12\n\n  two  spaces\ttab", "日本 🙂", ""])
def test_tokenizer_gives_every_text_back(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False).ids) == text


def test_marks_are_single_tokens_and_digits_stand_alone(tokenizer: Tokenizer) -> None:
    assert [mark_id(tokenizer, mark) for mark in SPECIALS] == list(range(len(SPECIALS)))
    assert tokenizer.encode("4172206", add_special_tokens=False).tokens == list("4172206")
    framed = tokenizer.encode(chunk_text("tin"), add_special_tokens=False).tokens
    assert framed[0] == DOC_START and DOC_END in framed
    assert question_text("Who?").startswith("Question: Who?" + IM_END)


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
    assert content_words("The Brenna and 40 of them") == {"brenna", "40", "them"}


def test_the_tokenizer_has_the_size_asked_for(tokenizer: Tokenizer) -> None:
    assert tokenizer.get_vocab_size() == VOCAB
