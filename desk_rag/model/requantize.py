"""Quantise the matrices of a loaded model one by one: by bitsandbytes for a GPU, as int8 rows for a CPU.

On a CPU a decoded token reads all weights once, so that one byte a weight takes half the time of two (bench/LOG.md,
"int8 weights of larger models on a CPU"). All else stays fp32, but for the word table, of which a pass reads few rows.
"""

from __future__ import annotations

from typing import Any

import torch

from desk_rag.errors import ConfigError, UnsupportedModel
from desk_rag.model.checkpoint.row_int8 import SCALE
from desk_rag.model.embedded import int8_linear
from desk_rag.model.packed_linear import PackedPart

_NOT_HERE = "This CPU does not multiply int8 (it lacks VNNI), or this torch does not."


def bitsandbytes() -> Any:
    """The library. Raises ConfigError if it is not installed."""
    try:
        import bitsandbytes as library
    except ImportError as error:
        raise ConfigError(
            "bitsandbytes is not installed.", remedy="Install the extra: pip install 'desk-rag[gpu]'."
        ) from error
    return library


def quantize_linears(module: Any, kind: str, device: torch.device) -> Any:
    """Replace every matrix but the last, `lm_head`, by its 'nf4' or 'int8' form; the rest moves as it is."""
    head = module.get_output_embeddings()
    parents = [part for part in module.modules() if type(part) is not torch.nn.Linear]  # a list keeps its parts alive
    for parent in parents:
        for name, child in list(parent.named_children()):
            if type(child) is torch.nn.Linear and child is not head:
                setattr(parent, name, quantized_linear(child, kind, device))
    return module.to(device)


def quantized_linear(linear: torch.nn.Linear, kind: str, device: torch.device) -> Any:
    """Return bitsandbytes' form of one matrix, on `device`. Raises ConfigError if the library is not installed."""
    library = bitsandbytes()
    size = linear.in_features, linear.out_features
    with torch.device("meta"):
        if kind == "int8":
            quantized = library.nn.Linear8bitLt(*size, bias=False, has_fp16_weights=False)
        else:
            quantized = library.nn.Linear4bit(
                *size, bias=False, compute_dtype=linear.weight.dtype, compress_statistics=True, quant_type="nf4"
            )
    weight = linear.weight.detach()
    if kind == "int8":
        quantized.weight = library.nn.Int8Params(weight, requires_grad=False, has_fp16_weights=False)
    else:
        quantized.weight = library.nn.Params4bit(
            weight, requires_grad=False, quant_type="nf4", compress_statistics=True
        )
    quantized.bias = linear.bias
    return quantized.to(device)


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


def check_int8_on_cpu() -> None:
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


def quantize_on_cpu(module: Any) -> Any:
    """Turn every matrix of a loaded model into int8 rows and all else into fp32, but for the word table."""
    check_matrices(module)
    coded: dict[str, torch.Tensor] = {}
    for name, linear in module.named_modules():
        if type(linear) is torch.nn.Linear:
            coded[f"{name}.weight"], coded[f"{name}.weight{SCALE}"] = int8_linear.coded_rows(linear.weight)
            if linear.bias is not None:
                coded[f"{name}.bias"] = linear.bias.detach()
            linear.weight = torch.nn.Parameter(torch.empty(0), requires_grad=False)  # its memory is free again
    return place_on_cpu(module, coded)


def place_on_cpu(module: Any, coded: dict[str, torch.Tensor]) -> Any:
    """Put int8 rows in place of the matrices of a module whose other weights are loaded."""
    int8_linear.place_int8(module, coded, SCALE)
    words = module.get_input_embeddings()
    for parameter in module.parameters():
        if parameter is not words.weight:
            parameter.data = parameter.data.float()
    if words.weight.dtype is not torch.float32:
        module.set_input_embeddings(NarrowEmbedding(words))
    return module
