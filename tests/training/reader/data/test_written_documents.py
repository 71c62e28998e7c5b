"""The written documents that ship: every answer and every line of evidence stands in its text."""

from __future__ import annotations

from collections import Counter

from desk_rag.assets import assets_dir
from desk_rag.bench.answer_quality.data.sample import Sample
from desk_rag.training.reader.data.written import find, load_passages, load_together, read_lines

FOLDER = assets_dir() / "training"


def test_answers_stand_in_their_passages() -> None:
    passages = load_passages(FOLDER, "train")
    assert len(passages) >= 2703 and sum(len(p.pairs) for p in passages) == 17_508 + 3_928
    assert all(p.desk and p.text.strip() for p in passages)
    assert sum(not p.title for p in passages) == 528  # chunks of files that name themselves nowhere
    assert [(p.title, pair) for p in passages for pair in p.pairs if pair.answer not in (pair.line or p.text)] == []
    assert [(p.title, pair) for p in passages for pair in p.pairs if pair.line not in p.text] == []
    assert sum(bool(pair.line) for p in passages for pair in p.pairs) == 107
    assert sum(len(p.unanswerable) for p in passages) == 4796 + 384


def test_the_files_to_judge_by_hold_their_answers_and_are_none_to_learn_from() -> None:
    samples = [Sample.from_json(line, "") for line in read_lines(FOLDER / "files_dev.jsonl.xz")]
    assert len(samples) == 410 and sum(not sample.answers for sample in samples) == 60
    learned = {passage.text for passage in load_passages(FOLDER, "train")}
    for sample in samples:
        assert len(sample.contexts) == 5 and sample.gold is not None
        (gold,) = (sample.contexts[index] for index in sample.gold)
        assert all(any(wording in gold for wording in part) for part in sample.answers), sample.question
        for chunk in sample.contexts:
            assert chunk not in learned and chunk.partition("\n")[2] not in learned


def test_evidence_stands_in_texts_that_belong_together() -> None:
    together = load_together(FOLDER, "train")
    assert sum(len(one.pairs) for one in together) == 972
    for one in together:
        assert len(one.pairs) == len(one.evidence)
        for pair, lines in zip(one.pairs, one.evidence, strict=True):
            assert any(pair.answer in text for text in one.texts), pair
            assert len(lines) == 2 and all(line in text for line, text in zip(lines, one.texts, strict=True)), pair


def test_no_question_is_asked_twice_of_a_passage() -> None:
    assert len(find(FOLDER, "qa_train")) >= 1
    for passage in load_passages(FOLDER, "train"):
        counts = Counter(pair.question for pair in passage.pairs)
        assert not [question for question, times in counts.items() if times > 1], passage.title
