"""Put a decoder's matrices in place as coded or packed rows, one by one as they are read: memory holds them once.

On a CPU a decoded token reads all weights once, so that one byte a weight takes half the time of two (bench/LOG.md,
"int8 weights of larger models on a CPU"). Where a CPU does not compute in bf16, weights that are not quantised are
packed in fp16 (`model/packed_linear`). All else becomes fp32, but for the word table, of which a pass reads little.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from desk_rag.errors import ConfigError, UnsupportedModel
from desk_rag.model.embedded import int8_linear
from desk_rag.model.memory.device import release_unused
from desk_rag.model.memory.heap import trim_memory
from desk_rag.model.on_cpu import int4_linear
from desk_rag.model.packed_linear import LinearGroup, PackedLinear, PackedPart, linear_groups, packable

PACKED = "packed"
"""The form of matrices in fp16, beside the kinds of codes."""

_NOT_HERE = {
    "int8": "This CPU does not multiply int8 (it lacks VNNI), or this torch does not, or only by plain loops that take "
    "hundreds of times as long.",
    "int4": "This CPU or this torch has no products with 4-bit weights (it lacks AVX2).",
}


class NarrowEmbedding(torch.nn.Module):
    """A word table in 16 bits that gives out fp32."""

    compute_dtype = torch.float32

    def __init__(self, table: Any) -> None:
        super().__init__()
        self.table = table

    @property
    def weight(self) -> Any:
        return self.table.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        rows: torch.Tensor = self.table(ids)
        return rows.float()


class MatrixPlacer:
    """Replaces the matrices of a model, which may lie on the meta device, as soon as their weights arrive.

    Matrices of one input are placed together.
    """

    def __init__(self, model: Any, decoder: torch.nn.Module, kind: str) -> None:
        """`decoder` is the part of `model` whose matrices are wanted; tensors have the names of `model`.

        `kind` is 'int8', 'int4' or `PACKED`. With 'int4' the output matrix, which matters most, has 8 bits where the
        CPU multiplies them.
        """
        self._kind, self._head = kind, getattr(model, "get_output_embeddings", lambda: None)()
        self._groups: dict[str, LinearGroup] = {}
        self._awaited: dict[str, set[str]] = {}
        self._coded: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}
        self._plain: dict[str, torch.Tensor] = {}
        self._biases: dict[str, torch.Tensor] = {}
        self._tied = frozenset(getattr(model, "all_tied_weights_keys", None) or {})
        wanted = {id(part) for part in decoder.modules()}
        for group in linear_groups(model):
            linears = group.linears
            names = [name for name, _ in linears]
            if group.is_alike and id(linears[0][1]) in wanted and not self._groups.keys() & names:
                self._groups |= dict.fromkeys(names, group)
                for name, linear in linears:
                    self._awaited[name] = {"weight"} if linear.bias is None else {"weight", "bias"}

    def takes(self, name: str) -> bool:
        """True for the weight or bias of a matrix that is not tied to another."""
        matrix, _, kind = name.rpartition(".")
        return kind in self._awaited.get(matrix, ()) and name not in self._tied

    def add(self, name: str, tensor: torch.Tensor) -> None:
        """Code the weight or bias of a matrix, and place its group if that is complete."""
        matrix, _, kind = name.rpartition(".")
        if kind == "bias":
            self._biases[matrix] = tensor.detach().float().clone()
        elif self._kind == PACKED:
            self._plain[matrix] = tensor.detach().clone()
        else:
            code = int4_linear.coded_groups if self._has_4_bits(self._groups[matrix]) else int8_linear.coded_rows
            self._coded[matrix] = code(tensor)
        self._awaited[matrix].discard(kind)
        self._place(self._groups[matrix])

    def add_tied(self) -> None:
        """Code the matrices that are tied to the word table, which is loaded now."""
        for matrix, group in list(self._groups.items()):
            if f"{matrix}.weight" in self._tied and "weight" in self._awaited[matrix]:
                self.add(f"{matrix}.weight", group.linears[0][1].weight)

    def _place(self, group: LinearGroup) -> None:
        names = [name for name, _ in group.linears]
        if any(self._awaited[name] for name in names):
            return
        self._put_in_place(group, names)
        trim_memory()  # else what was read leaves gaps between what is kept, which take as much again

    def _put_in_place(self, group: LinearGroup, names: Sequence[str]) -> None:
        biases = [self._biases.pop(name) for name in names if name in self._biases]
        if self._kind == PACKED:
            parts = [self._plain.pop(name) for name in names]
            weight = (torch.cat(parts) if len(parts) > 1 else parts[0]).float()
            group.put_in_place(packed_rows(weight, torch.cat(biases) if biases else None))
            return
        pairs = [self._coded.pop(name) for name in names]
        codes, scales = (torch.cat(parts) if len(parts) > 1 else parts[0] for parts in zip(*pairs, strict=True))
        linear = int4_linear.Int4Linear if self._has_4_bits(group) else int8_linear.Int8Linear
        group.put_in_place(linear(codes, scales, torch.cat(biases) if biases else None))

    def _has_4_bits(self, group: LinearGroup) -> bool:
        is_head = any(linear is self._head for _, linear in group.linears)
        return self._kind == "int4" and not (is_head and int8_linear.available())


class PlainRows(torch.nn.Module):
    """Stands where a `torch.nn.Linear` stood whose weights fp16 cannot hold."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.weight, self.bias = weight, bias  # no buffer: transformers fills those anew after loading

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(rows, self.weight, self.bias)


