"""Weights that came quantised: which methods are served, and what each of them needs."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from desk_rag.errors import UnsupportedModel

PACKAGES = {
    "awq": ("gptqmodel",),
    "gptq": ("optimum", "gptqmodel"),
    "bitsandbytes": ("bitsandbytes",),
    "compressed-tensors": ("compressed-tensors",),
    "fp8": ("accelerate",),
    "mxfp4": ("accelerate",),
}
"""Packages that each form of quantised weights needs."""
WIDENED = frozenset({"compressed-tensors", "fp8", "mxfp4"})
"""Forms that are widened to 16 bits when they are loaded: transformers would fetch kernels for two from the hub, and
unpack the third at its first pass anyway."""


def check(directory: Path, quantization: Any) -> None:
    """Raise UnsupportedModel if quantised weights need a package or a GPU that is missing."""
    from transformers.quantizers.auto import AutoHfQuantizer

    method = quantization.get("quant_method", "bitsandbytes") if isinstance(quantization, dict) else "?"
    if method not in PACKAGES:
        raise UnsupportedModel(
            f"The weights in {directory} are quantised by '{str(method)[:40]}', which desk-rag does not load.",
            remedy=f"It loads: {', '.join(sorted(PACKAGES))}, and weights that are not quantised.",
        )
    try:
        described = {**quantization, "dequantize": True} if method == "mxfp4" else quantization
        with quiet_packages():
            AutoHfQuantizer.from_config(described, pre_quantized=True).validate_environment(device_map=None)
    except Exception as error:  # ImportError, RuntimeError, or a field that the method does not know
        raise _no_quantizer(directory, method, error) from error


@contextlib.contextmanager
def quiet_packages() -> Iterator[None]:
    """Drop what packages print: gptqmodel shows a banner and its progress where an answer or a UI belongs."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield


def _no_quantizer(directory: Path, method: str, error: Exception) -> UnsupportedModel:
    if isinstance(error, ImportError):
        packages = PACKAGES[method]
        return UnsupportedModel(
            f"The weights in {directory} are quantised by {method}, which needs the package "
            f"{' and '.join(packages)}: not installed, or not in a version that works here.",
            remedy=f"pip install {' '.join(packages)} (with pipx: pipx inject desk-rag {' '.join(packages)}), or take "
            "the model's weights that are not quantised.",
        )
    return UnsupportedModel(
        f"The weights in {directory} are quantised by {method} and cannot be used here: {_reason(error)}",
        remedy="Take the model's weights that are not quantised.",
    )


def _reason(error: Exception) -> str:
    return f"{type(error).__name__} {' '.join(str(error).split())[:300]}".strip()
