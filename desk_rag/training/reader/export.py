"""Trained weights become the files of the embedded reader: int8 rows with fp16 scales, configuration, tokenizer.

A reader that was refined takes over every byte of the one that it began with, but for the tensors that were trained.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from desk_rag.errors import ModelError
from desk_rag.finetune.export import row_int8
from desk_rag.model.checkpoint.row_int8 import dequantized
from desk_rag.training.reader.architecture import Shape, config_json

_SHARD = 15_500_000
"""Bytes of one part where the weights have to travel in parts."""


def coded(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Every matrix as int8 with one fp16 scale per output row (NAME and NAME.scale [rows, 1]), vectors as fp32.

    Names get 'model.' before them.
    """
    return row_int8({f"model.{name}": weight for name, weight in weights.items()})


def decoded(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights that `coded` tensors stand for, in fp32, by their names in training."""
    return {name.removeprefix("model."): tensor for name, tensor in dequantized(tensors).items()}


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
    tensors: dict[str, Tensor] = {}
    for part in sorted(folder.glob("part-*.safetensors")):
        tensors.update(load_file(part))
    save_file(tensors, target)


def replace(start: Path, changes: Mapping[str, Tensor], target: Path) -> None:
    """Write the safetensors file `start` anew with other values for `changes`; every other byte is what it was.

    So a version control system keeps only what differs. Raises ModelError where a tensor is not in `start` with the
    same dtype and shape.
    """
    whole = bytearray(start.read_bytes())
    begin = 8 + int.from_bytes(whole[:8], "little")
    header = json.loads(whole[8:begin])
    for name, tensor in changes.items():
        value = _bytes_of(tensor)
        entry = header.get(name)
        form = entry and (entry["shape"], entry["data_offsets"][1] - entry["data_offsets"][0], entry["dtype"])
        if form != (list(tensor.shape), len(value), _NAMES.get(tensor.dtype)):
            raise ModelError(
                f"{start} holds no tensor '{name}' of {tensor.dtype} {list(tensor.shape)}.",
                remedy="Give the reader that the changed tensors were trained from.",
            )
        first, last = (begin + offset for offset in entry["data_offsets"])
        whole[first:last] = value
    target.write_bytes(whole)


def refined(start: Path, changes: Path, folder: Path) -> None:
    """Make a model directory: that of `start` with the tensors of the file `changes` in place of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    for companion in start.glob("*.json"):  # not the card, whose scores are another's
        shutil.copyfile(companion, folder / companion.name)
    replace(start / "model.safetensors", load_file(changes), folder / "model.safetensors")


_NAMES = {torch.int8: "I8", torch.float16: "F16", torch.float32: "F32"}


def _bytes_of(tensor: Tensor) -> bytes:
    array: np.ndarray[tuple[int, ...], np.dtype[np.generic]] = tensor.detach().cpu().contiguous().numpy()
    return array.tobytes()
