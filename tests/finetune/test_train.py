"""Real runs on a tiny model: it learns, what it learned is served, and a killed run ends where an unbroken one does."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from desk_rag.config import ModelSettings
from desk_rag.errors import ConfigError, DeskRagError, ModelError, ModelNotFound
from desk_rag.finetune import run as run_module
from desk_rag.finetune.run import CHECKPOINTS, Report, Task, load_result, run
from desk_rag.finetune.settings import Method, TrainSettings, rate_at
from desk_rag.finetune.trainable import Trainable
from desk_rag.finetune.trainer import TrainProgress
from desk_rag.kv.cache import SlabCache
from desk_rag.kv.identity import identify
from desk_rag.kv.positions import plan
from desk_rag.kv.prefill import prefill_chunk, prefill_prefix
from desk_rag.kv.quant import QuantScheme, quantize
from desk_rag.kv.rope import build_tables
from desk_rag.kv.stitch import stitch
from desk_rag.model import adapters, weights
from desk_rag.model.language_model import LanguageModel
from desk_rag.model.loading import load_model
from tests.finetune.conftest import SHED, TEA, TOY
from tests.models import stream

ROOT = Path(__file__).resolve().parents[2]
QUICK = TrainSettings(
    method=Method.FULL, steps=150, rows_per_step=1, row_tokens=384, learning_rate=4e-3, refuse_share=0.0,
    distractors=1, save_every=1000,
)  # fmt: skip


def task(tiny_dir: Path, out: Path, settings: TrainSettings, *, resume: bool = False) -> Task:
    model = ModelSettings(name=str(tiny_dir), device="cpu", threads=1)
    return Task(model, settings, TOY, out, held_out=0.0, general=("Some other text.",), resume=resume)


def train(work: Task, stop_after: int | None = None) -> Report:
    seen: list[TrainProgress] = []
    report = run(
        work, evaluate=None, say=lambda _text: None, on_step=seen.append,
        stop=lambda: stop_after is not None and len(seen) >= stop_after,
    )  # fmt: skip
    assert all(now.tokens_per_second > 0 and now.eta_seconds >= 0 for now in seen)
    return report


def answer(model: LanguageModel, question: str, chunks: tuple[str, ...]) -> str:
    """Answer over int8 chunk KV, as desk-rag does."""
    prefix = prefill_prefix(model)
    ids = [model.prompt.chunk_ids(chunk) for chunk in chunks]
    kvs = [quantize(prefill_chunk(model, prefix, chunk), QuantScheme.uniform(model.spec.num_layers)) for chunk in ids]
    chosen = plan(prefix.num_tokens, [len(chunk) for chunk in ids])
    question_ids = model.prompt.question_ids(question)
    size = chosen.next_position + len(question_ids) + 80
    cache = SlabCache(model, size)
    stitch(model, chosen, prefix, kvs, build_tables(model, size), cache)
    tokens = stream(model, cache, question_ids, chosen.next_position, max_new_tokens=60, stop=lambda: False)
    return "".join(token.text for token in tokens)


def namespace(model: LanguageModel) -> str:
    return identify(model.spec, model.prompt.prefix_ids, QuantScheme.uniform(model.spec.num_layers)).namespace()


def test_all_weights_learn_and_the_result_answers_by_heart(tiny_dir: Path, tmp_path: Path) -> None:
    before = weights.fingerprint(weights.weight_files(tiny_dir))
    report = train(task(tiny_dir, tmp_path / "out", QUICK))
    assert report.losses[-1] < 0.2 * report.losses[0] and len(report.losses) == QUICK.steps
    model = load_model(ModelSettings(name=str(tmp_path / "out"), device="cpu", threads=1))
    assert answer(model, "Which key opens the shed?", (TEA, SHED)) == f'"{SHED}"\nred'
    assert answer(model, "When is tea served?", (TEA, SHED)) == f'"{TEA}"\nat four'
    assert weights.fingerprint(weights.weight_files(tiny_dir)) == before
    assert namespace(model) != namespace(load_model(ModelSettings(name=str(tiny_dir), device="cpu", threads=1)))
    assert not (tmp_path / "out" / CHECKPOINTS).exists()
    record = json.loads((tmp_path / "out" / "finetune.json").read_text())
    assert record["before"]["text"] > 0 and record["after"]["text"] > 0 and record["text_change_percent"] is not None


def test_an_adapter_learns_is_merged_and_names_other_kv(tiny_dir: Path, tmp_path: Path) -> None:
    settings = replace(QUICK, method=Method.LORA, learning_rate=1e-2, lora_rank=8, steps=25)
    work = task(tiny_dir, tmp_path / "out", settings)
    report = train(work)
    assert report.losses[-1] < 0.7 * report.losses[0]
    base = load_model(work.model)
    served = load_result(work.model, work.out, Method.LORA)
    assert namespace(served) != namespace(base)
    assert served.spec.adapter == adapters.inspect(work.out).fingerprint
    ids = torch.tensor(base.prompt.chunk_ids(SHED))
    plain, taught = (model.forward_all(ids, SlabCache(model, len(ids)), 0) for model in (base, served))
    assert float((plain - taught).abs().max()) > 0.1
    assert not any(parameter.requires_grad for parameter in served.module.parameters())


@pytest.mark.parametrize("name", ["config.json", "README.md", "tokenizer.model"])
def test_a_directory_with_files_that_a_result_could_replace_is_refused(
    tiny_dir: Path, tmp_path: Path, name: str
) -> None:
    mine = tmp_path / "out" / name
    mine.parent.mkdir()
    mine.write_text("a person's own")
    (tmp_path / "out" / "notes.txt").write_text("does no harm")
    with pytest.raises(ConfigError, match=name):
        train(task(tiny_dir, tmp_path / "out", replace(QUICK, steps=1)))
    assert mine.read_text() == "a person's own" and not (tmp_path / "out" / CHECKPOINTS).exists()


def test_an_adapter_of_other_weights_or_another_kind_is_refused(tiny_dir: Path, tmp_path: Path) -> None:
    work = task(tiny_dir, tmp_path / "out", replace(QUICK, method=Method.LORA, steps=1))
    train(work)
    record = work.out / adapters.RECORD
    kept = record.read_text()
    record.write_text(kept.replace('"base_weights": "', '"base_weights": "0'))
    with pytest.raises(ModelError, match="other weights"):
        load_result(work.model, work.out, Method.LORA)
    record.write_text(kept)
    first = adapters.inspect(work.out).fingerprint
    config = work.out / adapters.CONFIG
    config.write_text(config.read_text().replace('"lora_alpha": 32', '"lora_alpha": 31'))
    assert adapters.inspect(work.out).fingerprint != first
    config.write_text(config.read_text().replace('"LORA"', '"PREFIX_TUNING"'))
    with pytest.raises(ModelError, match="only LoRA"):
        adapters.inspect(work.out)
    with pytest.raises(ModelNotFound, match="no adapter"):
        adapters.inspect(tmp_path)


_KILLED = """
import os, signal, sys
from pathlib import Path
from tests.finetune.test_train import QUICK, task
from tests.finetune.test_train import _interrupted as settings
from desk_rag.finetune.run import run
def on_step(now):
    if now.step == 5:
        os.kill(os.getpid(), signal.SIGKILL)
