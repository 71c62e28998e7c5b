"""Every form of data that is accepted, what is refused, and the questions made from a person's own documents."""

from __future__ import annotations

import json
import lzma
import random
from pathlib import Path

import pytest

from desk_rag.errors import ConfigError
from desk_rag.finetune.data import QA, Sample, digest, evidence, hold_out, load_samples, save_samples, target
from desk_rag.finetune.distract import Distractors
from desk_rag.finetune.rules import FolderChunk, make_samples
from desk_rag.model.prompt import NO_ANSWER

BOILER = (
    "Calora 24 › 1 Safety\nIf you smell gas, do not touch any switch and leave the flat. "
    "Call the emergency line in Porto on 0800555140 from outside the building.\n- Serial number: CL24-77031"
)


def written(path: Path, *rows: object) -> Path:
    text = "".join(json.dumps(row) + "\n" for row in rows)
    if path.suffix == ".xz":
        path.write_bytes(lzma.compress(text.encode()))
    else:
        path.write_text(text, encoding="utf-8")
    return path


def test_the_general_form_comes_back_as_it_was_written(tmp_path: Path) -> None:
    porto = "Anna lives in Porto."
    samples = [
        Sample((porto, "Bo lives in Lyon."), (QA("Where is Anna?", "Porto", (porto,)),)),
        Sample(("It rained.",), (QA("Who won?", None),)),
    ]
    file = tmp_path / "data.jsonl"
    file.write_bytes(save_samples(samples))
    assert load_samples(file) == samples
    assert digest(load_samples(file)) == digest(samples) != digest(samples[::-1])


def test_the_projects_forms(tmp_path: Path) -> None:
    passage = {"passage": "The code is 58213. The door is red.", "title": "Shed", "source": "desk"}
    file = written(
        tmp_path / "data.jsonl.xz",
        {**passage, "question": "What is the code?", "answer": "58213"},
        {"texts": ["Ana leads Onyx.", "Ana sits in Graz."], "qas": [["Where is the lead of Onyx?", "Graz"]],
         "evidence": [["Ana leads Onyx.", "Ana sits in Graz."]]},
        {**passage, "question": "Which colour has the door?", "answer": "red"},
        {**passage, "question": "Who painted the door?"},
    )  # fmt: skip
    shed, onyx = load_samples(file)
    assert shed.chunks == ("Shed\nThe code is 58213. The door is red.",)
    assert [(qa.answer, qa.quotes) for qa in shed.qas] == [
        ("58213", ("The code is 58213.",)),
        ("red", ("The door is red.",)),
        (None, ()),
    ]
    assert target(shed.qas[0]) == '"The code is 58213."\n58213'
    assert target(shed.qas[2]) == NO_ANSWER
    assert target(onyx.qas[0]) == '"Ana leads Onyx."\n"Ana sits in Graz."\nGraz'
    assert target(QA("?", "It rained.", ("It rained",))) == '"It rained"'


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"chunks": ["a"], "qas": [{"question": "q"}]}, "'answer' is missing"),
        ({"chunks": [], "qas": []}, "lists of text"),
        ({"chunks": ["The sea."], "qas": [{"question": "q", "answer": "a", "quotes": ["The sky."]}]}, "'The sky.'"),
        ({"passage": "p", "question": " "}, "question is empty"),
        ([1, 2], "line 2"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, row: object, words: str) -> None:
    good = {"chunks": ["The sea."], "qas": [{"question": "q", "answer": "sea"}]}
    with pytest.raises(ConfigError, match="line 2") as caught:
        load_samples(written(tmp_path / "data.jsonl", good, row))
    assert words in caught.value.message


def test_evidence_is_the_sentence_most_like_the_question() -> None:
    chunks = ["Rome has 3 gates. The shed has 3 doors.\nThe shed is green."]
    assert evidence(chunks, "How many doors has the shed?", "3") == ("The shed has 3 doors.",)
    assert evidence(chunks, "How many windows?", "seven") == ()
    inside = ["The shed of Rome has 30 doors. It has 3 of them in oak."]
    assert evidence(inside, "How many doors has the shed of Rome?", "3") == ("It has 3 of them in oak.",)
    long = " ".join(f"w{number}" for number in range(200))
    (cut,) = evidence([long], "?", "w150")
    assert len(cut.split()) == 60 and "w150" in cut.split() and cut in long


def test_holding_out_does_not_depend_on_the_other_samples() -> None:
    samples = [Sample((f"Text number {number}.",), (QA("?", "Text"),)) for number in range(400)]
    trained, held_out = hold_out(samples, 0.1)
    assert 15 < len(held_out) < 70 and len(trained) + len(held_out) == 400
    assert set(hold_out(samples[::2], 0.1)[1]) == set(held_out) & set(samples[::2])
    assert hold_out(samples[:1], 1.0) == (samples[:1], [])


def test_distractors_look_alike_and_do_not_answer() -> None:
    texts = [f"Note {number} about weather" for number in range(60)]
    near = ["The boiler valve is yellow", "A boiler valve was bought", "The boiler valve costs 40 euro"]
    pool = Distractors([*texts, *near])
    assert {pool.texts[index] for index in pool.nearest(near[0])[:2]} == {near[1], near[2]}
    drawn = list(pool.draw([near[0]], ["40 EURO"], random.Random(1)))
    assert near[0] not in drawn and near[2] not in drawn and len(drawn) == len(set(drawn)) > 30
    assert near[1] in drawn[:6]
    again = list(pool.draw([near[0]], ["40 EURO"], random.Random(1)))
    other = list(pool.draw([near[0]], ["40 EURO"], random.Random(2)))
    assert again == drawn != other


def test_questions_made_by_rule_have_answers_that_stand_in_the_chunk() -> None:
    chunks = [FolderChunk(BOILER, "Calora 24"), FolderChunk("Notes", "Notes"), FolderChunk(BOILER, "Calora 24")]
    (sample,) = make_samples(chunks, seed=1, per_chunk=20)
    assert sample.chunks == (BOILER,)
    assert all(qa.answer in BOILER and qa.quotes[0] in BOILER for qa in sample.qas if qa.answer)
    fields = [qa for qa in sample.qas if qa.answer == "CL24-77031"]
    assert len(fields) == 1 and "serial number" in fields[0].question
    gaps = [qa for qa in sample.qas if "____" in qa.question]
    assert {qa.answer for qa in gaps} <= {"Porto", "0800555140"} and gaps
    assert any("1 Safety" in qa.question for qa in sample.qas) and any("about" in qa.question for qa in sample.qas)
    assert make_samples(chunks, seed=1, per_chunk=20) == [sample]
    assert len(make_samples(chunks, seed=1, per_chunk=2)[0].qas) == 2


def test_a_field_of_nothing_but_marks_is_no_answer() -> None:
    (sample,) = make_samples([FolderChunk("Form\nStatus: ***\nSigned by: Anna Berg", "Form")])
    assert [qa.answer for qa in sample.qas] == ["Anna Berg"]
