"""The measurement of `desk-rag adapt` runs through and counts what it says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from desk_rag.bench.adapt.__main__ import main
from desk_rag.kv.shift import KNOTS


def test_a_small_measurement(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "results.jsonl"
    words = ["--shapes", "tiny,small", "--chunks", "3", "--chunk-tokens", "20", "--repeat", "1", "--out", str(out)]
    assert main(words) == 0
    told = json.loads(out.read_text(encoding="utf-8"))
    assert told["bench"] == "adapt" and json.loads(capsys.readouterr().out.splitlines()[-1]) == told
    assert [run["shape"] for run in told["runs"]] == ["tiny", "small"]
    small = told["runs"][1]
    assert all(small[key] > 0 for key in ("lesson_ms", "estimate_ms", "step_ms", "placing_ms", "placing_shifted_ms"))
    numbers = len(KNOTS) * 2 * 4 * 64 * 2  # layers, heads, dimensions, keys and values
    assert small["shift_kib"] == pytest.approx(numbers * 4 / 1024, abs=1)
