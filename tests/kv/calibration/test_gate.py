"""The quality gate chooses int8 where it is harmless, finer codings where it is not, and the drift probe sees drift."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

import pytest
import torch

from desk_rag.errors import Cancelled
from desk_rag.kv.calibration import gate
from desk_rag.kv.calibration.gate import MAX_MEAN_KL, MIN_TOP1, Progress, _GroupRun, drifted, probe_kv, run_gate
from desk_rag.kv.calibration.schemes import Moves
from desk_rag.kv.calibration.texts import GROUPS, CalibrationGroup
from desk_rag.kv.prefill import prefill_prefix
from desk_rag.kv.types import ChunkKV, QuantizedKV
from desk_rag.model.language_model import LanguageModel
from tests.models import FAMILIES, build_model

SHORT = tuple(
    CalibrationGroup(
        chunks=tuple(
            f"{word} {index} has the code {index * 37 + len(word)}." for word in ("Lamp", "Gate", "Boat", "Tree")
        ),
        question=f"Which code has boat {index}?",
        needle="nothing a random model would say",
    )
    for index in range(4)
)


def sharp_model() -> LanguageModel:
    """Return a model whose attention is so sharp that keys in int8 change it."""
    model = build_model(next(family for family in FAMILIES if family.name == "qwen2"))
    with torch.no_grad():
        for layer in model.decoder_layers:
            layer.self_attn.q_proj.weight.mul_(12)
            layer.self_attn.q_proj.bias.mul_(12)
    return model


def test_the_reader_passes_with_int8_everywhere_and_finds_every_code(reader: LanguageModel) -> None:
    report = run_gate(reader, prefill_prefix(reader))
    assert report.scheme.label == "int8*10"
    assert report.score.mean_kl <= MAX_MEAN_KL
    assert report.score.top1 >= MIN_TOP1
    assert report.score.tokens >= 40
    assert report.needles_expected == len(GROUPS)
    assert report.needles_found == report.needles_expected


def test_a_model_that_int8_would_harm_falls_back_until_it_passes() -> None:
    """Queries scaled far up make attention so sharp that int8 keys change it; single layers must go finer, then raw."""
    model = sharp_model()
    report = run_gate(model, prefill_prefix(model), SHORT)
    assert not report.plain_score.passes
    assert report.scheme.label != "int8*3"
    assert report.score.passes
    assert report.score.mean_kl < report.plain_score.mean_kl


def test_a_measurement_without_time_reads_one_text_and_takes_what_loses_nothing() -> None:
    model = sharp_model()
    progress = Progress(budget=0.0)
    report = run_gate(model, prefill_prefix(model), SHORT, progress)
    assert report.scheme.label == "raw*3" and not report.complete
    assert "3 of 3 layers" in report.notice
    whole = run_gate(model, prefill_prefix(model), SHORT)
    assert report.plain_score.tokens < whole.plain_score.tokens
    assert whole.complete and not whole.notice and whole.scheme != report.scheme


@pytest.mark.parametrize("limit", [2, 7, 9, 15, 26, 28, 40])
def test_the_limit_holds_within_a_passage(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a clock that every passage and every question moves by a second, wherever the time runs out."""
    model, passes = sharp_model(), list[int]()
    model.module.model.embed_tokens.register_forward_pre_hook(
        lambda _module, inputs: passes.append(1) if inputs[0].shape[1] > 1 else None
    )
    prefix = prefill_prefix(model)
    passes.clear()
    monkeypatch.setattr(gate, "time", SimpleNamespace(monotonic=lambda: float(len(passes))))
    report = run_gate(model, prefix, SHORT, Progress(budget=limit))
    assert not report.complete and report.plain_score.tokens
    assert limit <= len(passes) <= limit + 3, "the passage in progress, and what one text takes to be judged"


def test_a_user_may_end_the_measurement_at_any_passage() -> None:
    model, looks = sharp_model(), list[int]()

    def stop() -> bool:
        looks.append(1)
        return len(looks) > 30

    measured, kept = Moves(), list[int]()
    with pytest.raises(Cancelled):
        run_gate(model, prefill_prefix(model), SHORT, Progress(measured, stop=stop, keep=lambda: kept.append(1)))
    assert len(looks) == 31 and measured.alone and kept


