"""What is measured on is read with clear errors and drawn the same way every time."""

from __future__ import annotations

import json
import lzma
from pathlib import Path

import pytest

from desk_rag.bench.harness import corpus
from desk_rag.errors import ConfigError
from desk_rag.model.language_model import LanguageModel


def rows(count: int) -> list[dict[str, str]]:
    return [
        {"title": f"Title {index}", "passage": f"Fact number {index} is true. " * 5, "question": f"What is {index}?"}
        for index in range(count)
    ]


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.xz"])
def test_held_out_questions_stand_among_other_passages(tmp_path: Path, suffix: str, reader: LanguageModel) -> None:
    file = tmp_path / f"data{suffix}"
    text = "\n".join(json.dumps(row) for row in rows(20))
    file.write_bytes(lzma.compress(text.encode()) if suffix.endswith("xz") else text.encode())
    posed = corpus.posed_held_out(file, 6, 4, reader.prompt)
    assert len(posed) == 6
    assert posed == corpus.posed_held_out(file, 6, 4, reader.prompt)
    for one in posed:
        number = one.question.removeprefix("What is ").removesuffix("?")
        own = [text for text in one.chunks if text.startswith(f"Title {number}\n")]
        assert len(own) == 1
        assert len(set(one.chunks)) == 4


@pytest.mark.parametrize("content", [b"no json", b'{"passage": "x"}', b""])
def test_a_file_without_questions_is_an_error_with_its_name(
    tmp_path: Path, content: bytes, reader: LanguageModel
) -> None:
    file = tmp_path / "data.jsonl"
    if content:
        file.write_bytes(content)
    with pytest.raises(ConfigError, match="data.jsonl"):
        corpus.posed_held_out(file, 3, 2, reader.prompt)


def test_questions_may_be_strings_or_objects(tmp_path: Path) -> None:
    file = tmp_path / "q.json"
    file.write_text('["One?", {"question": "Two?", "answers": []}]')
    assert corpus.questions(file) == [corpus.Question("One?"), corpus.Question("Two?", ())]
    file.write_text('[{"question": "Three?", "answers": ["a", "b"]}]')
    assert corpus.questions(file)[0].answers == ("a", "b")
    for wrong in ("[", "[]", '{"One?": 1}', '[{"answers": []}]'):
        file.write_text(wrong)
        with pytest.raises(ConfigError, match="q.json"):
            corpus.questions(file)
    assert len(corpus.questions(None)) >= 5


def test_byte_models_get_runs_of_the_gates_texts() -> None:
    posed = corpus.posed_for_bytes(9)
    assert len(posed) == 9
    assert all(len(one.chunks) == 4 and all(one.chunks) for one in posed)
    assert posed[0].chunks != posed[4].chunks
