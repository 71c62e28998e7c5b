"""Launch flash decoding: attention of a few tokens over a long cache, with the keys split among programs.

The programs are in `kernels.flash_decoding_kernel`; `kernels.flash_decoding` imports this module where Triton can be
used.

Blocks of query rows alone leave most of a GPU idle, so the keys of each block are split among as many programs as run
at once, and a second, small launch merges their results by log-sum-exp (Flash-Decoding: Dao et al. 2023). With a single
share there is no merge. Nothing that changes between questions is compiled in, and a question's start can be read from
memory, so one CUDA graph serves every length: it has programs for all slots of a slab, which divide the slots in use
among themselves.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace

import torch
import triton

from desk_rag.kv.kernels.availability import is_large
from desk_rag.kv.kernels.compiled_launch import CompiledLaunch, multiprocessors
from desk_rag.kv.kernels.flash_decoding_kernel import attend_share, merge_rows

_MOST_SHARES = 64
_SHARE_COST = 3
"""Time of a program besides its tiles, in tiles."""
_MERGE_COST = 3
"""Time of the merge launch, in tiles."""
_WAVES = 2
"""Maximum number of programs with shares, in multiples of those that run at once."""
_INTERPRETED_PROGRAMS = 12
"""Programs in Triton's interpreter: enough to have several shares."""


@dataclass(frozen=True, slots=True)
class SplitTuning:
    """Launch parameters; none changes the result beyond rounding. `tests/gpu/split_attention.py` finds the best."""

    block: int = 128
    """Query rows per program: 16, 32, 64, 128 or 256."""
    tile: int = 64
    """Keys per step."""
    warps: int = 8
    stages: int = 3
    programs: int = 1
    """Programs per multiprocessor, if there are enough tiles."""
    dependent: bool = False
    """True to set up the merge while shares end (programmatic dependent launch; compute capability 9.0 and above)."""
    merge_columns: int = 128
    """Columns of a row that one program of the merge handles."""
    merge_step: int = 16
    """Shares that the merge loads at once."""


@dataclass(frozen=True, slots=True)
class _Way:
    """Parameters for one class of row counts."""

    tuning: SplitTuning
    at_once: int
    """Programs that run together."""
    outputs: torch.Tensor
    """fp32 [programs, block, D]: their normalised outputs."""
    sums: torch.Tensor
    """fp32 [programs, block]: their log-sum-exp to base 2."""
    shares: CompiledLaunch
    shares_from_memory: CompiledLaunch
    """The same kernel, reading the number of slots before the query from memory."""
    merge: CompiledLaunch


