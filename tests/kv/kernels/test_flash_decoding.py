"""Attention with divided keys against masked attention in fp32: in Triton's interpreter, or compiled on a GPU."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
pytest.importorskip("triton")

from desk_rag.kv.forward.attention import attend
from desk_rag.kv.kernels import flash_decoding
from desk_rag.kv.kernels.flash_decoding import agrees, flash_decoding_for, is_worthwhile, reference
from desk_rag.kv.kernels.flash_decoding_kernel import attend_share, merge_rows
from desk_rag.kv.kernels.flash_decoding_triton import (
    FlashDecoding,
    SplitTuning,
    merge_constants,
    share_constants,
    shares_for,
)

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SMALL = SplitTuning(block=16, tile=16, stages=1, merge_columns=32, merge_step=4)
TOLERANCE = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 2e-2}
Tensors = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def inputs(
    batch: int, heads: int, kv_heads: int, dim: int, count: int, length: int, dtype: torch.dtype = torch.float32
) -> Tensors:
    """A rotated query's transposed view, and views of slabs that hold no numbers past their used slots."""
    generator = torch.Generator().manual_seed(count + length)
    query = torch.randn(batch, count + 2, heads, dim, generator=generator).to(DEVICE, dtype)
    slabs = torch.full((2, batch, kv_heads, length + 21, dim), float("nan"))
    slabs[:, :, :, :length] = torch.randn(2, batch, kv_heads, length, dim, generator=generator) * 2
    keys, values = slabs.to(DEVICE, dtype)[:, :, :, :length]
    return query.transpose(1, 2).narrow(2, 0, count), keys, values


def split(tensors: Tensors, tuning: SplitTuning | None = SMALL, window: int = 0) -> FlashDecoding:
    query, keys, _ = tensors
    return FlashDecoding(query.shape[1], keys.shape[1], query.shape[3], query.dtype, query.device, tuning, window)


def close(got: torch.Tensor, tensors: Tensors, window: int = 0) -> None:
    wanted = reference(*tensors, window)
    assert got.shape == wanted.shape and got.dtype == tensors[0].dtype
    assert (got.float() - wanted).abs().max().item() <= TOLERANCE[got.dtype] * wanted.abs().max().item()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize(
    ("batch", "heads", "kv_heads", "dim", "count", "length"),
    [
        (1, 7, 1, 64, 1, 70),  # decode: one block, many shares
        (1, 1, 1, 16, 1, 1),
        (1, 4, 4, 32, 5, 16),  # no groups; a tile to the last slot
        (1, 6, 2, 48, 11, 83),  # blocks that end within a token
        (2, 4, 2, 96, 9, 40),
        (1, 3, 1, 16, 33, 33),  # everything is its own: first blocks have fewer tiles than there are shares
        (1, 5, 1, 16, 7, 200),
        (3, 8, 1, 16, 2, 17),
    ],
)
def test_divided_attention_is_attention(
    batch: int, heads: int, kv_heads: int, dim: int, count: int, length: int, dtype: torch.dtype
) -> None:
    tensors = inputs(batch, heads, kv_heads, dim, count, length, dtype)
    close(split(tensors)(*tensors), tensors)


@pytest.mark.parametrize("window", [1, 15, 16, 17, 48, 500])
@pytest.mark.parametrize(("count", "length"), [(1, 70), (1, 9), (7, 100), (40, 97), (33, 33)])
def test_a_window_hides_what_is_older(count: int, length: int, window: int) -> None:
    """With a known length, with the start in memory, and by torch; the control sees one slot more."""
    tensors = inputs(1, 6, 2, 32, count, length)
    query, keys, values = tensors
    attention = split(tensors, window=window)
    close(attention(*tensors), tensors, window)
    start = torch.tensor([[length - count], [0]], device=DEVICE)
    close(attention(query, keys, values, None, start), tensors, window)
    close(attend(query, keys, values, window), tensors, window)
    if window < length:
        seen, wider = (reference(*tensors, size) for size in (window, window + 1))
        assert (seen - wider).abs().max() > 1e-2 * seen.abs().max()


