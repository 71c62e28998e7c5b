"""Work is divided among the multiprocessors that a process may use."""

from __future__ import annotations

import pytest
import torch

from desk_rag.kv.kernels.compiled_launch import multiprocessors, on_multiprocessors
from desk_rag.kv.nf4 import launcher
from desk_rag.kv.nf4.launcher import shares_of, tuning_for


def test_a_process_on_a_part_of_a_gpu_divides_its_work_among_that_part() -> None:
    gpu = torch.device("cuda", 0)
    tuning = tuning_for(16, gpu)
    with on_multiprocessors(132):
        assert multiprocessors(gpu) == multiprocessors(torch.device("cuda")) == 132
        many = shares_of(64, 9728, tuning, gpu)
    with on_multiprocessors(24):
        assert multiprocessors(gpu) == 24
        few = shares_of(64, 9728, tuning, gpu)
    assert 1 <= few < many


def test_the_limit_ends_with_its_context(monkeypatch: pytest.MonkeyPatch) -> None:
    properties = type("Properties", (), {"multi_processor_count": 28})
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties)
    with pytest.raises(RuntimeError, match="within"), on_multiprocessors(4):
        raise RuntimeError("within")
    assert multiprocessors(torch.device("cuda", 0)) == 28
    assert launcher.multiprocessors is multiprocessors
