"""De-quantise a GGUF file's weights into the model that transformers has for them, tensor by tensor.

Every tensor of the file must have a place in the model (`layouts`), and every place a tensor of its shape.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from desk_rag.errors import ModelError, OutOfMemory, UnsupportedModel
from desk_rag.model.checkpoint.files import named
from desk_rag.model.gguf import layouts
from desk_rag.model.gguf.config import OTHER_SENSES
from desk_rag.model.gguf.header import OLLAMA_MXFP4, Header, Tensor, type_name
from desk_rag.model.gguf.positions import ROPE_TENSORS
from desk_rag.model.memory.plan import ON_CPU, PACKED_BYTES
from desk_rag.model.on_cpu.placing import MatrixPlacer

_VALUES: dict[int, np.dtype[Any]] = {0: np.dtype("<f4"), 1: np.dtype("<f2")}
_REMEDY = "Download the file again, or take another GGUF file of the same model."
_NUMBERS = 1 << 24
"""Numbers that are de-quantised at a time: in fp32, the largest tensors would be larger than all the rest."""


def check_tensors(header: Header, module: Any) -> None:
    """Raise ModelError unless the file's tensors are those of `module`, which may lie on the meta device."""
    places = layouts.places(header, module)
    parameters = module.state_dict()
    filled: dict[str, int] = {}
    unknown: set[str] = set()
    for tensor in _of_model(header):
        if tensor.name not in places:
            unknown.add(tensor.name)
            continue
        wanted = _shape(places[tensor.name], parameters)
        if tensor.shape != wanted:
            raise ModelError(
                f"{header.file} does not hold what it says: {tensor.name} is {list(tensor.shape)} and should be "
                f"{list(wanted)}.",
                remedy=_REMEDY,
            )
        for place in places[tensor.name]:
            filled[place.name] = filled.get(place.name, 0) + place.view(parameters[place.name]).numel()
    tied = set(getattr(module, "all_tied_weights_keys", None) or {})
    if missing := {name for name, parameter in parameters.items() if filled.get(name, 0) < parameter.numel()} - tied:
        raise ModelError(f"{header.file} lacks {named(missing)}.", remedy=_REMEDY)
    if twice := {name for name, numbers in filled.items() if numbers > parameters[name].numel()}:
        raise ModelError(f"{header.file} holds {named(twice)} twice.", remedy=_REMEDY)
    if unknown:
        raise ModelError(f"{header.file} holds {named(unknown)}, which the model has no place for.", remedy=_REMEDY)
    _check_types(header)


def _shape(places: list[layouts.Place], parameters: dict[str, torch.Tensor]) -> tuple[int, ...]:
    """Shape of a tensor that goes to `places`."""
    shapes = [place.view(parameters[place.name]).shape for place in places]
    return (sum(shape[0] for shape in shapes), *shapes[0][1:])


def check_room(header: Header, dtype: torch.dtype, kind: str = "none") -> None:
    """Raise OutOfMemory where the loaded model does not fit into this machine's free memory."""
    import psutil

    words = header.tensors.get("token_embd.weight")
    table = math.prod(words.shape) if words is not None else 0
    matrices = header.num_parameters if "output.weight" not in header.tensors else header.num_parameters - table
    sizes = {**ON_CPU, "packed": PACKED_BYTES}
    coded = int(matrices * sizes[kind]) + (4 if kind == "packed" else 2) * table if kind in sizes else 0
    needed = coded or header.num_parameters * dtype.itemsize
    free = int(psutil.virtual_memory().available)
    if needed > free:
        raise OutOfMemory(
            f"{header.file} takes {needed / 1e9:.1f} GB of memory when it is loaded, and {free / 1e9:.1f} GB are free.",
            remedy="Take a smaller model; a smaller file of the same model takes no less, because it is de-quantised. "
            "--quantization int8 takes half of 16 bits on many CPUs, int4 a third (`desk-rag models fit`).",
        )


def load(header: Header, module: Any, placer: MatrixPlacer | None = None) -> None:
    """Fill `module`, built on the CPU with uninitialised weights, in place; matrices go to `placer` if there is one."""
    places, parameters = layouts.places(header, module), module.state_dict()
    data = np.memmap(header.file, mode="r", dtype=np.uint8)
    for tensor in _of_model(header):
        for place in places[tensor.name]:
            if placer is not None and placer.takes(place.name):
                values = torch.from_numpy(_values(data, tensor))[place.rows or slice(None)]
                placer.add(place.name, place.change(values).contiguous())
            else:
                _fill(place.view(parameters[place.name]), data, tensor, place)
    module.tie_weights()
    if placer is not None:
        placer.add_tied()


def _fill(
    target: torch.Tensor, data: np.ndarray[Any, np.dtype[np.uint8]], tensor: Tensor, place: layouts.Place
) -> None:
    """De-quantise a tensor into `target`, a few rows at a time where no row depends on others."""
    if not place.moves_rows:
        rows = max(1, _NUMBERS // math.prod(tensor.shape[1:]))
        for begin in range(0, tensor.shape[0], rows):
            values = torch.from_numpy(_values(data, tensor, begin, begin + rows))
            target[begin : begin + rows] = place.change(values)
    else:
        target.copy_(place.change(torch.from_numpy(_values(data, tensor))[place.rows or slice(None)]))


def _of_model(header: Header) -> Iterator[Tensor]:
    own = (tensor for name, tensor in header.tensors.items() if name not in ROPE_TENSORS)
    return (tensor for tensor in own if not tensor.name.startswith(OTHER_SENSES))


def _values(
    data: np.ndarray[Any, np.dtype[np.uint8]], tensor: Tensor, begin: int = 0, end: int | None = None
) -> np.ndarray[Any, np.dtype[np.float32]]:
    """The numbers of a tensor's rows from `begin` to `end`, in fp32."""
    import gguf

    raw = np.array(data[tensor.start : tensor.start + tensor.size].reshape(tensor.shape[0], -1)[begin:end])
    shape = (raw.shape[0], *tensor.shape[1:])
    if tensor.type_id in _VALUES:
        return raw.view(_VALUES[tensor.type_id]).astype(np.float32).reshape(shape)
    blocks = raw.reshape(math.prod(shape[:-1]), -1)
    kind = gguf.GGMLQuantizationType.MXFP4 if tensor.type_id == OLLAMA_MXFP4 else tensor.type_id
    values: np.ndarray[Any, np.dtype[np.float32]] = gguf.dequantize(blocks, gguf.GGMLQuantizationType(kind))
    if tensor.type_id == OLLAMA_MXFP4:  # pairs stand in one byte; ggml has the halves of a block there
        values = values.reshape(-1, 2, 16).swapaxes(1, 2)
    return values.reshape(shape)


def _check_types(header: Header) -> None:
    from gguf.quants import _type_traits

    known = {int(kind) for kind in _type_traits} | set(_VALUES) | {OLLAMA_MXFP4}
    for tensor in _of_model(header):
        if tensor.type_id not in known:
            raise UnsupportedModel(
                f"{header.file} holds tensors in the form {type_name(tensor.type_id)}, which cannot be de-quantised.",
                remedy="Take the model as Q4_K_M, Q5_K_M, Q6_K, Q8_0 or F16.",
            )
