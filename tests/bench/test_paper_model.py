"""The paper model gives back what it was fitted on, and says how far off it is elsewhere."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from desk_rag.bench import paper_model
from desk_rag.bench.gpu_paths.first_token import Mode
from desk_rag.bench.models.shapes import model_shape
from desk_rag.bench.paper_model import H200, RTX_3060, OnCpu, Point, Shares, fit, predict, read_points
from desk_rag.errors import ConfigError

SHAPE = model_shape("qwen2-7b")
TRUE = Shares(compute=0.6, memory=0.55, bus=0.9, drive=0.8, overhead=0.0004)


def measured(context: int) -> Point:
    empty = Point(64, context, 128, {})
    return Point(64, context, 128, predict(SHAPE, empty, H200, TRUE))


def result(*contexts: int) -> dict[str, object]:
    cases = [
        {
            "shape": "qwen2-7b", "context": point.context, "question": 128, "questions": 1, "prefix": 64,
            "host_to_device_gb_s": H200.bus / 1e9, "drive_gb_s": H200.drive / 1e9,
            "modes": {mode.value: {"wall_ms": [0, 0, took * 1e3, 0, 0]} for mode, took in point.seconds.items()},
        }
        for point in map(measured, contexts)
    ]  # fmt: skip
    return {"bench": "contexts", "ttft": {"cases": cases}}


def test_fitting_finds_the_shares_that_made_the_point() -> None:
    fitted = fit(SHAPE, measured(8192), H200)
    for name in Shares.__dataclass_fields__:
        assert getattr(fitted, name) == pytest.approx(getattr(TRUE, name), rel=1e-3), name
    again = predict(SHAPE, measured(16_349), H200, fitted)
    assert again[Mode.COLD] == pytest.approx(measured(16_349).seconds[Mode.COLD], rel=1e-3)


def test_bounds_show_in_the_predictions() -> None:
    seconds = measured(8192).seconds
    assert seconds[Mode.VRAM] < seconds[Mode.RAM] < seconds[Mode.COLD] < seconds[Mode.FULL]
    stored = 8192 * 28.3 * 1024
    assert seconds[Mode.COLD] > stored / (TRUE.drive * H200.drive)
    # By hand: 2 * 6.525e9 * 8384 + 4 * 28 * 28 * 128 * 8384^2 / 2 + head = 1.24e14 operations.
    assert seconds[Mode.FULL] == pytest.approx(1.236e14 / (0.6 * 989e12), rel=0.01)
    small = predict(SHAPE, Point(64, 8192, 128, {}), RTX_3060, TRUE)
    assert small[Mode.FULL] / seconds[Mode.FULL] == pytest.approx(989 / 25, rel=1e-6)


def test_errors_are_reported_for_the_points_that_were_not_fitted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = result(2048, 8192)
    part = content["ttft"]
    assert isinstance(part, dict)
    part["cases"][0]["modes"][Mode.FULL.value]["wall_ms"][2] *= 2
    path = tmp_path / "contexts.jsonl"
    path.write_text(json.dumps({"bench": "other"}) + "\n" + json.dumps(content) + "\n")
    assert paper_model.main(["--contexts", str(path), "--ttft", str(tmp_path / "none")]) == 0
    said = json.loads(capsys.readouterr().out.splitlines()[-1])["gpu"]
    assert said["largest_error"] == pytest.approx(0.5, abs=0.01)
    assert said["mean_error"] == pytest.approx(0.1, abs=0.01), "one of five modes is off by a half"
    assert [entry["context"] for entry in said[RTX_3060.name]] == [750, 2048, 4096, 8192]


def test_the_kept_cpu_results_are_modelled_within_a_fifth(capsys: pytest.CaptureFixture[str]) -> None:
    assert paper_model.main(["--contexts", "nowhere.jsonl"]) == 0
    said = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert "gpu" not in said
    assert 0 < said["cpu"]["mean_error"] < 0.2
    assert all(entry["cached_ms"] < entry["full_ms"] for entry in said["cpu"]["laptop"])


def test_the_kept_gpu_results_are_modelled(capsys: pytest.CaptureFixture[str]) -> None:
    assert paper_model.main([]) == 0
    assert "Fitted at 8,192 tokens" in capsys.readouterr().out


def test_a_faster_cpu_computes_faster_and_loads_as_before() -> None:
    here = OnCpu(operations=50e9, question=0.04, token=1e-5)
    full, cached = here.predict(1000)
    faster_full, faster = here.on(100e9).predict(1000)
    assert faster_full == pytest.approx(full / 2) and faster == pytest.approx(cached - 0.02)


def test_results_without_first_tokens_are_refused() -> None:
    with pytest.raises(ConfigError, match="no first tokens"):
        read_points({"bench": "contexts", "e2e": {}})
