"""Launch parameters of lazy attention, and their values by number of query rows."""

from __future__ import annotations

from dataclasses import dataclass, replace

_FEW_ROWS = 32
"""Query rows per KV head up to which the query is rotated instead of the keys."""
LEAST_BLOCK = 16
"""Maximum query rows per KV head in a decode step of any known model."""
_SIX_UP_TO = 65_536
"""Keys, summed over heads, up to which `lazy.decode_kernel` is fastest with six programs per multiprocessor; three
above."""
_SIX_UP_TO_128 = 48 << 10
"""The same at head size 128, with two programs above. Six are faster at 32,768 keys and slower at 65,536."""


@dataclass(frozen=True, slots=True)
class LazyTuning:
    """Launch parameters; none of them changes the result beyond rounding. `bench kernels --sweep` finds the best."""

    tile: int = 64
    """Maximum tokens per tile: 16, 32, 64 or 128; smaller tiles are used where too few programs would run."""
    warps: int = 8
    stages: int = 3
    programs: int = 1
    """Programs per multiprocessor, if there are enough tiles."""
    rotate_query: bool = True
    """True to rotate the query back once per tile, which suits few rows; False to rotate all keys instead."""
    fused: bool = True
    """True if the last program merges the shares; otherwise a second launch does."""
    half_math: bool = False
    """True to dequantize and rotate keys in fp16, two numbers per instruction: a tenth faster, three roundings instead
    of one."""
    block: int = 64
    """Maximum query rows per program."""
    registers: int | None = None
    """Maximum registers per thread; None leaves it to the compiler."""
    ahead: bool = False
    """True to have `lazy.decode_kernel` load the query's rotation for the next tile before it computes the current one,
    which takes four more registers."""
    few: bool = False
    """True to use `lazy.decode_kernel` where possible; `tile` is then 16 or 32 tokens per warp, and the merge is a
    launch of its own."""
    merge_columns: int = 256
    """Maximum output columns per program of the merge launch."""
    merge_step: int = 32
    """Maximum shares that such a program reads at once."""
    merge_warps: int = 4
    dependent: bool = False
    """True to prepare each of the two launches while the previous one still runs (compute capability 9 and above)."""

    @classmethod
    def default(cls, rows: int, *, fp32: bool = False, lines: int = 0, dim: int = 0) -> LazyTuning:
        """Parameters for `rows` query rows per KV head; `lines` keys of size `dim`, summed over heads."""
        if fp32 or rows > LEAST_BLOCK:
            return cls.general(rows, fp32=fp32)
        # Found on an H200 with Qwen2-7B's shape (bench/LOG.md). With several tiles per program, few programs with
        # enough registers are faster than many that spill.
        usual = cls(
            tile=16, warps=4, stages=2, programs=6, fused=False, registers=128, few=True, merge_columns=32,
            merge_step=256, merge_warps=8, dependent=True,
        )  # fmt: skip
        if dim == 128:
            long = replace(usual, programs=2, registers=None, stages=1, ahead=True)
            return usual if lines <= _SIX_UP_TO_128 else long
        return usual if lines <= _SIX_UP_TO else replace(usual, programs=3)

    @classmethod
    def general(cls, rows: int, *, fp32: bool = False) -> LazyTuning:
        """Parameters of `lazy.prefill_kernel`; fp32 needs twice the registers and shared memory."""
        if fp32:
            return cls(tile=32, stages=1, programs=2, rotate_query=rows <= _FEW_ROWS, block=32)
        # Found on an H200 with Qwen2-7B's shape; tiles of 64 are a tenth faster for 32 rows there, but their registers
        # spill on smaller GPUs.
        if rows <= _FEW_ROWS:
            return cls(tile=32, warps=4, stages=3, programs=2, fused=False, half_math=True)
        return cls(tile=32, warps=4, stages=1, programs=1, rotate_query=False)
