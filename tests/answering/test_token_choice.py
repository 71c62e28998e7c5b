"""A quote goes on behind 'Mr.'; everything else is greedy."""

from __future__ import annotations

import pytest
import torch

from desk_rag.answering import token_choice
from desk_rag.answering.token_choice import next_token
from desk_rag.model.language_model import LanguageModel
from desk_rag.model.prompt import PromptFormat


@pytest.fixture(scope="module")
def prompt(reader: LanguageModel) -> PromptFormat:
    return reader.prompt


def ids(prompt: PromptFormat, text: str) -> list[int]:
    return list(prompt._plain.encode(text, add_special_tokens=False).ids)


def choice(prompt: PromptFormat, said: str, likeliest: list[str]) -> str:
    """The text of what follows `said`, if these are the likeliest tokens, in this order."""
    order = [ids(prompt, text)[0] for text in likeliest]
    logits = torch.zeros(max(order) + 100)
    for rank, token in enumerate(order):
        logits[token] = 100.0 - rank
    return prompt.decode([next_token(prompt, ids(prompt, said), order[0], logits)])


@pytest.mark.parametrize("title", ["Mr", "Mrs", "Dr", "Prof", "St", "e.g"])
def test_a_quote_does_not_end_behind_an_abbreviation(prompt: PromptFormat, title: str) -> None:
    assert choice(prompt, f'"In July, {title}.', ['"', "\n", " P"]) == "\n"
    assert choice(prompt, f'"One."\n"In July, {title}.', ['"', '"\n', " P"]) == " P"


@pytest.mark.parametrize(
    "said",
    [
        '"The fish are fed in July.',  # a sentence
        "In July, Mr.",  # no quote
        '"One."\nIn July, Mr.',  # the answer's own words
        '"He lives in Ulmstr.',  # only ends alike
        "",
    ],
)
def test_everything_else_is_the_likeliest(prompt: PromptFormat, said: str) -> None:
    assert choice(prompt, said, ['"', " P"]) == '"'


def test_where_nothing_else_is_near_the_quote_ends(prompt: PromptFormat, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_choice, "_MAX_ALTERNATIVES", 1)
    assert choice(prompt, '"In July, Mr.', ['"', " P"]) == '"'


def test_an_open_quote_is_no_end_either(prompt: PromptFormat) -> None:
    mark, stop, after = ids(prompt, '"')[0], min(prompt.stop_ids), ids(prompt, " P")[0]
    logits = torch.zeros(max(mark, stop, after) + 100)
    logits[mark], logits[stop], logits[after] = 3.0, 2.0, 1.0
    assert next_token(prompt, ids(prompt, '"In July, Mr.'), mark, logits) == after
    assert next_token(prompt, ids(prompt, '"In July, Mr. '), mark, logits) == after


def test_a_point_and_a_mark_in_one_token_count_too(prompt: PromptFormat) -> None:
    both = ids(prompt, 'Mr."')[-1]
    assert prompt.decode([both]) == '."'
    logits = torch.zeros(both + 1)
    logits[both], logits[ids(prompt, ".")[0]] = 2.0, 1.0
    assert prompt.decode([next_token(prompt, ids(prompt, '"In July, Mr'), both, logits)]) == "."