@pytest.mark.parametrize("programs", [1, 3, 50])
def test_any_division_gives_the_same(programs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """From one share, which needs no merge, to as many as there are tiles, several merges' steps."""
    monkeypatch.setattr("desk_rag.kv.kernels.flash_decoding_triton._INTERPRETED_PROGRAMS", programs)
    tensors = inputs(1, 3, 1, 32, 3, 150)
    tuning = replace(SMALL, programs=1)
    attention = split(tensors, tuning)
    close(attention(*tensors), tensors)
    if DEVICE.type == "cpu":
        assert shares_for(10, 1, programs) == {1: 1, 3: 3, 50: 10}[programs]


@pytest.mark.parametrize("length", [47, 48, 49, 63, 64, 65])
def test_around_the_ends_of_tiles(length: int) -> None:
    """The mask begins and ends with a tile, one slot before and one behind it."""
    for count in (1, 15, 16, 17):
        tensors = inputs(1, 1, 1, 16, count, length)
        close(split(tensors)(*tensors), tensors)


def test_it_writes_where_it_is_told_and_nowhere_else() -> None:
    tensors = inputs(2, 4, 2, 32, 5, 60)
    for tuning in (SMALL, replace(SMALL, tile=64)):  # with a merge, and without: one tile is one share
        memory = torch.full((2, 9, 4 * 32), 777.0, device=DEVICE)
        attention = split(tensors, tuning)
        out = memory[:, 2:7]
        assert attention(*tensors, out) is out
        close(out, tensors)
        assert (memory[:, :2] == 777).all() and (memory[:, 7:] == 777).all()
        fresh = attention(*tensors)
        assert torch.equal(fresh, out) and fresh.is_contiguous()


@pytest.mark.parametrize(
    ("batch", "heads", "kv_heads", "dim", "count", "length"),
    [(1, 7, 1, 64, 1, 70), (2, 4, 2, 48, 9, 40), (1, 3, 1, 16, 33, 33), (1, 4, 2, 32, 5, 200), (1, 2, 1, 16, 1, 1)],
)
def test_where_tokens_begin_may_be_told_in_memory(
    batch: int, heads: int, kv_heads: int, dim: int, count: int, length: int
) -> None:
    """The programs are those for the whole slab, of which slots past the last token's hold no numbers."""
    query, keys, values = inputs(batch, heads, kv_heads, dim, count, length)
    attention = split((query, keys, values))
    for more in (0, 21):
        whole = keys.as_strided((*keys.shape[:2], length + more, dim), keys.stride())
        of_values = values.as_strided((*values.shape[:2], length + more, dim), values.stride())
        start = torch.tensor([[length - count] * batch, [*range(batch)]], device=DEVICE)
        close(attention(query, whole, of_values, start=start), (query, keys, values))
    with pytest.raises(AssertionError):
        attention(query, keys, values, start=torch.zeros(2, batch, device=DEVICE))


def test_questions_of_one_call_may_begin_anywhere_in_any_row() -> None:
    """Each reads its own row from the first slot to its last token; nothing else holds a number."""
    heads, kv_heads, dim, count = 6, 2, 32, 4
    generator = torch.Generator().manual_seed(2)
    query = torch.randn(3, count, heads, dim, generator=generator).to(DEVICE).transpose(1, 2)
    keys, values = torch.full((2, 5, kv_heads, 96, dim), float("nan"), device=DEVICE)
    starts, rows = [70, 0, 31], [3, 1, 4]
    for start, row in zip(starts, rows, strict=True):
        for slab in (keys, values):
            slab[row, :, : start + count] = torch.randn(kv_heads, start + count, dim, generator=generator).to(DEVICE)
    out = split((query, keys, values))(query, keys, values, start=torch.tensor([starts, rows], device=DEVICE))
    for line, (start, row) in enumerate(zip(starts, rows, strict=True)):
        own = slice(row, row + 1), slice(None), slice(start + count)
        close(out[line : line + 1], (query[line : line + 1], keys[own], values[own]))


def test_one_object_serves_question_and_answer_in_any_order() -> None:
    """The shares of one call lie where those of another did."""
    tensors = [inputs(1, 4, 2, 32, count, length) for count, length in ((1, 100), (20, 100), (1, 7), (9, 90), (1, 101))]
    attention = split(tensors[0])
    for each in tensors:
        close(attention(*each), each)
    default = split(tensors[0], None)
    for each in tensors[:2]:
        close(default(*each), each)


@pytest.mark.parametrize(
    ("batch", "heads", "kv_heads", "dim", "count", "length"),
    [(1, 7, 1, 64, 1, 70), (2, 4, 2, 48, 9, 40), (1, 3, 1, 16, 33, 33)],
)
def test_tiles_end_with_the_slots_in_use(
    batch: int, heads: int, kv_heads: int, dim: int, count: int, length: int
) -> None:
    tensors = inputs(batch, heads, kv_heads, dim, count, length, torch.float16)
    close(split(tensors, SMALL)(*tensors), tensors)


def test_it_is_the_attention_that_passes_use() -> None:
    tensors = inputs(1, 6, 2, 32, 7, 50)
    query, keys, values = tensors
    plain = attend(query.contiguous(), keys, values)
    torch.testing.assert_close(split(tensors)(*tensors), plain, rtol=1e-4, atol=1e-5)
    # The control: one slot less is another answer.
    less = split(tensors)(query, keys[:, :, 1:], values[:, :, 1:])
    assert (less - plain).abs().max().item() > 1e-3


def test_what_cannot_be_read_16_bytes_at_once_is_refused() -> None:
    query, keys, values = inputs(1, 2, 1, 16, 3, 20)
    attention = split((query, keys, values))
    wide = torch.zeros(1, 1, 20, 24, device=DEVICE)[..., :16]
    turned = torch.zeros(1, 1, 16, 20, device=DEVICE).transpose(2, 3)
    for other in (wide, turned):
        with pytest.raises(AssertionError):
            attention(query, other, other)
    with pytest.raises(AssertionError):
        attention(query, keys, values.clone(memory_format=torch.contiguous_format))
    with pytest.raises(AssertionError):
        attention(query, keys[:, :, :2], values[:, :, :2])
    with pytest.raises(AssertionError):
        attention(query, keys, values, torch.zeros(1, 3, 33, device=DEVICE)[..., 1:])


def test_shares_fill_the_programs_that_run_at_once() -> None:
    """Qwen2-7B's 28 blocks of 128 rows on 132 multiprocessors; a decode step; what needs no division."""
    assert shares_for(130, 28, 132) == 4 and shares_for(130, 28, 264) == 9
    assert 32 <= shares_for(130, 4, 264) <= 64
    assert shares_for(130, 300, 264) == 1 and shares_for(1, 1, 264) == 1
    for tiles in (1, 2, 5, 13, 130, 514):
        for blocks in (1, 4, 28, 80, 150, 263, 264, 265, 2000):
            assert 1 <= shares_for(tiles, blocks, 264) <= max(1, min(tiles, 2 * 264 // blocks))


Change = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
FAULTS: dict[str, Change] = {
    "one slot less": lambda q, k, v: reference(q, k[:, :, :-1], v[:, :, :-1]) if k.shape[2] > q.shape[2] else q,
    "no mask": lambda q, k, v: reference(q.flatten(1, 2)[:, :, None], *(_wide(part, q) for part in (k, v)))
    .view(*q.shape[:3], -1).transpose(1, 2).flatten(2),
    "scale": lambda q, k, v: reference(q * 1.1, k, v),
    "groups": lambda q, k, v: reference(q, k.flip(1), v.flip(1)),
    "first slot": lambda q, k, v: reference(q, torch.cat((-k[:, :, :1], k[:, :, 1:]), 2), v),
    "no number": lambda q, k, v: reference(q, k, v) * float("nan"),
}  # fmt: skip


def _wide(part: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
    """One key head for every row of the query, so that the mask of single tokens hides nothing."""
    return part.repeat_interleave(query.shape[1] // part.shape[1] * query.shape[2], 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_the_proof_tells_right_from_wrong(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flash_decoding, "_PROVEN_LENGTHS", (9, 61))
    shape = (4, 2, 32)

    def judged(change: Change, reach: int = 0, deaf: bool = False, blind: bool = False) -> bool:
        def into(
            query: torch.Tensor,
            keys: torch.Tensor,
            values: torch.Tensor,
            out: torch.Tensor | None = None,
            start: torch.Tensor | None = None,
        ) -> torch.Tensor:
            assert out is not None
            used = keys.shape[2] if start is None or deaf else int(start[0, 0]) + query.shape[2]
            row = 0 if start is None or blind else int(start[1, 0])
            changed = change(query, keys[row : row + 1, :, :used], values[row : row + 1, :, :used])
            if reach:
                out.as_strided((1, out.shape[1] + reach, out.shape[2]), out.stride()).fill_(0)
            return out.copy_(changed if changed.shape == out.shape else torch.zeros_like(out))

        return agrees(into, *shape, dtype, DEVICE)

    assert judged(reference)
    for name, change in FAULTS.items():
        assert not judged(change), name
    assert not judged(reference, reach=1), "it writes past its end"
    assert not judged(reference, deaf=True), "it does not read where its tokens begin"
    assert not judged(reference, blind=True), "it does not read which row is its own"


def test_the_kernels_pass_their_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    if DEVICE.type == "cpu":
        monkeypatch.setattr(flash_decoding, "_PROVEN_LENGTHS", (9, 90))
    for dtype in (torch.float32, torch.float16):
        attention = FlashDecoding(8, 2, 16, dtype, DEVICE, replace(SMALL, tile=32, block=64))
        assert agrees(attention, 8, 2, 16, dtype, DEVICE)


def test_constants_are_told_in_the_kernels_order() -> None:
    for one, constants in (
        (attend_share, share_constants(7, 4, 128, SMALL, torch.float16)),
        (merge_rows, merge_constants(7, 4, 128, SMALL)),
    ):
        assert list(one.arg_names[-len(constants) :]) == list(constants)


def test_without_a_gpu_the_reference_is_used() -> None:
    assert flash_decoding_for(torch.device("cpu"), torch.bfloat16, 28, 4, 128) is None
    assert flash_decoding_for(torch.device("cuda", 0), torch.float32, 28, 4, 128) is None
    assert flash_decoding_for(torch.device("cuda", 0), torch.float16, 28, 4, 72) is None
    assert is_worthwhile(1) and is_worthwhile(128) and not is_worthwhile(4000)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("heads", "kv_heads", "dim", "dtype"),
    [
        (28, 4, 128, torch.bfloat16),
        (8, 2, 64, torch.float16),
        (12, 12, 96, torch.bfloat16),
        (16, 1, 80, torch.float16),
        (8, 4, 256, torch.bfloat16),
    ],
)
def test_on_a_gpu_the_kernels_are_proven_and_as_near_as_flash_attention(
    heads: int, kv_heads: int, dim: int, dtype: torch.dtype
) -> None:
    attention = flash_decoding_for(DEVICE, dtype, heads, kv_heads, dim)
    assert isinstance(attention, FlashDecoding)
    for count, length in ((1, 1), (1, 8320), (3, 2000), (32, 801), (128, 8320), (129, 129), (256, 32_896)):
        tensors = inputs(1, heads, kv_heads, dim, count, length, dtype)
        wanted = reference(*tensors)
        errors = [(way(*tensors).float() - wanted).norm() / wanted.norm() for way in (attention, attend)]
        assert errors[0] <= 1.3 * errors[1] + 1e-4, (count, length, errors)
        again = [attention(*tensors) for _ in range(5)]
        assert all(torch.equal(each, again[0]) for each in again)
