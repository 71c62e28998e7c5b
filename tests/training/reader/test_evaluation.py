"""Scores on held-out questions."""

from __future__ import annotations

from pathlib import Path

import pytest
from tokenizers import Tokenizer

from desk_rag.model.trained_frame import NO_ANSWER
from desk_rag.training.reader.data.written import load_passages
from desk_rag.training.reader.evaluation import Item, answers, items, score
from desk_rag.training.reader.training import Group
from tests.training.reader.conftest import decoder


def test_score_of_each_kind_of_answer() -> None:
    item = Item("How many?", "40", ("It took 40 barrels.", "Nothing."), "It took 40 barrels.")
    absent = Item("Who?", NO_ANSWER, ("Nothing.",), None)
    answers = ['"It took 40 barrels."\n40', '"It took 40 barrels."', "41", NO_ANSWER]
    assert score(answers, [item, item, item, absent]) == {
        "exact": 50.0,
        "f1": 60.0,
        "contains": 75.0,
        "right_chunk": 50.0,
        "refused": 25.0,
    }
    assert score([], [])["exact"] == 0.0
    assert score(["About 1400."], [item])["contains"] == 0.0  # 40 is no word of it


@pytest.mark.parametrize("kind", ["all", "books", "desk", "absent", "unanswerable", "together"])
def test_items_hold_or_lack_their_passage(data: Path, kind: str) -> None:
    passages = {p.text: p for p in load_passages(data, "dev")}
    drawn = items(data, kind, 10, 4)
    assert drawn == items(data, kind, 10, 4) and len(drawn) == (2 if kind == "together" else min(10, len(drawn)))
    assert len(drawn) >= 2
    for item in drawn:
        own = [text for text, p in passages.items() if item.question in {pair.question for pair in p.pairs}]
        if kind in ("all", "books", "desk"):
            assert own == [item.gold] and item.gold in item.chunks and len(item.chunks) == 4
            assert kind == "all" or passages[own[0]].desk == (kind == "desk")
        elif kind == "absent":
            assert len(own) == 1 and own[0] not in item.chunks and item.answer == NO_ANSWER
        elif kind == "unanswerable":
            assert item.answer == NO_ANSWER and any(p.unanswerable and p.text in item.chunks for p in passages.values())
        else:
            assert len(item.chunks) == 2 and item.answer in item.chunks[1]


def test_one_chunk_is_read_alike_with_and_without_full_attention(
    data: Path, tokenizer: Tokenizer, alone: Group
) -> None:
    """With a single chunk stitched and full attention are the same; with several they are not."""
    model = decoder(3)
    single = items(data, "all", 3, 1)
    assert answers(model, tokenizer, single, alone, full=True) == answers(model, tokenizer, single, alone, full=False)
    several = items(data, "all", 3, 4)
    assert answers(model, tokenizer, several, alone, full=True) != answers(model, tokenizer, several, alone, full=False)
