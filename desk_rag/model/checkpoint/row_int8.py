"""Read weights in the form of the models that ship: int8 matrices, each with one fp16 scale per row.

A matrix NAME is stored beside NAME.scale [rows, 1] and equals their product; vectors are stored as fp32.
`finetune/export.py` writes this form.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors import safe_open

if TYPE_CHECKING:
    import torch

SCALE = ".scale"


def has_scales(file: Path) -> bool:
    """True if a safetensors file is in this form."""
    with safe_open(str(file), framework="pt") as stored:
        return any(name.endswith(SCALE) for name in stored.keys())  # noqa: SIM118 - not a dict


def read(file: Path) -> dict[str, torch.Tensor]:
    """Return all tensors of a file in fp32, matrices multiplied by their scales."""
    return dequantized(read_codes(file))


def read_codes(file: Path) -> dict[str, torch.Tensor]:
    """Return all tensors of a file as they are stored."""
    with safe_open(str(file), framework="pt") as stored:
        return {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118 - not a dict


def dequantized(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return tensors of this form in fp32, matrices multiplied by their scales."""
    exact = {name: tensor.float() for name, tensor in tensors.items() if not name.endswith(SCALE)}
    for name in exact.keys() & {name.removesuffix(SCALE) for name in tensors if name.endswith(SCALE)}:
        exact[name] *= tensors[f"{name}{SCALE}"].float().reshape(-1, 1)
    return exact
