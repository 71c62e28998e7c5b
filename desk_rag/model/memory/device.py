"""Free memory of a device, within the share of it that this process may take."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

import torch

from desk_rag.errors import OutOfMemory
from desk_rag.model.memory.heap import trim_memory

_WORDS = ("out of memory", "can't allocate memory", "not enough memory", "_STATUS_ALLOC_FAILED")
"""In messages of RuntimeError by which allocators and libraries other than torch's own for GPUs say it."""


def free_gpu_bytes(device: torch.device) -> int:
    """Bytes that can still be allocated there: what is free, at most what the process's memory fraction leaves.

    Memory that torch's allocator keeps without using it counts as taken; `release_unused` gives it back.
    """
    free, total = torch.cuda.mem_get_info(device)
    share = torch.cuda.get_per_process_memory_fraction(device.index or 0)
    allowed = int(share * total) - torch.cuda.memory_reserved(device)
    return max(0, min(free, allowed))


def release_unused(device: torch.device) -> None:
    """Give memory that is no longer used back to the device, or to the system where its C library can."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    else:
        trim_memory()


def is_out_of_memory(error: BaseException) -> bool:
    """True if an allocation failed, on a GPU or in host memory."""
    if isinstance(error, OutOfMemory | torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _WORDS)


@contextlib.contextmanager
def memory_errors() -> Iterator[None]:
    """Turn a failed allocation inside the block into OutOfMemory; also a decorator."""
    try:
        yield
    except OutOfMemory:
        raise
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        raise OutOfMemory(
            "There is not enough memory for the model and its work.",
            remedy="Close other programs that use it, or take a smaller model or --quantization nf4 on a GPU "
            "(`desk-rag models fit` compares).",
        ) from error


def shown_name(device: torch.device) -> str:
    """Return 'CPU', or the name of a GPU."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
