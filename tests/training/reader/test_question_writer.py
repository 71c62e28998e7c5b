"""Questions for the corpus: what is planned, what the writer's words must be, what a check counts, what is kept."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

from desk_rag.model.trained_frame import IM_END
from desk_rag.training.reader.architecture import rotary_tables
from desk_rag.training.reader.data.corpus import books
from desk_rag.training.reader.data.rows import ANSWER_ROOM, PAD, QUESTION, RowBuilder
from desk_rag.training.reader.data.scenes import Synthetic
from desk_rag.training.reader.data.written import Pair, Passage, load_passages
from desk_rag.training.reader.question_writer import (
    WRITER_LENGTH,
    Draft,
    PlanJob,
    Round,
    RoundJob,
    _parse,
    _per_question,
    _scores,
    load_synthetic,
    plan,
    round_rows,
    save_synthetic,
    write_questions,
    writer_rows,
)
from desk_rag.training.reader.training import Group
from tests.training.reader.conftest import chunk_text, decoder

QUOTE = "The Aldous landed 40 barrels of tar before dawn."
DRAFT = Draft(3, 1, QUOTE)


def test_what_the_writer_says_becomes_a_question() -> None:
    question = _parse(DRAFT, "40 barrels \nQuestion: How much tar did the ship land? ")
    assert question == Synthetic("How much tar did the ship land?", QUOTE, "40 barrels")


@pytest.mark.parametrize(
    "told",
    [
        "40 barrels",
        "40 barrels Question: How much tar did it land?",
        "\nQuestion: How much tar did it land?",
        "41 barrels\nQuestion: How much tar did it land?",
        "40 barrels\nQuestion: Did it land 40 Barrels of tar?",
        "40 barrels\nQuestion: How much?",
        "40 barrels\nQuestion: How much tar did it land?\nQuestion: And when was that?",
        "40 barrels\nQuestion: " + "and so on " * 9 + "?",
    ],
)
def test_what_makes_no_sense_is_dropped(told: str) -> None:
    assert _parse(DRAFT, told) is None


def test_the_writer_learns_answer_and_question(data: Path, tokenizer: Tokenizer) -> None:
    passages = load_passages(data, "train")
    rows = list(writer_rows(passages, tokenizer))
    assert len(rows) == sum(len(p.pairs) for p in passages)
    row, first = rows[0], passages[0]
    learned = row.learned[row.learned >= 0]
    text = tokenizer.decode(row.ids[learned].tolist(), skip_special_tokens=False)
    assert text == f"{first.pairs[0].answer}\nQuestion: {first.pairs[0].question}{IM_END}"
    before = tokenizer.decode(row.ids[: learned[0]].tolist(), skip_special_tokens=False)
    framed, _, quote = before.partition('"')
    assert framed == chunk_text(f"{first.title}\n{first.text}")
    assert quote[:-2] in first.text and first.pairs[0].answer in quote and quote.endswith('"\n')
    assert set(row.segments.tolist()) == {QUESTION, PAD} and len(row.ids) == WRITER_LENGTH


def test_what_is_no_use_to_the_writer_is_left_out(tokenizer: Tokenizer) -> None:
    whole = Passage("", QUOTE, True, (Pair("What happened?", QUOTE),))
    across = Passage("", "One.\nTwo.", True, (Pair("What?", "One.\nTwo."),))
    long = Passage("", QUOTE + " And so on." * 400, True, (Pair("What?", "tar"),))
    assert list(writer_rows([whole, across, long], tokenizer)) == []


def test_drafts_are_sentences_of_their_passages(data: Path, tokenizer_path: Path, tokenizer: Tokenizer) -> None:
    numbered = tuple(enumerate(books(data)))
    planned = plan(PlanJob(tokenizer_path, numbered, 2))
    assert planned == plan(PlanJob(tokenizer_path, numbered, 2))
    assert len(planned) == 2 * sum(len(book.passages) for _, book in numbered)
    for one in planned:
        text = numbered[one.draft.book][1].passages[one.draft.passage]
        assert one.draft.quote in text and len(one.prompt) <= WRITER_LENGTH - 64
        said = tokenizer.decode(one.prompt, skip_special_tokens=False)
        assert said.endswith(f'"{one.draft.quote}"\n') and text in said


def test_a_writer_that_knows_nothing_asks_nothing(
    data: Path, tokenizer_path: Path, tokenizer: Tokenizer, alone: Group
) -> None:
    planned = plan(PlanJob(tokenizer_path, tuple(enumerate(books(data)))[:1], 1))
    assert planned and write_questions(decoder(), tokenizer, planned[:4], alone) == []


def test_a_check_counts_each_answer_once(tokenizer_path: Path, tokenizer: Tokenizer, alone: Group) -> None:
    pairs = tuple(
        (Draft(0, 0, QUOTE), Synthetic(question, QUOTE, answer))
        for question, answer in (
            ("What was landed?", "tar"),
            ("How much?", "40 barrels"),
            ("Who landed tar?", "Aldous"),
        )
    )
    ((row, asked),) = round_rows(RoundJob(tokenizer_path, (Round(("Old tar.", QUOTE), pairs),)))
    assert asked == pairs
    model = decoder(2)
    cos, sin = rotary_tables(model.shape, "cpu")
    (scores,) = _scores(model, [row], cos, sin, alone)
    sums = _per_question(row, scores)
    # Each sum is what the answer gets when it is asked alone.
    builder = RowBuilder(tokenizer, 704)
    for (_, one), expected in zip(pairs, sums, strict=True):
        single = builder.build(("Old tar.", QUOTE), [(one.question, f'"{one.quote}"\n{one.answer}')])
        assert single is not None
        (alone_scores,) = _scores(model, [single], cos, sin, alone)
        assert sum(alone_scores) == pytest.approx(expected, abs=1e-3)
    assert all(value < 0 for value in scores) and len(scores) == int((row.learned >= 0).sum())


def test_a_question_that_did_not_fit_ends_the_count(tokenizer: Tokenizer) -> None:
    row = RowBuilder(tokenizer, 512).build(["tar"], [("a", "b"), ("long?", "tar " * ANSWER_ROOM), ("c", "d")])
    assert row is not None
    learned = int((row.learned >= 0).sum())
    ended = int((row.segments[row.learned[:learned]] == QUESTION).sum())
    assert _per_question(row, [-1.0] * learned) == [-1.0 * ended]


def test_kept_questions_are_read_again(tmp_path: Path) -> None:
    written = [(DRAFT, Synthetic("Naïve?", QUOTE, "tar"), -0.514), (Draft(0, 0, "x"), Synthetic("b", "x", "x"), -2.0)]
    save_synthetic(tmp_path / "synthetic.0.jsonl", written)
    save_synthetic(tmp_path / "synthetic.1.jsonl", written[:1])
    save_synthetic(tmp_path / "synthetic.2.jsonl", [])
    loaded = load_synthetic(sorted(tmp_path.glob("synthetic.*.jsonl")))
    assert loaded == {(3, 1): [written[0][1]] * 2, (0, 0): [written[1][1]]}


def test_rows_of_the_writer_are_learned_causally(data: Path, tokenizer: Tokenizer) -> None:
    row = next(writer_rows(load_passages(data, "train"), tokenizer))
    size = int((row.segments == QUESTION).sum())
    assert row.positions[:size].tolist() == list(range(size)) and not np.any(row.segments[size:] != PAD)
    assert torch.from_numpy(row.learned.astype(np.int64)).max() == size - 1
