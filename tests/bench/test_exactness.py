"""The exactness table is made of real comparisons, in every dtype, with a negative control that is seen."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from desk_rag.bench import exactness
from tests.models import FAMILIES


@pytest.mark.parametrize("name", ["qwen3", "llama-yarn", "gemma3"])
def test_stitched_is_exact_in_fp32_and_no_worse_than_the_dtype_in_half(name: str) -> None:
    family = next(family for family in FAMILIES if family.name == name)
    row, exact = exactness.measure(family, torch.float32, None)
    assert row.max_error < 1e-4
    assert row.top1 == 1.0
    assert row.control > 1000 * row.max_error
    for dtype in (torch.bfloat16, torch.float16):
        half, _ = exactness.measure(family, dtype, exact)
        assert half.stitched_off < 1.3 * half.masked_off
        assert half.control > half.max_error


def test_the_command_writes_its_document(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = tmp_path / "EXACTNESS.md"
    assert exactness.main(["--family", "llama", "--document", str(document)]) == 0
    text = document.read_text(encoding="utf-8")
    assert "| llama " in text
    assert text.count("| llama ") == 3
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert result["families"] == 1
    assert 0 < result["fp32_max_error"] < 1e-4
    with pytest.raises(SystemExit):
        exactness.main(["--family", "no-such-family", "--document", str(document)])
