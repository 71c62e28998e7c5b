"""Launch a Triton kernel without the host overhead of Triton's argument specialization.

At every launch Triton inspects each argument to find the matching compiled kernel, which takes the host longer than
small kernels take a GPU. Here only the first launch on each device does so; later ones call the compiled kernel with
addresses. Also tells how many multiprocessors work is divided among.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

_ALIGNED = 16
"""Alignment that Triton specializes on: bytes of an address, elements of a stride."""
_MOST = 2**31
"""Integers from here on have 64 bits, which is another specialization."""


@dataclass(slots=True)
class CompiledLaunch:
    """A kernel whose arguments are tensors, then numbers, then constants, in this order.

    The creator guarantees that the types of tensors and numbers never change, and that each number is either named in
    the kernel's `do_not_specialize` or passes `alike`. Tensors that are not aligned to 16 bytes need another
    specialization and are always launched by Triton.
    """

    kernel: Any
    constants: dict[str, object]
    """Constants by name, in the kernel's order."""
    options: dict[str, object]
    """Compile options: warps, stages."""
    forms: dict[int, Any] = field(default_factory=dict)
    """Compiled kernel by device; empty in Triton's interpreter."""

    def __call__(self, grid: tuple[int, int, int], tensors: tuple[torch.Tensor, ...], *numbers: float) -> None:
        """Launch on the current stream; the tensors' device must be the current device."""
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
    """True if a kernel compiled for strides that pass this test is also valid for these."""
    return math.gcd(*strides) % _ALIGNED == 0 and max(strides) < _MOST


_allowed: dict[int, int] = {}
"""Multiprocessors that this process may use, by device index; all of them where it is not named."""


def multiprocessors(device: torch.device) -> int:
    """Number of a GPU's multiprocessors to divide work among."""
    index = device.index or 0
    return _allowed.get(index) or int(torch.cuda.get_device_properties(index).multi_processor_count)


@contextmanager
def on_multiprocessors(count: int, index: int = 0) -> Iterator[None]:
    """Divide work among that many multiprocessors of a GPU, for a process that is given a part of it."""
    _allowed[index] = count
    try:
        yield
    finally:
        del _allowed[index]
