"""The harness as a whole: modes by name, estimates, the journal, the report and the command."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from desk_rag.bench import quality
from desk_rag.bench.answer_quality import evaluation
from desk_rag.bench.answer_quality.bootstrap import mean_of, ratio_of
from desk_rag.bench.answer_quality.modes import STITCHED, parse_modes
from desk_rag.bench.quality import FULL, Coding, Mode, QualitySettings, Report, Sample, Way, evaluate
from desk_rag.errors import ConfigError
from desk_rag.kv.prefix_variants.variants import build_prefix_variants
from desk_rag.kv.recompute.auxiliary_model import AuxiliaryModel, AuxiliaryScores, MemoryKVStore
from desk_rag.kv.shift import PlaceShift
from desk_rag.kv.types import QuantizedKV
from desk_rag.model.language_model import LanguageModel
from tests.models import FAMILIES, build_model

TEXTS = ("The boiler was serviced.", "Rent is due on Monday.", "The ferry leaves at 7.40.", "Beans are kept dry.")
MODES = (FULL, *STITCHED, Mode(Way.RECOMPUTE, "edge-query", 0.25))
SETTINGS = QualitySettings(max_new_tokens=6, batch=2)


def tiny() -> LanguageModel:
    """The same identity in every process, as a model from files has it."""
    model = build_model(next(family for family in FAMILIES if family.name == "qwen3"))
    return replace(model, spec=replace(model.spec, weights_fingerprint="tiny"))


def samples() -> list[Sample]:
    samples = [
        Sample(f"What of {number}?", ((answer,),), TEXTS[: 2 + number % 3], ("even", "odd")[number % 2], (0,))
        for number, answer in enumerate(("boiler", "Monday", "7.40", "dry", "rent"))
    ]
    return [*samples, Sample("Nothing?", (), TEXTS[:2], "odd", ())]


def lasting(report: Report) -> object:
    """Everything that must not change from run to run: all but the seconds."""
    return [
        (row.task, row.mode, row.count, dict(row.scores), dict(row.of_full), row.recomputed, row.tokens, row.left_out)
        for row in report.rows
    ]


def test_modes_are_read_back_from_their_labels() -> None:
    modes = parse_modes("full,parallel,recompute:query:0.2,recompute,full", ("first-k", "aux"), (0.1, 0.3))
    assert [mode.label for mode in modes] == [
        "full", "parallel", "recompute:query:0.2", "recompute:first-k:0.1", "recompute:first-k:0.3",
        "recompute:aux:0.1", "recompute:aux:0.3",
    ]  # fmt: skip
    assert parse_modes(",".join(mode.label for mode in modes)) == modes


def test_primed_modes_are_read_back_too() -> None:
    modes = parse_modes("primed,primed+recompute:query:0.2,primed+recompute,reordered", ("aux",), (0.1,))
    labels = ["primed", "primed+recompute:query:0.2", "primed+recompute:aux:0.1", "reordered"]
    assert [mode.label for mode in modes] == labels
    assert [mode.primed for mode in modes] == [True, True, True, False]
    assert parse_modes(",".join(labels)) == modes


@pytest.mark.parametrize(
    "text",
    [
        "", "half", "full:x", "primed:x", "primed+full", "primed+",
        "full+recompute", "recompute:query:2", "recompute:query:x", "recompute",
    ],
)  # fmt: skip
def test_modes_that_do_not_exist_are_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_modes(text)


def test_estimates() -> None:
    draw = np.random.default_rng(3)
    values = (draw.random(400) < 0.3).astype(float).tolist()
    estimate = mean_of(values)
    assert estimate is not None and estimate == mean_of(values)
    error = 1.96 * np.std(values) / 20  # the normal approximation of the same interval
    assert estimate.low == pytest.approx(estimate.mean - error, abs=0.01)
    assert estimate.high == pytest.approx(estimate.mean + error, abs=0.01)
    halved = ratio_of([value / 2 for value in values], values)
    assert halved is not None
    assert (halved.mean, halved.low, halved.high) == pytest.approx((0.5, 0.5, 0.5))  # pairs: no noise of their own
    assert mean_of([]) is None
    assert ratio_of([1.0], [0.0]) is None


def test_a_report_over_two_tasks() -> None:
    model = tiny()
    report = evaluate(model, samples(), MODES, SETTINGS)
    assert [row.task for row in report.rows] == ["even"] * 5 + ["odd"] * 5 + ["all"] * 5
    assert [row.mode for row in report.rows[:5]] == [mode.label for mode in MODES]
    full, stitched, some = (report.row(label) for label in ("full", "reordered", "recompute:edge-query:0.25"))
    assert (full.count, full.scores["f1"].count, full.scores["refused"].count) == (6, 5, 1)
    assert "kl" not in full.scores
    assert stitched.scores["kl"].mean > 0
    assert (full.recomputed, stitched.recomputed) == (1.0, 0.0)
    assert 0.2 < some.recomputed < 0.3
    assert some.select.median > 0 and full.select.most == 0
    assert report.row("full", "odd").count == 3
    table = report.table()
    assert "recompute:edge-query:0.25" in table and "misled" not in table
    assert len({len(line) for line in report.table(markdown=True).splitlines()}) == 1
    tasks = json.loads(json.dumps(report.to_json()))["tasks"]
    assert tasks["all"]["reordered"]["kl"] == stitched.scores["kl"].to_json()
    assert tasks["odd"]["full"]["questions"] == 3
    with pytest.raises(KeyError):
        report.row("nothing")


def test_primed_chunks_beside_plain_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    short = ("Beans are dry.", "It rained all day.")
    monkeypatch.setattr(evaluation, "build_prefix_variants", partial(build_prefix_variants, passages=short))
    modes = parse_modes("full,reordered,primed,primed+recompute:edge-query:0.25")
    settings = replace(SETTINGS, rungs=(0, 1, 2))
    report = evaluate(tiny(), samples(), modes, settings)
    plain, primed, some = (report.row(mode.label) for mode in modes[1:])
    assert primed.scores["kl"].mean != plain.scores["kl"].mean
    assert (plain.recomputed, primed.recomputed) == (0.0, 0.0) and 0.2 < some.recomputed < 0.3
    assert "primed+recompute:edge-query:0.25" in report.table()
    fewer = evaluate(tiny(), samples(), modes, replace(settings, rungs=(0, 1)))
    assert fewer.name != report.name and fewer.row("primed").scores["kl"] != primed.scores["kl"]
    assert fewer.row("reordered").scores["kl"] == plain.scores["kl"]
    with pytest.raises(ConfigError, match="more than rung 0"):
        evaluate(tiny(), samples(), modes, SETTINGS)


def test_adapted_chunks_beside_plain_ones() -> None:
    """A shift of zero is plain stitching, another one is not; without one there is nothing to measure."""
    model, modes = tiny(), parse_modes("full,reordered,adapted")
    zero = PlaceShift.zero(model.spec.num_layers, model.spec.num_kv_heads, model.spec.head_dim)
    for shift in (zero, replace(zero, values=zero.values + 1.0)):
        report = evaluate(model, samples(), modes, SETTINGS, shift=shift)
        plain, adapted = (report.row(mode).scores["kl"].mean for mode in ("reordered", "adapted"))
        assert (plain == adapted) is (shift is zero)
    with pytest.raises(ConfigError, match="shift"):
        evaluate(model, samples(), modes, SETTINGS)


def test_uncoded_chunks_and_an_auxiliary_model() -> None:
    model = tiny()
    mode = Mode(Way.RECOMPUTE, "aux", 0.4)
    with pytest.raises(ConfigError, match="auxiliary"):
        evaluate(model, samples(), [FULL, mode], SETTINGS)
    settings = replace(SETTINGS, coding=Coding.EXACT)
    report = evaluate(model, samples()[:3], [FULL, mode, STITCHED[0]], settings, auxiliary=AuxiliaryModel(model))
    coded = evaluate(model, samples()[:3], [FULL, STITCHED[0]], SETTINGS)
    assert report.row(mode.label).recomputed > 0.1
    exact, int8 = (one.row("reordered").scores["kl"].mean for one in (report, coded))
    assert exact != int8
    assert exact == pytest.approx(int8, rel=0.3)


def test_the_auxiliary_model_knows_whole_chunks_before_the_clock_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny()
    shelf = MemoryKVStore()
    lengths: list[int] = []
    missing: list[int] = []
    put, look = shelf.put, AuxiliaryModel.score

    def counted(token_ids: tuple[int, ...], kv: QuantizedKV) -> None:
        lengths.append(len(token_ids))
        put(token_ids, kv)

    def looked(self: AuxiliaryModel, texts: Sequence[str], question: str) -> list[AuxiliaryScores]:
        known = shelf.get([tuple(model.prompt.chunk_ids(text)) for text in texts])
        missing.append(sum(kv is None for kv in known))
        return look(self, texts, question)

    monkeypatch.setattr(shelf, "put", counted)
    monkeypatch.setattr(AuxiliaryModel, "score", looked)
    auxiliary = AuxiliaryModel(model, shelf=shelf)
    evaluate(model, samples()[:2], [Mode(Way.RECOMPUTE, "aux", 0.4)], SETTINGS, auxiliary=auxiliary)
    assert missing == [0, 0]
    assert sorted(lengths) == sorted(len(model.prompt.chunk_ids(text)) for text in TEXTS[:3])


def test_nothing_to_measure_and_unknown_selectors_are_refused() -> None:
    with pytest.raises(ConfigError, match="nothing to measure"):
        evaluate(tiny(), [], MODES)
    with pytest.raises(ConfigError, match="no selector 'best'"):
        evaluate(tiny(), samples(), [Mode(Way.RECOMPUTE, "best", 0.2)])


def test_full_prefill_need_not_be_asked_for() -> None:
    row = evaluate(tiny(), samples()[:2], [Mode(Way.REORDERED)], SETTINGS).rows[0]
    assert "kl" not in row.scores and not row.of_full and row.speedup is None


def test_other_settings_are_another_configuration(tmp_path: Path) -> None:
    model = tiny()
    asked, short = samples()[:2], replace(SETTINGS, max_new_tokens=2)
    variants = [
        (asked, STITCHED[:1], short),
        (asked[:1], STITCHED[:1], short),
        (asked, STITCHED[1:2], short),
        (asked, STITCHED[:1], replace(short, max_new_tokens=1)),
        (asked, STITCHED[:1], replace(short, coding=Coding.EXACT)),
    ]
    names = [evaluate(model, asked, modes, how, folder=tmp_path).name for asked, modes, how in variants]
    assert len(set(names)) == len(variants)
    assert {place.name for place in tmp_path.iterdir()} == set(names)


_CHILD = """
import os, signal, sys, torch
from pathlib import Path
from desk_rag.bench.quality import evaluate
from tests.bench.answer_quality.test_quality import MODES, SETTINGS, samples, tiny
kill = lambda done, total: os.kill(os.getpid(), signal.SIGKILL) if done >= 2 else None
torch.set_num_threads(int(sys.argv[2]))
evaluate(tiny(), samples(), MODES, SETTINGS, folder=Path(sys.argv[1]), progress=kill)
"""


@pytest.mark.slow
def test_a_killed_run_goes_on_and_comes_to_the_same_table(tmp_path: Path) -> None:
    whole = evaluate(tiny(), samples(), MODES, SETTINGS, folder=tmp_path / "whole")
    # As many threads in both, because another division of sums gives other last digits.
    command = [sys.executable, "-c", _CHILD, str(tmp_path / "killed"), str(torch.get_num_threads())]
    child = subprocess.run(command, timeout=120, check=False)
    assert child.returncode == -signal.SIGKILL
    file = tmp_path / "killed" / whole.name / "answers.jsonl"
    kept = file.read_text().splitlines()
    assert len(kept) == 2
    # As if it had been killed in the middle of a write: one line of the next batch, and half of another.
    other = (tmp_path / "whole" / whole.name / "answers.jsonl").read_text().splitlines()
    file.write_text("\n".join([*kept, other[2], other[3][:40]]))
    seen: list[int] = []
    resumed = evaluate(
        tiny(), samples(), MODES, SETTINGS, folder=tmp_path / "killed", progress=lambda done, total: seen.append(done)
    )
    assert lasting(resumed) == lasting(whole)
    assert file.read_text().splitlines()[:2] == kept  # not asked again
    assert len(file.read_text().splitlines()) == 6
    assert seen == [2, 4, 6]
    assert lasting(evaluate(tiny(), samples(), MODES, SETTINGS, folder=tmp_path / "killed")) == lasting(whole)


def test_the_command_measures_the_reader(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = tmp_path / "asked.jsonl"
    task = "asked\x1b[31m"
    line = {"task": task, "question": "When does the ferry leave?", "answers": ["7.40"], "gold": [1],
            "contexts": ["Beans are kept dry in the blue jar.", "The ferry leaves Harwick at 7.40."]}  # fmt: skip
    data.write_text(json.dumps(line) + "\n")
    out = tmp_path / "out.jsonl"
    modes = "full,reordered,recompute:first-k:0.5"
    arguments = ["--data", str(data), "--modes", modes, "--device", "cpu", "--max-new-tokens", "40", "--out", str(out)]
    assert quality.main(arguments) == 0
    output = capsys.readouterr().out
    assert "\x1b" not in output
    printed = output.splitlines()
    assert re.match(r"task +mode +n +exact", printed[0])
    last = json.loads(printed[-1])
    assert json.loads(out.read_text()) == last
    assert last["tasks"][task]["reordered"]["contains"][0] == 1.0
    assert last["tasks"][task]["full"]["right_quote"][0] == 1.0
    assert 0.3 < last["tasks"][task]["recompute:first-k:0.5"]["recomputed"] < 0.7


def test_the_command_writes_needles_in_the_one_form(tmp_path: Path) -> None:
    file = tmp_path / "needles.jsonl"
    arguments = ["--niah", "multivalue,multikey_3", "--tokens", "300", "--limit", "2", "--write-samples", str(file)]
    assert quality.main([*arguments, "--device", "cpu"]) == 0
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [line["task"] for line in lines] == ["niah-multivalue"] * 2 + ["niah-multikey_3"] * 2
    assert len(lines[0]["answers"]) == 4


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "nothing to measure"),
        (["--niah", "all", "--modes", "sideways"], "no mode 'sideways'"),
        (["--niah", "all", "--ratios", "2"], "--ratios '2'"),
    ],
)
def test_the_command_refuses(arguments: list[str], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        quality.main(arguments)
