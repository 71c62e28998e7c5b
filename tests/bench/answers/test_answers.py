"""The benchmark over whole folders: its questions are sound, its marks and intervals right, its command runs."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from desk_rag.bench.answers import desks, questions
from desk_rag.bench.answers.__main__ import main
from desk_rag.bench.answers.rates import Rate
from desk_rag.errors import ConfigError

REPOSITORY = Path(__file__).parents[3]


@pytest.mark.parametrize("name", desks.text_names())
def test_every_question_has_its_evidence_in_the_files(name: str) -> None:
    content = {path: " ".join(text.split()) for path, text in desks.files(name).items()}
    loaded = questions.load(desks.questions_of(name))
    assert len(content) >= 50
    assert len(loaded) >= 60
    for question in loaded:
        assert bool(question.answers) == (question.kind != questions.NO_ANSWER)
        assert len(question.files) == len(question.evidence)
        for file, passage in zip(question.files, question.evidence, strict=True):
            assert " ".join(passage.split()) in content[file], question.text


@pytest.mark.parametrize("name", sorted({*desks.names()} - {*desks.text_names()}))
def test_folders_of_many_kinds_hold_the_files_that_questions_need(name: str, tmp_path: Path) -> None:
    desks.write(name, tmp_path / "folder")
    written = [file for file in (tmp_path / "folder").rglob("*") if file.is_file()]
    assert len(written) >= 90 and all(file.is_relative_to(tmp_path / "folder") for file in written)
    assert {".docx", ".xlsx", ".pdf", ".eml", ".odt", ".pptx", ".csv"} <= {file.suffix for file in written}
    loaded = questions.load(desks.questions_of(name))
    assert len(loaded) == 208 and sum(not question.answerable for question in loaded) == 25
    for question in loaded:
        assert bool(question.answers) == (question.kind != questions.NO_ANSWER)
        assert len(question.files) == len(question.evidence) and bool(question.files) == question.answerable
        assert all((tmp_path / "folder" / file).stat().st_size > 0 for file in question.files), question.text


def test_the_answers_about_this_repository_stand_in_its_files() -> None:
    loaded = questions.load(REPOSITORY / "desk_rag/bench/answers/desks/repository.jsonl")
    assert len(loaded) == 40 and sum(question.answerable for question in loaded) == 36
    for question in loaded:
        texts = [" ".join((REPOSITORY / file).read_text().split()) for file in question.files]
        stands = [" ".join(passage.split()) in text for passage, text in zip(question.evidence, texts, strict=True)]
        assert any(stands) or not question.answerable, f"{question.text} Mend its evidence in repository.jsonl."


def test_wilson_intervals() -> None:
    low, high = Rate(9, 10).interval
    assert (round(low, 3), round(high, 3)) == (0.596, 0.982)
    assert str(Rate(0, 10)) == "0 [0, 28]"


def test_a_line_that_is_no_question_is_named(tmp_path: Path) -> None:
    file = tmp_path / "q.jsonl"
    file.write_text('{"question": "Why?", "answers": []}\n{"question": "Who?"}\n')
    with pytest.raises(ConfigError, match="Line 2"):
        questions.load(file)


@pytest.mark.slow
def test_the_command_marks_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "docs"
    folder.mkdir()
    (folder / "bicycle.txt").write_text("Notes on the bicycle\n\nThe frame number of the blue bicycle is WTU-4471-B.\n")
    rows = [
        {"question": "What is the frame number of the blue bicycle?", "answers": [["WTU-4471-B"]],
         "files": ["bicycle.txt"], "evidence": ["The frame number of the blue bicycle is WTU-4471-B."]},
        {"question": "Who composed the opera about the moon?", "answers": []},
    ]  # fmt: skip
    asked = folder / "questions/q.jsonl"
    asked.parent.mkdir()
    asked.write_text("".join(json.dumps(row) + "\n" for row in rows))
    arguments = ["--folder", str(folder), "--questions", str(asked), "--data-dir", str(tmp_path / "d")]
    arguments += ["--answers", str(tmp_path / "answers.jsonl")]
    assert main([*arguments, "--threads", "1"]) == 0
    answers = [json.loads(line) for line in (tmp_path / "answers.jsonl").read_text().splitlines()]
    assert {name for answer in answers for name in answer["sources"]} == {"bicycle.txt"}
    *lines, last = capsys.readouterr().out.strip().splitlines()
    assert re.search(r"^all +2 ", "\n".join(lines), re.MULTILINE)
    rates = json.loads(last)["rates"]["all"]
    assert {name: rates[name][0] for name in ("file", "chunk", "output", "exact", "quoted", "refused")} == {
        "file": 1.0, "chunk": 1.0, "output": 1.0, "exact": 1.0, "quoted": 1.0, "refused": 1.0,
    }  # fmt: skip
    assert rates["misled"][0] == 0.0
