"""Scaling of rotary positions in a GGUF file, as transformers' `rope_parameters`. Imports no torch."""

from __future__ import annotations

import math
from typing import Any

from desk_rag.errors import ModelError, UnsupportedModel
from desk_rag.model.gguf.header import Header

ROPE_TENSORS = frozenset({"rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"})
"""Tensors that are part of the configuration, not of the model."""
YARN_KEYS = {
    "rope.scaling.yarn_beta_fast": "beta_fast", "rope.scaling.yarn_beta_slow": "beta_slow",
    "rope.scaling.yarn_log_multiplier": "mscale_all_dim",
}  # fmt: skip
_LLAMA3_FACTORS = (8.0, 16.0, 32.0)
_TOLERANCE = 1e-4


def rope_parameters(header: Header, own: dict[str, Any]) -> dict[str, Any]:
    """`own` are the metadata without the architecture before them. Raises UnsupportedModel or ModelError."""
    theta = float(own.get("rope.freq_base", 10000.0))
    base: dict[str, Any] = {"rope_type": "default", "rope_theta": theta}
    if "rope_freqs.weight" in header.tensors:
        return base | _llama3(header, theta)
    if "rope_factors_long.weight" in header.tensors:
        return base | _longrope(header, own)
    kind, factor = own.get("rope.scaling.type", "none"), own.get("rope.scaling.factor", 1.0)
    if kind == "none" or (kind == "linear" and factor in (0.0, 1.0)):
        return base
    if kind == "linear":
        return base | {"rope_type": "linear", "factor": factor}
    if kind == "yarn" and all(own.get(f"rope.scaling.{key}", 1.0) == 1.0 for key in _ONES):
        original = own.get("rope.scaling.original_context_length")
        more = {field: own[key] for key, field in YARN_KEYS.items() if key in own}
        if "mscale_all_dim" in more:
            more["mscale"] = 1.0  # llama.cpp's rule
        return base | {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": original, **more}
    raise UnsupportedModel(f"{header.file}: RoPE scaling '{str(kind)[:40]}' is not read from GGUF.")


_ONES = ("attn_factor", "yarn_attn_factor", "yarn_ext_factor")
"""Further factors, which no model that is served here changes."""


def _llama3(header: Header, theta: float) -> dict[str, Any]:
    """Parameters of Llama 3's scaling, of which a GGUF file has only the divisors that they make."""
    divisors = small_tensor(header, "rope_freqs.weight")
    if all(abs(divisor - 1.0) < _TOLERANCE for divisor in divisors):
        return {}
    for factor in _LLAMA3_FACTORS:
        computed = _llama3_divisors(2 * len(divisors), theta, factor)
        if all(abs(one - other) <= 1e-3 * other for one, other in zip(divisors, computed, strict=True)):
            return {
                "rope_type": "llama3", "factor": factor, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                "original_max_position_embeddings": 8192,
            }  # fmt: skip
    raise UnsupportedModel(
        f"{header.file} scales its positions by a table (rope_freqs.weight) that is not that of Llama 3.",
        remedy="Take the publisher's safetensors of the same model.",
    )


def _llama3_divisors(dim: int, theta: float, factor: float) -> list[float]:
    """As llama.cpp's converter makes them, from the same formula as transformers'."""
    divisors = []
    for index in range(0, dim, 2):
        wavelength = 2 * math.pi * theta ** (index / dim)
        smooth = min(max((8192 / wavelength - 1.0) / (4.0 - 1.0), 0.0), 1.0)
        divisors.append(1 / ((1 - smooth) / factor + smooth))
    return divisors


def _longrope(header: Header, own: dict[str, Any]) -> dict[str, Any]:
    if "rope_factors_short.weight" not in header.tensors:
        raise ModelError(f"{header.file} lacks the tensor rope_factors_short.weight.", remedy="Download it again.")
    return {
        "rope_type": "longrope",
        "short_factor": small_tensor(header, "rope_factors_short.weight"),
        "long_factor": small_tensor(header, "rope_factors_long.weight"),
        "original_max_position_embeddings": own.get("rope.scaling.original_context_length"),
        "attention_factor": own.get("rope.scaling.attn_factor"),
    }


def small_tensor(header: Header, name: str) -> list[float]:
    """The numbers of a tensor of at most 4,096 plain floats. Raises ModelError."""
    import numpy as np

    tensor = header.tensors[name]
    forms = {0: "<f4", 1: "<f2"}
    if len(tensor.shape) != 1 or tensor.shape[0] > 4096 or tensor.type_id not in forms:
        raise ModelError(f"{header.file}: '{name}' is no short list of numbers.", remedy="Download the file again.")
    with header.file.open("rb") as stream:
        stream.seek(tensor.start)
        numbers = np.frombuffer(stream.read(tensor.size), dtype=forms[tensor.type_id]).astype(float)
    if not bool(np.isfinite(numbers).all()) or bool((numbers <= 0).any()):
        raise ModelError(f"{header.file}: '{name}' holds numbers that cannot be.", remedy="Download the file again.")
    return [float(number) for number in numbers]


