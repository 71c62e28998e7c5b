"""An auxiliary model learns to select the tokens that the answering model's questions attend to."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from desk_rag.bench.models.tiny_models import FAMILIES, build_model
from desk_rag.config import ModelSettings, Settings
from desk_rag.errors import ConfigError, DeskRagError
from desk_rag.finetune.auxiliary import run as run_module
from desk_rag.finetune.auxiliary.attention import question_attention
from desk_rag.finetune.auxiliary.labels import Reading, Teacher, _transferred
from desk_rag.finetune.auxiliary.layers import keep_lowest, shortened
from desk_rag.finetune.auxiliary.measure import divergence, jaccard, probe_selection
from desk_rag.finetune.auxiliary.objective import SelectionLoss
from desk_rag.finetune.auxiliary.run import AuxiliaryReport, AuxiliaryTask, run
from desk_rag.finetune.auxiliary.stream import LabelledStream
from desk_rag.finetune.data import QA, Sample, save_samples
from desk_rag.finetune.masked import to_batch
from desk_rag.finetune.rows import Asked, Context, build_island, build_row
from desk_rag.finetune.settings import Method, TrainSettings
from desk_rag.finetune.stream import Place
from desk_rag.kv.cache import SlabCache
from desk_rag.kv.positions import plan
from desk_rag.kv.recompute.attention_scores import question_attention as attention_over_cache
from desk_rag.kv.recompute.auxiliary_model import AuxiliaryModel
from desk_rag.kv.recompute.selectors import observed_layers
from desk_rag.kv.stitch import StitchedCache
from desk_rag.model import adapters
from desk_rag.model.language_model import LanguageModel
from desk_rag.model.loading import load_model
from tests.finetune.conftest import SHED, TEA, TOY

TEXTS = (SHED, "It rained on ünder day.", TEA)
READING = Reading(TEXTS, ("Which key opens the shed?", "When is tea served?"))
QUICK = TrainSettings(
    method=Method.FULL, steps=40, rows_per_step=1, row_tokens=384, learning_rate=3e-3, full_share=0.0,
    refuse_share=0.0, distractors=1, save_every=1000,
)  # fmt: skip


def load(directory: Path) -> LanguageModel:
    return load_model(ModelSettings(name=str(directory), device="cpu", threads=1), pack=False)


@pytest.fixture(scope="module")
def answering_dir(tiny_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Other weights of the same shape, whose questions attend to a few tokens."""
    directory = tmp_path_factory.mktemp("answering")
    model = load(tiny_dir).module
    torch.manual_seed(11)
    with torch.no_grad():
        for layer in model.model.layers:
            for projection in (layer.self_attn.q_proj, layer.self_attn.k_proj):
                projection.weight.normal_(0.0, 0.25)
    model.save_pretrained(directory)
    for name in ("tokenizer.json", "generation_config.json"):
        (directory / name).write_bytes((tiny_dir / name).read_bytes())
    return directory


@pytest.mark.parametrize("name", ["qwen3", "gemma2", "gemma3", "gpt-oss", "mistral-sliding"])
def test_recorded_attention_is_that_of_a_pass_over_a_cache(name: str) -> None:
    """In families with one key head per group, soft caps, windows and sinks."""
    model = build_model(next(family for family in FAMILIES if family.name == name))
    prompt, layers = model.prompt, [model.spec.num_layers - 1, 0]
    chunks = [prompt.chunk_ids(text) for text in TEXTS]
    question = prompt.question_ids(READING.questions[0])
    context = Context(tuple(prompt.prefix_ids), tuple(map(tuple, chunks)), (Asked(tuple(question), ()),), True)
    island = build_island(context)
    batch = to_batch([build_row([island], len(island.ids) + 3)], model.device)
    before = model.module.config._attn_implementation
    recorded = question_attention(model.module, batch, layers)[0]
    assert model.module.config._attn_implementation == before
    cache = SlabCache(model, len(island.ids))
    everything = plan(len(prompt.prefix_ids), [len(ids) for ids in chunks])
    model.forward(torch.tensor(island.ids[: everything.num_slots]), cache, 0, logits=False)
    expected = attention_over_cache(model, StitchedCache(cache, everything), question, layers).mean((0, 1))
    on_chunks = recorded[:, everything.prefix_tokens : everything.num_slots]
    assert torch.allclose(on_chunks, expected, atol=2e-5)
    assert expected.max() > 3 * expected.mean()


