"""Compute whether a model fits this machine: weights, memory for passages, disk for a folder's caches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from desk_rag.model.library.installed import Installed, Shape

CHARACTERS_PER_TOKEN = 4.0
"""Typical of English text in most tokenizers; an estimate where a model's own tokenizer was not asked."""
_CONTEXT = 8192 + 1024
"""Most tokens of passages, question and answer that an answer holds in memory."""
_CUDA_BYTES = 1 << 30
_NF4 = 0.53
"""Bytes per parameter, scales included."""


@dataclass(frozen=True, slots=True)
class Machine:
    """Memory and disk that a model has to fit into."""

    gpu_bytes: int
    """Memory of the first NVIDIA GPU; 0 without one."""
    ram_bytes: int
    """Free memory."""
    budget_bytes: int
    """Disk that caches may take."""
    text_characters: int
    """Text of the folder; 0 if it is not known."""


@dataclass(frozen=True, slots=True)
class Fit:
    """One model on one machine."""

    model: Installed
    weights: dict[str, int]
    """Bytes in memory by quantisation: 'none' (16 bits), 'int8', 'nf4'."""
    slab_bytes: int
    """Memory for the passages of an answer."""
    kv_bytes_per_token: int
    folder_bytes: int
    """Disk for the caches of the folder's whole text; 0 if the text is not known."""
    quantization: str
    """The least quantisation with which it fits; empty if it fits with none."""
    fits_budget: bool

    @property
    def suits(self) -> bool:
        """True if it can be used, fits into memory, and the folder's caches fit into their budget."""
        return not self.model.refusal and bool(self.quantization) and self.fits_budget


def rank(models: Sequence[Installed], machine: Machine) -> list[Fit]:
    """The models that suit first, those with the smallest caches leading; then those that do not, then the refused."""
    fits = [fit(model, model.shape, machine) for model in models if model.shape is not None]
    return sorted(
        fits,
        key=lambda each: (
            bool(each.model.refusal), not each.quantization, not each.fits_budget, each.kv_bytes_per_token,
        ),
    )  # fmt: skip


def fit(model: Installed, shape: Shape, machine: Machine) -> Fit:
    """Compute what a model of this shape takes."""
    rest = shape.parameters - shape.embedding_parameters
    embeddings = 2 * shape.embedding_parameters
    weights = {"none": 2 * shape.parameters, "int8": embeddings + rest, "nf4": embeddings + int(_NF4 * rest)}
    tokens = min(_CONTEXT, shape.window or _CONTEXT)
    slab = 2 * tokens * shape.kv_bytes_per_token
    per_token = shape.kv_bytes_per_token
    folder = int(machine.text_characters / CHARACTERS_PER_TOKEN * per_token)
    return Fit(
        model=model,
        weights=weights,
        slab_bytes=slab,
        kv_bytes_per_token=per_token,
        folder_bytes=folder,
        quantization=_least_quantization(weights, slab, machine),
        fits_budget=folder <= machine.budget_bytes,
    )


def _least_quantization(weights: dict[str, int], slab: int, machine: Machine) -> str:
    if not machine.gpu_bytes:
        return "none" if weights["none"] + 2 * slab < machine.ram_bytes else ""
    fitting = [name for name, size in weights.items() if size + slab + _CUDA_BYTES < machine.gpu_bytes]
    return fitting[0] if fitting else ""
