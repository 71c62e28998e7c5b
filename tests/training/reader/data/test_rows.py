"""Training rows: layout, what is learned, and who sees whom."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from torch import Tensor

from desk_rag.model.trained_frame import HEAD, IM_END
from desk_rag.training.reader.architecture import Decoder, rotary_tables
from desk_rag.training.reader.data.rows import (
    ANSWER_ROOM,
    COPY,
    PAD,
    PREFIX,
    QUESTION,
    Row,
    RowBuilder,
    attention_mask,
    save_rows,
    visible,
)
from desk_rag.training.reader.training import Group, Rows
from tests.training.reader.conftest import chunk_text, decoder, question_text

CHUNKS = ("The Aldous landed 40 barrels of tar.", "The Brenna landed 7 barrels.", "No tar beside the quay.")
ASKED = (("What did the Aldous land?", "tar"), ("How many did the Brenna land?", '"The Brenna landed 7 barrels."\n7'))
LENGTH = 512


@pytest.fixture(scope="module")
def row(tokenizer: Tokenizer) -> Row:
    built = RowBuilder(tokenizer, LENGTH).build(CHUNKS, ASKED)
    assert built is not None
    return built


def ids_of(tokenizer: Tokenizer, text: str) -> list[int]:
    return list(tokenizer.encode(text, add_special_tokens=False).ids)


def sees(asks: int, held: int, full: bool) -> bool:
    """Reference for the mask: decided by kinds of segments, one pair of tokens at a time."""

    def kind(segment: int) -> str:
        if segment == PAD:
            return "pad"
        if segment == PREFIX:
            return "prefix"
        return "copy" if segment >= COPY else "question" if segment >= QUESTION else "chunk"

    pair = kind(asks), kind(held)
    if kind(held) == "pad":
        return False
    if asks == held:
        return True
    if full:
        return pair[1] == "prefix" or pair in {("question", "chunk"), ("chunk", "chunk")}
    if pair[0] == "question":
        return pair[1] in {"prefix", "chunk"}
    if pair == ("chunk", "prefix"):
        return asks == 1
    return pair == ("chunk", "copy") and held - COPY == asks


@pytest.mark.parametrize("full", [False, True])
def test_visibility_is_what_a_slow_loop_says(row: Row, full: bool) -> None:
    kinds = sorted(set(row.segments.tolist()))
    assert {PAD, PREFIX, 1, 2, 3, QUESTION, QUESTION + 1, COPY + 2, COPY + 3} == set(kinds)
    # What a copy or padding sees is never used under full attention.
    asking = [kind for kind in kinds if kind != PAD and not (full and kind >= COPY)]
    every = torch.tensor(kinds)
    allowed = visible(torch.tensor(asking)[:, None], every[None], torch.tensor(full))
    for asks, line in zip(asking, allowed.tolist(), strict=True):
        assert line == [sees(asks, held, full) for held in kinds], asks


@pytest.mark.parametrize("full", [False, True])
def test_mask_is_the_rule_backwards_in_time(row: Row, full: bool) -> None:
    segments = torch.from_numpy(row.segments.astype(np.int64))[None]
    mask = attention_mask(segments, torch.tensor([full]), torch.float32)[0, 0]
    assert set(mask.flatten().tolist()) == {0.0, float("-inf")}
    used = [i for i, kind in enumerate(row.segments.tolist()) if kind != PAD and not (full and kind >= COPY)]
    for i in used[::7]:
        for j in range(LENGTH):
            allowed = j == i or (j < i and sees(int(row.segments[i]), int(row.segments[j]), full))
            assert (mask[i, j].item() == 0.0) == allowed, (i, j)


def test_layout_is_prefix_chunks_behind_copies_questions(tokenizer: Tokenizer, row: Row) -> None:
    head = ids_of(tokenizer, HEAD)
    bodies = [ids_of(tokenizer, chunk_text(text)) for text in CHUNKS]
    turns = [ids_of(tokenizer, question_text(q)) + ids_of(tokenizer, a + IM_END) for q, a in ASKED]
    flat = [*head, *bodies[0], *head, *bodies[1], *head, *bodies[2], *turns[0], *turns[1]]
    assert row.ids[: len(flat)].tolist() == flat and set(row.segments[len(flat) :].tolist()) == {PAD}
    # Chunks stand at consecutive positions as in a stitched context, each copy right before its chunk.
    position = len(head)
    for number, body in enumerate(bodies, 1):
        assert row.positions[row.segments == number].tolist() == list(range(position, position + len(body)))
        if number > 1:
            assert row.positions[row.segments == COPY + number].tolist() == list(range(position - len(head), position))
        position += len(body)
    for number, ids in enumerate(turns):
        assert row.positions[row.segments == QUESTION + number].tolist() == list(range(position, position + len(ids)))


def test_learned_are_the_answers_and_their_end(tokenizer: Tokenizer, row: Row) -> None:
    learned = row.learned[row.learned >= 0]
    assert len(row.learned) == ANSWER_ROOM
    answers = "".join(answer + IM_END for _, answer in ASKED)
    assert tokenizer.decode(row.ids[learned].tolist(), skip_special_tokens=False) == answers


def test_what_does_not_fit_is_left_out(tokenizer: Tokenizer) -> None:
    assert RowBuilder(tokenizer, 60).build(CHUNKS, ASKED) is None
    assert RowBuilder(tokenizer, LENGTH).build(CHUNKS, []) is None
    long = ("Who?", "tar " * ANSWER_ROOM)
    built = RowBuilder(tokenizer, 2048).build(CHUNKS, [long, ASKED[0]])
    assert built is not None
    # The question that fits keeps its number.
    assert {int(s) for s in built.segments if QUESTION <= s < COPY} == {QUESTION + 1}


def states(model: Decoder, row: Row, full: bool) -> Tensor:
    """Hidden states [T, width] of a row."""
    cos, sin = rotary_tables(model.shape, "cpu")
    ids, segments, positions = (
        torch.from_numpy(getattr(row, field).astype(np.int64))[None] for field in ("ids", "segments", "positions")
    )
    mask = attention_mask(segments, torch.tensor([full]), torch.float32)
    with torch.no_grad():
        return model.hidden(ids, cos[positions][:, None], sin[positions][:, None], mask)[0]


def plain(model: Decoder, ids: list[int], start: int) -> Tensor:
    """Hidden states of a plain causal pass from position `start` on."""
    cos, sin = rotary_tables(model.shape, "cpu")
    with torch.no_grad():
        return model.hidden(torch.tensor([ids]), cos[start : start + len(ids)], sin[start : start + len(ids)])[0]


def test_a_chunk_behind_its_own_copy_is_a_plain_causal_pass(tokenizer: Tokenizer, row: Row) -> None:
    model = decoder()
    hidden = states(model, row, full=False)
    head = ids_of(tokenizer, HEAD)
    for number, text in enumerate(CHUNKS, 1):
        of_chunk = row.segments == number
        start = int(row.positions[of_chunk][0]) - len(head)
        alone = plain(model, head + ids_of(tokenizer, chunk_text(text)), start)
        torch.testing.assert_close(hidden[torch.from_numpy(of_chunk)], alone[len(head) :], atol=2e-5, rtol=1e-4)


def test_full_rows_are_a_plain_causal_pass_over_everything(tokenizer: Tokenizer, row: Row) -> None:
    model = decoder(1)
    hidden = states(model, row, full=True)
    context = ids_of(tokenizer, HEAD) + [i for text in CHUNKS for i in ids_of(tokenizer, chunk_text(text))]
    for number, (question, answer) in enumerate(ASKED):
        ids = context + ids_of(tokenizer, question_text(question)) + ids_of(tokenizer, answer + IM_END)
        mine = torch.from_numpy(row.segments == QUESTION + number)
        torch.testing.assert_close(hidden[mine], plain(model, ids, 0)[len(context) :], atol=2e-5, rtol=1e-4)


def test_questions_do_not_see_each_other(tokenizer: Tokenizer, row: Row) -> None:
    model = decoder(2)
    alone = RowBuilder(tokenizer, LENGTH).build(CHUNKS, ASKED[1:])
    assert alone is not None
    one = states(model, row, full=False)[torch.from_numpy(row.segments == QUESTION + 1)]
    other = states(model, alone, full=False)[torch.from_numpy(alone.segments == QUESTION)]
    torch.testing.assert_close(one, other, atol=2e-5, rtol=1e-4)


def test_saved_rows_are_taken_again(row: Row, tmp_path: Path, alone: Group) -> None:
    save_rows(str(tmp_path / "some.000"), [row])
    save_rows(str(tmp_path / "some.001"), [row, row])
    rows = Rows(tmp_path, "some", alone)
    taken = rows.take(2)
    assert rows.count == 3 and taken["ids"].shape == (2, LENGTH)
    for field in ("ids", "segments", "positions", "learned"):
        assert taken[field][0].tolist() == getattr(row, field).tolist()
