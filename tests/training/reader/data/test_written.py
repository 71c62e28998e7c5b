"""Written questions on disk, and the same passage made new with other names and numbers."""

from __future__ import annotations

import json
import lzma
import re
from pathlib import Path
from random import Random

import pytest

from desk_rag.training.reader.data.written import (
    Pair,
    Substitutes,
    find,
    load_passages,
    load_together,
    plain_title,
    read_lines,
)
from tests.training.reader.invented import SHIPS, TOGETHER


def test_passages_come_with_their_pairs_and_what_they_do_not_answer(data: Path) -> None:
    passages = load_passages(data, "train")
    assert len(passages) == 24 and all(len(p.pairs) == 2 for p in passages)
    assert all(pair.answer in p.text for p in passages for pair in p.pairs)
    assert [i for i, p in enumerate(passages) if p.unanswerable] == [1, 5, 9, 13, 17, 21]
    assert [p.desk for p in passages[:4]] == [False, True, False, True]


def test_parts_and_compressed_files_are_read_too(tmp_path: Path) -> None:
    row = {"passage": "Tin.", "title": "", "question": "What?", "answer": "Tin", "source": "book"}
    with lzma.open(tmp_path / "qa_train-2.jsonl.xz", "wt", encoding="utf-8") as out:
        out.write(json.dumps(row) + "\n")
    (tmp_path / "qa_train.jsonl").write_text(json.dumps(row | {"question": "Which?"}) + "\n", encoding="utf-8")
    lonely = {"passage": "Salt.", "title": "s", "question": "Who?"}
    (tmp_path / "unanswerable_train.jsonl").write_text(json.dumps(lonely) + "\n", encoding="utf-8")
    assert [path.name for path in find(tmp_path, "qa_train")] == ["qa_train-2.jsonl.xz", "qa_train.jsonl"]
    tin, salt = load_passages(tmp_path, "train")
    assert {pair.question for pair in tin.pairs} == {"What?", "Which?"} and not tin.desk
    assert salt.desk and salt.pairs == () and salt.unanswerable == ("Who?",)
    assert list(read_lines(tmp_path / "qa_train-2.jsonl.xz")) == [row]


def test_texts_that_belong_together_need_their_evidence(tmp_path: Path, data: Path) -> None:
    both = load_together(data, "train")
    assert [one.texts for one in both] == list(TOGETHER) and both[0].evidence == (TOGETHER[0],)
    assert both[0].pairs == (Pair("What belongs to Aldous?", "Zennor"),)
    (tmp_path / "multi_train.jsonl").write_text('{"texts": ["a"], "qas": [["q", "a"]]}\n', encoding="utf-8")
    assert load_together(tmp_path, "train") == []


@pytest.mark.parametrize(
    ("title", "plain"), [("Rent.pdf", "Rent"), ("a.docx - notes", "a"), ("v1.2", "v1.2"), ("Mr. Smith", "Mr. Smith")]
)
def test_titles_lose_their_extension(title: str, plain: str) -> None:
    assert plain_title(title) == plain


def test_names_are_what_stands_capitalised_inside_sentences(data: Path) -> None:
    names = Substitutes(p.text for p in load_passages(data, "train")).names
    assert set(names) & set(SHIPS) and not set(names) & {"The", "In", "No", "Monday"}


def test_other_names_and_numbers_are_the_same_in_passage_question_and_answer(data: Path) -> None:
    passages = load_passages(data, "train")
    substitutes = Substitutes(p.text for p in passages)
    renamed = 0
    for seed, passage in enumerate(passages * 4):
        parts = [passage.text, *(part for pair in passage.pairs for part in (pair.question, pair.answer))]
        text, *changed = substitutes.apply(Random(seed), parts)
        for question, answer in zip(changed[::2], changed[1::2], strict=True):
            ship, pier = re.findall(r"the (\w+) land at pier (\d+)", question)[0]
            assert f"The {ship} landed {answer} barrels" in text and f"at pier {pier} " in text
        assert re.sub(r"[A-Z]\w+|\d", "*", text) == re.sub(r"[A-Z]\w+|\d", "*", passage.text)
        renamed += text != passage.text
    assert renamed > 80


def test_numbers_keep_their_kind(data: Path) -> None:
    substitutes = Substitutes(())
    for seed in range(60):
        year, late, small, zero, hundred, day, long = substitutes.apply(
            Random(seed), ["1843", "2011", "7", "0417", "400", "24", "86420"]
        )
        assert 1801 <= int(year) <= 1899 and 2001 <= int(late) <= 2029
        assert (small, zero, hundred) == ("7", "0417", "400")
        assert 13 <= int(day) <= 28 and len(long) == 5 and long[0] != "0"
    assert substitutes.apply(Random(1), ["24 and 24"])[0].split(" and ")[0] * 2 == "".join(
        substitutes.apply(Random(1), ["24 and 24"])[0].split(" and ")
    )
