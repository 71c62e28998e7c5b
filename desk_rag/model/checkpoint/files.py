"""Find the safetensors files that make up a model, and read their headers without loading any data.

transformers falls back on pickled weights where it finds no safetensors under the name it expects. So exactly the files
it will load are determined here first: model.safetensors, or the shards that model.safetensors.index.json names. A file
that can hold a pickle is never opened.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from desk_rag.errors import ModelError, ModelNotFound, UnsupportedModel
from desk_rag.model.checkpoint.config import read_json, regular_file, unique

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
_MOST_HEADER = 64 * 1024**2
_MOST_TENSORS = 1_000_000
_UNSAFE = re.compile(r".*\.(bin|pt|pth|ckpt|h5|msgpack|pkl|pickle|joblib|npy|npz|onnx|tflite|pb|model_state)", re.I)
_NO_WEIGHTS = frozenset({"training_args.bin", "optimizer.bin", "scheduler.bin"})
_DTYPE_BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
    "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32, "I64": 64, "U64": 64, "F64": 64,
    "C64": 64,
}  # fmt: skip
_FETCH_AGAIN = "Fetch the file again from the model's publisher."


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Entry of one tensor in a safetensors header."""

    dtype: str
    """In safetensors' words: F32, BF16, I8."""
    shape: tuple[int, ...]
    file: Path


def weight_files(directory: Path) -> list[Path]:
    """The safetensors files of a model in name order, or its GGUF file: all that will be loaded, and nothing else.

    Raises ModelNotFound where there are none, UnsupportedModel where the weights have another form, ModelError for an
    index that is damaged or leads out of the directory.
    """
    if directory.is_file():  # GGUF
        return [directory]
    if (single := regular_file(directory, SINGLE)) is not None:
        return [single]
    if regular_file(directory, INDEX) is None:
        raise _no_weights(directory)
    return [shard for shard, _ in _shards(directory)]


def tensors(directory: Path) -> dict[str, TensorInfo]:
    """Every tensor of the model by name, from the headers alone. Raises as `weight_files`, and for damaged files."""
    single = regular_file(directory, SINGLE)
    if single is not None:
        return read_header(single)
    if regular_file(directory, INDEX) is None:
        raise _no_weights(directory)
    merged: dict[str, TensorInfo] = {}
    for shard, expected in _shards(directory):
        header = read_header(shard)
        if twice := header.keys() & merged.keys():
            raise ModelError(
                f"{shard} and {merged[min(twice)].file.name} both hold the tensor '{min(twice)}'.", remedy=_FETCH_AGAIN
            )
        if missing := expected - header.keys():
            message = f"{shard} lacks {named(missing)}, which {INDEX} places there."
            raise ModelError(message, remedy=_FETCH_AGAIN)
        if extra := header.keys() - expected:
            raise ModelError(f"{shard} holds {named(extra)}, which {INDEX} does not name.", remedy=_FETCH_AGAIN)
        merged |= header
    return merged


def named(names: set[str]) -> str:
    """Up to three of `names` in order, and how many more there are."""
    shown = [name if len(name) <= 80 else f"{name[:80]}…" for name in sorted(names)[:3]]
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"the tensor{'s' if len(names) > 1 else ''} {', '.join(shown)}{more}"


def unsafe_files(directory: Path) -> list[str]:
    """Names of files in `directory` that hold weights in a form that may run code when it is opened."""
    names = (file.name for file in directory.iterdir()) if directory.is_dir() else ()
    return sorted(name for name in names if _UNSAFE.fullmatch(name) and name not in _NO_WEIGHTS)


def read_header(file: Path) -> dict[str, TensorInfo]:
    """The tensors of one safetensors file, after every check that its header allows. Raises ModelError."""
    try:
        size = file.stat().st_size
        with file.open("rb") as stream:
            start = stream.read(8)
            length = int.from_bytes(start, "little")
            if start == b"version ":
                raise ValueError("it is only a pointer of Git LFS; `git lfs pull` fetches the file itself")
            if size < 8 or length > size - 8:
                raise ValueError("it is cut short or no safetensors file")
            if length > _MOST_HEADER:
                raise ValueError(f"its header would be {length:,} bytes long")
            content = json.loads(stream.read(length), object_pairs_hook=unique)
        if not isinstance(content, dict) or len(content) > _MOST_TENSORS:
            raise ValueError("its header is no object of tensors")
        metadata = content.pop("__metadata__", None)
        _check_metadata(file, metadata)
        infos, spans = {}, []
        for name, entry in content.items():
            infos[name], span = _tensor(file, name, entry)
            spans.append((*span, name))
        _check_spans(spans, size - 8 - length)
    except RecursionError as error:
        raise ModelError(f"{file} could not be loaded: its header is nested.", remedy=_FETCH_AGAIN) from error
    except (OSError, ValueError) as error:
        raise ModelError(f"{file} could not be loaded: {error}.", remedy=_FETCH_AGAIN) from error
    if not infos:
        raise ModelError(f"{file} could not be loaded: it holds no tensor.", remedy=_FETCH_AGAIN)
    return infos