def packed_rows(weight: torch.Tensor, bias: torch.Tensor | None) -> torch.nn.Module:
    """Return what multiplies by `weight` fp32 [out, in]: packed in fp16, unless a number is too large for that."""
    return PackedLinear.of(weight, bias) if packable(weight) else PlainRows(weight, bias)


def finish(decoder: Any) -> Any:
    """Widen all else to fp32, but for the word table.

    A table that scales what it gives out would round it in 16 bits; it is widened beside packed matrices.
    """
    words = decoder.get_input_embeddings()
    narrow = type(words) is torch.nn.Embedding or not _is_packed(decoder)
    for parameter in decoder.parameters():
        parameter.data = parameter.data if narrow and parameter is words.weight else parameter.data.float()
    if words.weight.dtype is not torch.float32:
        decoder.set_input_embeddings(NarrowEmbedding(words))
    release_unused(torch.device("cpu"))
    return decoder


def _is_packed(decoder: torch.nn.Module) -> bool:
    return any(isinstance(part, PackedLinear) for part in decoder.modules())


def is_available(kind: str) -> bool:
    """True if this CPU multiplies matrices of this kind."""
    return int8_linear.available() if kind == "int8" else int4_linear.available()


def check_cpu(kind: str) -> None:
    """Raise ConfigError unless this CPU multiplies matrices of this kind."""
    if not is_available(kind):
        raise ConfigError(
            _NOT_HERE[kind],
            remedy="Leave --quantization out; int8 needs a CPU of about 2021 or later, int4 one of about 2014.",
        )


def check_matrices(module: Any, kind: str) -> None:
    """Raise UnsupportedModel for weights that have no form of this kind; they may lie on the meta device."""
    if kind == PACKED:
        return
    others = sum(parameter.numel() for parameter in module.parameters() if parameter.ndim > 2)
    if others > sum(parameter.numel() for parameter in module.parameters()) // 2:
        raise UnsupportedModel(
            f"Most weights of '{module.config.model_type}' are a mixture of experts, which has no {kind} form on a "
            "CPU.",
            remedy="Leave --quantization out, or take a model without experts.",
        )
    widths = {part.in_features for part in module.modules() if type(part) is torch.nn.Linear}
    if kind == "int4" and (odd := sorted(width for width in widths if width % int4_linear.GROUP)):
        raise UnsupportedModel(
            f"Matrices of '{module.config.model_type}' are {odd[0]:,} wide, which is no multiple of "
            f"{int4_linear.GROUP}, so that they have no int4 form.",
            remedy="Take --quantization int8, or leave it out.",
        )


def coded_weights(module: Any) -> int:
    """Weights that are coded or packed, with biases; a tied output matrix left out: it is that of the word table."""
    tied = getattr(module.config, "tie_word_embeddings", False)
    shared = {id(part.beside): part.beside.whole for part in module.modules() if isinstance(part, PackedPart)}
    rows = [
        part
        for part in (*module.modules(), *shared.values())
        if isinstance(part, int8_linear.Int8Linear | int4_linear.Int4Linear | PackedLinear | PlainRows)
        and not isinstance(part, PackedPart)
    ]
    head = module.get_output_embeddings() if tied else None
    weights = sum(part.in_features * part.out_features for part in rows if part is not head)
    alone = (part.bias for part in module.modules() if part in rows)
    return weights + sum(bias.numel() for bias in alone if bias is not None and type(bias) is torch.Tensor)
