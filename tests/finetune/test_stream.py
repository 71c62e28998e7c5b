"""Rows are a function of their place, hold what the settings ask for, and fit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from desk_rag.errors import ConfigError
from desk_rag.finetune.data import QA, Sample
from desk_rag.finetune.probe import held_out_contexts
from desk_rag.finetune.rows import IS_CHUNK, PADDING, SEES_CHUNKS, Context, positions_needed
from desk_rag.finetune.settings import TrainSettings
from desk_rag.finetune.stream import Place, RowStream
from desk_rag.model.prompt import NO_ANSWER
from tests.models import byte_prompt

PROMPT = byte_prompt()
SAMPLES = [
    Sample(
        (f"House {number} is painted in tone{number}.",),
        tuple(QA(f"{word} {number}?", f"tone{number}") for word in ("Tone of house", "Paint of", "Colour of")),
    )
    for number in range(30)
]
SETTINGS = TrainSettings(row_tokens=512, distractors=2, questions=2, full_share=0.4, refuse_share=0.25, seed=5)


def stream(settings: TrainSettings = SETTINGS, **changes: object) -> RowStream:
    return RowStream(SAMPLES, PROMPT, settings, **{"max_context": 512, **changes})  # type: ignore[arg-type]


def contexts(settings: TrainSettings) -> list[Context]:
    rows = stream(settings)
    drawn = [rows.context(epoch, at) for epoch in range(10) for at in range(len(SAMPLES))]
    assert all(context is not None for context in drawn)
    return [context for context in drawn if context is not None]


def test_going_on_from_a_place_gives_the_same_rows() -> None:
    one, place = stream(), Place()
    rows, places = [], [place]
    for _ in range(20):
        row, place = one.row(place)
        rows.append(row)
        places.append(place)
    assert places[-1].epoch >= 1 and places[-1].row == 20
    again, _ = stream().row(places[12])
    assert all(np.array_equal(getattr(again, name), getattr(rows[12], name)) for name in ("ids", "roles", "weights"))
    assert not np.array_equal(stream(replace(SETTINGS, seed=6)).row(Place())[0].ids, rows[0].ids)


def test_shares_of_full_attention_and_of_questions_without_answer() -> None:
    drawn = contexts(SETTINGS)
    refusal = tuple(PROMPT.answer_ids(NO_ANSWER))
    refused = [context for context in drawn if all(asked.answer == refusal for asked in context.asked)]
    assert 0.3 < sum(context.full for context in drawn) / len(drawn) < 0.5
    assert 0.17 < len(refused) / len(drawn) < 0.33
    assert all(len(context.asked) <= 2 and 1 <= len(context.chunks) <= 3 for context in drawn)
    for context in drawn:
        answer = PROMPT.decode(context.asked[0].answer).splitlines()[-1]
        holding = [chunk for chunk in context.chunks if f"in {answer}." in PROMPT.decode(chunk)]
        assert len(holding) == (0 if context in refused else 1)
    places = {context.chunks.index(chunk) for context in drawn for chunk in context.chunks if len(context.chunks) == 3}
    assert places == {0, 1, 2}


def test_rows_fit_and_hold_several_contexts() -> None:
    contexts, place = stream(), Place()
    for _ in range(10):
        row, place = contexts.row(place)
        assert len(row.ids) == 512 and row.islands.max() >= 1
        assert (row.weights[row.islands == PADDING] == 0).all() and row.weights.sum() > 0
        assert row.positions.max() < 512
        full = ((row.roles & IS_CHUNK) > 0) & ((row.roles & SEES_CHUNKS) > 0)
        assert full.any() or (row.roles & IS_CHUNK).any()


def test_the_window_of_the_model_is_kept_to() -> None:
    tight = stream(max_context=150)
    drawn = [tight.context(0, at) for at in range(len(SAMPLES))]
    assert any(drawn) and all(positions_needed(context) <= 150 for context in drawn if context)
    with pytest.raises(ConfigError, match="Not one of 30 samples"):
        stream(max_context=40)


def test_plain_text_is_replayed_in_its_share() -> None:
    replayed = stream(replace(SETTINGS, replay_share=0.5), replay=["A long walk by the sea. " * 40])
    rows, place = [], Place()
    for _ in range(40):
        row, place = replayed.row(place)
        rows.append(row)
    texts = [row for row in rows if not row.roles.any()]
    assert 10 <= len(texts) <= 30 and all(row.weights[1:].all() for row in texts)


def test_all_of_a_long_text_is_replayed_and_ends_only_where_the_text_does() -> None:
    text = "".join(f"{number:04d} " for number in range(1000))
    rows = stream(replace(SETTINGS, replay_share=1.0), replay=[text])
    (end,) = PROMPT.answer_ids("")
    read, place = [], Place()
    for _ in range(120):
        row, place = rows.row(place)
        read.append(row.ids.tolist())
    words = {word for ids in read for word in PROMPT.decode(ids).split() if len(word) == 4}
    assert len(words) > 950
    for ids in read:
        for end_index in (index for index, token in enumerate(ids) if token == end):
            assert PROMPT.decode(ids[:end_index]).endswith("0999 ")


def test_both_kinds_of_attention_are_compared_on_the_same_questions() -> None:
    unlike = 0
    for row_tokens in (150, 190, 512):
        rows = stream(replace(SETTINGS, row_tokens=row_tokens, questions=3, refuse_share=0.0))
        for one, other in held_out_contexts(rows, 30, len(SAMPLES)):
            assert (one.chunks, one.asked, one.full, other.full) == (other.chunks, other.asked, False, True)
        both = [[rows.context(0, at, full=full) for full in (False, True)] for at in range(len(SAMPLES))]
        unlike += sum(
            one is not None and other is not None and len(one.chunks) == len(other.chunks) and one.asked != other.asked
            for one, other in both
        )
    assert unlike
