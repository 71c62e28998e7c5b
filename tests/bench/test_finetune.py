"""The fine-tuning benchmark runs through and a resumed run ends where an unbroken one does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from desk_rag.bench.finetune import main


def test_a_small_measurement(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "results.jsonl"
    words = ["--shape", "tiny", "--steps", "2", "--rows", "1", "--rows-at-once", "1", "--folder", str(tmp_path)]
    assert main([*words, "--out", str(out)]) == 0
    report = json.loads(out.read_text(encoding="utf-8"))
    assert report["bench"] == "finetune" and json.loads(capsys.readouterr().out.splitlines()[-1]) == report
    first = report["runs"][0]
    assert first["quantization"] == "none" and first["tokens_per_second"] > 0
    assert first["resumed_loss_difference"] < 1e-3 and first["resumed_largest_difference"] < 1e-2
    assert not list(tmp_path.glob("tmp*")), "what it wrote to measure is gone"
