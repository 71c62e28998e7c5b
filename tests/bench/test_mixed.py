"""Loading beside prefilling, small and on the CPU: every way is timed at every context, one JSON line at the end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from desk_rag.bench.mixed import __main__ as mixed


def test_every_way_is_timed_from_every_tier(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--shape", "tiny", "--contexts", "48,96", "--chunk", "24", "--repeat", "1", "--dir", str(tmp_path)]
    assert mixed.main(options) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    ways = {"full prefill"} | {f"{way}, {tier}" for way in ("cached", "mixed") for tier in ("drive", "RAM", "device")}
    for case, chunks in zip(result["cases"], (2, 4), strict=True):
        assert case["ms"].keys() == ways and all(min(five) > 0 for five in case["ms"].values())
        assert case["chunks"] == chunks
        assert case["prefilled"]["mixed, device"] in (0, chunks), "what is there is loaded, or all is full prefill"
        assert all(0 <= count <= chunks for count in case["prefilled"].values())
    whole = result["rates"].pop("whole")
    assert [tokens for tokens, _ in whole] == [256] and min(seconds for _, seconds in whole) > 0
    assert min(result["rates"].values()) >= 0
    assert not list(tmp_path.iterdir())
