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
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert result["bench"] == "model" and result["questions"] == 4
    assert (result["layers"], result["kv_heads"], result["key_tap"]) == (10, 2, "k_norm")
    assert result["key_error"] < 1e-4 and result["stitched_error"] < 1e-4 < result["unmoved_error"]
    assert result["gate_top1"] > 0.9
    assert result["first_token_cached_ms"] > 0 and result["first_token_full_ms"] > 0
    assert result["right_cached"] >= 2 and result["answers_alike_f1"] > 0.5
    assert all(row["cached"] and row["full"] for row in result["answers"])
