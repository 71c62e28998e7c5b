"""Launches of one Triton kernel that spare the host a look at every argument.

Knows how Triton launches what it has compiled; knows no kernel. At every launch Triton's own way asks each argument
anew what the kernel would have to be compiled for, which takes the host longer than small kernels take a GPU. Here it
is asked at the first launch on each device only; from then on the compiled form is called with addresses.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch

_ALIGNED = 16
"""Bytes, and elements of a stride: what Triton tells apart."""
_MOST = 2**31
"""From here on numbers have 64 bits, which is another compilation."""


@dataclass(slots=True)
class CompiledLaunch:
    """A kernel whose arguments are tensors, then numbers, then constants, in this order.

    Whoever makes one promises that the types of tensors and numbers never differ, and that each number is either one
    that the kernel's `do_not_specialize` names or passes `alike`. Tensors that do not begin at a multiple of 16 bytes
    are another compilation; they go Triton's own way every time.
    """

    kernel: Any
    constants: dict[str, object]
    """In the kernel's order."""
    options: dict[str, object]
    """How it is compiled: warps, stages."""
    forms: dict[int, Any] = field(default_factory=dict)
    """By device: what has been compiled there. Empty in Triton's interpreter, which compiles nothing."""

    def __call__(self, grid: tuple[int, int, int], tensors: tuple[torch.Tensor, ...], *numbers: float) -> None:
        """Launch on the current stream of the tensors' device, which is the current one."""
        addresses = [tensor.data_ptr() for tensor in tensors]
        together = 0
        for address in addresses:
            together |= address
        aligned = together % _ALIGNED == 0
        device = tensors[0].get_device()
        form = self.forms.get(device) if aligned else None
        if form is not None:
            form[grid](*addresses, *numbers, *self.constants.values())
            return
        compiled = self.kernel[grid](*tensors, *numbers, **self.constants, **self.options)
        if aligned and compiled is not None:
            self.forms[device] = compiled


def alike(*strides: int) -> bool:
    """True if a kernel that was compiled for some strides of which this was true is right for these."""
    return math.gcd(*strides) % _ALIGNED == 0 and max(strides) < _MOST
