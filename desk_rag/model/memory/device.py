"""Free memory of a GPU, within the share of it that this process may take."""

from __future__ import annotations

import torch


def free_gpu_bytes(device: torch.device) -> int:
    """Bytes that can still be allocated there: what is free, at most what the process's memory fraction leaves.

    Memory that torch's allocator keeps without using it counts as taken; `torch.cuda.empty_cache()` gives it back.
    """
    free, total = torch.cuda.mem_get_info(device)
    allowed = int(torch.cuda.get_per_process_memory_fraction(device) * total) - torch.cuda.memory_reserved(device)
    return max(0, min(free, allowed))
