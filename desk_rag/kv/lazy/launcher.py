"""Launch lazy attention: divide the keys of int8 chunks among Triton programs, and find their addresses.

The programs are `lazy.prefill_kernel` and, for decode steps, `lazy.decode_kernel`; `lazy.merge_kernel` combines their
partial results. The reference is `lazy.reference.attend`. This module imports Triton, so `lazy.backend` imports it only
where Triton can be used.

Everything that stays the same during an answer is computed once: the packed token runs, the rows of addresses, and the
division of the tokens for each number of query rows. A decode step is then one launch per layer that reads a length and
no list.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl
from numpy.typing import NDArray

from desk_rag.kv.kernels.compiled_launch import multiprocessors
from desk_rag.kv.lazy import decode_kernel, merge_kernel, prefill_kernel
from desk_rag.kv.lazy.reference import LazyContext
from desk_rag.kv.lazy.tiles import TokenRun, pack_shares
from desk_rag.kv.lazy.tuning import LEAST_BLOCK, LazyTuning
from desk_rag.kv.types import Int8Layer

FIELDS = 8
"""tokens, tokens per scale group, scale groups, then offsets in elements: keys, values, key_scale, key_zero,
value_scale."""
_LEAST_TILE = 32
_FEW_PLAIN_TILE = 32
_PLAIN_TILES = (2, 16)
"""Slab tiles per program: the first number normally, the second where the programs of the chunks take longer anyway, so
that one program per head reads the slab and the others get fewer tiles."""
_PLAIN_BESIDE = 0.8
"""Slab tiles that take as long as one chunk tile, on an H200."""
_INTERPRETED_PROGRAMS = 6
"""Programs in Triton's interpreter: enough to have several shares."""
_LOG2_E = 1.4426950408889634


@dataclass(frozen=True, slots=True)
class _Division:
    """Division of the work for one number of query rows; computed once per answer."""

    tuning: LazyTuning
    words: torch.Tensor
    """int64 [runs]: the packed token runs (`lazy.tiles.TokenRun`)."""
    firsts: torch.Tensor
    """int32 [shares + 1]: index of each share's first word."""
    shares: int
    one_run: bool
    """True if every share is one run."""
    tile: int
    """Tokens that a program reads at once."""
    plain_tile: int
    """Tokens of the slab that a program reads at once."""
    plain_tiles: int
    """Tiles of the slab per program."""
    one_tile: bool
    """True if no run is longer than a tile."""
    block: int
    blocks: int
    arrived: torch.Tensor
    """int32 [H, blocks]: counts finished programs; zero between launches."""
    turns: tuple[torch.Tensor, ...]
    """Cosines and sines of the first positions for `lazy.decode_kernel`, per table: fp16 [2, tile, half]."""


@dataclass(slots=True)
class _Workspace:
    """Memory for the programs' shares, growing as needed; for one launch at a time, on one stream."""

    outputs: torch.Tensor
    sums: torch.Tensor


