"""Plan the memory of a served model, part by part, before anything is loaded.

Sizes follow from the model's shape; what does not is an allowance. `desk-rag bench card` measures the same parts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

SMALL_MODEL = 1_000_000_000
"""Parameters up to which a CPU computes in fp32 although it could in bf16."""
QUANTIZATIONS = ("none", "int8", "nf4")
"""Forms of weights on a GPU, the least quantised first."""
ON_CPU = {"int8": 1.01, "int4": 0.63}
"""Forms of matrices on a CPU, and bytes of a weight in them with its scales."""
PACKED_BYTES = 2
"""Bytes of a weight that is packed in fp16, as a CPU without bf16 holds the matrices that it computes with in fp32."""
_PER_WEIGHT = {"int8": 1.01, "nf4": 0.53}
"""Bytes per quantised weight, scales included."""
_CONTEXT = 8192
"""Most tokens of passages in an answer of a chat model."""
_OTHERS = 256 + 1024
"""Tokens of question and answer."""
_SMALLEST_CONTEXT = 512
_ENOUGH_CONTEXT = 2048
"""Tokens of passages that an answer should have room for."""
_EMBEDDER = 160_000_000
"""Embedder and span scorer in fp32."""
_WORK_SPACE = 300_000_000
"""Allowance for logits, matrix products and CUDA graphs; on a CPU without the latter."""
_CUDA_CONTEXT = 500_000_000
_KEPT_SHARE, _MOST_KEPT = 0.25, 4 << 30
_LARGE_TABLE_SHARE = 0.2
"""Share of the memory left beside the weights above which input embeddings are kept in RAM."""
_SMALLEST_STEP, _STEP_MULTIPLE = 512, 64
_STEP_SHARE = 0.8
"""Share of free memory that a step of a prompt may take: allocators lose some between blocks."""

CHARACTERS_PER_TOKEN = 4.0
"""Typical of English text in most tokenizers; an estimate where a model's own tokenizer was not asked."""
EMBEDDED_CHARACTERS_PER_TOKEN = 2.8
"""The same for the embedded reader, whose vocabulary is small."""
EMBEDDED_KV_BYTES_PER_TOKEN = 2560
_STORED = 1.055
"""Bytes of a cache on the drive for each byte of keys and values."""


class ModelSizes(Protocol):
    """Numbers of a model that decide about its memory."""

    @property
    def parameters(self) -> int: ...
    @property
    def embedding_parameters(self) -> int:
        """Parameters that quantisation leaves at 16 bits."""
        ...

    @property
    def input_table_parameters(self) -> int:
        """Parameters of input embeddings that are not the output matrix as well; 0 if they are."""
        ...

    @property
    def window(self) -> int:
        """Positions in one context; 0 if unknown."""
        ...

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of one token's keys and values in 8 bits."""
        ...

    @property
    def stored_bytes(self) -> int:
        """Bytes of weights that came quantised and stay as they are; 0 for others."""
        ...

    @property
    def cpu_bytes(self) -> Mapping[str, int]:
        """Bytes of the weights as a CPU holds them, by the form of the matrices; empty if there is only one."""
        ...


def cache_bytes(text_characters: int, kv_bytes_per_token: int, *, embedded: bool) -> int:
    """Disk that the caches of a text take, about: tokens of a typical length, with the scales and headers of files."""
    tokens = text_characters / (EMBEDDED_CHARACTERS_PER_TOKEN if embedded else CHARACTERS_PER_TOKEN)
    return int(tokens * kv_bytes_per_token * _STORED)