def test_a_short_window_reads_as_many_of_the_texts_as_it_has_room_for() -> None:
    """A token per byte: four chunks of a group take about 1,300 tokens."""
    model = build_model(next(family for family in FAMILIES if family.name == "llama"))
    assert model.spec.max_context == 512
    run = _GroupRun(model, prefill_prefix(model), GROUPS[0])
    assert 1 <= len(run.chunks) < 4 and run.plan.num_slots + len(run.question) + 24 <= 512


def test_an_interrupted_measurement_goes_on_with_what_it_has() -> None:
    model = sharp_model()
    lines, measured = list[str](), Moves()

    def interrupt(line: str) -> None:
        lines.append(line)
        if "layer 3 of 3" in line:
            raise KeyboardInterrupt

    prefix = prefill_prefix(model)
    with pytest.raises(KeyboardInterrupt):
        run_gate(model, prefix, SHORT, Progress(measured, interrupt))
    assert set(measured.alone) == {"0:int8", "1:int8"}
    again = list[str]()
    report = run_gate(model, prefix, SHORT, Progress(measured, again.append))
    assert not any("layer 1 of 3 as int8 " in line or "layer 2 of 3 as int8 " in line for line in again)
    assert report == run_gate(model, prefix, SHORT)
    assert all("of about 60 s)" in line and len(line) < 80 for line in lines)


def test_another_token_that_is_as_probable_is_no_disagreement() -> None:
    """A model whose tokens are all as probable as each other: its best one is an accident of rounding."""
    model = build_model(next(family for family in FAMILIES if family.name == "llama"))
    with torch.no_grad():
        model.module.lm_head.weight.mul_(1e-4)
    report = run_gate(model, prefill_prefix(model), SHORT)
    assert report.plain_score.top1 == 1.0
    assert report.scheme.label == "int8*3"


def test_a_code_that_is_lost_makes_the_coding_finer_although_the_scores_are_good(
    reader: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Real scores and answers; only in the first coding one code is taken for lost."""
    finds_needle, asked = _GroupRun.finds_needle, list[bool]()

    def one_lost(run: _GroupRun, chunks: Sequence[QuantizedKV]) -> bool:
        asked.append(finds_needle(run, chunks))
        return asked[-1] and len(asked) != 1

    monkeypatch.setattr(_GroupRun, "finds_needle", one_lost)
    report = run_gate(reader, prefill_prefix(reader), GROUPS[:2])
    assert asked == [True] * 4 and report.plain_score.passes
    assert report.scheme.label != "int8*10" and report.needles_found == report.needles_expected == 2


def test_the_probe_sees_a_changed_weight_and_forgives_another_dtype(reader: LanguageModel) -> None:
    prefix = prefill_prefix(reader)
    stored = probe_kv(reader, prefix)
    assert not drifted(stored, probe_kv(reader, prefix))
    noise = ChunkKV(stored.keys.bfloat16().half(), stored.values.bfloat16().half())
    assert not drifted(stored, noise)

    one_layer_off = stored.keys.clone()
    one_layer_off[4] *= 1.05
    assert drifted(stored, ChunkKV(one_layer_off, stored.values))
    not_a_number = stored.values.clone()
    not_a_number[2, 0, 0, 0] = float("nan")
    assert drifted(stored, ChunkKV(stored.keys, not_a_number))
    assert drifted(stored, ChunkKV(stored.keys[:, :, :-1], stored.values[:, :, :-1]))


@pytest.mark.gpu
def test_bf16_on_the_gpu_is_not_drift_against_fp32_on_the_cpu(reader: LanguageModel) -> None:
    from desk_rag.config import ModelSettings
    from desk_rag.model.loading import load_model

    on_gpu = load_model(ModelSettings(device="cuda"))
    assert not drifted(probe_kv(reader, prefill_prefix(reader)), probe_kv(on_gpu, prefill_prefix(on_gpu)))
