"""Trained weights become the files of the embedded reader: int8 rows with fp16 scales, configuration, tokenizer.

Knows the file form that `desk_rag.model` reads; knows no training.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from desk_rag.finetune.export import row_int8
from desk_rag.finetune.reader.architecture import Shape, config_json

_SHARD = 15_500_000
"""Bytes of one part where the weights have to travel in parts."""


def coded(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Every matrix as int8 with one fp16 scale per output row (NAME and NAME.scale [rows, 1]), vectors as fp32.

    Names get 'model.' before them.
    """
    return row_int8({f"model.{name}": weight for name, weight in weights.items()})


def export(weights: Mapping[str, Tensor], shape: Shape, end_id: int, folder: Path, *, parts: bool) -> None:
    """Write config.json and the weights, in one file or in parts of at most 15.5 MB."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config_json(shape, end_id), indent=2) + "\n", encoding="utf-8")
    tensors = coded(weights)
    if not parts:
        save_file(tensors, folder / "model.safetensors")
        return
    shard: dict[str, Tensor] = {}
    size, number = 0, 0
    for name, tensor in [*tensors.items(), ("", torch.empty(0))]:
        if shard and (not name or size + tensor.nbytes > _SHARD):
            save_file(shard, folder / f"part-{number}.safetensors")
            shard, size, number = {}, 0, number + 1
        shard[name] = tensor
        size += tensor.nbytes


def join(folder: Path, target: Path) -> None:
    """Make one file of the parts in `folder`."""
    from safetensors.torch import load_file

    tensors: dict[str, Tensor] = {}
    for part in sorted(folder.glob("part-*.safetensors")):
        tensors.update(load_file(part))
    save_file(tensors, target)
