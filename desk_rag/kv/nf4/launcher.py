"""Launch the nf4 kernel: divide the work among programs and provide memory for partial sums."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
import triton.language as tl

from desk_rag.kv.kernels.compiled_launch import CompiledLaunch, alike, multiprocessors
from desk_rag.kv.nf4 import kernel
from desk_rag.kv.nf4.matrix import BLOCK, Nf4Matrix

_MOST_ROWS = 128
_FEWEST_STEPS = 3
"""Steps per program, at least: fewer would not hide the first step's wait."""
_MOST_BLOCKS = 16_384
"""Blocks of output columns that the counters are made for."""
_INTERPRETED_PROCESSORS = 8
"""Any number: the interpreter's results do not depend on it."""
_TYPES = {torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}


@dataclass(frozen=True, slots=True)
class Nf4Tuning:
    """Parameters that may be chosen freely."""

    columns: int
    """Output columns per program."""
    groups: int
    """Blocks of 64 weights per row and step."""
    warps: int
    stages: int
    programs: int
    """Programs per multiprocessor to divide the work among."""
    permute: bool = True
    """Dequantise by byte permutations rather than by reading a table."""


def tuning_for(tokens: int, device: torch.device) -> Nf4Tuning:
    """Return the parameters for a power of two of rows; on a CPU those that Triton's interpreter can run."""
    permute = device.type == "cuda"
    if tokens <= 32:
        return Nf4Tuning(columns=64, groups=2, warps=4, stages=4, programs=8, permute=permute)
    columns = 128 if tokens <= 64 else 64  # more would not fit the registers of an RTX 3060
    return Nf4Tuning(columns=columns, groups=1, warps=4, stages=3, programs=4, permute=permute)


def padded(count: int) -> int:
    """Return the rows that a program computes for `count` of them."""
    return max(16, 1 << (count - 1).bit_length())


def multiply(rows: torch.Tensor, matrix: Nf4Matrix, tuning: Nf4Tuning | None = None) -> torch.Tensor:
    """Multiply rows [..., K], bf16 or fp16, by the weights -> [..., N]; at most 128 of them.

    On one stream at a time: partial sums of different launches are counted in the same place.
    """
    rows_out, width = matrix.shape
    rows = rows.contiguous()
    count = rows.numel() // width
    assert rows.shape[-1] == width and 0 < count <= _MOST_ROWS and rows_out > 1 and rows.dtype in _TYPES
    assert matrix.bias is None or matrix.bias.dtype == rows.dtype
    device, tokens = rows.device, padded(count)
    tuning = tuning or tuning_for(tokens, device)
    blocks = -(-rows_out // tuning.columns)
    assert blocks <= _MOST_BLOCKS and rows_out * width < 2**31 * BLOCK and count * rows_out < 2**31
    shares = shares_of(blocks, width, tuning, device)
    result = torch.empty((*rows.shape[:-1], rows_out), dtype=rows.dtype, device=device)
    partials = torch.empty((shares, count, rows_out) if shares > 1 else (4,), dtype=torch.float32, device=device)
    bias = result if matrix.bias is None else matrix.bias
    launch = _launch(tokens, rows.dtype, matrix.bias is not None, tuning, alike(rows_out))
    launch(
        (blocks, shares, 1),
        (
            rows.view(torch.int32), matrix.codes, matrix.scale_codes, matrix.scale_levels, matrix.scale_steps,
            matrix.scale_offsets, matrix.levels, bias, partials, _counters(device), result,
        ),
        count, rows_out, width // 2,
    )  # fmt: skip
    return result


def shares_of(blocks: int, width: int, tuning: Nf4Tuning, device: torch.device) -> int:
    """Return into how many shares the weights' columns are divided, so that all multiprocessors have work."""
    steps = -(-width // (BLOCK * tuning.groups))
    processors = multiprocessors(device) if device.type == "cuda" else _INTERPRETED_PROCESSORS
    shares = max(1, min(processors * tuning.programs // blocks, steps // _FEWEST_STEPS))
    return -(-steps // -(-steps // shares))


def constants(tokens: int, dtype: torch.dtype, biased: bool, tuning: Nf4Tuning) -> dict[str, object]:
    """Constants the kernel is compiled for."""
    return {
        "BIASED": biased, "PERMUTE": tuning.permute, "GROUPS": tuning.groups, "COLUMNS": tuning.columns,
        "TOKENS": tokens, "TYPE": _TYPES[dtype], "STAGES": tuning.stages,
    }  # fmt: skip


@functools.lru_cache(maxsize=64)
def _launch(tokens: int, dtype: torch.dtype, biased: bool, tuning: Nf4Tuning, _even: bool) -> CompiledLaunch:
    """The cached launch of this kernel; column counts that are multiples of 16 have a launch of their own."""
    options: dict[str, object] = {"num_warps": tuning.warps, "num_stages": tuning.stages}
    return CompiledLaunch(kernel.multiply, constants(tokens, dtype, biased, tuning), options)


@functools.cache
def _counters(device: torch.device) -> torch.Tensor:
    """Counters of finished shares, 0 between launches; never freed, because recorded graphs hold their address."""
    return torch.zeros(_MOST_BLOCKS, dtype=torch.int32, device=device)