def _check_metadata(file: Path, metadata: Any) -> None:
    kind = metadata.get("format", "pt") if isinstance(metadata, dict) else "pt"
    if kind != "pt":
        raise UnsupportedModel(
            f"{file} was written for '{str(kind)[:40]}', not for PyTorch.",
            remedy="Take the publisher's own safetensors of the same model.",
        )


def _tensor(file: Path, name: str, entry: Any) -> tuple[TensorInfo, tuple[int, int]]:
    shown = name[:80]
    try:
        dtype, shape, (begin, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
        bits = _DTYPE_BITS[dtype]
    except (TypeError, KeyError, ValueError) as error:
        raise ValueError(f"its header does not describe '{shown}'") from error
    numbers = [*shape, begin, end] if isinstance(shape, list) else [-1]
    if len(numbers) > 10 or any(type(number) is not int or not 0 <= number < 1 << 48 for number in numbers):
        raise ValueError(f"its header gives '{shown}' an impossible shape or place")
    if (end - begin) * 8 != math.prod(shape) * bits:
        raise ValueError(f"the data of '{shown}' is not as long as its shape {shape} needs")
    return TensorInfo(dtype, tuple(shape), file), (begin, end)


def _check_spans(spans: list[tuple[int, int, str]], data_bytes: int) -> None:
    """Raise ValueError unless the tensors lie one after the other from the first byte of the data to the last."""
    place = 0
    for begin, end, name in sorted(spans):
        if begin < place:
            raise ValueError(f"the data of '{name[:80]}' overlaps that of another tensor")
        if begin > place:
            raise ValueError(f"there is a gap before the data of '{name[:80]}'")
        place = end
    if place > data_bytes:
        raise ValueError(f"it is cut short: {place - data_bytes:,} bytes are missing")
    if place < data_bytes:
        raise ValueError(f"{data_bytes - place:,} bytes follow its last tensor")


def _shards(directory: Path) -> list[tuple[Path, set[str]]]:
    """(file, names of its tensors) for each shard in the index, in name order."""
    placed = read_json(directory, INDEX).get("weight_map")
    if not isinstance(placed, Mapping) or not placed:
        raise ModelError(f"{directory / INDEX} places no tensors.", remedy=_FETCH_AGAIN)
    expected: dict[str, set[str]] = {}
    for tensor, name in placed.items():
        if not isinstance(name, str) or name != PurePosixPath(name).name or "\\" in name or "\0" in name:
            raise ModelError(
                f"{directory / INDEX} names a file outside of its directory: {str(name)[:80]!r}.", remedy=_FETCH_AGAIN
            )
        if not name.endswith(".safetensors"):
            raise UnsupportedModel(
                f"{directory / INDEX} names '{name[:80]}', which is not safetensors.", remedy=_SAFETENSORS_ONLY
            )
        expected.setdefault(name, set()).add(tensor)
    shards = []
    for name, names in sorted(expected.items()):
        shard = regular_file(directory, name)
        if shard is None:
            raise ModelNotFound(f"{directory / name} is missing; {INDEX} names it.", remedy=_FETCH_AGAIN)
        shards.append((shard, names))
    return shards


_SAFETENSORS_ONLY = (
    "Take the model's safetensors. If you trust the file, convert it yourself: load it with transformers and call "
    "save_pretrained()."
)


def _no_weights(directory: Path) -> ModelError:
    names = [file.name for file in directory.iterdir()]
    beside = sorted(name for name in names if name.endswith(".safetensors"))
    if unsafe := unsafe_files(directory):
        note = f" {beside[0]} is not the model's weights by its name." if beside else ""
        return UnsupportedModel(
            f"The weights in {directory} are {unsafe[0]}, a format that can run code when it is opened; "
            f"desk-rag loads safetensors only.{note}",
            remedy=_SAFETENSORS_ONLY,
        )
    if beside:
        return ModelNotFound(
            f"There is no {SINGLE} and no {INDEX} in {directory}; {beside[0]} is not loaded on a guess.",
            remedy=f"If it is the whole model, rename it to {SINGLE}; if it is one of several, fetch the index too.",
        )
    return ModelNotFound(
        f"There are no safetensors weights in {directory}.",
        remedy="Download the weights into it; older formats: load them with transformers and call save_pretrained().",
    )