@dataclass(frozen=True, slots=True)
class LazyKernel:
    """Everything that stays the same during an answer; called once per layer and forward pass, on one stream."""

    context: LazyContext
    rows: torch.Tensor
    """int64 [L, chunks, 8], see `FIELDS`; zeros, and never read, for layers that are not int8."""
    codes: torch.Tensor
    """int8; addresses of codes are offsets from it."""
    scales: torch.Tensor
    """The same memory as fp16; addresses of scales are offsets from it."""
    alignment: tuple[tuple[int, int], ...]
    """Common alignment per layer of the addresses of codes (at most 16 bytes) and of scales (at most 8 elements)."""
    one_group: tuple[bool, ...]
    """True for layers in which every chunk has a single group of key scales."""
    attention_scaling: tuple[float, ...]
    """Factor per table that cos and sin contain (YaRN); rotating query and key would apply it twice."""
    kv_heads: int
    dim: int
    tuning: LazyTuning | None
    """None for the default of each number of query rows."""
    processors: int
    prepares: bool
    """True if the GPU can prepare a launch while the previous one runs."""
    divisions: dict[tuple[int, bool, bool], _Division] = field(default_factory=dict)
    """Divisions by query rows per KV head, whether these are fp32, and whether `lazy.decode_kernel` can be used."""
    workspace: list[_Workspace] = field(default_factory=list)
    """The current workspace, if any launch needed one yet."""

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
            processors=multiprocessors(device) if gpu else 0,
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
        """Attend as `lazy.reference.attend`: query [1, heads, N, D], keys/values [1, H, S, D] -> [1, N, heads, D].

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
        plain = triton.cdiv(keys.shape[2], how.plain_tile * how.plain_tiles)
        shares = plain + how.shares
        space = self._space(shares * self.kv_heads * num_rows)
        result = torch.empty((1, count, heads, dim), dtype=query.dtype, device=query.device)
        common = {
            "DEPENDENT": dependent, "LENGTH_IN_MEMORY": length is not None, "PLAIN_TILES": how.plain_tiles,
            "ONE_RUN": how.one_run, "ONE_TILE": how.one_tile, "FIELDS": FIELDS, "CODES_BY": self.alignment[layer][0],
            "SCALES_BY": self.alignment[layer][1], "TILE": tuning.tile if tuning.few else how.tile,
            "num_warps": tuning.warps, "num_stages": stages_of(tuning, self.one_group[layer]),
            **({} if tuning.registers is None else {"maxnreg": tuning.registers}),
            **({"launch_pdl": True} if dependent else {}),
        }  # fmt: skip
        lengths = (
            num_rows, count, query.stride(1), query.stride(2), keys.shape[2] if length is None else length,
            keys.stride(1), keys.stride(2), plain, int(cos.shape[0]), scaling * _LOG2_E,
            1.0 / self.attention_scaling[table],
        )  # fmt: skip
        if tuning.few:
            decode_kernel.attend_few[(shares, self.kv_heads)](
                query, keys, values, how.words, how.firsts, self.rows[layer], self.codes, self.scales, cos, sin,
                how.turns[table], space.outputs, space.sums, *lengths, PLAIN_TILE=how.plain_tile, DIM=dim,
                HALF=dim // 2, ROWS=max(8, triton.next_power_of_2(num_rows)), WARPS=tuning.warps,
                VALUE_TYPE=_types(query, tuning)["VALUE_TYPE"], BY_BYTES=query.device.type == "cuda",
                AHEAD=tuning.ahead and not how.one_tile, **common,
            )  # fmt: skip
        else:
            merge_rows = min(how.block, triton.next_power_of_2(num_rows))
            prefill_kernel.attend_shares[(shares, self.kv_heads, how.blocks)](
                query, keys, values, result, how.words, how.firsts, self.rows[layer], self.codes, self.scales, cos, sin,
                space.outputs, space.sums, how.arrived, *lengths, FUSED=tuning.fused, MERGE_ROWS=merge_rows,
                MERGE_STEP=_merge_step(merge_rows * triton.next_power_of_2(dim), tuning.warps),
                ROTATE_QUERY=tuning.rotate_query, ONE_GROUP=self.one_group[layer], **_shape(dim, int(cos.shape[1])),
                **_types(query, tuning), BLOCK=how.block, **common,
            )  # fmt: skip
        if not tuning.fused:
            columns = min(tuning.merge_columns, triton.next_power_of_2(dim))
            merge_kernel.merge_shares[(num_rows, self.kv_heads, triton.cdiv(dim, columns))](
                space.outputs, space.sums, result, shares, num_rows, count, DIM=dim, COLUMNS=columns,
                STEP=tuning.merge_step, DEPENDENT=dependent, num_warps=tuning.merge_warps,
                **({"launch_pdl": True} if dependent else {}),
            )  # fmt: skip
        return result

    def _division(self, num_rows: int, fp32: bool, few: bool, slots: int) -> _Division:
        """Divide the work for this many query rows per KV head: longer runs where the rows alone fill the GPU.

        Args:
            few: `lazy.decode_kernel` can be used.
            slots: slots of the slab, which programs read as well.
        """
        known = self.divisions.get((num_rows, fp32, few))
        if known is not None:
            return known
        lines = self.context.num_tokens * self.kv_heads
        tuning = self.tuning or LazyTuning.default(num_rows, fp32=fp32, lines=lines, dim=self.dim)
        if tuning.few:
            tuning = replace(tuning, fused=False) if few else LazyTuning.general(num_rows, fp32=fp32)
        block = min(tuning.block, max(16, triton.next_power_of_2(num_rows)))
        blocks = triton.cdiv(num_rows, block)
        wanted = tuning.programs * self.processors or _INTERPRETED_PROGRAMS
        share = max(1, triton.cdiv(self.context.num_tokens * self.kv_heads * blocks, wanted))
        tile = tuning.tile * tuning.warps if tuning.few else tuning.tile
        while not tuning.few and tile > _LEAST_TILE and tile // 2 >= share:
            tile //= 2
        plain_tile, plain_tiles = tile, _PLAIN_TILES[0]
        if tuning.few:  # all programs run at once, those that read the slab included
            plain_tile = _FEW_PLAIN_TILE
            plain_tiles = _plain_tiles(triton.cdiv(slots, plain_tile), share / tile, wanted // self.kv_heads)
            wanted -= triton.cdiv(slots, plain_tile * plain_tiles) * self.kv_heads
        tiles = sum(triton.cdiv(place.num_tokens, tile) for place in self.context.placements)
        per_share = max(1, triton.cdiv(tiles, max(1, wanted // (self.kv_heads * blocks))))
        words, firsts = pack_shares(self.context.placements, per_share * tile, tile)
        device = self.rows.device
        division = _Division(
            tuning=tuning,
            words=torch.from_numpy(words if len(words) else np.zeros(1, dtype=np.int64)).to(device),
            firsts=torch.from_numpy(firsts).to(device),
            shares=len(firsts) - 1,
            one_run=len(words) == len(firsts) - 1,
            tile=tile,
            plain_tile=plain_tile,
            plain_tiles=plain_tiles,
            one_tile=all(TokenRun.unpack(int(word)).count <= tile for word in words),
            block=block,
            blocks=blocks,
            arrived=torch.zeros(self.kv_heads * blocks, dtype=torch.int32, device=device),
            turns=self._turns(tuning.tile) if tuning.few else (),
        )
        self.divisions[num_rows, fp32, few] = division
        return division

    def _turns(self, count: int) -> tuple[torch.Tensor, ...]:
        """The first `count` rows of cos and sin; rows past the table's end repeat its last one and are not used."""
        tables = self.context.tables
        row = torch.arange(count, device=self.rows.device)
        return tuple(
            torch.stack([part[row.clamp(max=len(part) - 1)].half() for part in pair])
            for pair in zip(tables.cos, tables.sin, strict=True)
        )

    def _space(self, lines: int) -> _Workspace:
        if not self.workspace or self.workspace[0].sums.shape[0] < lines:
            outputs = torch.empty((lines, self.dim), dtype=torch.float32, device=self.rows.device)
            self.workspace[:] = [_Workspace(outputs, outputs.new_empty(lines))]
        return self.workspace[0]


