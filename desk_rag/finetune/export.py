"""Write the result of a run: an adapter directory, or a model directory like that of the base model.

Files are written to a temporary name, synced and renamed, the weights last: a directory that has weights is complete.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from desk_rag.finetune.trainable import Trainable
from desk_rag.model import adapters, weights
from desk_rag.model.checkpoint.row_int8 import SCALE, has_scales
from desk_rag.owned_directory import OwnedDirectory
from desk_rag.owned_folder import proven, sync_directory, sync_file

_BESIDE = ".result.tmp"
_WRITTEN = frozenset({".safetensors", ".json", ".jinja", ".model", ".md"})
_COMPANIONS = ("*.json", "*.jinja", "tokenizer.model")
_NOT_COPIED = frozenset({"model.safetensors.index.json", adapters.CONFIG, adapters.RECORD})
_INT8_FORM = "int8 symmetric per output row: weight = int8 * scale[row]"
_SHARD = "4GB"


def export(
    trainable: Trainable, base: Path, out: Path, record: Mapping[str, Any],
    changes: Callable[[dict[str, Any]], dict[str, Any]] = lambda config: {},
) -> None:  # fmt: skip
    """Write the result of a run into `out`, which desk-rag then loads: --adapter OUT for LoRA, else --model OUT.

    `changes` returns the entries of the base model's configuration that are others in the result.
    """
    beside = out / _BESIDE
    owned = OwnedDirectory(out)
    _clear_beside(owned, beside)
    out.mkdir(mode=0o700, parents=True, exist_ok=True)
    owned.make_directory(beside)
    if trainable.peft is not None:
        # Without the last argument peft asks the hub whether the vocabulary was changed.
        trainable.peft.save_pretrained(str(beside), safe_serialization=True, save_embedding_layers=False)
        owned.remove(beside / "README.md", proven)
    elif has_scales(weights.weight_files(base)[0]):
        _copy_companions(base, beside)
        write_row_int8(_own_state(trainable.model.module), beside / "model.safetensors")
    else:
        dtype = _stored_dtype(base)
        state = {name: tensor.to(dtype) for name, tensor in _own_state(trainable.model.module).items()}
        trainable.model.module.save_pretrained(str(beside), state_dict=state, max_shard_size=_SHARD)
        _copy_companions(base, beside)
    if trainable.peft is None:
        _change(beside / "config.json", changes)
    (beside / adapters.RECORD).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    _put_in_place(owned, beside)


def would_be_replaced(out: Path) -> list[Path]:
    """Return the files in `out` that a result might replace, because its files are of the same kinds."""
    return sorted(path for path in out.iterdir() if path.suffix in _WRITTEN)


def _clear_beside(owned: OwnedDirectory, beside: Path) -> None:
    """Remove what an export that was cut off left: the files that exports write, and nothing else."""
    for path, _ in list(owned.scan(beside)):
        if path.parent == beside and path.suffix in _WRITTEN:
            owned.remove(path, proven)
    owned.remove_directory(beside)


def write_row_int8(state: Mapping[str, torch.Tensor], file: Path) -> None:
    """Write `row_int8` of the weights."""
    save_file(row_int8(state), str(file), metadata={"format": "pt", "quantization": _INT8_FORM})


def row_int8(state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The embedded reader's form: matrices as int8, NAME.scale [rows, 1] as fp16 for each, vectors as fp32.

    Codes are rounded against the scale as stored, so that what is read back is the nearest there is.
    """
    tensors: dict[str, torch.Tensor] = {}
    for name, tensor in state.items():
        exact = tensor.detach().float().cpu()
        if exact.ndim != 2:
            tensors[name] = exact.contiguous()
            continue
        scale = _scale(exact)
        tensors[name] = (exact / scale.float()).round().clamp(-127, 127).to(torch.int8).contiguous()
        tensors[f"{name}{SCALE}"] = scale.contiguous()
    return tensors


def _scale(matrix: torch.Tensor) -> torch.Tensor:
    """fp16 [rows, 1]: the least that lets 127 steps reach the largest weight, so that no code is clipped.

    Rows that were read from this form have a scale that fp16 holds, and keep it.
    """
    wanted = (matrix.abs().amax(1, keepdim=True) / 127).clamp(min=6e-8)
    near = wanted.half()
    above = (near.view(torch.int16) + 1).view(torch.float16)
    return torch.where(near.float() < wanted * (1 - 2**-20), above, near)


def _own_state(module: Any) -> dict[str, torch.Tensor]:
    state: dict[str, torch.Tensor] = dict(module.state_dict())
    if module.config.tie_word_embeddings:
        state.pop("lm_head.weight", None)
    return state


def _stored_dtype(directory: Path) -> torch.dtype:
    """The dtype of most of a model's numbers on disk, seen at its largest tensor."""
    best = (0, torch.bfloat16)
    with safe_open(str(weights.weight_files(directory)[0]), framework="pt") as file:
        for name in file.keys():  # noqa: SIM118 - not a dict
            part = file.get_slice(name)
            size = 1
            for extent in part.get_shape():
                size *= extent
            if size > best[0]:
                best = (size, _DTYPES.get(part.get_dtype(), torch.bfloat16))
    return best[1]


_DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def _copy_companions(base: Path, into: Path) -> None:
    """Configuration and tokenizer, byte for byte: training changes neither."""
    for pattern in _COMPANIONS:
        for file in base.glob(pattern):
            if file.name not in _NOT_COPIED:
                shutil.copyfile(file, into / file.name)


def _change(file: Path, changes: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    config = json.loads(file.read_text(encoding="utf-8"))
    changed = changes(config)
    if changed:
        file.write_text(json.dumps({**config, **changed}, indent=1) + "\n", encoding="utf-8")


def _put_in_place(owned: OwnedDirectory, beside: Path) -> None:
    files = sorted(_files(beside), key=lambda file: (file.suffix == ".safetensors", file.name))
    for file in files:
        sync_file(file)
    with owned.opened(beside) as folder, owned.opened() as out:
        for file in files:
            folder.replace(file.name, out, file.name)
    owned.remove_directory(beside)
    sync_directory(owned.root)


def _files(directory: Path) -> Iterable[Path]:
    return [path for path in directory.iterdir() if path.is_file()]
