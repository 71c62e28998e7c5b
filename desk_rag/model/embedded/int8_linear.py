"""Multiply by matrices that are stored as int8, as they are stored: by the compiled kernels, or by torch with VNNI.

Activations are split into two int8 numbers per value, the second for what the first leaves over: 15 bits, in one
product of twice the rows. Sums are whole numbers, so a row's result does not depend on the rows beside it. That is
closer to fp32 than weights in fp16 are, half as much to read, and needs no packing of fp32 matrices at the start.
"""

from __future__ import annotations

import time
from collections.abc import MutableMapping, Sequence
from functools import cache
from typing import Any

import torch

from desk_rag.model.embedded import compiled_linear, kernels
from desk_rag.model.packed_linear import replace_linears

_FINE = 254.0
"""Steps of the second number in one step of the first, so that both stay within -127 to 127."""
_SMALLEST = 1e-30
_ZERO = 128
"""Added to every number, because VNNI multiplies unsigned bytes by signed ones; torch subtracts it from the sums. With
signed ones, oneDNN takes the place of one AVX-512 product by ten thousand others.
"""
_BLOCK = 1 << 17
"""Weights that are coded at a time: what a processor's cache holds."""
_SLOWEST = 50.0
"""Times in fp32 that a small product may take; plain loops take several hundred, a kernel less than ten."""


class Int8Linear(torch.nn.Module):
    """Stands where a `torch.nn.Linear` stood: fp32 [..., in] -> fp32 [..., out]. For inference only."""

    def __init__(self, codes: torch.Tensor, scales: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        """`codes` int8 [out, in] times `scales` [out] are the weights."""
        super().__init__()
        self.out_features, self.in_features = codes.shape
        self.bias = bias
        self._scales = scales.float().flatten()
        self._zeros = torch.zeros(self.out_features, dtype=torch.int32)
        self._packed: Any = torch.ops.onednn.qlinear_prepack(codes, None)
        self._multiply = torch.ops.onednn.qlinear_pointwise.default

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        flat = rows.reshape(-1, self.in_features)
        count = flat.shape[0]
        largest = torch.maximum(flat.amax(1, keepdim=True), flat.amin(1, keepdim=True).neg_())
        step = largest.div_(127.0).clamp_min_(_SMALLEST)
        exact = flat / step
        coarse = exact.round()
        planes = torch.empty(2, count, self.in_features, dtype=torch.uint8)
        planes[1] = exact.sub_(coarse).mul_(_FINE).round_().add_(_ZERO)
        planes[0] = coarse.add_(_ZERO)
        sums = self._multiply(
            planes.view(2 * count, -1), 1.0, _ZERO, self._packed, self._scales, self._zeros, None, 1.0, 0,
            torch.float32, "none", [], "",
        )  # fmt: skip
        product = torch.add(sums[:count], sums[count:], alpha=1.0 / _FINE).mul_(step)
        if self.bias is not None:
            product.add_(self.bias)
        return product.view(*rows.shape[:-1], -1)

    @property
    def weight(self) -> torch.Tensor:
        """A copy of the weights as they are multiplied, fp32 [out, in]."""
        product: torch.Tensor = self(torch.eye(self.in_features)).mT
        return product if self.bias is None else product - self.bias[:, None]

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"


@cache
def available() -> bool:
    """True if this CPU multiplies int8 and this torch does it right and fast, which small products show."""
    features = torch.cpu.get_capabilities()
    if not (features.get("avx512_vnni") or features.get("avx_vnni")) or not torch._C._has_mkldnn:
        return False
    signs = torch.where(torch.arange(3 * 130).view(3, 130) % 7 < 3, -1.0, 1.0)
    codes = torch.where(torch.arange(40 * 130).view(40, 130) % 5 < 2, -127, 127).to(torch.int8)
    codes[0] = 127
    scales = torch.arange(1.0, 41.0)
    try:
        actual = Int8Linear(codes, scales)(signs)
    except (AttributeError, RuntimeError):  # a torch without the operator, or one that cannot do it here
        return False
    return torch.allclose(actual, signs @ (codes.float() * scales[:, None]).mT, rtol=1e-5, atol=1e-2) and _is_fast()


def _is_fast() -> bool:
    """False where oneDNN finds no kernel for the product, as on some virtual CPUs, and multiplies by plain loops."""
    codes, rows = torch.ones(256, 256, dtype=torch.int8), torch.ones(4, 256)
    ways = (torch.nn.Linear(256, 256), Int8Linear(codes, torch.ones(256)))
    with torch.inference_mode():
        plain, coded = (min(_seconds(way, rows) for _ in range(4)) for way in ways)
    return coded < _SLOWEST * plain


def _seconds(way: torch.nn.Module, rows: torch.Tensor) -> float:
    begun = time.perf_counter()
    way(rows)
    return time.perf_counter() - begun


def coded_rows(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """`weight` [out, in] as int8 codes and one fp32 scale per row."""
    codes = torch.empty(weight.shape, dtype=torch.int8)
    scales = torch.empty(weight.shape[0], 1)
    count = max(1, _BLOCK // weight.shape[1])
    for begin in range(0, weight.shape[0], count):
        block = slice(begin, begin + count)
        rows = weight.detach()[block].float()
        scales[block] = rows.abs().amax(1, keepdim=True).div_(127.0).clamp_min_(_SMALLEST)
        codes[block] = (rows / scales[block]).round_()
    return codes, scales


def keeps_int8() -> bool:
    """True if the embedded models' matrices stay int8 on this CPU."""
    return kernels.library() is not None or available()


def place_int8(module: torch.nn.Module, tensors: MutableMapping[str, torch.Tensor], scale: str) -> int:
    """Replace every `torch.nn.Linear` whose matrix NAME.weight and NAME.weight`scale` are there; returns how many.

    The compiled kernels multiply where they can, which is on one thread, as suits a small model; torch where it can.
    What has been placed is taken out of `tensors`, so that memory holds it once.
    """
    library = kernels.library()

    def pack(linears: Sequence[tuple[str, torch.nn.Linear]]) -> torch.nn.Module | None:
        names = [f"{name}.weight" for name, _ in linears]
        if not all(f"{name}{scale}" in tensors for name in names):
            return None
        parts = [tensors[name] for name in names]
        codes = torch.cat(parts) if len(parts) > 1 else parts[0]
        is_compiled = library is not None and compiled_linear.serves(codes)
        if not is_compiled and not available():
            return None
        del parts
        for name in names:
            del tensors[name]
        scales = torch.cat([tensors.pop(f"{name}{scale}").flatten() for name in names])
        biases = [tensors[f"{name}.bias"] for name, linear in linears if linear.bias is not None]
        bias = torch.cat(biases).float() if biases else None
        if library is not None and is_compiled:
            return compiled_linear.CompiledLinear(library, codes, scales, bias)
        return Int8Linear(codes, scales, bias)

    return replace_linears(module, pack)
