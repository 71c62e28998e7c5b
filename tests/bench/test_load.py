"""The load and kernel measurements on the CPU, small: they end in one JSON line that says what was measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from desk_rag.bench import kernels, load
from desk_rag.errors import ConfigError


def last_line(capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    result: dict[str, object] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return result


def test_load_measures_every_loader_and_leaves_nothing_behind(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = "--shape llama-3.2-1b --tokens 100 --chunk 60 --repeat 1 --threads 2 --waves 2 --big-mib 16 --dir"
    assert load.main([*options.split(), str(tmp_path)]) == 0
    result = last_line(capsys)
    times = result["ms"]
    assert isinstance(times, dict)
    assert {name for name in times if "cold" in name} == {
        "bytes only, cold", "filled cache, cold", "TurboRAG's loader, cold", "MatKV's loader, cold",
    }  # fmt: skip
    assert all(five == sorted(five) and five[0] >= 0 for five in times.values())
    assert result["values"] == "random"
    assert isinstance(result["bytes"], int) and 100 * 16_384 < result["bytes"] < 110 * 16_896
    assert not list(tmp_path.iterdir())


def test_kernels_measures_the_reference_without_a_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    options = "--shapes llama-3.2-1b --tokens 64 --chunk 40 --repeat 2 --only a"
    assert kernels.main(options.split()) == 0
    shape = last_line(capsys)["llama-3.2-1b"]
    assert isinstance(shape, dict)
    assert shape["place"]["reference"]["ms"][2] > 0


def test_an_unknown_shape_is_named() -> None:
    with pytest.raises(ConfigError, match="nowhere-1b"):
        load.main(["--shape", "nowhere-1b"])
