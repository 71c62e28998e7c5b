"""Vectors in four bits a number: rounding through which is learned, and the bytes that they are kept in.

Knows tensors; knows no network and no file. Every vector has a step of its own and its numbers are whole multiples of
it, from -7 to 7 times; what lies further out is cut.
"""

from __future__ import annotations

import torch
from torch import Tensor

_BITS = 4
_MOST = 2 ** (_BITS - 1) - 1
_REACH = 2.5
"""Root mean squares that the greatest code stands for: of 15 equal steps those of 0.35 err least where numbers are
normally distributed (Max, Quantizing for minimum distortion, IRE Transactions on Information Theory 6, 1960, table II).
"""


def rounded(vectors: Tensor) -> Tensor:
    """`vectors` [N, M] as they are after `pack` and `unpack`. Gradients pass as if nothing were rounded
    (straight-through estimator, Bengio et al., arXiv 1308.3432, section 2.4)."""
    steps = _steps(vectors)
    return vectors + (_codes(vectors, steps) * steps - vectors).detach()


def pack(vectors: Tensor) -> tuple[Tensor, Tensor]:
    """Codes, uint8 [N, M / 2], two to a byte, and steps, fp16 [N]. M must be even."""
    assert vectors.shape[1] % 2 == 0, vectors.shape
    steps = _steps(vectors)
    codes = (_codes(vectors, steps) + _MOST + 1).to(torch.uint8)
    return codes[:, 0::2] | codes[:, 1::2] << _BITS, steps[:, 0].half()


def unpack(codes: Tensor, steps: Tensor) -> Tensor:
    """fp32 [N, M] of what `pack` gave. Raises RuntimeError for what it cannot have given."""
    if codes.dtype != torch.uint8 or codes.dim() != 2 or steps.shape != codes.shape[:1] or not steps.isfinite().all():
        raise RuntimeError(f"codes {codes.dtype} {tuple(codes.shape)} and steps {tuple(steps.shape)} are no pair")
    both = torch.stack([codes & 2**_BITS - 1, codes >> _BITS], -1).flatten(1)
    vectors: Tensor = (both.float() - (_MOST + 1)) * steps.float()[:, None]
    return vectors


def _steps(vectors: Tensor) -> Tensor:
    """fp32 [N, 1], as fp16 keeps them."""
    spread = vectors.detach().float().square().mean(1, keepdim=True).sqrt()
    steps: Tensor = (spread * _REACH / _MOST).half().float().clamp_min(torch.finfo(torch.float16).tiny)
    return steps


def _codes(vectors: Tensor, steps: Tensor) -> Tensor:
    return (vectors.detach() / steps).round().clamp(-_MOST, _MOST)