class FlashDecoding:
    """One model's attention on one GPU, or on a CPU in Triton's interpreter.

    Calls must be in the order of one stream: every call leaves its shares in the same memory.
    """

    def __init__(
        self,
        heads: int,
        kv_heads: int,
        dim: int,
        dtype: torch.dtype,
        device: torch.device,
        tuning: SplitTuning | None = None,
        window: int = 0,
    ) -> None:
        """`tuning` is for any number of rows; None chooses by their number. With a `window` a token sees so many slots,
        its own the last; 0 for all.
        """
        assert heads % kv_heads == 0 and dim % 16 == 0 and 0 < dim <= 256
        self._heads, self._kv_heads, self._dim, self._dtype, self._device = heads, kv_heads, dim, dtype, device
        self._group = heads // kv_heads
        self._tuning, self._window = tuning, window
        self._exponent = dim**-0.5 * math.log2(math.e)
        self._ways: dict[int, _Way] = {}

    def __call__(
        self,
        query: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        out: torch.Tensor | None = None,
        start: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """query [B, heads, N, D] over keys and values [B, H, S, D], of which the last N are its own.

        With `start`, int64 [2, B] on the device, the own tokens of each query are start[0]..start[0]+N-1 instead,
        within S, of row start[1] of keys and values, which may have any number of rows; slots behind are not read.
        Returns `out` [B, N, heads * D], a new tensor if there is none. All strides but the last are multiples of 16, as
        those of a slab are, and addresses are multiples of 16 bytes; keys and values have the same strides.
        """
        batch, heads, count, dim = query.shape
        length = keys.shape[2]
        assert heads == self._heads and keys.shape == values.shape and dim == self._dim
        assert keys.shape[1:] == (self._kv_heads, length, dim) and (keys.shape[0] == batch or start is not None)
        assert query.dtype == keys.dtype == values.dtype == self._dtype and 0 < count <= length
        if out is None:
            out = torch.empty((batch, count, heads * dim), dtype=query.dtype, device=query.device)
        assert out.shape == (batch, count, heads * dim) and out.dtype == query.dtype
        q, k, o = query.stride(), keys.stride(), out.stride()
        assert k == values.stride() and q[3] == k[3] == o[2] == 1
        # What Triton compiles in; so a compiled form is right for every call.
        assert math.gcd(q[0], q[1], q[2], k[0], k[1], k[2], o[0], o[1]) % 16 == 0, "strides"
        assert (query.data_ptr() | keys.data_ptr() | values.data_ptr() | out.data_ptr()) % 16 == 0, "addresses"
        rows = self._group * count
        kind = kind_of(rows)
        way = self._ways.get(kind)
        if way is None:
            way = self._ways[kind] = self._way(kind)
        lanes = batch * self._kv_heads
        blocks = -(-rows // way.tuning.block)
        seen = length
        if self._window:  # by the tokens of one block, from any slot of a tile on
            seen = min(length, self._window + way.tuning.block // self._group + way.tuning.tile)
        shares = shares_for(-(-seen // way.tuning.tile), blocks * lanes, way.at_once)
        tensors = (query, keys, values, out, way.outputs, way.sums)
        numbers = (count, q[0], q[1], q[2], k[0], k[1], k[2], o[0], o[1], self._exponent)
        if start is None:
            way.shares((blocks, shares, lanes), tensors, length, *numbers)
        else:
            assert start.dtype == torch.int64 and start.shape == (2, batch) and start.is_contiguous()
            way.shares_from_memory((blocks, shares, lanes), (*tensors, start), *numbers)
        if shares > 1:
            grid = (rows, -(-dim // way.tuning.merge_columns), lanes)
            way.merge(grid, (way.outputs, way.sums, out), shares, blocks, way.tuning.block, o[0], o[1])
        return out

    def _way(self, kind: int) -> _Way:
        tuning = self._tuning or tuning_for(kind, self._device, self._dim)
        at_once = _INTERPRETED_PROGRAMS
        if self._device.type == "cuda":
            at_once = tuning.programs * multiprocessors(self._device)
        places = (_WAVES * at_once, tuning.block)
        shape = (self._group, self._kv_heads, self._dim)
        known, from_memory = (
            share_constants(*shape, tuning, self._dtype, in_memory, self._window) for in_memory in (False, True)
        )
        return _Way(
            tuning,
            at_once,
            torch.empty((*places, self._dim), dtype=torch.float32, device=self._device),
            torch.empty(places, dtype=torch.float32, device=self._device),
            CompiledLaunch(attend_share, known, share_options(tuning)),
            CompiledLaunch(attend_share, from_memory, share_options(tuning)),
            CompiledLaunch(merge_rows, merge_constants(*shape, tuning), merge_options(tuning)),
        )


@functools.lru_cache(maxsize=4096)
def shares_for(tiles: int, blocks: int, at_once: int) -> int:
    """Number of shares for the `tiles` of each of `blocks`, if `at_once` programs run together."""
    most = max(1, min(tiles, _MOST_SHARES, _WAVES * at_once // blocks))

    def cost(shares: int) -> int:
        waves, longest = -(-blocks * shares // at_once), -(-tiles // shares)
        return waves * (longest + _SHARE_COST) + _MERGE_COST * (shares > 1)

    return min(range(1, most + 1), key=cost)


def kind_of(rows: int) -> int:
    """Round a row count per key head up to its class; few classes, since each is a compilation."""
    return 16 if rows <= 16 else 64 if rows <= 64 else 128


def tuning_for(kind: int, device: torch.device, dim: int = 128) -> SplitTuning:
    """Return the parameters for this GPU: for 16, 64, or 128 and more rows per key head of that size."""
    large = is_large(device)
    if dim > 128:  # 96 KiB of shared memory, which every GPU since Ampere has
        return SplitTuning(block=min(kind, 32), tile=32, warps=4, stages=2, merge_columns=32, merge_step=64)
    few = SplitTuning(block=min(kind, 64), warps=4, stages=2, programs=2)
    if kind == 16:
        return replace(few, stages=3 if large else 2, merge_columns=32, merge_step=64)
    if not large:
        return replace(few, tile=32)
    hopper = torch.cuda.get_device_capability(device)[0] >= 9
    return replace(few, stages=3 if kind == 128 else 2, dependent=hopper)


def share_constants(
    group: int,
    kv_heads: int,
    dim: int,
    tuning: SplitTuning,
    dtype: torch.dtype,
    start_in_memory: bool = False,
    window: int = 0,
) -> dict[str, object]:
    """Constants `attend_share` is compiled for."""
    return {
        "GROUP": group, "KV_HEADS": kv_heads, "DIM": dim, "DIM_PADDED": max(16, triton.next_power_of_2(dim)),
        "BLOCK": tuning.block, "TILE": tuning.tile, "PRECISION": "ieee" if dtype == torch.float32 else "tf32",
        "DEPENDENT": tuning.dependent, "START_IN_MEMORY": start_in_memory, "WINDOW": window,
    }  # fmt: skip


def merge_constants(group: int, kv_heads: int, dim: int, tuning: SplitTuning) -> dict[str, object]:
    """Constants `merge_rows` is compiled for."""
    return {
        "GROUP": group, "KV_HEADS": kv_heads, "DIM": dim, "COLUMNS": tuning.merge_columns, "STEP": tuning.merge_step,
        "DEPENDENT": tuning.dependent,
    }  # fmt: skip


def share_options(tuning: SplitTuning) -> dict[str, object]:
    """Compiler options of `attend_share`."""
    return {"num_warps": tuning.warps, "num_stages": tuning.stages}


def merge_options(tuning: SplitTuning) -> dict[str, object]:
    """Compiler options of `merge_rows`."""
    return {"num_warps": 1, **({"launch_pdl": True} if tuning.dependent else {})}
