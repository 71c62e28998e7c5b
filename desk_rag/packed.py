"""A model's matrices in the form in which a CPU multiplies few rows fastest: fp16 weights, fp32 activations and sums.

Knows modules and FBGEMM's packed matrices; knows no model family and no cache. A question of 25 tokens and every
decoded token read all weights once and multiply little, so bytes decide: half of them, laid out ahead of time, take 0.6
(25 tokens) and 0.25 (one token) of the time of fp32, and at 2,000 tokens they are no slower. The only rounding is that
of the weights to 11 bits; activations are not coded.
"""

from __future__ import annotations

from typing import Any

import torch

_ENGINES = frozenset({"x86", "fbgemm"})
_LARGEST = 65504.0
"""fp16's largest number; FBGEMM would clip what lies beyond."""


class PackedLinear(torch.nn.Module):
    """Stands where a `torch.nn.Linear` stood: fp32 [..., in] -> fp32 [..., out]. For inference only."""

    def __init__(self, linear: torch.nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.bias = linear.bias
        weight = linear.weight.detach().contiguous()
        self._packed: Any = torch.ops.quantized.linear_prepack_fp16(weight, linear.bias)
        self._multiply = torch.ops.quantized.linear_dynamic_fp16.default

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        product: torch.Tensor = self._multiply(rows, self._packed)
        return product

    @property
    def weight(self) -> torch.Tensor:
        """A copy of the weights as they are multiplied, fp32 [out, in]."""
        unpacked: torch.Tensor = torch.ops.quantized.linear_unpack_fp16(self._packed)[0]
        return unpacked

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"


def available() -> bool:
    """Whether this build of torch has the packed kernels (x86-64 with FBGEMM)."""
    return torch.backends.quantized.engine in _ENGINES


def pack_linears(module: torch.nn.Module) -> int:
    """Replace every fp32 CPU `torch.nn.Linear` below `module` by its packed form; returns how many were replaced.

    Hooks sit on the modules, so pack before any is registered. Weights that fp16 cannot hold stay as they are, as does
    everything where the kernels are missing.
    """
    if not available():
        return 0
    replaced = 0
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is torch.nn.Linear and _packable(child.weight):
                setattr(parent, name, PackedLinear(child))
                replaced += 1
    return replaced


def _packable(weight: torch.Tensor) -> bool:
    plain = weight.dtype is torch.float32 and weight.device.type == "cpu"
    return plain and bool(weight.abs().amax() <= _LARGEST)
