"""`bench soak` on the CPU with a tiny model: every question is counted once, and what goes wrong is seen."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from desk_rag.bench.soak.__main__ import Counts, _ask, main
from desk_rag.bench.soak.other_program import OtherProgram
from desk_rag.errors import OutOfMemory

CPU = torch.device("cpu")


def test_the_other_program_takes_and_gives_back() -> None:
    with OtherProgram(CPU) as other:
        assert other.taken == 0
        other.leave(0)
        taken = other.taken
        assert taken > 0
        other.give()
        assert other.taken == 0
        with pytest.raises(RuntimeError, match="has ended with code"):
            other._command("steal")


def test_errors_are_counted_apart_from_refusals() -> None:
    class Failing:
        model = SimpleNamespace(device=CPU)

        def __init__(self, error: Exception) -> None:
            self._error = error

        def ask(self, _question: str) -> Iterator[object]:
            raise self._error
            yield

    counts = Counts()
    for error in (OutOfMemory("too little", remedy="close something"), RuntimeError("broken")):
        assert _ask(cast("Any", Failing(error)), "Where?", cast("Any", None), (None, None), counts) is None
    assert (counts.asked, counts.answered, counts.refused, counts.errors) == (2, 0, 1, 1)
    assert counts.first_error == "RuntimeError: broken"


@pytest.mark.slow
def test_a_small_soak_loses_nothing(tmp_path: Path) -> None:
    pytest.importorskip("bitsandbytes")
    out = tmp_path / "soak.jsonl"
    sizes = ["--shape", "tiny", "--questions", "21", "--files", "8", "--chunk", "128", "--context", "384"]
    assert main([*sizes, "--answer", "6", "--seconds", "120", "--dir", str(tmp_path), "--out", str(out)]) == 0
    result = json.loads(out.read_text())
    assert result["asked"] == result["answered"] == 21 and not result["failed"]
    assert result["refused"] == result["errors"] == 0
    assert result["repeated"] == result["repeated_alike"] == 3
    assert result["warm_chunks"] > 21 and result["cold_chunks"] == 0, "answers come from caches"
    assert list(tmp_path.iterdir()) == [out], "files are temporary"
