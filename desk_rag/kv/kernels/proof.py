"""Prove that a Triton kernel may be used on a GPU, once per process, by comparing it with its torch reference.

Triton is optional and needs a supported GPU and a C compiler; a miscompiled kernel would give wrong answers silently.
After any failure the reference is used: slower, but correct.
"""

from __future__ import annotations

import functools
import importlib.util
import logging
from collections.abc import Callable, Hashable

import torch

_log = logging.getLogger(__name__)


def gpu_index(device: torch.device) -> int:
    """Index of a GPU, the current one if `device` names none."""
    return torch.cuda.current_device() if device.index is None else device.index


@functools.cache
def proven(kernel: str, check: Callable[..., bool], index: int, *shape: Hashable) -> bool:
    """True if `check(device, *shape)` runs on GPU `index` and finds the kernel in agreement with its reference."""
    if importlib.util.find_spec("triton") is None:
        return False
    try:
        if check(torch.device("cuda", index), *shape):
            return True
        _log.warning("The kernel for %s disagrees with its reference on this GPU; the reference is used.", kernel)
    except Exception as error:  # a missing compiler, an old driver and an unknown GPU each raise a type of their own
        _log.warning("Triton cannot be used here (%s: %s); the reference is used.", type(error).__name__, error)
    return False
