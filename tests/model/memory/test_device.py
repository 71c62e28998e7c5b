"""A failed allocation is known as such, whoever reports it."""

from __future__ import annotations

import pytest
import torch

from desk_rag.errors import OutOfMemory
from desk_rag.model.memory.device import is_out_of_memory, memory_errors


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