def test_labels_are_the_attention_of_full_prefill_on_the_texts(answering_dir: Path) -> None:
    model = load(answering_dir)
    shares = Teacher(model).shares(model.prompt, READING)
    assert shares.shape == (2, sum(len(text.encode()) for text in TEXTS))
    assert shares.sum(1) == pytest.approx(1.0, abs=1e-4)
    chunks = [model.prompt.chunk_ids(text) for text in TEXTS]
    where = plan(len(model.prompt.prefix_ids), [len(ids) for ids in chunks])
    cache = SlabCache(model, where.num_slots + 80)
    context_ids = [*model.prompt.prefix_ids, *(token for ids in chunks for token in ids)]
    model.forward(torch.tensor(context_ids), cache, 0, logits=False)
    question = model.prompt.question_ids(READING.questions[1])
    weights = attention_over_cache(model, StitchedCache(cache, where), question, observed_layers(model)).mean((0, 1, 2))
    firsts = [place.slot - where.prefix_tokens + 1 for place in where.placements]  # behind the frame's first token
    text_tokens = [
        first + number for first, text in zip(firsts, TEXTS, strict=True) for number in range(len(text.encode()))
    ]
    expected = weights[text_tokens] / weights[text_tokens].sum()
    umlaut = (TEXTS[0] + TEXTS[1]).encode().index("ü".encode())
    expected[umlaut : umlaut + 2] = expected[umlaut : umlaut + 2].mean()  # two tokens of one character
    assert shares[1] == pytest.approx(expected.numpy(), rel=1e-2, abs=1e-5)


def test_another_tokenizer_gets_what_falls_on_its_characters() -> None:
    weights = np.array([9.0, 0.4, 0.2, 9.0, 9.0, 0.3, 9.0], np.float32)
    own = [[None, (0, 4), (4, 6), None], [None, (0, 2), None]]
    other = [[None, (0, 2), (2, 5), (5, 6)], [(0, 1), (0, 1), (1, 2), None]]
    moved = _transferred(weights, own, other, ("abcdef", "gh"))
    assert moved == pytest.approx([0.2, 0.3, 0.1, 0.075, 0.075, 0.15])


def test_the_loss_is_the_divergence_of_what_is_served(tiny_dir: Path, answering_dir: Path) -> None:
    """A row's loss is what `probe_selection` measures over int8 chunk KV, question by question."""
    student, teacher = load(tiny_dir), Teacher(load(answering_dir))
    samples = [Sample(TEXTS, tuple(QA(question, "red") for question in READING.questions)), *TOY]
    settings = replace(QUICK, row_tokens=640, distractors=0)
    stream = LabelledStream(samples, student, teacher, settings)
    row, place = stream.row(Place())
    assert place.at or place.epoch
    again, _ = stream.row(Place())
    assert all(np.array_equal(getattr(row, name), getattr(again, name)) for name in ("means", "tokens", "shares"))
    assert row.shares.sum(1) == pytest.approx(1.0, abs=1e-4)
    assert len(row.shares) > 2, "several contexts in one row"
    objective = SelectionLoss()
    with torch.no_grad():
        loss = objective.loss(student.module, [row], student.device)
    readings = []
    for number in range(place.epoch * len(samples) + place.at):
        reading = stream.reading(*divmod(number, len(samples)))
        assert reading is not None
        readings.append(reading)
    probed = probe_selection(AuxiliaryModel(student), teacher, readings)
    assert loss.weight == len(probed.divergences) == len(row.shares)
    assert float(loss.total) == pytest.approx(sum(probed.divergences), rel=0.03)
    assert float(loss.total) > 0.2


def test_agreement_is_counted() -> None:
    one = np.array([0.1, 0.5, 0.3, 0.1, 0.0], np.float32)
    assert jaccard(one, one, 0.4) == 1.0
    assert jaccard(one, np.array([0, 0.6, 0, 0, 0.4], np.float32), 0.4) == pytest.approx(1 / 3)
    assert divergence(one, 3 * one) == pytest.approx(0.0, abs=1e-6)
    assert divergence(np.array([1, 0], np.float32), np.array([1, 3], np.float32)) == pytest.approx(np.log(4))


def task(tiny_dir: Path, answering_dir: Path, out: Path, **changes: object) -> AuxiliaryTask:
    plain = ModelSettings(name=str(answering_dir), device="cpu", threads=1)
    base = AuxiliaryTask(plain, plain.model_copy(update={"name": str(tiny_dir)}), 0, QUICK, TOY, out, held_out=0.0)
    return replace(base, **changes)  # type: ignore[arg-type]