def _plain_tiles(tiles: int, chunk_tiles: float, programs: int) -> int:
    """Slab tiles per program, if the slab has `tiles` and each of a head's `programs` has `chunk_tiles` of chunks."""
    per_program = _PLAIN_TILES[1] if tiles <= _PLAIN_BESIDE * chunk_tiles else _PLAIN_TILES[0]
    while triton.cdiv(tiles, per_program) > max(1, programs // 4):  # a small GPU, or much room for the answer
        per_program *= 2
    return per_program


def serves_few(num_rows: int, dim: int, half: int) -> bool:
    """True if `lazy.decode_kernel` handles this many query rows per KV head and these head sizes.

    It also needs one group of scales per chunk and a dtype of 16 bits.
    """
    return num_rows <= LEAST_BLOCK and dim == 2 * half and dim >= 32 and dim == triton.next_power_of_2(dim)


def stages_of(tuning: LazyTuning, one_group: bool) -> int:
    """Pipeline stages; one fewer with several groups of scales, which need shared memory, too (99 KB on some GPUs)."""
    return tuning.stages if one_group else max(1, tuning.stages - 1)


def _merge_step(numbers: int, warps: int) -> int:
    """Shares merged at once, so that each thread has 64 numbers in flight."""
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
    """Types in which keys are dequantized and multiplied by the query, and weights by the values.

    Keys and queries use fp16: it has three more mantissa bits than bf16, and they are far from its range's ends. Values
    keep the range of the model's dtype, except on the CPU, where the interpreter cannot multiply bf16.
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
