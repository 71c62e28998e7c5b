"""Quantiles, tables and the JSON line that ends every measurement."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from desk_rag.bench.harness import report


def test_a_spread_is_min_quartiles_and_max() -> None:
    spread = report.Spread.of([5.0, 1.0, 2.0, 4.0, 3.0])
    assert (spread.least, spread.lower, spread.median, spread.upper, spread.most) == (1.0, 2.0, 3.0, 4.0, 5.0)
    assert spread.count == 5
    assert spread.scaled(1000) == [1000.0, 2000.0, 3000.0, 4000.0, 5000.0]


def test_one_number_is_its_own_spread_and_none_is_a_mistake() -> None:
    assert report.Spread.of([7.0]).scaled(1) == [7.0] * 5
    with pytest.raises(AssertionError):
        report.Spread.of([])


def test_a_table_lines_its_columns_up() -> None:
    assert report.table(["name", "n"], [["a", "10"], ["longer", "2"]]).splitlines() == [
        "name     n",
        "------  --",
        "a       10",
        "longer   2",
    ]
    assert report.table(["a", "b"], [["x", "10"]], markdown=True).splitlines() == [
        "| a |  b |",
        "| - | -: |",
        "| x | 10 |",
    ]


def test_the_last_line_is_json_and_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "results" / "a.jsonl"
    for number in (1, 2):
        report.finish({"bench": "a", "number": number}, file)
    printed = capsys.readouterr().out.splitlines()
    assert [json.loads(line)["number"] for line in printed] == [1, 2]
    assert file.read_text(encoding="utf-8").splitlines() == printed


def test_the_environment_says_who_measured() -> None:
    environment = report.environment()
    assert re.match(r"\d+-core \S+ CPU", str(environment["machine"]))
    assert {"at", "desk_rag", "commit", "torch", "transformers", "threads", "python"} <= set(environment)
    assert json.dumps(environment)
    assert report.environment(threads=3)["threads"] == 3
