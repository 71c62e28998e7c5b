"""The written documents that ship: every answer and every line of evidence stands in its text."""

from __future__ import annotations

from collections import Counter

from desk_rag.assets import assets_dir
from desk_rag.finetune.reader.written import find, load_passages, load_together

FOLDER = assets_dir() / "training"


def test_answers_stand_in_their_passages() -> None:
    passages = load_passages(FOLDER, "train")
    assert len(passages) >= 1715 and sum(len(p.pairs) for p in passages) == 17_508
    assert all(p.desk and p.text.strip() and p.title for p in passages)
    assert [(p.title, pair) for p in passages for pair in p.pairs if pair.answer not in p.text] == []
    assert sum(len(p.unanswerable) for p in passages) == 4796


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
        asked = Counter(pair.question for pair in passage.pairs)
        assert not [question for question, times in asked.items() if times > 1], passage.title