def train(work: AuxiliaryTask, stop_after: int | None = None) -> AuxiliaryReport:
    seen: list[object] = []
    return run(
        work, evaluate=None, say=lambda _text: None, on_step=seen.append,
        stop=lambda: stop_after is not None and len(seen) >= stop_after,
    )  # fmt: skip


def test_it_learns_to_look_where_the_answering_model_looks(tiny_dir: Path, answering_dir: Path, tmp_path: Path) -> None:
    """What was learned is served from the directory, with one layer less, and a stopped run goes on to the same."""
    through, halted = (task(tiny_dir, answering_dir, tmp_path / name, layers=1) for name in ("through", "halted"))
    report = train(through)
    assert sum(report.losses[-4:]) < 0.7 * sum(report.losses[:4])
    served, teacher = load(through.out), Teacher(load(answering_dir))
    assert served.spec.num_layers == 1 and load(tiny_dir).spec.num_layers == 2
    before = keep_lowest(load(tiny_dir), 1)
    reading = Reading((SHED, TEA), ("Which key opens the shed?",))
    was, now = (probe_selection(AuxiliaryModel(model), teacher, [reading]) for model in (before, served))
    assert now.divergence < 0.7 * was.divergence and now.overlap > was.overlap
    record = json.loads((through.out / adapters.RECORD).read_text())
    assert record["layers"] == 1 and record["selects_as"] == teacher.model.spec.weights_fingerprint
    assert train(halted, stop_after=9).stopped and not list(halted.out.glob("*.safetensors"))
    assert train(replace(halted, resume=True)).losses == report.losses
    files = [next(work.out.glob("*.safetensors")).read_bytes() for work in (through, halted)]
    assert files[0] == files[1]
    with pytest.raises(ConfigError, match="already"):
        train(through)


def test_lists_by_layer_are_cut_with_the_layers(tiny_dir: Path) -> None:
    config = {"num_hidden_layers": 3, "layer_types": ["a", "b", "a"], "eos_token_id": [1, 2], "hidden_size": 3}
    assert shortened(config, 2) == {"num_hidden_layers": 2, "layer_types": ["a", "b"]}
    model = load(tiny_dir)
    ids = torch.tensor(model.prompt.chunk_ids(SHED))
    hidden = model.module.model(ids[None], output_hidden_states=True).hidden_states[1]
    lowest = keep_lowest(model, 1)
    assert torch.allclose(lowest.module.model(ids[None]).last_hidden_state, lowest.module.model.norm(hidden))
    with pytest.raises(ConfigError, match="has 1 layers"):
        keep_lowest(lowest, 2)


def test_the_command_says_what_changed(
    tiny_dir: Path,
    answering_dir: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from desk_rag.cli.training import auxiliary
    from desk_rag.cli.training.finetune import finetune

    monkeypatch.setattr(auxiliary, "RATIOS", (0.2,))
    samples = [
        Sample((f"House {number} has tone{number}.",), (QA(f"Tone of house {number}?", f"tone{number}"),))
        for number in range(14)
    ]
    data = tmp_path / "data.jsonl"
    data.write_bytes(save_samples(samples))
    model = ModelSettings(name=str(answering_dir), device="cpu", threads=1)
    settings = Settings(data_dir=tmp_path / "data", model=model)
    words = ["--data", str(data), "--auxiliary", str(tiny_dir), "--steps", "2", "--rows", "1", "--row-tokens", "512",
             "--held-out", "0.3", "--eval", "2", "--distractors", "2"]  # fmt: skip
    assert finetune(settings, [*words, "--out", str(tmp_path / "out")]) == 0
    shown = capsys.readouterr().out
    assert "overlap (Jaccard)" in shown and "nothing recomputed" in shown and 'auxiliary = "' in shown
    rows = [line for line in shown.splitlines() if line.startswith(("random", "first-k", "query", "auxiliary,"))]
    assert len(rows) == 5 and "20%" in shown
    for nonsense, message in (
        (["--lora", "4"], "--lora does not go"), (["--full-attention", "0.5"], "--full-attention does not go"),
        (["--layers", "9"], "has 2 layers"),
    ):  # fmt: skip
        with pytest.raises(DeskRagError) as caught:
            finetune(settings, [*words, *nonsense, "--out", str(tmp_path / "other")])
        assert message in caught.value.message
    with pytest.raises(ConfigError, match="--layers needs"):
        finetune(settings, ["--data", str(data), "--layers", "1", "--out", str(tmp_path / "other")])
    assert run_module.REPORT in {path.name for path in (tmp_path / "out").iterdir()}
