"""Kernel B's launcher: how attention over int8 position-free chunks is divided among programs, and where all lies.

Knows Triton, addresses and the GPU's size; the program itself is `lazy_kernel`, the reference `lazy_attention.attend`.
Needs Triton at import, so it is imported only where `kernels` allows it.

Everything that stays the same during an answer is looked up once: the words, the rows of addresses, and for each number
of query rows how the tokens are divided. A decode step is then one launch a layer that reads a length and no list.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl
from numpy.typing import NDArray

from desk_rag.kv import lazy_kernel
from desk_rag.kv.lazy_attention import LazyContext
from desk_rag.kv.lazy_tiles import MOST_TOKENS, pack_runs
from desk_rag.kv.types import Int8Layer

FIELDS = 8
"""tokens, tokens per scale group, scale groups, then offsets in elements: keys, values, key_scale, key_zero,
value_scale."""
_FEW_ROWS = 32
"""Query rows per KV head up to which the query is turned instead of the keys."""
_LEAST_TILE = 32
_PLAIN_TILES = 2
"""Tiles of the slab per program."""
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

    @classmethod
    def default(cls, rows: int, *, fp32: bool = False) -> LazyTuning:
        """For that many query rows per KV head; fp32 needs twice the registers and shared memory."""
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
    one_tile: bool
    """No run is longer than a tile."""
    block: int
    blocks: int
    arrived: torch.Tensor
    """int32 [H, blocks], zero between launches."""


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
    divisions: dict[tuple[int, bool], _Division] = field(default_factory=dict)
    """By query rows per KV head, and whether they are fp32."""
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
        how = self._division(num_rows, query.dtype == torch.float32)
        tuning = how.tuning
        plain = triton.cdiv(keys.shape[2], how.tile * _PLAIN_TILES)
        shares = plain + triton.cdiv(how.num_words, how.per_share)
        space = self._space(shares * self.kv_heads * num_rows, _share_type(tuning, query))
        table = self.context.tables.table_of_layer[layer]
        cos, sin = self.context.tables.cos[table], self.context.tables.sin[table]
        result = torch.empty((1, count, heads, dim), dtype=query.dtype, device=query.device)
        merge_rows = min(how.block, triton.next_power_of_2(num_rows))
        padded = triton.next_power_of_2(dim)
        lazy_kernel.attend_shares[(shares, self.kv_heads, how.blocks)](
            query, keys, values, result, how.words, self.rows[layer], self.codes, self.scales, cos, sin,
            space.outputs, space.sums, how.arrived, num_rows, count, query.stride(1), query.stride(2),
            keys.shape[2] if length is None else length, keys.stride(1), keys.stride(2), how.num_words, plain,
            int(cos.shape[0]), scaling * _LOG2_E, 1.0 / self.attention_scaling[table],
            FUSED=tuning.fused, MERGE_ROWS=merge_rows, MERGE_STEP=_merge_step(merge_rows * padded, tuning.warps),
            LENGTH_IN_MEMORY=length is not None, PLAIN_TILES=_PLAIN_TILES, WORDS=how.per_share, ONE_TILE=how.one_tile,
            ROTATION=int(tuning.rotation), ONE_GROUP=self.one_group[layer], FIELDS=FIELDS,
            CODES_BY=self.alignment[layer][0], SCALES_BY=self.alignment[layer][1],
            **_shape(dim, int(cos.shape[1])), **_types(query, tuning), BLOCK=how.block, TILE=how.tile,
            num_warps=tuning.warps, num_stages=stages_of(tuning, self.one_group[layer]),
            **({} if tuning.registers is None else {"maxnreg": tuning.registers}),
        )  # fmt: skip
        if not tuning.fused:
            lazy_kernel.merge_shares[(num_rows, self.kv_heads)](
                space.outputs, space.sums, result, shares, num_rows, count, DIM=dim, DIM_PADDED=padded,
                STEP=_merge_step(padded, 4), num_warps=4,
            )  # fmt: skip
        return result

    def _division(self, num_rows: int, fp32: bool) -> _Division:
        """How to divide this many query rows per KV head: long runs where there are rows enough to fill the chip."""
        found = self.divisions.get((num_rows, fp32))
        if found is not None:
            return found
        tuning = self.tuning or LazyTuning.default(num_rows, fp32=fp32)
        block = min(tuning.block, max(16, triton.next_power_of_2(num_rows)))
        blocks = triton.cdiv(num_rows, block)
        wanted = tuning.programs * self.processors or _INTERPRETED_PROGRAMS
        share = max(1, triton.cdiv(self.context.num_tokens * self.kv_heads * blocks, wanted))
        tile = tuning.tile
        while tile > _LEAST_TILE and tile // 2 >= share:
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
            one_tile=most <= tile,
            block=block,
            blocks=blocks,
            arrived=torch.zeros(self.kv_heads * blocks, dtype=torch.int32, device=device),
        )
        self.divisions[num_rows, fp32] = division
        return division

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
