"""The Zipf replay, small: one JSON line, and the order of hit ratios that follows from how many copies there are."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from desk_rag.bench.zipf import __main__ as zipf


def test_one_copy_for_every_place_is_held_most_often(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = "--chunks 12 --tokens 16 --places 3 --answers 40 --repeat 2 --alphas 1.1 --share 0.4 --prefill-ms 99"
    assert zipf.main([*options.split(), "--dir", str(tmp_path)]) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    hits = {entry["way"]: entry["hit_ratio"][2] for entry in result["results"]}
    assert hits["position-free int8"] > hits["position-free 16-bit"] > hits["per position 16-bit"]
    assert hits["position-free int8"] > hits["per position int8"]
    assert all(entry["answers_per_second"][0] > 0 for entry in result["results"])
    prefills = {entry["way"]: entry["prefills_per_answer_within_drive"] for entry in result["results"]}
    assert prefills["position-free int8"][4] < prefills["per position int8"][0], "its drive holds a third of it"
    assert not list(tmp_path.iterdir())


def test_traces_follow_the_law_and_repeat_by_seed() -> None:
    drawn = zipf.trace(random.Random(1), 50, 400, 3, 2.1)
    assert drawn == zipf.trace(random.Random(1), 50, 400, 3, 2.1)
    assert all(len(set(answer)) == 3 for answer in drawn)
    counts = sorted((sum(chunk in answer for answer in drawn) for chunk in range(50)), reverse=True)
    assert counts[0] > 350 and counts[10] < 60
    places = {answer.index(chunk) for answer in drawn for chunk in answer}
    assert places == {0, 1, 2}
