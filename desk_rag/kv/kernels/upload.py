"""Copy small int64 arrays to the GPU without queueing behind chunk transfers.

The driver takes over copies of at most 64 KB from pageable memory at once (CUDA driver API, "API synchronization
behavior"); they do not wait for copies enqueued earlier on other streams. Copies from page-locked memory do wait for
the chunks that are being transferred (both measured on an H200).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

_PART = 6144
"""Numbers per copy: 48 KB."""


def upload(numbers: npt.NDArray[np.int64], device: torch.device) -> torch.Tensor:
    """Copy to int64 of the same shape on `device`, in stream order; on a CPU a view of `numbers`."""
    flat = torch.from_numpy(np.ascontiguousarray(numbers).reshape(-1))
    if device.type == "cuda":
        target = torch.empty(flat.shape, dtype=torch.int64, device=device)
        for start in range(0, len(flat), _PART):
            target[start : start + _PART].copy_(flat[start : start + _PART], non_blocking=True)
        flat = target
    return flat.view(numbers.shape)
