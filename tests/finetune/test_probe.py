"""What is said of general ability: which windows are read, and how sure a change of their loss is."""

from __future__ import annotations

import random
import statistics
from pathlib import Path

import pytest

from desk_rag.cli.training.finetune import _change
from desk_rag.config import ModelSettings
from desk_rag.finetune import probe as probe_module
from desk_rag.finetune.probe import change_error, probe
from desk_rag.finetune.run import Report
from desk_rag.model.loading import load_model

ONE, OTHER = "The lamp of the harbour was lit at dusk. " * 60, "Potatoes keep best in sand, in the dark. " * 60


def test_windows_come_from_all_texts_and_give_the_mean(tiny_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load_model(ModelSettings(name=str(tiny_dir), device="cpu", threads=1))
    whole = probe(model, (), (ONE, OTHER))
    assert whole.text is not None and len(whole.text_nats) > 4
    assert sum(whole.text_nats) / whole.text_tokens == pytest.approx(whole.text, rel=1e-6)
    monkeypatch.setattr(probe_module, "_MOST_WINDOWS", 2)
    drawn = probe(model, (), (ONE, OTHER))
    middle = len(whole.text_nats) // 2
    assert drawn.text_nats == pytest.approx((whole.text_nats[0], whole.text_nats[middle]), rel=1e-4)
    assert probe(model, (), (OTHER,)).text_nats[0] == pytest.approx(drawn.text_nats[1], rel=1e-4)


def test_the_interval_is_that_of_drawing_the_windows_again() -> None:
    rng = random.Random(4)
    before = [rng.uniform(1000, 3000) for _ in range(200)]
    after = [was * (1 + rng.gauss(0.006, 0.02)) for was in before]
    stated = change_error(before, after)
    changes = []
    for _ in range(2000):
        drawn = [rng.randrange(200) for _ in range(200)]
        was, now = (sum(values[index] for index in drawn) for values in (before, after))
        changes.append(100 * (now - was) / was)
    assert stated is not None and 0.2 < stated < 0.4
    assert stated == pytest.approx(1.96 * statistics.stdev(changes), rel=0.1)


def test_texts_that_differ_say_nothing_of_the_change() -> None:
    assert change_error([100.0, 9000.0, 40.0], [101.0, 9090.0, 40.4]) == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize(
    ("before", "after"), [([], []), ([1.0], [2.0]), ([1.0, 2.0], [1.0, 2.0, 3.0]), ([0.0, 0.0], [1.0, 1.0])]
)
def test_nothing_is_claimed_without_pairs(before: list[float], after: list[float]) -> None:
    assert change_error(before, after) is None


def test_the_report_and_the_summary_say_how_sure_they_are() -> None:
    before = probe_module.Probe(0, None, None, 3, 2.0, (2.0, 4.0))
    after = probe_module.Probe(0, None, None, 3, 2.02, (2.04, 4.02))
    report = Report(Path("out"), False, 1, before, after, {}, {}, (1.0,), 1.0, 0.0)
    fields = report.as_json()
    assert fields["text_change_percent"] == pytest.approx(1.0)
    assert fields["text_change_error"] == pytest.approx(change_error((2.0, 4.0), (2.04, 4.02)))
    assert _change("General text", 2.0, 2.02, 0.34) == "General text: loss 2.000 -> 2.020 (+1.0 ± 0.3 %)"
    assert _change("General text", 2.0, 2.02) == "General text: loss 2.000 -> 2.020 (+1.0 %)"
