"""Put a decoder's matrices in place as coded rows, one by one as they are read, so that memory holds them once.

On a CPU a decoded token reads all weights once, so that one byte a weight takes half the time of two (bench/LOG.md,
"int8 weights of larger models on a CPU"). All else becomes fp32, but for the word table, of which a pass reads little.
"""

from __future__ import annotations

from typing import Any

import torch

from desk_rag.errors import ConfigError, UnsupportedModel
from desk_rag.model.embedded import int8_linear
from desk_rag.model.packed_linear import LinearGroup, PackedPart, linear_groups

_NOT_HERE = "This CPU does not multiply int8 (it lacks VNNI), or this torch does not."


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

    def __init__(self, model: Any, decoder: torch.nn.Module) -> None:
        """`decoder` is the part of `model` whose matrices are wanted; tensors have the names of `model`."""
        self._groups: dict[str, LinearGroup] = {}
        self._awaited: dict[str, set[str]] = {}
        self._coded: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}
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
        else:
            self._coded[matrix] = int8_linear.coded_rows(tensor)
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
        pairs = [self._coded.pop(name) for name in names]
        biases = [self._biases.pop(name) for name in names if name in self._biases]
        codes = torch.cat([codes for codes, _ in pairs]) if len(pairs) > 1 else pairs[0][0]
        scales = torch.cat([scales.flatten() for _, scales in pairs])
        group.replace(int8_linear.Int8Linear(codes, scales, torch.cat(biases) if biases else None))


def finish(decoder: Any) -> Any:
    """Widen all else to fp32, but for the word table."""
    words = decoder.get_input_embeddings()
    for parameter in decoder.parameters():
        parameter.data = parameter.data if parameter is words.weight else parameter.data.float()
    if words.weight.dtype is not torch.float32:
        decoder.set_input_embeddings(NarrowEmbedding(words))
    return decoder


def check_int8() -> None:
    """Raise ConfigError unless this CPU multiplies int8."""
    if not int8_linear.available():
        raise ConfigError(_NOT_HERE, remedy="Leave --quantization out; int8 needs a CPU of about 2021 or later.")


def check_matrices(module: Any) -> None:
    """Raise UnsupportedModel for weights that are no plain matrices, which may lie on the meta device."""
    others = sum(parameter.numel() for parameter in module.parameters() if parameter.ndim > 2)
    if others > sum(parameter.numel() for parameter in module.parameters()) // 2:
        raise UnsupportedModel(
            f"Most weights of '{module.config.model_type}' are a mixture of experts, which has no int8 form on a CPU.",
            remedy="Leave --quantization out, or take a model without experts.",
        )


def coded_weights(module: Any) -> int:
    """Weights in int8 rows, a tied output matrix left out: it is that of the word table."""
    tied = getattr(module.config, "tie_word_embeddings", False)
    shared = {id(part.beside): part.beside.whole for part in module.modules() if isinstance(part, PackedPart)}
    rows = [part for part in (*module.modules(), *shared.values()) if isinstance(part, int8_linear.Int8Linear)]
    head = module.get_output_embeddings() if tied else None
    return sum(part.in_features * part.out_features for part in rows if part is not head)