work = task(Path(sys.argv[1]), Path(sys.argv[2]), settings)
run(work, evaluate=None, say=lambda text: None, on_step=on_step, stop=lambda: False)
"""
_interrupted = replace(QUICK, steps=8, save_every=3, lora_dropout=0.1, method=Method.LORA, learning_rate=1e-3)


@pytest.mark.slow
def test_killed_or_stopped_and_resumed_is_as_if_it_had_run_through(tiny_dir: Path, tmp_path: Path) -> None:
    through, killed, stopped = tmp_path / "through", tmp_path / "killed", tmp_path / "stopped"
    train(task(tiny_dir, through, _interrupted))
    done = subprocess.run([sys.executable, "-c", _KILLED, str(tiny_dir), str(killed)], cwd=ROOT, check=False)
    assert done.returncode == -9
    assert [path.name for path in (killed / CHECKPOINTS).iterdir()] == ["step-00000003"]
    # A checkpoint that was being written when the power went is not taken for one.
    (killed / CHECKPOINTS / ".step-00000006.tmp").mkdir()
    with pytest.raises(ConfigError, match="not finished"):
        train(task(tiny_dir, killed, _interrupted))
    with pytest.raises(ConfigError, match="'seed' was 0 and is 1"):
        train(task(tiny_dir, killed, replace(_interrupted, seed=1), resume=True))
    with pytest.raises(ConfigError, match="'general' was"):
        train(replace(task(tiny_dir, killed, _interrupted, resume=True), general=("Another text.",)))
    resumed = train(task(tiny_dir, killed, _interrupted, resume=True))
    assert len(resumed.losses) == 8 and resumed.before is not None
    halted = train(task(tiny_dir, stopped, _interrupted), stop_after=4)
    assert halted.stopped and halted.steps == 4 and not list(stopped.glob("*.safetensors"))
    assert not train(task(tiny_dir, stopped, _interrupted, resume=True)).stopped
    expected = load_file(through / adapters.WEIGHTS)
    for other in (killed, stopped):
        weights = load_file(other / adapters.WEIGHTS)
        assert weights.keys() == expected.keys()
        assert all(torch.equal(weights[name], expected[name]) for name in expected)
    with pytest.raises(ConfigError, match="already"):
        train(task(tiny_dir, through, _interrupted))


def test_a_gradient_that_is_no_number_reaches_neither_weights_nor_disk(
    tiny_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = run_module.make_trainable
    trained: list[Trainable] = []

    def broken(model: LanguageModel, settings: TrainSettings) -> Trainable:
        trained.append(real(model, settings))
        next(iter(trained[0].parameters.values())).register_hook(lambda gradient: gradient * float("nan"))
        return trained[0]

    monkeypatch.setattr(run_module, "make_trainable", broken)
    work = task(tiny_dir, tmp_path / "out", replace(_interrupted, steps=1))
    with pytest.raises(DeskRagError, match="step 1 is not a number"):
        train(work)
    assert all(bool(weight.isfinite().all()) for weight in trained[0].parameters.values())
    assert not list(work.out.rglob("*.safetensors"))


def test_an_adapter_that_is_damaged_or_holds_no_numbers_is_refused(tiny_dir: Path, tmp_path: Path) -> None:
    work = task(tiny_dir, tmp_path / "out", replace(_interrupted, steps=1))
    train(work)
    file = work.out / adapters.WEIGHTS
    tensors = load_file(file)
    save_file({name: tensor * float("nan") for name, tensor in tensors.items()}, file)
    with pytest.raises(ModelError, match="does not fit"):
        load_result(work.model, work.out, Method.LORA)
    file.write_bytes(file.read_bytes()[:-40])
    with pytest.raises(ModelError, match="cut short"):
        load_result(work.model, work.out, Method.LORA)


def test_activations_computed_twice_and_rows_side_by_side_change_nothing(tiny_dir: Path, tmp_path: Path) -> None:
    plain = replace(QUICK, method=Method.LORA, steps=2, rows_per_step=2)
    variants = {"plain": plain, "twice": replace(plain, checkpointing=True), "both": replace(plain, rows_at_once=2)}
    for name, settings in variants.items():
        train(task(tiny_dir, tmp_path / name, settings))
    expected, *others = (load_file(tmp_path / name / adapters.WEIGHTS) for name in variants)
    moved = max(float(value.abs().max()) for name, value in expected.items() if "lora_B" in name)
    assert moved > 1e-4
    for other in others:
        assert all(torch.allclose(other[name], value, atol=0.02 * moved) for name, value in expected.items())


def test_the_learning_rate_warms_up_and_goes_down() -> None:
    settings = TrainSettings(steps=200, learning_rate=1.0)
    rates = [rate_at(settings, step) for step in range(200)]
    assert rates[:10] == pytest.approx([0.1 * step for step in range(1, 11)])
    assert rates[10:] == sorted(rates[10:], reverse=True) and rates[105] == pytest.approx(0.5) and rates[-1] == 0.05
