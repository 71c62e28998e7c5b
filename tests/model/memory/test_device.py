"""A failed allocation is known as such, whoever reports it."""

from __future__ import annotations

import pytest
import torch

from desk_rag.errors import OutOfMemory
from desk_rag.model.memory import device as device_memory
from desk_rag.model.memory.device import is_out_of_memory, memory_errors, recording_stream


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
        RuntimeError("Triton Error [CUDA]: out of memory"),
        MemoryError(),
    ],
    ids=repr,
)
def test_every_allocator_is_understood(error: Exception) -> None:
    assert is_out_of_memory(error)
    with pytest.raises(OutOfMemory) as refusal, memory_errors():
        raise error
    assert refusal.value.remedy


def test_other_errors_stay_what_they_are() -> None:
    assert not is_out_of_memory(RuntimeError("CUDA error: CUBLAS_STATUS_NOT_SUPPORTED"))
    with pytest.raises(RuntimeError, match="NOT_SUPPORTED"), memory_errors():
        raise RuntimeError("CUDA error: CUBLAS_STATUS_NOT_SUPPORTED")


def test_all_recordings_share_one_stream_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each stream that ran a product would keep work space of its own."""
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: [device])
    device_memory.recording_stream.cache_clear()
    first, second = torch.device("cuda", 0), torch.device("cuda", 1)
    assert recording_stream(first) is recording_stream(torch.device("cuda", 0))
    assert recording_stream(second) is not recording_stream(first)
    device_memory.recording_stream.cache_clear()
