"""Quantise the matrices of a loaded model one by one with bitsandbytes, for a GPU."""

from __future__ import annotations

from typing import Any

import torch

from desk_rag.errors import ConfigError


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
