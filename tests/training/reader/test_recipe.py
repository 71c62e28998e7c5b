"""The whole recipe in small: from an invented corpus to a reader that the product loads and that answers."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import safetensors.torch
import torch

from desk_rag.config import ModelSettings
from desk_rag.model.loading import load_model
from desk_rag.training.reader import __main__ as command_module
from desk_rag.training.reader.export import join
from desk_rag.training.reader.preparation import Work
from desk_rag.training.reader.recipe import QUICK, Recipe, finished
from desk_rag.training.reader.training import Group
from tests.conftest import ROOT
from tests.training.reader import invented


def test_a_stage_goes_on_where_another_ended_and_is_not_run_twice(
    tokenizer_path: Path, tmp_path: Path, alone: Group
) -> None:
    shutil.copy(tokenizer_path, tmp_path / "tokenizer.json")
    recipe = Recipe(Work(tmp_path, tmp_path, 1), QUICK, alone)

    def add(model: torch.nn.Module) -> None:
        with torch.no_grad():
            model.get_parameter("norm.weight").add_(1.0)

    first = recipe.stage("first", None, add)
    second = recipe.stage("second", "first", add)
    assert set(first.norm.weight.tolist()) == {2.0} and set(second.norm.weight.tolist()) == {3.0}
    assert torch.equal(first.embed_tokens.weight, second.embed_tokens.weight)
    again = recipe.stage("first", None, lambda _: pytest.fail("was run again"))
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), again.parameters(), strict=True))
    assert not again.training


def test_weights_that_were_half_written_are_not_taken_for_a_stage(
    tokenizer_path: Path, tmp_path: Path, alone: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(tokenizer_path, tmp_path / "tokenizer.json")
    recipe = Recipe(Work(tmp_path, tmp_path, 1), QUICK, alone)

    def cut_off(_tensors: object, file: Path) -> None:
        file.write_bytes(b"half")
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(safetensors.torch, "save_file", cut_off)
        recipe.stage("first", None, lambda _: None)
    trained: list[str] = []
    recipe.stage("first", None, lambda _: trained.append("again"))
    assert trained == ["again"]


def test_a_run_that_failed_can_be_begun_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Work(tmp_path, tmp_path, 1).done("failed").touch()
    seen: list[bool] = []

    def begin(work: Work, _vocab: int) -> None:
        seen.append(work.done("failed").exists())
        raise KeyboardInterrupt

    monkeypatch.setattr(command_module, "prepare_stream", begin)
    monkeypatch.setattr(sys, "argv", ["reader", str(tmp_path), str(tmp_path)])
    with pytest.raises(KeyboardInterrupt):
        command_module.main()
    assert seen == [False]


def test_scores_of_all_processes_are_put_together(tmp_path: Path) -> None:
    for rank in range(2):
        (tmp_path / f"scores.{rank}.json").write_text(json.dumps({f"reader {rank}": {"f1": rank}}), encoding="utf-8")
    assert finished(tmp_path) == {"reader 0": {"f1": 0}, "reader 1": {"f1": 1}}
    assert finished(tmp_path / "none") == {}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_recipe_makes_a_reader(tmp_path: Path) -> None:
    data, work = invented.write(tmp_path / "data"), tmp_path / "work"
    command = [sys.executable, "-m", "desk_rag.training.reader", str(data), str(work), "--quick", "--workers", "1"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=550, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    scores = finished(work)
    assert {"reader all 5 stitched", "reader all 5 full", "reader together 5 stitched"} <= scores.keys()
    assert all(score["n"] > 0 for score in scores.values())
    assert "SCORE reader desk 5 stitched" in done.stdout and not (work / "failed.done").exists()
    reader = work / "reader"
    join(reader, reader / "model.safetensors")
    for part in reader.glob("part-*"):
        part.unlink()
    shutil.copy(work / "tokenizer.json", reader / "tokenizer.json")
    model = load_model(ModelSettings(name=str(reader), device="cpu"))
    ids = torch.tensor(model.prompt.prefix_ids)
    logits = model.module(ids[None]).logits
    assert model.spec.num_layers == QUICK.reader.layers and logits.isfinite().all() and logits.std() > 0
