"""Page-locked host memory, which a GPU reads directly, and the input embeddings of large models that are kept there.

A model whose output matrix is a matrix of its own reads its input embeddings by row only: one row per token of a pass,
7 KiB of 1.1 GB for Qwen2.5-7B. Where they would take much of what the other weights leave of a GPU's memory, the GPU
reads the rows from RAM, with the same values, in the same kernels and graphs.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
from typing import Any

import torch

from desk_rag.model.memory.device import free_gpu_bytes, release_unused
from desk_rag.model.memory.plan import belongs_in_ram

_READS_HOST_POINTERS = 91
"""CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM of the CUDA driver."""


def page_lock(memory: torch.Tensor) -> bool:
    """Page-lock a host tensor; False where CUDA refuses. torch's pinned allocator would round up to a power of two."""
    if not torch.cuda.is_available():
        return False
    runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    if int(runtime.cudaHostRegister(memory.data_ptr(), memory.nbytes, 0)) == 0:
        return True
    # CUDA keeps the error, and torch would report it at the next launch of this thread: clear it here.
    with contextlib.suppress(RuntimeError):
        torch.zeros(1, device="cuda")
    return False


def keep_embeddings_in_ram(module: Any) -> int:
    """Move a served model's input embeddings to RAM if that is where they belong; returns the bytes moved, or 0.

    They stay where they are on a CPU, if the output matrix is the same tensor, if they are small beside the memory that
    is left, and if the system cannot page-lock so much.
    """
    embedding, head = module.get_input_embeddings(), module.get_output_embeddings()
    weight = getattr(embedding, "weight", None)
    if weight is None or weight.device.type != "cuda" or head is None or head.weight is weight:
        return 0
    release_unused(weight.device)
    if not belongs_in_ram(weight.nbytes, free_gpu_bytes(weight.device)) or not _reads_host_pointers(weight.device):
        return 0
    in_ram = _mapped(weight.data)
    if in_ram is None:
        return 0
    embedding.weight.data = in_ram
    release_unused(weight.device)
    return int(in_ram.nbytes)


def _mapped(weight: torch.Tensor) -> torch.Tensor | None:
    """Copy a GPU's tensor to page-locked RAM, as a tensor of that GPU; None if memory cannot be page-locked."""
    try:
        host = torch.empty(weight.shape, dtype=weight.dtype)
    except RuntimeError:
        return None
    host.copy_(weight)
    if not page_lock(host):
        return None
    return torch.as_tensor(_Mapped(host), device=weight.device).view(weight.dtype)


class _Mapped:
    """Host memory in the form by which torch takes over memory that a GPU can address; lives as long as the tensor."""

    def __init__(self, host: torch.Tensor) -> None:
        self._host = host
        words = {2: torch.int16, 4: torch.int32}[host.element_size()]
        self.__cuda_array_interface__ = {
            "shape": tuple(host.shape),
            "typestr": f"<i{words.itemsize}",
            "data": (host.data_ptr(), False),
            "version": 3,
        }

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # the CUDA runtime may be gone when the interpreter ends
            torch.cuda.cudart().cudaHostUnregister(self._host.data_ptr())  # type: ignore[no-untyped-call]


def _reads_host_pointers(device: torch.device) -> bool:
    """True if kernels of this GPU may use the host's addresses of page-locked memory, as all do on Linux on x86-64."""
    try:
        driver = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
        value = ctypes.c_int(0)
        failed = driver.cuDeviceGetAttribute(ctypes.byref(value), _READS_HOST_POINTERS, device.index or 0)
    except (OSError, AttributeError):
        return False
    return failed == 0 and value.value == 1
