"""De-quantise a GGUF file's weights into the model that transformers has for them, tensor by tensor.

Names and layouts come from transformers' tables. What is checked here is that every tensor of the file has a place and
every place a tensor of its shape. transformers itself passes over what it does not know.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

from desk_rag.errors import ModelError, OutOfMemory, UnsupportedModel
from desk_rag.model.checkpoint.files import named
from desk_rag.model.gguf.config import OTHER_SENSES, ROPE_TENSORS
from desk_rag.model.gguf.header import Header, Tensor, type_name
from desk_rag.model.memory.plan import ON_CPU
from desk_rag.model.on_cpu.placing import MatrixPlacer

_VALUES: dict[int, np.dtype[Any]] = {0: np.dtype("<f4"), 1: np.dtype("<f2")}
_REMEDY = "Download the file again, or take another GGUF file of the same model."
_MERGED = ("ffn_gate_exps", "ffn_up_exps")
"""Tensors that the model holds as one."""
_TABLES = frozenset({"token_embd.weight", "output.weight"})
_ROWS = 4096
"""Rows of a table that are de-quantised at a time."""
_LAYOUT_OF = {"granite": "llama", "qwen3vlmoe": "qwen3moe", "smollm3": "llama"}
"""Architectures whose tensors llama.cpp lays out as those of another."""


def check_tensors(header: Header, module: Any) -> None:
    """Raise ModelError unless the file's tensors are those of `module`, which may lie on the meta device."""
    _, names = _mapping(header, module)
    shapes = {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}
    placed: set[str] = set()
    unknown: set[str] = set()
    for tensor in _of_model(header):
        name = names.get(tensor.name) or names.get(tensor.name.removesuffix(".weight"))  # experts have no suffix
        if name is None or name not in shapes:
            unknown.add(tensor.name)
            continue
        placed.add(name)
        merged = any(part in tensor.name for part in _MERGED)
        wanted = (shapes[name][0], shapes[name][1] // 2, *shapes[name][2:]) if merged else shapes[name]
        if tensor.shape != wanted:
            raise ModelError(
                f"{header.file} does not hold what it says: {tensor.name} is {list(tensor.shape)} and should be "
                f"{list(wanted)}.",
                remedy=_REMEDY,
            )
    tied = set(getattr(module, "all_tied_weights_keys", None) or {})
    if missing := set(shapes) - placed - tied:
        raise ModelError(f"{header.file} lacks {named(missing)}.", remedy=_REMEDY)
    if unknown:
        raise ModelError(f"{header.file} holds {named(unknown)}, which the model has no place for.", remedy=_REMEDY)
    _check_types(header)


def check_room(header: Header, dtype: torch.dtype, kind: str = "none") -> None:
    """Raise OutOfMemory where the loaded model does not fit into this machine's free memory."""
    import psutil

    words = header.tensors.get("token_embd.weight")
    table = math.prod(words.shape) if words is not None else 0
    matrices = header.num_parameters if "output.weight" not in header.tensors else header.num_parameters - table
    coded = int(matrices * ON_CPU[kind]) + 2 * table if kind in ON_CPU else 0
    needed = coded or header.num_parameters * dtype.itemsize
    free = int(psutil.virtual_memory().available)
    if needed > free:
        raise OutOfMemory(
            f"{header.file} takes {needed / 1e9:.1f} GB of memory when it is loaded, and {free / 1e9:.1f} GB are free.",
            remedy="Take a smaller model; a smaller file of the same model takes no less, because it is de-quantised. "
            "--quantization int8 takes half of 16 bits on many CPUs, int4 a third (`desk-rag models fit`).",
        )


def load(header: Header, module: Any, dtype: torch.dtype, placer: MatrixPlacer | None = None) -> None:
    """Fill `module`, built on the CPU with uninitialised weights, in place; matrices go to `placer` if there is one."""
    state: dict[str, torch.Tensor] = {}
    tied = set(getattr(module, "all_tied_weights_keys", None) or {})
    expected = set(module.state_dict())
    placed: set[str] = set()
    processor, names = _mapping(header, module)
    parsed = {"tensors": state}
    data = np.memmap(header.file, mode="r", dtype=np.uint8)
    for tensor in _of_model(header):
        if tensor.name in _TABLES and (placer is None or not placer.takes(names[tensor.name])):
            state[names[tensor.name]] = _table(data, tensor, dtype)
            continue
        values = _values(data, tensor)
        result = processor.process(weights=values, name=tensor.name, tensor_key_mapping=names, parsed_parameters=parsed)
        if result.name is None:
            continue
        name, weights = names[tensor.name], torch.from_numpy(np.ascontiguousarray(result.weights))
        if placer is not None and placer.takes(name):
            placer.add(name, weights)
            placed.add(name)
        else:
            state[name] = weights.to(dtype)
    state = {name: tensor.to(dtype) for name, tensor in state.items()}
    missing, unexpected = module.load_state_dict(state, strict=False, assign=True)
    if faults := (set(missing) & expected) - tied - placed | set(unexpected):
        raise ModelError(f"{header.file} does not fit: {named(faults)}.", remedy=_REMEDY)
    module.tie_weights()
    if placer is not None:
        placer.add_tied()


def _of_model(header: Header) -> Iterator[Tensor]:
    own = (tensor for name, tensor in header.tensors.items() if name not in ROPE_TENSORS)
    return (tensor for tensor in own if not tensor.name.startswith(OTHER_SENSES))


def _table(data: np.ndarray[Any, np.dtype[np.uint8]], tensor: Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A matrix with a row per word, which in fp32 would be larger than all the rest."""
    table = torch.empty(tensor.shape, dtype=dtype)
    for begin in range(0, tensor.shape[0], _ROWS):
        table[begin : begin + _ROWS] = torch.from_numpy(_values(data, tensor, begin, begin + _ROWS))
    return table


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
    values: np.ndarray[Any, np.dtype[np.float32]] = gguf.dequantize(blocks, gguf.GGMLQuantizationType(tensor.type_id))
    return values.reshape(shape)


def _check_types(header: Header) -> None:
    from gguf.quants import _type_traits

    known = {int(kind) for kind in _type_traits} | set(_VALUES)
    for tensor in _of_model(header):
        if tensor.type_id not in known:
            raise UnsupportedModel(
                f"{header.file} holds tensors in the form {type_name(tensor.type_id)}, which cannot be de-quantised.",
                remedy="Take the model as Q4_K_M, Q5_K_M, Q6_K, Q8_0 or F16.",
            )


def _mapping(header: Header, module: Any) -> tuple[Any, Mapping[str, str]]:
    """transformers' processor of layouts, and the model's name of each tensor."""
    from transformers.modeling_gguf_pytorch_utils import TENSOR_PROCESSORS, TensorProcessor, get_gguf_hf_weights_map

    layout = _LAYOUT_OF.get(header.architecture, header.architecture)
    processor = TENSOR_PROCESSORS.get(layout, TensorProcessor)(config=module.config.to_dict())
    return processor, get_gguf_hf_weights_map(module, processor)
