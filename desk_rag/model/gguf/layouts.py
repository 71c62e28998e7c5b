"""The place of each tensor of a GGUF file in the model that transformers builds, and its layout there.

llama.cpp's converter renames tensors and moves rows where its own kernels want them elsewhere. What it does to each
architecture is undone here; names are those of the `gguf` package, which the converter takes them from.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from desk_rag.errors import UnsupportedModel
from desk_rag.model.gguf.architectures import ARCHITECTURES, Architecture
from desk_rag.model.gguf.header import Header

View = Callable[[torch.Tensor], torch.Tensor]


def _whole(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


@dataclass(frozen=True, slots=True)
class Place:
    """Place in the model for the rows of a tensor."""

    name: str
    """Name of a parameter of the model."""
    view: View = _whole
    """The part of the parameter that has the tensor's shape, as a view of it; works on the meta device, too."""
    change: View = _whole
    """Change to the tensor's numbers, whose shape stays."""
    rows: slice | None = None
    """Rows of the tensor, where it holds several parameters."""

    moves_rows: bool = False
    """True if a row of the parameter is another row of the tensor."""


def places(header: Header, module: Any) -> dict[str, list[Place]]:
    """Places by the tensors' names in the file. Raises UnsupportedModel."""
    architecture = ARCHITECTURES[header.architecture]
    names = _name_map(header, architecture, module.config.num_hidden_layers)
    heads = {"q": module.config.num_attention_heads, "k": module.config.num_key_value_heads}
    result: dict[str, list[Place]] = {}
    for name in module.state_dict():
        for stored, place in _stored(name, names, architecture):
            result[stored] = [_changed(place, stored, architecture, heads)]
    for given, usual in architecture.other_names.items():
        result |= {name.replace(usual, given): place for name, place in result.items() if usual in name}
    if architecture.model_type == "gpt_oss":
        result |= _joined(module)
    return result


def _name_map(header: Header, architecture: Architecture, layers: int) -> Any:
    import gguf

    known = {name: arch for arch, name in gguf.MODEL_ARCH_NAMES.items()}
    name = architecture.tensors_of or header.architecture
    if name not in known:
        raise UnsupportedModel(
            f"{header.file} is of the architecture '{header.architecture}', which the installed gguf package does not "
            "know.",
            remedy="pip install --upgrade gguf",
        )
    return gguf.get_tensor_name_map(known[name], layers)


def _stored(name: str, names: Any, architecture: Architecture) -> Iterator[tuple[str, Place]]:
    """Names in the file of what is the parameter `name`."""
    if match := re.fullmatch(r"model\.layers\.(\d+)\.\w+\.experts\.(\w+)", name):
        views = _TRANSPOSED if architecture.model_type == "gpt_oss" else _STACKED
        for part, view in _EXPERTS.get(match[2], {}).items():
            yield f"blk.{match[1]}.{part}", Place(name, views[view])
        return
    stem, _, suffix = name.rpartition(".")
    if suffix not in ("weight", "bias"):
        stem, suffix = name, "weight"
    stored = names.get_name(stem) or names.get_name(f"{stem}.layer")  # Granite's router is a layer in a layer
    if stored is not None:
        yield f"{stored}.{suffix}", Place(name)


_GATE_UP = {"ffn_gate_exps.weight": "gate", "ffn_up_exps.weight": "up", "ffn_gate_up_exps.weight": "both"}
_EXPERTS: Mapping[str, Mapping[str, str]] = {
    "gate_up_proj": _GATE_UP,
    "down_proj": {"ffn_down_exps.weight": "down"},
    "gate_up_proj_bias": {
        "ffn_gate_exps.bias": "gate bias", "ffn_up_exps.bias": "up bias", "ffn_gate_up_exps.bias": "bias",
    },
    "down_proj_bias": {"ffn_down_exps.bias": "bias"},
}  # fmt: skip
"""Tensors of a layer's experts by the parameter that holds them, and the part of it that each of them is."""
_STACKED: Mapping[str, View] = {
    "gate": lambda tensor: tensor[:, : tensor.shape[1] // 2],
    "up": lambda tensor: tensor[:, tensor.shape[1] // 2 :],
    "both": _whole,
    "down": _whole,
}
"""Experts as rows of gates, then rows of what they open."""
_TRANSPOSED: Mapping[str, View] = {
    "gate": lambda tensor: tensor.transpose(1, 2)[:, ::2],
    "up": lambda tensor: tensor.transpose(1, 2)[:, 1::2],
    "both": lambda tensor: tensor.transpose(1, 2),
    "down": lambda tensor: tensor.transpose(1, 2),
    "gate bias": lambda tensor: tensor[:, ::2],
    "up bias": lambda tensor: tensor[:, 1::2],
    "bias": _whole,
}
"""gpt-oss: columns, of gates and of what they open in turns."""


def _changed(place: Place, stored: str, architecture: Architecture, heads: Mapping[str, int]) -> Place:
    """`place` with what undoes the converter's change to the numbers."""
    if architecture.adds_one_to_norms and stored.endswith("norm.weight"):
        return replace(place, change=_minus_one)
    part = re.search(r"\.attn_([qk])\.", stored)
    if part and architecture.interleaves:
        return replace(place, change=_in_halves(heads[part[1]]), moves_rows=True)
    return place


def _minus_one(tensor: torch.Tensor) -> torch.Tensor:
    return tensor - 1


def _in_halves(heads: int) -> View:
    """Rows of a rotation's pairs from side by side to half a head apart."""

    def moved(tensor: torch.Tensor) -> torch.Tensor:
        pairs = tensor.reshape(heads, tensor.shape[0] // heads // 2, 2, *tensor.shape[1:])
        return pairs.swapaxes(1, 2).reshape(tensor.shape)

    return moved


def _joined(module: Any) -> dict[str, list[Place]]:
    """Queries, keys and values as one tensor, as Ollama's first files of gpt-oss have them."""
    config = module.config
    queries, keys = (count * config.head_dim for count in (config.num_attention_heads, config.num_key_value_heads))
    ends = {"q": slice(0, queries), "k": slice(queries, queries + keys), "v": slice(queries + keys, queries + 2 * keys)}
    return {
        f"blk.{layer}.attn_qkv.{kind}": [
            Place(f"model.layers.{layer}.self_attn.{part}_proj.{kind}", rows=rows, moves_rows=True)
            for part, rows in ends.items()
        ]
        for layer in range(config.num_hidden_layers)
        for kind in ("weight", "bias")
    }
