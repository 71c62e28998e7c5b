"""Read weights in the form of the models that ship: int8 matrices, each with one fp16 scale per row.

A matrix NAME is stored beside NAME.scale [rows, 1] and equals their product; vectors are stored as fp32.
`finetune/export.py` writes this form.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from safetensors import safe_open

if TYPE_CHECKING:
    import torch

SCALE = ".scale"


def read(file: Path) -> dict[str, torch.Tensor]:
    """Return all tensors of a file in fp32, matrices multiplied by their scales."""
    with safe_open(str(file), framework="pt") as stored:
        names = set(stored.keys())
        tensors: dict[str, torch.Tensor] = {}
        for name in names:
            if name.endswith(SCALE):
                continue
            tensors[name] = stored.get_tensor(name).float()
            if f"{name}{SCALE}" in names:
                tensors[name] *= stored.get_tensor(f"{name}{SCALE}").float().reshape(-1, 1)
    return tensors
