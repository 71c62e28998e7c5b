"""The kit itself: what a slow machine could not check is neither kept nor broken."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.attack import __main__ as kit
from tests.attack import kinds
from tests.attack.churn import MARK, kill_marked


def test_a_rebuild_that_the_machine_is_too_slow_for_gives_no_result(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(kinds, "REBUILD_SECONDS", 0.05)
    monkeypatch.setattr(sys, "argv", ["attack", "--minutes", "0.001", "--only", "kills"])
    assert kit.main() == 0
    *table, facts = capsys.readouterr().out.splitlines()
    kills = json.loads(facts)["kinds"]["kills"]
    assert kills["violations"] == [] and kills["rounds"] >= 1
    assert kills["no_result"][0].startswith("comparison with a store built anew: not done after 0 s")
    assert any("no result: comparison" in line for line in table) and "0 promises broken" in table[0]


def test_a_kind_that_is_late_as_a_whole_gives_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    def late(*_: object) -> None:
        raise subprocess.TimeoutExpired("pytest", 900)

    monkeypatch.setitem(kinds.KINDS, "links", late)  # type: ignore[arg-type]
    counts = kit.attack("links", 1, 1.0)
    assert counts.violations == [] and "not done after 900 s" in counts.no_result[0]


def test_a_process_that_has_opened_nothing_yet_is_killed_with_its_store_alone(tmp_path: Path) -> None:
    waiting = [sys.executable, "-c", "import time; time.sleep(60)"]
    started = [subprocess.Popen(waiting, env={**os.environ, MARK: str(tmp_path / name)}) for name in ("data", "other")]
    try:
        kill_marked(tmp_path / "data")
        assert [process.poll() is None for process in started] == [False, True]
    finally:
        for process in started:
            process.kill()
            process.wait(10)
