"""The command: learn from an indexed folder, serve what was learned, take it back, and what it refuses."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path

import pytest
import torch

from desk_rag.answering.serving_model import prepare
from desk_rag.cli import doctor, models
from desk_rag.cli.training import adapt as adapt_command
from desk_rag.cli.training.adapt import adapt
from desk_rag.config import AnswerSettings, ModelSettings, Settings
from desk_rag.errors import ConfigError
from desk_rag.finetune.adapt import run
from desk_rag.finetune.adapt.run import Amounts, Gap, Outcome
from desk_rag.ingest.pipeline import sync_folder
from desk_rag.kv.shift import PlaceShift
from desk_rag.store import adaptations
from desk_rag.store.ownership import foreign_in
from desk_rag.store.store import Store
from tests.finetune.adapt.test_adapt import SAMPLES
from tests.models import byte_prompt


@pytest.fixture(scope="module")
def indexed(long_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """Settings with an indexed folder of short notes, whose model has passed its gate."""
    place = tmp_path_factory.mktemp("adapt")
    model = ModelSettings(name=str(long_dir), device="cpu", threads=1)
    settings = Settings(data_dir=place / "data", model=model, answer=AnswerSettings(top_k=3))
    folder = place / "documents"
    folder.mkdir()
    for number, sample in enumerate(SAMPLES):
        (folder / f"{number}.txt").write_text(f"{sample.chunks[0]}\n", encoding="utf-8")
    with Store.open(settings.data_dir, settings.store, writer=True) as store:
        prompt = byte_prompt()
        for _ in sync_folder(store, folder, prompt, prompt.chunk_size, settings.index, lambda: False):
            pass
    prepare(settings)
    return settings


@pytest.fixture
def settings(indexed: Settings, tmp_path: Path) -> Settings:
    """The same with a data directory of the test's own."""
    shutil.copytree(indexed.data_dir, tmp_path / "data")
    return indexed.model_copy(update={"data_dir": tmp_path / "data"})


def test_what_is_kept_is_served_and_can_be_taken_back(
    settings: Settings, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "USUAL", Amounts(4, 10, 8))
    monkeypatch.setattr(run, "NEGLIGIBLE", 0.0)
    monkeypatch.setattr(run, "verdict", lambda *_: (True, "Kept: for this test."))  # a random model has no answers
    assert adapt(settings, [], now=True, undo=False, as_json=True) == 0
    told = json.loads(capsys.readouterr().out)
    serving = prepare(settings)
    assert told["kept"] and told["refined"] and serving.shift is not None
    stored = adaptations.read(settings.data_dir, serving.namespace)
    assert stored is not None and stored.nbytes == told["bytes"] and stored.facts["before"]["nats"] > 0
    assert list(adaptations.stored(settings.data_dir)) == [serving.namespace]
    assert not list(foreign_in(settings.data_dir)), "the file is known as desk-rag's own"
    with_variants = settings.model.model_copy(update={"rungs": (0, 1)})
    assert prepare(settings.model_copy(update={"model": with_variants})).shift is None
    assert adapt(settings, [], now=True, undo=True, as_json=False) == 0
    assert "as it is again" in capsys.readouterr().out
    assert prepare(settings).shift is None and prepare(settings).namespace == serving.namespace
    assert adapt(settings, [], now=True, undo=True, as_json=False) == 0
    assert "was not adapted" in capsys.readouterr().out


def test_a_measurement_that_led_to_nothing_is_told_and_changes_nothing(
    settings: Settings, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stitching() -> str:
        finding = next(each for each in doctor.examine(settings) if each.name == "stitching")
        return f"{finding.verdict.value} {finding.detail}"

    assert stitching().startswith("warn what separately cached passages cost this model is not known")
    monkeypatch.setattr(run, "USUAL", Amounts(4, 2, 8))
    monkeypatch.setattr(run, "NEGLIGIBLE", 1e9)
    assert adapt(settings, [], now=True, undo=False, as_json=False) == 0
    assert "nothing worth a remedy" in capsys.readouterr().out
    assert prepare(settings).shift is None
    assert stitching().startswith("ok") and "nothing worth a remedy" in stitching()
    assert models.run("list", settings, models.Task("", (), None, sure=False, as_json=False)) == 0
    assert "nothing worth a remedy" in capsys.readouterr().out


def test_a_stop_changes_nothing(
    settings: Settings, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = run.Learner.collect

    def interrupted(*arguments: object) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(run, "USUAL", Amounts(4, 10, 8))
    monkeypatch.setattr(run, "NEGLIGIBLE", 0.0)
    monkeypatch.setattr(run.Learner, "collect", interrupted)
    assert adapt(settings, [], now=True, undo=False, as_json=False) == 130
    assert "Nothing was changed" in capsys.readouterr().err
    assert not adaptations.stored(settings.data_dir)


def test_a_damaged_file_is_not_used(settings: Settings) -> None:
    serving = prepare(settings)
    spec = serving.model.spec
    shift = PlaceShift.zero(spec.num_layers, spec.num_kv_heads, spec.head_dim)
    adaptations.write(settings.data_dir, serving.namespace, shift, {"kept": True})
    assert prepare(settings).shift is not None
    file = next((settings.data_dir / "models").glob("*.shift.safetensors"))
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    assert prepare(settings).shift is None


def test_variants_and_an_adaptation_exclude_each_other(settings: Settings) -> None:
    model = settings.model.model_copy(update={"rungs": (0, 1)})
    with pytest.raises(ConfigError, match="rungs"):
        adapt(settings.model_copy(update={"model": model}), [], now=True, undo=False, as_json=False)


def test_nothing_indexed_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert adapt(Settings(data_dir=tmp_path / "none"), [], now=True, undo=False, as_json=False) == 0
    assert "Nothing is indexed yet" in capsys.readouterr().out


def test_the_summary_says_both_measurements() -> None:
    before, after = Gap(0.04, 0.95, 3, ()), Gap(0.001, 0.99, 4, ())
    shift = PlaceShift((64,), torch.zeros(1, 1, 1, 2), torch.zeros(1, 1, 1, 2))
    words = adapt_command.summary(Outcome(before, after, shift, "Kept: x.", 61.0, 10, 9000, 2048.0, True), 2048)
    assert "95.0% of an answer's words" in words and "3.9% less likely" in words
    assert "99.0% of an answer's words" in words and "0.1% less likely" in words
    assert "nats" not in words and "--undo" in words
    assert "900 tokens on average, 2.0 GiB of GPU memory" in words
