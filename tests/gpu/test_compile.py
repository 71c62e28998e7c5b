"""The kernels compile for a real GPU, on machines without one: the interpreter accepts what the compiler does not."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys

import pytest

# Not `importorskip`: Triton decides at its first import whether it interprets, and other tests want it to.
pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton")


@pytest.mark.parametrize("variants", ["first", pytest.param("usual", marks=pytest.mark.slow)])
def test_every_kernel_compiles_within_its_registers(variants: str) -> None:
    """In a process of its own, because the interpreter is chosen when a kernel is decorated."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.gpu.compile_kernels"], env=environment | {"COMPILE": variants},
        capture_output=True, text=True, timeout=170, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    built = [json.loads(line) for line in done.stdout.splitlines()]
    glue = {"_add_norm", "_rotate_scatter", "_glu"}
    split = {"attend_share", "merge_rows"}
    others = {"_dequant_rope_scatter", "attend_shares", "attend_few", "merge_shares"}
    assert {entry["kernel"] for entry in built} == glue | split | others | {"multiply"}
    for entry in built:
        assert entry["stack"] <= 128, f"spills: {entry}"  # the many-row bf16 variant spills 88
        if entry["kernel"] == "multiply":  # a block's scale is a byte; one more is read a step ahead
            assert entry["narrow_loads"] <= 5 and entry["stack"] == 0 and entry["wide_loads"] > 0, entry
        else:
            assert entry["narrow_loads"] == 0, f"codes are loaded byte by byte: {entry}"
        if entry["kernel"] in glue:
            assert entry["stack"] == 0 and entry["registers"] <= 128, f"few programs fit side by side: {entry}"
            # Neighbours, and pairs that end within a head, are loaded number by number.
            assert entry["wide_loads"] > 0 or entry["parts_turn"], f"no load takes 16 bytes: {entry}"
        if entry["kernel"] in split:
            assert entry["stack"] == 0 and entry["wide_loads"] > 0, f"spills, or loads number by number: {entry}"
        most = 227 if entry["sm"] == 90 else 99
        assert entry["shared"] <= most * 1024, f"does not fit an RTX 3060: {entry}"
