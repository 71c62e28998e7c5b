"""Work in a process beside the UI: its values, its errors, and what it leaves in the UI's process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import psutil
import pytest

from desk_rag.errors import DeskRagError, ModelNotFound
from desk_rag.tui.management import aside
from tests.tui.terminal import ROOT

_WITHOUT_TORCH = """
import sys
from pathlib import Path
from desk_rag.cli.doctor import examine
from desk_rag.config import Settings
from desk_rag.tui.management import aside
from desk_rag.tui.management.models import ModelsView
from desk_rag.tui.management.session import Session
session = Session(Settings(data_dir=Path(sys.argv[1])), [])
rows = list(ModelsView(session).reports())[-1].rows
findings = list(aside.each(examine, session.settings))
print([row.name for row in rows], len(findings) > 10, "torch" in sys.modules)
"""


def counted(end: int) -> Iterator[int]:
    print("a library that prints")
    yield from range(end)


def refused(name: str) -> str:
    raise ModelNotFound(f"No weights in {name}.", remedy="Name a directory with weights.")


def killed() -> Iterator[int]:
    yield 1
    psutil.Process().kill()


def test_values_come_one_by_one_and_a_closed_iterator_ends_the_process() -> None:
    assert list(aside.each(counted, 3)) == [0, 1, 2]
    values = aside.each(counted, 10**9)
    assert next(values) == 0
    ours = [child for child in psutil.Process().children() if "aside" in " ".join(child.cmdline())]
    assert len(ours) == 1
    values.close()  # type: ignore[attr-defined]
    assert not ours[0].is_running()


def test_errors_come_over_with_their_remedy_and_an_end_is_told() -> None:
    with pytest.raises(ModelNotFound) as raised:
        aside.one(refused, "/models/nothing")
    assert raised.value.message == "No weights in /models/nothing." and "Name a directory" in raised.value.remedy
    with pytest.raises(DeskRagError, match="has ended"):
        list(aside.each(killed))


@pytest.mark.slow
def test_models_and_doctor_leave_no_heavy_library_in_the_ui(tmp_path: object) -> None:
    said = subprocess.run(
        [sys.executable, "-c", _WITHOUT_TORCH, str(tmp_path)], capture_output=True, text=True, cwd=ROOT, check=True
    )
    assert said.stdout.split("\n")[0] == "['embedded'] True False", said.stdout
