"""Parameters of attention over int8 chunks that may be chosen freely, and their values per GPU."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum

_FEW_ROWS = 32
"""Query rows per KV head up to which the query is turned instead of the keys."""
LEAST_BLOCK = 16
"""Query rows per KV head that a decode step of any known model has at most."""
_SIX_UP_TO = 65_536
"""Keys of all heads up to which `lazy.decode_kernel` is best with six programs per multiprocessor; three then."""
_SIX_UP_TO_128 = 48 << 10
"""The same at head size 128; two then. Six are faster at 32,768 keys and slower at 65,536; in between they no longer
have one tile of 64 keys each on the 132 multiprocessors of an H200."""


class Rotation(IntEnum):
    """Operand that is rotated; see `lazy.prefill_kernel`."""

    KEYS = 0
    RUN = 1
    TILE = 2


@dataclass(frozen=True, slots=True)
class LazyTuning:
    """Parameters that may be chosen freely; `bench kernels --sweep` finds the best."""

    tile: int = 64
    """Most tokens per tile: 16, 32, 64 or 128; fewer where the programs would not fill the chip."""
    warps: int = 8
    stages: int = 3
    programs: int = 1
    """Per multiprocessor, as far as there are tiles."""
    rotation: Rotation = Rotation.TILE
    fused: bool = True
    """The last program merges; else a second launch does."""
    half_shares: bool = False
    """True to keep shares for the merge in fp16 instead of fp32, if the model is no wider itself."""
    half_math: bool = False
    """Keys are widened and turned in fp16, two numbers at once: faster by a tenth, three roundings instead of one."""
    block: int = 64
    """Most query rows per program."""
    registers: int | None = None
    """Most per thread; None leaves it to the compiler."""
    ahead: bool = False
    """`lazy.decode_kernel` asks for the query's turn of the next tile before it computes this one: four registers
    more."""
    few: bool = False
    """By `lazy.decode_kernel` where it can serve; then `tile` is 16 or 32 tokens per warp, and the merge is never
    fused."""
    merge_columns: int = 256
    """Most output columns per program of a merge of its own."""
    merge_step: int = 32
    """Most shares that such a program reads at once."""
    merge_warps: int = 4
    dependent: bool = False
    """Each of the two launches is prepared while the one before still runs, where the GPU can (compute capability 9);
    only for two launches."""

    @classmethod
    def default(cls, rows: int, *, fp32: bool = False, lines: int = 0, dim: int = 0) -> LazyTuning:
        """For that many query rows per KV head, over `lines` keys of `dim` numbers of all heads together."""
        if fp32 or rows > LEAST_BLOCK:
            return cls.general(rows, fp32=fp32)
        # The best of 36 choices for one query token over 8,192 tokens of Qwen2-7B's shape on an H200. Where programs
        # have several tiles each, one wave with all the registers they want beats more of them with spills.
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
        """Without `lazy.decode_kernel`; fp32 needs twice the registers and shared memory."""
        if fp32:
            rotation = Rotation.TILE if rows <= _FEW_ROWS else Rotation.KEYS
            return cls(tile=32, stages=1, programs=2, rotation=rotation, block=32)
        # The best of 70 choices for one query token and of 20 for 32, over 8,192 tokens of Qwen2-7B's shape on an H200:
        # 16.7 us a layer (bf16 attention 14.0; with the merge in the last program 40 at best) and
        # 59 (40); tiles of 64 take 52 there, but spill registers on smaller GPUs.
        if rows <= _FEW_ROWS:
            return cls(tile=32, warps=4, stages=3, programs=2, fused=False, half_math=True)
        return cls(tile=32, warps=4, stages=1, programs=1, rotation=Rotation.KEYS)
