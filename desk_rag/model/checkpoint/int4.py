"""Read vectors whose numbers are stored in 4 bits, two to a byte, with one fp16 step per vector.

`training/pointer/int4.py` writes this form.
"""

from __future__ import annotations

import torch
from torch import Tensor

GROUP = 32
"""Columns of a matrix with one step, where a matrix is stored as several vectors a row."""
_ZERO = 8


def unpack_int4(codes: Tensor, steps: Tensor) -> Tensor:
    """Return fp32 vectors [N, 2 * M] of codes uint8 [N, M], the first of two numbers in the low bits, and steps [N].

    Raises RuntimeError for tensors of other types or shapes.
    """
    if codes.dtype != torch.uint8 or codes.dim() != 2 or steps.shape != codes.shape[:1] or not steps.isfinite().all():
        raise RuntimeError(f"codes {codes.dtype} {tuple(codes.shape)} and steps {tuple(steps.shape)} are no pair")
    low_and_high = torch.stack([codes & 0xF, codes >> 4], -1).flatten(1)
    return low_and_high.float().sub_(_ZERO).mul_(steps.float()[:, None])


def unpack_matrix(codes: Tensor, steps: Tensor) -> Tensor:
    """Return the fp32 matrix [N, 2 * M] of codes uint8 [N, M] and steps [N, 2 * M / GROUP]; raises RuntimeError."""
    return unpack_int4(codes.reshape(-1, GROUP // 2), steps.flatten()).view(len(codes), -1)
