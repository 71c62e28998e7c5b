"""The report on one model has every part, and none of them is empty."""

from __future__ import annotations

import json

import pytest
from gguf import GGMLQuantizationType as Kind

from desk_rag.bench import model as bench_model
from tests.model.gguf.writing import write_reader


@pytest.mark.slow
def test_the_report_of_a_real_file(
    tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path_factory.mktemp("model") / "reader-q8_0.gguf"
    write_reader(file, Kind.Q8_0)
    assert bench_model.main(["--model", str(file), "--device", "cpu", "--questions", "4"]) == 0
    shown = capsys.readouterr().out
    result = json.loads(shown.splitlines()[-1])
    assert result["passages_without_cache"] == 0 == result["questions_left_out"]
    assert "4 questions: that the answers are right or wrong shows nothing" in shown
    assert result["bench"] == "model" and result["questions"] == 4
    assert (result["layers"], result["kv_heads"], result["key_tap"]) == (10, 2, "k_norm")
    assert result["key_error"] < 1e-4 and result["stitched_error"] < 1e-4 < result["unmoved_error"]
    assert result["gate_top1"] > 0.9
    assert result["first_token_cached_ms"] > 0 and result["first_token_full_ms"] > 0
    assert result["right_cached"] >= 2 and result["answers_alike_f1"] > 0.5
    assert all(row["cached"] and row["full"] for row in result["answers"])


def test_the_words_say_no_more_than_the_numbers() -> None:
    numbers = {
        "stitched_error": 3e-5, "unmoved_error": 0.2, "gate_kl": 1e-6, "first_token_cached_ms": 40.0,
        "first_token_full_ms": 300.0, "questions": 17, "right_cached": 12, "right_full": 14, "questions_left_out": 0,
        "passages_without_cache": 0,
    }  # fmt: skip
    said = "\n".join(bench_model.meaning(numbers))
    assert "Caches cost 2 of 14 right answers" in said and "12 of 17 right from caches, 14 without" in said
    assert "not asked" not in said and "too long" not in said
    said = "\n".join(bench_model.meaning(numbers | {"right_cached": 0, "right_full": 0, "questions_left_out": 9}))
    assert "say nothing about caches" in said and "9 questions were not asked" in said
    said = "\n".join(bench_model.meaning(numbers | {"questions": 1, "right_cached": 0, "right_full": 1}))
    assert "1 question: that the answers are right or wrong shows nothing" in said and "Caches cost" not in said
    assert "cost no right answer" in "\n".join(bench_model.meaning(numbers | {"right_cached": 14}))
