"""`bench card` on the CPU with tiny nf4 models: every mode runs, and what is timed computes the same logits."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from desk_rag.bench.card.__main__ import main
from desk_rag.bench.card.memory import Ledger, capped
from desk_rag.bench.card.serving import DECODE, DISK, FULL, GPU, RAM, STOCK_DECODE, STOCK_FULL, ContextWorks
from desk_rag.bench.models import shapes
from desk_rag.errors import ConfigError

MODES = {FULL, STOCK_FULL, DISK, RAM, GPU, DECODE, STOCK_DECODE}


@pytest.mark.parametrize("shape", ["tiny", pytest.param("tiny-sliding", marks=pytest.mark.slow)])
def test_nf4_models_run_in_every_mode(shape: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("bitsandbytes")
    out = tmp_path / "results.jsonl"
    options = ["--shapes", shape, "--contexts", "64,96", "--chunk", "32", "--decoded", "3", "--seconds", "0"]
    assert main([*options, "--dir", str(tmp_path), "--out", str(out)]) == 0
    (model,) = json.loads(out.read_text())["models"]
    assert [entry["context"] for entry in model["contexts"]] == [64, 96]
    for entry in model["contexts"]:
        assert entry["modes"].keys() == MODES and not entry["failed"]
        assert entry["logits_differ_by"] < 1e-4
        assert entry["payload"] > 0 and entry["tokens_per_s"][DECODE] > 0
    assert model["hours_to_warm"]["100 MB"] >= model["hours_to_warm"]["1 MB"]
    assert "cached, RAM" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == [out], "chunk files are temporary"


def test_a_shape_is_quantised_matrix_by_matrix(tmp_path: Path) -> None:
    pytest.importorskip("bitsandbytes")
    model = shapes.build("tiny", torch.device("cpu"), quantization="nf4")
    kinds = [type(module).__name__ for module in model.module.modules()]
    assert kinds.count("Linear4bit") == 7 * 3 and kinds.count("Linear") == 1  # the last is the output matrix
    assert model.spec.weight_quantization == "nf4"


def test_an_unknown_shape_is_refused_before_anything_is_measured(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no model shape 'gpt-9'"):
        main(["--shapes", "tiny,gpt-9", "--dir", str(tmp_path)])


def test_without_a_gpu_nothing_is_capped_or_counted() -> None:
    device = torch.device("cpu")
    ledger = Ledger(device)
    with capped(device, 8.0) as tensors, ledger.part("weights"):
        torch.zeros(1000)
    assert tensors == 0 and ledger.parts == {"weights": 0}


def test_what_fails_is_named_with_its_reason_and_the_rest_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("bitsandbytes")

    def fails(self: ContextWorks, *, keep: bool = False) -> int:
        raise RuntimeError("a reader thread failed\nat length")

    def is_full(self: ContextWorks) -> int:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(ContextWorks, "_stock_full", fails)
    monkeypatch.setattr(ContextWorks, "_full", is_full)
    out = tmp_path / "results.jsonl"
    options = ["--shapes", "tiny", "--contexts", "64", "--chunk", "32", "--decoded", "3", "--seconds", "0"]
    assert main([*options, "--dir", str(tmp_path), "--out", str(out)]) == 0
    ((entry,),) = (model["contexts"] for model in json.loads(out.read_text())["models"])
    assert entry["failed"][STOCK_FULL] == "a reader thread failed" and entry["failed"][FULL] == "out of memory"
    assert entry["modes"].keys() >= {RAM, DISK, DECODE}
    assert "a reader thread failed" in capsys.readouterr().out
