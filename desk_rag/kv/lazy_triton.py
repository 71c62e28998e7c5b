"""Kernel B's launcher: how attention over int8 position-free chunks is divided among programs, and where all lies.

Knows Triton, addresses and the GPU's size; the programs themselves are `lazy_kernel` and, for a decode step,
`lazy_few`; what they leave is brought together by `lazy_merge`. The reference is `lazy_attention.attend`.
Needs Triton at import, so it is imported only where `kernels` allows it.

Everything that stays the same during an answer is looked up once: the words, the rows of addresses, and for each number
of query rows how the tokens are divided. A decode step is then one launch a layer that reads a length and no list.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl
from numpy.typing import NDArray

from desk_rag.kv import lazy_few, lazy_kernel, lazy_merge
from desk_rag.kv.lazy_attention import LazyContext
from desk_rag.kv.lazy_tiles import MOST_TOKENS, pack_runs
from desk_rag.kv.types import Int8Layer

FIELDS = 8
"""tokens, tokens per scale group, scale groups, then offsets in elements: keys, values, key_scale, key_zero,
value_scale."""
_FEW_ROWS = 32
"""Query rows per KV head up to which the query is turned instead of the keys."""
_LEAST_TILE = 32
_FEW_PLAIN_TILE = 32
_PLAIN_TILES = 2
"""Tiles of the slab per program."""
_LEAST_BLOCK = 16
"""Query rows per KV head that a decode step of any known model has at most."""
_SIX_UP_TO = 65_536
"""Keys of all heads up to which `lazy_few` is best with six programs per multiprocessor; three then."""
_SIX_UP_TO_128 = 48 << 10
"""The same at head size 128. Six are faster at 32,768 keys and slower at 65,536; in between they no longer have one
tile of 64 keys each on the 132 multiprocessors of an H200."""
_INTERPRETED_PROGRAMS = 6
"""Without a GPU: enough to have several shares."""
_LOG2_E = 1.4426950408889634


class Rotation(IntEnum):
    """What is turned; see `lazy_kernel`."""

    KEYS = 0
    RUN = 1
    TILE = 2


@dataclass(frozen=True, slots=True)
class LazyTuning:
    """What the kernel may choose freely; `bench kernels --sweep` finds the best."""

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
    """What programs leave for the merge is fp16 instead of fp32, if the model is no wider itself."""
    half_math: bool = False
    """Keys are widened and turned in fp16, two numbers at once: faster by a tenth, three roundings instead of one."""
    block: int = 64
    """Most query rows per program."""
    registers: int | None = None
    """Most per thread; None leaves it to the compiler."""
    few: bool = False
    """By `lazy_few` where it can serve; then `tile` is 16 or 32 tokens per warp, and the merge is never fused."""
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
        if fp32 or rows > _LEAST_BLOCK:
            return cls.general(rows, fp32=fp32)
        # The best of 36 choices for one query token over 8,192 tokens of Qwen2-7B's shape on an H200, and the best of
        # three elsewhere: 10.7 and, at 32,768 tokens, 32.5 us a layer (bf16 attention over a materialised cache 13.9
        # and 25.9); Llama-3.1-8B's shape 20.5 and 54.7 (16.4 and 39.7).
        usual = cls(
            tile=16, warps=4, stages=2, programs=6, fused=False, registers=128, few=True, merge_columns=32,
            merge_step=256, merge_warps=8, dependent=True,
        )  # fmt: skip
        if dim == 128:
            return usual if lines <= _SIX_UP_TO_128 else replace(usual, programs=3, registers=168, stages=1)
        return usual if lines <= _SIX_UP_TO else replace(usual, programs=3)

    @classmethod
    def general(cls, rows: int, *, fp32: bool = False) -> LazyTuning:
        """Without `lazy_few`; fp32 needs twice the registers and shared memory."""
        if fp32:
            rotation = Rotation.TILE if rows <= _FEW_ROWS else Rotation.KEYS
            return cls(tile=32, stages=1, programs=2, rotation=rotation, block=32)
        # The best of 70 choices for one query token and of 20 for 32, over 8,192 tokens of Qwen2-7B's shape on an H200:
        # 16.7 us a layer (bf16 attention 14.0; with the merge in the last program 40 at best) and
        # 59 (40); tiles of 64 take 52 there, but spill registers on smaller GPUs.
        if rows <= _FEW_ROWS:
            return cls(tile=32, warps=4, stages=3, programs=2, fused=False, half_math=True)
        return cls(tile=32, warps=4, stages=1, programs=1, rotation=Rotation.KEYS)


@dataclass(frozen=True, slots=True)
class _Division:
    """How the work of a number of query rows is divided; made once per answer."""

    tuning: LazyTuning
    words: torch.Tensor
    """int64 [runs]."""
    num_words: int
    per_share: int
    """Words."""
    tile: int
    """Tokens that a program reads at once."""
    plain_tile: int
    """Of the slab."""
    one_tile: bool
    """No run is longer than a tile."""
    block: int
    blocks: int
    arrived: torch.Tensor
    """int32 [H, blocks], zero between launches."""
    turns: tuple[torch.Tensor, ...]
    """For `lazy_few`, per table: fp16 [2, tile, half], cosines and sines of the first positions."""


@dataclass(slots=True)
class _Workspace:
    """Where programs leave their shares; grows as needed. One launch at a time: in the order of one stream."""

    outputs: torch.Tensor
    sums: torch.Tensor


@dataclass(frozen=True, slots=True)
class LazyKernel:
    """Everything that stays the same during an answer; called once per layer and forward pass, on one stream."""

    context: LazyContext
    rows: torch.Tensor
    """int64 [L, chunks, 8]; rows of layers that are not int8 are zeros and never used."""
    codes: torch.Tensor
    """int8 anchor."""
    scales: torch.Tensor
    """fp16 anchor."""
    alignment: tuple[tuple[int, int], ...]
    """Per layer: what divides every address of codes (up to 16 bytes) and of scales (up to 8 elements)."""
    one_group: tuple[bool, ...]
    """Per layer: every chunk has a single group of key scales."""
    attention_scaling: tuple[float, ...]
    """Per table: what cos and sin are multiplied by (YaRN); turning by two tables would apply it twice."""
    kv_heads: int
    dim: int
    tuning: LazyTuning | None
    """None: the default for the number of query rows."""
    processors: int
    prepares: bool
    """The GPU can prepare a launch while the one before runs."""
    divisions: dict[tuple[int, bool, bool], _Division] = field(default_factory=dict)
    """By query rows per KV head, whether they are fp32, and whether `lazy_few` can serve."""
    workspace: dict[torch.dtype, _Workspace] = field(default_factory=dict)

    @classmethod
    def of(cls, context: LazyContext, kv_heads: int, dim: int, tuning: LazyTuning | None = None) -> LazyKernel:
        """Look up where everything is; the chunks need not have been loaded yet."""
        device = context.tables.cos[0].device
        anchor = torch.empty(16, dtype=torch.int8, device=device)
        layers = len(context.tables.table_of_layer)
        rows = np.zeros((layers, max(1, len(context.chunks)), FIELDS), dtype=np.int64)
        for layer in range(layers):
            if context.is_int8(layer):
                for segment, (chunk, place) in enumerate(zip(context.chunks, context.placements, strict=True)):
                    coded = chunk.layers[layer]
                    assert isinstance(coded, Int8Layer) and chunk.num_tokens == place.num_tokens
                    rows[layer, segment] = _row(coded, anchor, kv_heads, dim)
        last = max((place.position + place.num_tokens for place in context.placements), default=1)
        assert all(table.is_contiguous() and table.shape[0] >= last for table in context.tables.cos)
        gpu = device.type == "cuda"
        return cls(
            context=context,
            rows=torch.from_numpy(rows).to(device),
            codes=anchor,
            scales=anchor.view(torch.float16),
            alignment=tuple(_alignment(rows[layer], anchor, dim) for layer in range(layers)),
            one_group=tuple(bool((rows[layer, :, 2] <= 1).all()) for layer in range(layers)),
            attention_scaling=tuple(float(cos[0, 0]) for cos in context.tables.cos),
            kv_heads=kv_heads,
            dim=dim,
            tuning=tuning,
            processors=torch.cuda.get_device_properties(device).multi_processor_count if gpu else 0,
            prepares=gpu and torch.cuda.get_device_capability(device)[0] >= 9,
        )

    def __call__(
        self,
        layer: int,
        query: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        scaling: float,
        length: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """As `lazy_attention.attend`: query [1, heads, N, D], keys/values [1, H, S, D] -> [1, N, heads, D].

        `length`, int32 [1] on the device, says how many of the S slots are in use, the N included; None is all of
        them. A CUDA graph needs it, because S is fixed there.
        """
        _, heads, count, dim = query.shape
        assert keys.shape[:2] == (1, self.kv_heads) and dim == self.dim and keys.stride(3) == query.stride(3) == 1
        assert values.stride() == keys.stride() and keys.dtype == values.dtype == query.dtype
        num_rows = heads // self.kv_heads * count
        table = self.context.tables.table_of_layer[layer]
        cos, sin = self.context.tables.cos[table], self.context.tables.sin[table]
        fp32 = query.dtype == torch.float32
        possible = not fp32 and self.one_group[layer] and serves_few(num_rows, dim, int(cos.shape[1]))
        how = self._division(num_rows, fp32, possible, keys.shape[2])
        tuning = how.tuning
        dependent = tuning.dependent and self.prepares and not tuning.fused
        plain = triton.cdiv(keys.shape[2], how.plain_tile * _PLAIN_TILES)
        shares = plain + triton.cdiv(how.num_words, how.per_share)
        space = self._space(shares * self.kv_heads * num_rows, _share_type(tuning, query))
        result = torch.empty((1, count, heads, dim), dtype=query.dtype, device=query.device)
        common = {
            "DEPENDENT": dependent, "LENGTH_IN_MEMORY": length is not None, "PLAIN_TILES": _PLAIN_TILES,
            "WORDS": how.per_share, "ONE_TILE": how.one_tile, "FIELDS": FIELDS, "CODES_BY": self.alignment[layer][0],
            "SCALES_BY": self.alignment[layer][1], "TILE": tuning.tile if tuning.few else how.tile,
            "num_warps": tuning.warps, "num_stages": stages_of(tuning, self.one_group[layer]),
            **({} if tuning.registers is None else {"maxnreg": tuning.registers}),
            **({"launch_pdl": True} if dependent else {}),
        }  # fmt: skip
        lengths = (
            num_rows, count, query.stride(1), query.stride(2), keys.shape[2] if length is None else length,
            keys.stride(1), keys.stride(2), how.num_words, plain, int(cos.shape[0]), scaling * _LOG2_E,
            1.0 / self.attention_scaling[table],
        )  # fmt: skip
        if tuning.few:
            lazy_few.attend_few[(shares, self.kv_heads)](
                query, keys, values, how.words, self.rows[layer], self.codes, self.scales, cos, sin,
                how.turns[table], space.outputs, space.sums, *lengths, PLAIN_TILE=how.plain_tile, DIM=dim,
                HALF=dim // 2, ROWS=max(8, triton.next_power_of_2(num_rows)), WARPS=tuning.warps,
                VALUE_TYPE=_types(query, tuning)["VALUE_TYPE"], BY_BYTES=query.device.type == "cuda", **common,
            )  # fmt: skip
        else:
            merge_rows = min(how.block, triton.next_power_of_2(num_rows))
            lazy_kernel.attend_shares[(shares, self.kv_heads, how.blocks)](
                query, keys, values, result, how.words, self.rows[layer], self.codes, self.scales, cos, sin,
                space.outputs, space.sums, how.arrived, *lengths, FUSED=tuning.fused, MERGE_ROWS=merge_rows,
                MERGE_STEP=_merge_step(merge_rows * triton.next_power_of_2(dim), tuning.warps),
                ROTATION=int(tuning.rotation), ONE_GROUP=self.one_group[layer], **_shape(dim, int(cos.shape[1])),
                **_types(query, tuning), BLOCK=how.block, **common,
            )  # fmt: skip
        if not tuning.fused:
            columns = min(tuning.merge_columns, triton.next_power_of_2(dim))
            lazy_merge.merge_shares[(num_rows, self.kv_heads, triton.cdiv(dim, columns))](
                space.outputs, space.sums, result, shares, num_rows, count, DIM=dim, COLUMNS=columns,
                STEP=tuning.merge_step, DEPENDENT=dependent, num_warps=tuning.merge_warps,
                **({"launch_pdl": True} if dependent else {}),
            )  # fmt: skip
        return result

    def _division(self, num_rows: int, fp32: bool, few: bool, slots: int) -> _Division:
        """How to divide this many query rows per KV head: long runs where there are rows enough to fill the chip.

        `few`: `lazy_few` can serve them; `slots` of the slab are read by programs too.
        """
        found = self.divisions.get((num_rows, fp32, few))
        if found is not None:
            return found
        lines = self.context.num_tokens * self.kv_heads
        tuning = self.tuning or LazyTuning.default(num_rows, fp32=fp32, lines=lines, dim=self.dim)
        if tuning.few:
            tuning = replace(tuning, fused=False) if few else LazyTuning.general(num_rows, fp32=fp32)
        block = min(tuning.block, max(16, triton.next_power_of_2(num_rows)))
        blocks = triton.cdiv(num_rows, block)
        wanted = tuning.programs * self.processors or _INTERPRETED_PROGRAMS
        if tuning.few:  # one wave, whose programs read the slab too
            wanted = max(1, wanted - triton.cdiv(slots, _FEW_PLAIN_TILE * _PLAIN_TILES) * self.kv_heads)
        share = max(1, triton.cdiv(self.context.num_tokens * self.kv_heads * blocks, wanted))
        tile = tuning.tile * tuning.warps if tuning.few else tuning.tile
        while not tuning.few and tile > _LEAST_TILE and tile // 2 >= share:
            tile //= 2
        most = min(MOST_TOKENS, triton.cdiv(share, tile) * tile)
        packed = pack_runs(self.context.placements, most, tile)
        per_share = max(1, share * len(packed) // max(1, self.context.num_tokens))
        device = self.rows.device
        division = _Division(
            tuning=tuning,
            words=torch.from_numpy(packed if len(packed) else np.zeros(1, dtype=np.int64)).to(device),
            num_words=len(packed),
            # A power of two: it is a constant of the kernel, and each constant is a compilation.
            per_share=1 << (per_share.bit_length() - 1),
            tile=tile,
            plain_tile=_FEW_PLAIN_TILE if tuning.few else tile,
            one_tile=most <= tile,
            block=block,
            blocks=blocks,
            arrived=torch.zeros(self.kv_heads * blocks, dtype=torch.int32, device=device),
            turns=self._turns(tuning.tile) if tuning.few else (),
        )
        self.divisions[num_rows, fp32, few] = division
        return division

    def _turns(self, count: int) -> tuple[torch.Tensor, ...]:
        """The first `count` rows of cos and sin; past the table its last row, which belongs to no token."""
        tables = self.context.tables
        row = torch.arange(count, device=self.rows.device)
        return tuple(
            torch.stack([part[row.clamp(max=len(part) - 1)].half() for part in pair])
            for pair in zip(tables.cos, tables.sin, strict=True)
        )

    def _space(self, lines: int, dtype: torch.dtype) -> _Workspace:
        found = self.workspace.get(dtype)
        if found is None or found.sums.shape[0] < lines:
            device = self.rows.device
            found = _Workspace(
                torch.empty((lines, self.dim), dtype=dtype, device=device),
                torch.empty(lines, dtype=torch.float32, device=device),
            )
            self.workspace[dtype] = found
        return found


def serves_few(num_rows: int, dim: int, half: int) -> bool:
    """True if `lazy_few` can do that many query rows per KV head; besides, it wants one group of scales, not fp32."""
    return num_rows <= _LEAST_BLOCK and dim == 2 * half and dim >= 32 and dim == triton.next_power_of_2(dim)


def stages_of(tuning: LazyTuning, one_group: bool) -> int:
    """Several groups of scales are loaded per tile and go through shared memory too, of which some GPUs have 99 KB."""
    return tuning.stages if one_group else max(1, tuning.stages - 1)


def _share_type(tuning: LazyTuning, query: torch.Tensor) -> torch.dtype:
    return torch.float16 if tuning.half_shares and query.dtype != torch.float32 else torch.float32


def _merge_step(numbers: int, warps: int) -> int:
    """Shares merged at once: 64 numbers per thread are on their way together."""
    return max(1, min(32, 64 * 32 * warps // numbers))


def _shape(dim: int, half: int) -> dict[str, int]:
    """Constants of the head; tl.dot wants at least 16 of everything."""
    rest = dim - 2 * half
    return {
        "DIM": dim, "DIM_PADDED": triton.next_power_of_2(dim), "HALF": half,
        "HALF_PADDED": max(16, triton.next_power_of_2(half)), "REST": rest,
        "REST_PADDED": max(16, triton.next_power_of_2(max(rest, 1))),
    }  # fmt: skip


def _types(query: torch.Tensor, tuning: LazyTuning) -> dict[str, Any]:
    """In which types keys are widened and meet the query, and weights the values.

    fp16 has three bits more than bf16, and rotated keys and queries are far from its ends; values keep the range of the
    model's own dtype, but on the CPU fp32, because the interpreter cannot multiply bf16.
    """
    if query.dtype == torch.float32:
        return {"KEY_TYPE": tl.float32, "VALUE_TYPE": tl.float32, "PRECISION": "ieee", "MATH": tl.float32}
    own = tl.float16 if query.dtype == torch.float16 else tl.bfloat16
    return {
        "KEY_TYPE": tl.float16, "VALUE_TYPE": tl.float32 if query.device.type == "cpu" else own, "PRECISION": "tf32",
        "MATH": tl.float16 if tuning.half_math else tl.float32,
    }  # fmt: skip


def _row(coded: Int8Layer, anchor: torch.Tensor, kv_heads: int, dim: int) -> list[int]:
    heads, tokens, width = coded.keys.shape
    groups = coded.key_scale.shape[1]
    parts = (coded.keys, coded.values, coded.key_scale, coded.key_zero, coded.value_scale)
    assert (heads, width) == (kv_heads, dim), "chunk and model differ in shape"
    assert all(part.is_contiguous() and part.device == anchor.device for part in parts)
    assert tokens * dim * heads < 2**31
    distances = [part.data_ptr() - anchor.data_ptr() for part in parts]
    assert all(distance % 2 == 0 for distance in distances[2:])
    return [tokens, -(-tokens // groups), groups, *distances[:2], *(distance // 2 for distance in distances[2:])]


def _alignment(rows: NDArray[np.int64], anchor: torch.Tensor, dim: int) -> tuple[int, int]:
    """Largest powers of two that divide every address: of codes in bytes, of scales in elements."""
    codes = int(np.bitwise_or.reduce(rows[:, 3:5] + anchor.data_ptr(), axis=None)) | dim | 16
    scales = int(np.bitwise_or.reduce(rows[:, 5:7] + anchor.data_ptr() // 2, axis=None)) | dim | 8
    return codes & -codes, scales & -scales
