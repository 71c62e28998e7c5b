"""Compute whether a model fits this machine: weights, memory for passages, disk for a folder's caches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from desk_rag.model.library.installed import Installed, Shape
from desk_rag.model.memory.plan import (
    SMALL_MODEL,
    Device,
    MemoryPlan,
    cache_bytes,
    forms_of,
    least_quantized,
    plan,
    weight_bytes,
)


@dataclass(frozen=True, slots=True)
class Machine:
    """Memory and disk that a model has to fit into."""

    gpu_bytes: int
    """Memory of the first NVIDIA GPU; 0 without one."""
    gpu_free_bytes: int
    """Part of it that no program uses now."""
    ram_bytes: int
    """Free memory."""
    budget_bytes: int
    """Disk that caches may take."""
    text_characters: int
    """Text of the folder; 0 if it is not known."""
    computes_in_bf16: bool = True
    """False if the CPU computes in fp32 only, in which weights take twice the memory."""
    coded_forms: tuple[str, ...] = ()
    """Forms of coded matrices that the CPU multiplies, the least quantised first."""
    packs: bool = False
    """True if the CPU packs matrices in fp16 where it computes in fp32."""
    weights_per_second: Mapping[str, float] = field(default_factory=dict)
    """Weights read a second while decoding, by quantisation; 'small' for models that a CPU holds in fp32."""

    def device_for(self, parameters: int) -> Device:
        """Return the device that serves a model of so many parameters."""
        if self.gpu_bytes:
            return Device("GPU memory", self.gpu_free_bytes, 2, on_gpu=True)
        small = parameters < SMALL_MODEL
        width = 4 if small or not self.computes_in_bf16 else 2
        return Device("memory", self.ram_bytes, width, on_gpu=False, coded_forms=self.coded_forms, packs=self.packs)


@dataclass(frozen=True, slots=True)
class Fit:
    """One model on one machine."""

    model: Installed
    weights: dict[str, int]
    """Bytes in memory by quantisation: 'none' (as it is), 'int8', and on a GPU 'nf4', on a CPU 'int4'."""
    memory: MemoryPlan
    """Plan with the least quantisation that fits, or the smallest one if none does."""
    kv_bytes_per_token: int
    folder_bytes: int
    """Disk for the caches of the folder's whole text; 0 if the text is not known."""
    quantization: str
    """The least quantisation with which it fits; empty if it fits with none."""
    fits_budget: bool
    tokens_per_second: Mapping[str, float]
    """Tokens of an answer expected a second, by quantisation; none for mixtures of experts."""

    @property
    def slab_bytes(self) -> int:
        """Memory for the passages of an answer."""
        return self.memory.parts["passages"] + self.memory.parts["chunks being loaded"]

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
    device = machine.device_for(shape.parameters)
    forms = forms_of(shape, device)
    chosen = least_quantized(shape, device, lazy_possible=shape.full_attention)
    embedded = model.source == "embedded"
    folder = cache_bytes(machine.text_characters, shape.kv_bytes_per_token, embedded=embedded)
    return Fit(
        model=model,
        weights={form: weight_bytes(shape, form, device) for form in forms},
        memory=chosen or plan(shape, forms[-1], device, lazy_possible=shape.full_attention),
        kv_bytes_per_token=shape.kv_bytes_per_token,
        folder_bytes=folder,
        quantization=chosen.quantization if chosen is not None else "",
        fits_budget=folder <= machine.budget_bytes,
        tokens_per_second=_tokens_per_second(shape, forms, machine),
    )


def _tokens_per_second(shape: Shape, forms: Sequence[str], machine: Machine) -> dict[str, float]:
    """Every decoded token reads all weights once."""
    if not shape.dense or shape.stored_bytes:
        return {}
    small = not machine.gpu_bytes and shape.parameters < SMALL_MODEL
    rates = {form: machine.weights_per_second.get("small" if small and form == "none" else form, 0.0) for form in forms}
    return {form: float(f"{rate / shape.parameters:.2g}") for form, rate in rates.items() if rate}
