"""A kernel is used only after its check has passed, which runs once per GPU and shape."""

from __future__ import annotations

import importlib.util

import pytest
import torch

from desk_rag.kv.kernels.proof import proven


@pytest.fixture(autouse=True)
def with_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    """The checks below run no kernel, so that they need neither Triton nor a GPU."""
    proven.cache_clear()
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: object())


def test_a_check_runs_once_per_gpu_and_shape() -> None:
    calls: list[tuple[object, ...]] = []

    def check(device: torch.device, *shape: object) -> bool:
        calls.append((device.index, *shape))
        return True

    assert all(proven("x", check, index, 64) for index in (0, 1, 0))
    assert proven("x", check, 0, 128)
    assert calls == [(0, 64), (1, 64), (0, 128)]


def test_a_kernel_that_disagrees_or_cannot_run_is_not_used(caplog: pytest.LogCaptureFixture) -> None:
    class OutOfResources(Exception):
        """As Triton's: no RuntimeError."""

    def fails(_device: torch.device) -> bool:
        raise OutOfResources("too much shared memory")

    assert not proven("placing chunks", lambda _device: False, 0)
    assert "The kernel for placing chunks disagrees with its reference" in caplog.text
    assert not proven("placing chunks", fails, 0)
    assert "OutOfResources: too much shared memory" in caplog.text


def test_without_triton_no_check_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    assert not proven("x", lambda _device: pytest.fail("checked all the same"), 0)