@dataclass(frozen=True, slots=True)
class Device:
    """The machine and settings that a model is to be served with."""

    name: str
    """'GPU memory' or 'memory'."""
    free_bytes: int
    weight_bytes: int
    """Bytes of a weight that is not quantised: 2 in 16 bits, 4 in fp32."""
    on_gpu: bool
    coded_forms: tuple[str, ...] = ()
    """Forms of coded matrices that a CPU multiplies."""
    packs: bool = False
    """True if it packs matrices in fp16 that are not coded, instead of holding them in fp32."""


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Memory of one model in one form of weights on one device."""

    quantization: str
    device: Device
    parts: Mapping[str, int]
    """Bytes by part; all of them are needed."""
    context_tokens: int
    """Tokens of passages that an answer may have with this plan."""
    whole_context: bool
    """False if memory is too short for as many passages as the model could read."""
    lazy: bool
    """Passages stay in 8 bits and are widened while they are attended to."""
    page_locked: int = 0
    """Bytes of input embeddings that stay in page-locked RAM; not among the parts, which are in GPU memory."""

    @property
    def total(self) -> int:
        """Bytes of all parts."""
        return sum(self.parts.values())

    @property
    def fits(self) -> bool:
        """True if there is room for all parts."""
        return self.total <= self.device.free_bytes

    @property
    def kept_chunks(self) -> int:
        """Bytes of chunk KV that are kept on a GPU between answers, from what is left."""
        left = self.device.free_bytes - self.total
        return max(0, min(int(left * _KEPT_SHARE), _MOST_KEPT)) if self.device.on_gpu else 0


def weight_bytes(sizes: ModelSizes, quantization: str, device: Device) -> int:
    """Return the bytes of all weights in memory."""
    if sizes.stored_bytes:
        return sizes.stored_bytes
    if quantization == "none":
        packed = device.packs and device.weight_bytes > PACKED_BYTES
        return (packed and sizes.cpu_bytes.get("none")) or device.weight_bytes * sizes.parameters
    if not device.on_gpu and quantization in sizes.cpu_bytes:
        return sizes.cpu_bytes[quantization]
    rest = sizes.parameters - sizes.embedding_parameters
    return 2 * sizes.embedding_parameters + int(_PER_WEIGHT[quantization] * rest)


def belongs_in_ram(table_bytes: int, left_bytes: int) -> bool:
    """True if input embeddings on a GPU are large beside the memory that they and all other weights leave free."""
    return table_bytes > _LARGE_TABLE_SHARE * left_bytes


@dataclass(frozen=True, slots=True)
class PassShape:
    """Numbers of a model that decide how much memory a pass takes for each of its tokens."""

    hidden: int
    gates: int
    """Gates of one token in the widest layer."""
    heads: int
    head_dim: int
    bytes_per_number: int
    keeps_scores: bool
    """Attention writes out a score for each pair of tokens (soft caps, learned sinks)."""
    writes_weights: bool
    """Products of many rows write quantised weights out in 16 bits first."""

    def bytes_per_token(self, slots: int) -> int:
        """Bytes for one token that attends to `slots` tokens: hidden states, gates, queries, mask or scores."""
        numbers = 6 * self.hidden + 3 * self.gates + 4 * self.heads * self.head_dim
        pairs = self.heads * (4 + 2 * self.bytes_per_number) if self.keeps_scores else 1 + self.bytes_per_number
        return self.bytes_per_number * numbers + pairs * slots

    @property
    def written_weights(self) -> int:
        """Bytes of the largest weights that are written out."""
        return 2 * 2 * self.hidden * max(self.gates, self.heads * self.head_dim) if self.writes_weights else 0


def prefill_step(free_bytes: int, shape: PassShape, slots: int, count: int) -> int:
    """Plan how many of `count` tokens a pass takes in this much memory, as the last of `slots`: all, or equal steps."""
    room = _STEP_SHARE * (free_bytes - shape.written_weights)
    most = max(_SMALLEST_STEP, int(room / shape.bytes_per_token(slots)))
    steps = -(-count // most)
    equal = -(-count // steps)
    return min(count, max(_SMALLEST_STEP, -(-equal // _STEP_MULTIPLE) * _STEP_MULTIPLE))


def plan(sizes: ModelSizes, quantization: str, device: Device, *, lazy_possible: bool = True) -> MemoryPlan:
    """Plan one form of weights, in the steps that an engine takes: all passages, lazy attention, fewer passages."""
    most = min(_CONTEXT, max(_SMALLEST_CONTEXT, int(0.75 * sizes.window))) if sizes.window else _CONTEXT
    tokens = most
    steps = [(most, False), *([(most, True)] if lazy_possible and device.on_gpu else [])]
    while tokens > _SMALLEST_CONTEXT:
        tokens = max(_SMALLEST_CONTEXT, tokens // 2)
        steps.append((tokens, False))
    for tokens, lazy in steps:
        parts = _parts(sizes, quantization, device, tokens, lazy=lazy)
        in_ram = _table_in_ram(sizes, quantization, device)
        planned = MemoryPlan(quantization, device, parts, tokens, tokens == most, lazy, in_ram)
        if planned.fits:
            return planned
    return planned


def forms_of(sizes: ModelSizes, device: Device) -> tuple[str, ...]:
    """Return the forms of weights that are possible there: only one for weights that came quantised."""
    if sizes.stored_bytes:
        return QUANTIZATIONS[:1]
    if device.on_gpu:
        return QUANTIZATIONS
    return QUANTIZATIONS[0], *(form for form in device.coded_forms if form in sizes.cpu_bytes)


def least_quantized(sizes: ModelSizes, device: Device, *, lazy_possible: bool = True) -> MemoryPlan | None:
    """Return the plan with the least quantisation that fits; None if none does.

    Room for all passages, and for a slab rather than lazy attention, is preferred to less quantisation; but 4 bits on a
    CPU are taken only where no other form leaves room for enough passages.
    """
    plans = [plan(sizes, form, device, lazy_possible=lazy_possible) for form in forms_of(sizes, device)]
    fitting = [each for each in plans if each.fits]
    enough = min(_ENOUGH_CONTEXT, max((each.context_tokens for each in fitting), default=0))
    if any(each.quantization != "int4" and each.context_tokens >= enough for each in fitting):
        fitting = [each for each in fitting if each.quantization != "int4"]
    return min(fitting, key=lambda each: (not each.whole_context, each.lazy), default=None)


def _parts(sizes: ModelSizes, quantization: str, device: Device, tokens: int, *, lazy: bool) -> dict[str, int]:
    width = 2 if device.on_gpu else 4 if quantization != "none" else device.weight_bytes
    slab_tokens = _OTHERS if lazy else tokens + _OTHERS
    parts = {
        "weights": weight_bytes(sizes, quantization, device) - _table_in_ram(sizes, quantization, device),
        "passages": width * slab_tokens * sizes.kv_bytes_per_token,
        "chunks being loaded": tokens * sizes.kv_bytes_per_token,
        "embedder and span scorer": _EMBEDDER,
        "work space": _WORK_SPACE,
    }
    return parts | {"CUDA": _CUDA_CONTEXT} if device.on_gpu else parts


def _table_in_ram(sizes: ModelSizes, quantization: str, device: Device) -> int:
    """Bytes of the input embeddings if they are kept in page-locked RAM, as `page_locked` decides when it loads."""
    table = 2 * sizes.input_table_parameters
    left = device.free_bytes - _CUDA_CONTEXT - weight_bytes(sizes, quantization, device)
    return table if device.on_gpu and belongs_in_ram(table, left) else 0


def cpu_has_bf16() -> bool:
    """True if the CPU computes in bf16."""
    flags = Path("/proc/cpuinfo")
    return flags.is_file() and any(word in flags.read_text() for word in ("avx512_bf16", "amx_bf16"))
