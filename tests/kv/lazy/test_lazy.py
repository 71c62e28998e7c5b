"""Lazy attention: the reference equals attention over a materialised cache, the kernel equals the reference.

The reference runs everywhere; the kernel's checks run in Triton's interpreter where Triton is installed and compiled
where there is a GPU.
"""

from __future__ import annotations

import importlib.util
import itertools
from dataclasses import fields
from typing import TYPE_CHECKING

import pytest
import torch

from desk_rag.bench.baselines.positions import Overlapping, overlapping_plan
from desk_rag.errors import UnsupportedModel
from desk_rag.kv.cache import SlabCache
from desk_rag.kv.lazy import reference
from desk_rag.kv.lazy.cache import LazyCache, arriving, supports
from desk_rag.kv.lazy.reference import LazyContext, attend
from desk_rag.kv.lazy.tiles import MOST_TOKENS, TokenRun, pack_shares
from desk_rag.kv.positions import Placement, plan
from desk_rag.kv.prefill import prefill_chunk, prefill_prefix
from desk_rag.kv.quant import LayerScheme, QuantScheme, quantize
from desk_rag.kv.rope import RotaryTables, build_tables
from desk_rag.kv.stitch import stitch
from desk_rag.kv.types import ChunkKV, LayerKV, QuantizedKV
from desk_rag.model.language_model import LanguageModel
from tests.models import DEVICE, FAMILIES, build_model, on_device, stream

if TYPE_CHECKING:
    from desk_rag.kv.lazy.launcher import LazyKernel

TEXTS = ["The boiler was serviced.", "Rent is due on Monday.", "Anna moved to Porto, then to Lyon."]
with_kernel = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton")


def some_context(
    lengths: list[int], *, heads: int, dim: int, half: int | None = None, group: int | None = None, first: int = 5,
    scaling: float = 1.0, layers: int = 1, size: int = 512,
) -> LazyContext:  # fmt: skip
    """Random chunks whose key channels have offsets; positions follow on from `first`."""
    half = dim // 2 if half is None else half
    generator = torch.Generator().manual_seed(len(lengths))
    chunks = []
    for tokens in lengths:
        keys = torch.randn(layers, heads, tokens, dim, generator=generator)
        keys += 2 * torch.randn(layers, heads, 1, dim, generator=generator)
        values = torch.randn(layers, heads, tokens, dim, generator=generator)
        scheme = QuantScheme.uniform(layers, LayerScheme(group=group))
        chunks.append(quantize(ChunkKV(keys.to(DEVICE), values.to(DEVICE)), scheme))
    angle = torch.arange(size)[:, None] * 10_000.0 ** -(torch.arange(half) / half)
    tables = RotaryTables(
        ((angle.cos() * scaling).contiguous().to(DEVICE),),
        ((angle.sin() * scaling).contiguous().to(DEVICE),),
        (0,) * layers,
    )
    return LazyContext(tuple(chunks), plan(first, lengths).placements, tables)


def check(
    context: LazyContext, *, heads: int, group: int, queries: int, plain: int, dtype: torch.dtype = torch.float32,
    **tuning: object,
) -> LazyKernel:  # fmt: skip
    """The kernel against the reference on random queries and plain tokens, twice: the second launch finds its counters
    as the first one left them."""
    from desk_rag.kv.lazy.launcher import LazyKernel
    from desk_rag.kv.lazy.tuning import LazyTuning

    dim = context.chunks[0].layers[0].keys.shape[2] if context.chunks else 64
    generator = torch.Generator().manual_seed(3)
    query = torch.randn(1, heads * group, queries, dim, generator=generator).to(DEVICE, dtype)
    room = torch.randn(2, 1, heads, plain + 7, dim, generator=generator).to(DEVICE, dtype)
    keys, values = room[0][:, :, :plain], room[1][:, :, :plain]
    expected = attend(0, query, keys, values, dim**-0.5, context)
    kernel = LazyKernel.of(context, heads, dim, LazyTuning(**tuning) if tuning else None)  # type: ignore[arg-type]
    tolerance = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}[dtype]
    used = torch.tensor([plain], dtype=torch.int32, device=DEVICE)
    for got in (
        kernel(0, query, keys, values, dim**-0.5),
        kernel(0, query, room[0], room[1], dim**-0.5, length=used),
    ):
        assert got.shape == expected.shape == (1, queries, heads * group, dim) and got.dtype == dtype
        torch.testing.assert_close(got, expected, rtol=tolerance, atol=tolerance)
    assert not any(division.arrived.any() for division in kernel.divisions.values())
    return kernel


DIMS, DTYPES = (64, 96, 128), (torch.float32, torch.float16, torch.bfloat16)
"""Each of them is in every run, all pairs among the slow tests."""


@with_kernel
@pytest.mark.parametrize(
    ("dim", "dtype"),
    [
        pytest.param(dim, dtype, marks=() if DIMS.index(dim) == DTYPES.index(dtype) else pytest.mark.slow)
        for dim, dtype in itertools.product(DIMS, DTYPES)
    ],
    ids=str,
)
@pytest.mark.parametrize("queries", [1, 12])
def test_kernel_head_sizes_dtypes_and_both_rotations(dim: int, queries: int, dtype: torch.dtype) -> None:
    """One query token turns the query, twelve times three heads turn the keys."""
    check(some_context([37, 64, 1], heads=2, dim=dim), heads=2, group=3, queries=queries, plain=17, dtype=dtype)


@with_kernel
@pytest.mark.parametrize(("heads", "group"), [(3, 1), (2, 4), (2, 7), (1, 8), (2, 16)])
def test_kernel_gqa_ratios(heads: int, group: int) -> None:
    check(some_context([33, 20], heads=heads, dim=64), heads=heads, group=group, queries=1, plain=6)


@with_kernel
@pytest.mark.parametrize(
    ("tile", "length"), [(tile, length) for tile in (16, 32, 64) for length in (1, tile - 1, tile, tile + 1, 100)]
)
def test_kernel_odd_lengths_and_tiles(tile: int, length: int) -> None:
    check(some_context([length], heads=1, dim=64), heads=1, group=2, queries=1, plain=1, tile=tile)


@with_kernel
@pytest.mark.parametrize("rotate_query", [True, False])
@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("queries", [1, 12])
def test_kernel_every_way_to_rotate_and_to_merge(rotate_query: bool, fused: bool, queries: int) -> None:
    """Runs of several tiles, and several runs per program: many short chunks and one long."""
    context = some_context([5] * 11 + [60], heads=1, dim=64)
    kernel = check(
        context, heads=1, group=2, queries=queries, plain=20, tile=16, rotate_query=rotate_query, fused=fused
    )
    if DEVICE.type == "cpu":  # a GPU has programs enough for one run each
        (division,) = kernel.divisions.values()
        assert not division.one_run and not division.one_tile


@with_kernel
def test_kernel_cheaper_arithmetic_stays_close() -> None:
    context = some_context([130, 40], heads=2, dim=128)
    check(context, heads=2, group=7, queries=1, plain=9, dtype=torch.bfloat16, half_math=True)


@with_kernel
@pytest.mark.parametrize(
    ("tile", "warps", "dim", "group", "queries", "dtype", "ahead"),
    [
        (16, 4, 64, 7, 1, torch.float16, False),
        (16, 4, 64, 5, 2, torch.bfloat16, True),
        (32, 2, 64, 4, 1, torch.bfloat16, True),
        (16, 4, 128, 7, 1, torch.bfloat16, True),
    ],
    ids=str,
)
def test_kernel_of_its_own_for_few_query_rows(
    tile: int, warps: int, dim: int, group: int, queries: int, dtype: torch.dtype, ahead: bool
) -> None:
    """Runs that end within a step and many short ones per program; of two tokens, more than eight rows."""
    context = some_context([5] * 9 + [400], heads=1, dim=dim, size=1024, scaling=1.25)
    kernel = check(
        context, heads=1, group=group, queries=queries, plain=40, dtype=dtype, few=True, tile=tile, warps=warps,
        merge_columns=16, merge_step=4, dependent=True, ahead=ahead,
    )  # fmt: skip
    (division,) = kernel.divisions.values()
    assert division.tuning.few
    assert DEVICE.type == "cuda" or not (division.one_run or division.one_tile)


@with_kernel
def test_kernel_for_few_query_rows_where_each_run_is_one_step() -> None:
    context = some_context([64, 40, 64, 33], heads=1, dim=64)
    for warps in (4, 8):
        kernel = check(
            context, heads=1, group=4, queries=1, plain=3, dtype=torch.float16, few=True, tile=16, warps=warps
        )
        (division,) = kernel.divisions.values()
        assert division.one_tile
    check(some_context([], heads=2, dim=64), heads=2, group=2, queries=1, plain=1, dtype=torch.float16, few=True)
    check(some_context([21], heads=1, dim=64, first=0), heads=1, group=2, queries=1, plain=1, few=True, tile=16)


@with_kernel
def test_kernel_for_few_query_rows_leaves_the_rest_to_the_other() -> None:
    """More rows than it has room for, several groups of scales, partial rotary, odd heads and fp32."""
    half = torch.float16
    plain = some_context([40], heads=1, dim=64)
    for context, group, dtype in (
        (plain, 17, half),
        (some_context([50, 17], heads=1, dim=64, group=16), 2, half),
        (some_context([40], heads=1, dim=128, half=48), 2, half),
        (some_context([40], heads=1, dim=96), 2, half),
        (plain, 2, torch.float32),
    ):
        kernel = check(context, heads=1, group=group, queries=1, plain=3, dtype=dtype, few=True)
        assert not any(division.tuning.few for division in kernel.divisions.values())


# Microseconds a layer on an H200: 6 programs per multiprocessor of up to 128 registers, 2 of as many as they want.
MEASURED = {
    (4, 128, 2048): (7.1, 8.9), (4, 128, 8192): (10.1, 10.9), (4, 128, 32_768): (45.1, 22.3),
    (8, 128, 2048): (8.5, 9.2), (8, 128, 8192): (23.4, 14.8), (8, 128, 32_768): (73.5, 34.4),
    (2, 128, 2048): (6.4, 8.1), (2, 128, 8192): (7.8, 8.7), (2, 128, 32_768): (23.9, 14.7),
    (2, 64, 2048): (6.5, 6.6), (2, 64, 8192): (7.8, 9.2), (2, 64, 32_768): (12.6, 16.8),
}  # fmt: skip


@with_kernel
@pytest.mark.parametrize(("case", "took"), MEASURED.items(), ids=str)
def test_the_default_is_what_was_measured_to_be_best(case: tuple[int, int, int], took: tuple[float, float]) -> None:
    from desk_rag.kv.lazy.tuning import LazyTuning

    heads, dim, tokens = case
    chosen = LazyTuning.default(7, lines=heads * tokens, dim=dim)
    grids = [(6, 128, 2), (2, None, 1)]
    assert took[grids.index((chosen.programs, chosen.registers, chosen.stages))] == min(took)


@with_kernel
@pytest.mark.parametrize(("dim", "expected"), [(128, (2, None, 1)), (64, (3, 128, 2))])
def test_kernel_takes_the_default_for_its_head_size_and_keys(
    dim: int, expected: tuple[int, int | None, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    from desk_rag.kv.lazy import tuning as lazy_tuning

    monkeypatch.setattr(lazy_tuning, "_SIX_UP_TO", 300)
    monkeypatch.setattr(lazy_tuning, "_SIX_UP_TO_128", 300)
    for length, wanted in ((150, (6, 128, 2)), (151, expected)):
        kernel = check(
            some_context([length], heads=2, dim=dim), heads=2, group=4, queries=1, plain=9, dtype=torch.bfloat16
        )
        (tuning,) = (division.tuning for division in kernel.divisions.values())
        assert tuning.few and (tuning.programs, tuning.registers, tuning.stages) == wanted


@with_kernel
def test_kernel_division_fills_one_wave_and_gives_all_the_same() -> None:
    """One program a multiprocessor too many and all wait for a second wave: a third of the time, on an H200."""
    from dataclasses import replace

    from desk_rag.kv.lazy.launcher import LazyKernel
    from desk_rag.kv.lazy.tuning import LazyTuning

    context = some_context([500] * 12 + [37], heads=2, dim=64, size=8192)
    tuning = LazyTuning(few=True, fused=False, tile=16, warps=4, programs=2)
    for processors, slots in ((7, 64), (20, 64), (132, 64), (9, 640)):
        kernel = replace(LazyKernel.of(context, 2, 64, tuning), processors=processors, divisions={})
        division = kernel._division(4, fp32=False, few=True, slots=slots)
        programs = (division.shares + -(-slots // (division.plain_tile * division.plain_tiles))) * 2
        assert programs <= max(2 * processors, 2), (processors, slots)
        runs = [TokenRun.unpack(int(word)) for word in division.words]
        firsts = division.firsts.tolist()
        tiles = [sum(-(-run.count // 64) for run in runs[a:b]) for a, b in itertools.pairwise(firsts)]
        assert len(set(tiles[:-1])) <= 1 and 0 < tiles[-1] <= tiles[0]
        covered = [(run.segment, token) for run in runs for token in range(run.start, run.start + run.count)]
        assert covered == [(chunk, token) for chunk in range(13) for token in range(500 if chunk < 12 else 37)]


@with_kernel
@pytest.mark.parametrize(
    ("columns", "step"),
    [
        (16, 128),
        (256, 4),
        *(pytest.param(*sizes, marks=pytest.mark.slow) for sizes in ((16, 4), (64, 4), (64, 128), (256, 128))),
    ],
)
def test_kernel_merge_of_its_own(columns: int, step: int) -> None:
    context = some_context([30] * 7, heads=2, dim=96)
    check(context, heads=2, group=3, queries=1, plain=70, tile=16, fused=False, merge_columns=columns, merge_step=step)


@with_kernel
@pytest.mark.parametrize("queries", [1, 40])
def test_kernel_without_chunks_and_without_anything_before_the_question(queries: int) -> None:
    check(some_context([], heads=2, dim=64), heads=2, group=2, queries=queries, plain=queries)
    check(some_context([21], heads=2, dim=64, first=0), heads=2, group=2, queries=queries, plain=queries)


@with_kernel
@pytest.mark.parametrize("queries", [1, 12])
def test_kernel_scale_groups_partial_rotary_and_attention_scaling(queries: int) -> None:
    groups = some_context([50, 17], heads=2, dim=64, group=16)
    check(groups, heads=2, group=2, queries=queries, plain=queries + 3)
    partial = some_context([40], heads=1, dim=128, half=48)
    check(partial, heads=1, group=2, queries=queries, plain=queries)
    partial_groups = some_context([40], heads=1, dim=64, half=16, group=16)
    check(partial_groups, heads=1, group=2, queries=queries, plain=queries)
    yarn = some_context([40, 8], heads=1, dim=64, scaling=1.2)
    check(yarn, heads=1, group=4, queries=queries, plain=queries)


@with_kernel
@pytest.mark.parametrize(("queries", "plain"), [(1, 1), (1, 300), (40, 40), (33, 200), (5, 129)])
def test_kernel_plain_part_is_causal(queries: int, plain: int) -> None:
    check(some_context([20], heads=1, dim=64), heads=1, group=2, queries=queries, plain=plain)


def test_words_hold_every_field_and_refuse_what_does_not_fit() -> None:
    edges = itertools.product((0, 1, (1 << 19) - 1), (1, 128, MOST_TOKENS), (0, 4095), (0, 1, (1 << 20) - 1))
    for edge in edges:
        word = TokenRun(*edge).pack()
        assert 0 <= word < 1 << 63
        assert TokenRun.unpack(word) == TokenRun(*edge)
    for bad in [(1 << 19, 1, 0, 0), (0, 0, 0, 0), (0, 4097, 0, 0), (0, 1, 4096, 0), (0, 1, 0, 1 << 20), (0, 1, 0, -1)]:
        with pytest.raises(AssertionError):
            TokenRun(*bad).pack()


def test_shares_have_equally_many_tiles_and_go_on_in_the_next_chunk() -> None:
    words, firsts = pack_shares(plan(7, [40, 32, 1, 70]).placements, 64, 16)
    assert [TokenRun.unpack(int(word)) for word in words] == [
        TokenRun(0, 40, 0, 7), TokenRun(0, 16, 1, 47), TokenRun(16, 16, 1, 63), TokenRun(0, 1, 2, 79),
        TokenRun(0, 32, 3, 80),
        TokenRun(32, 38, 3, 112),
    ]  # fmt: skip
    assert firsts.tolist() == [0, 2, 5, 6]
    long, firsts = pack_shares(plan(0, [3 * MOST_TOKENS]).placements, 2 * MOST_TOKENS, 64)
    assert [TokenRun.unpack(int(word)).count for word in long] == [MOST_TOKENS] * 3 and firsts.tolist() == [0, 2, 3]
    assert [part.tolist() for part in pack_shares((), 64, 16)] == [[], [0]]


@with_kernel
def test_the_same_bytes_serve_two_positions() -> None:
    """One physical chunk twice in a context; leaving the second where the first stands must give something else."""
    once = some_context([30], heads=1, dim=64)
    chunk = once.chunks[0]
    twice = LazyContext((chunk, chunk), plan(5, [30, 30]).placements, once.tables)
    check(twice, heads=1, group=2, queries=1, plain=4)
    stacked = LazyContext((chunk, chunk), (Placement(5, 5, 30), Placement(35, 5, 30)), once.tables)
    query = torch.randn(1, 2, 1, 64, generator=torch.Generator().manual_seed(1)).to(DEVICE)
    plain = torch.randn(1, 1, 4, 64, generator=torch.Generator().manual_seed(2)).to(DEVICE)
    right, wrong = (attend(0, query, plain, plain, 0.125, context) for context in (twice, stacked))
    assert (right - wrong).abs().max() > 1e-2


# Through a model -----------------------------------------------------------------------------------------------


def named(name: str) -> LanguageModel:
    return on_device(build_model(next(family for family in FAMILIES if family.name == name)))


@pytest.mark.parametrize("name", ["llama", "llama-yarn", "llama-mqa", "qwen2", "qwen3", "mistral", "phi3-partial"])
def test_answers_equal_those_over_a_materialised_cache(name: str) -> None:
    """Question prefill and three decode steps, with one layer that the gate kept raw; and back to normal afterwards."""
    model = named(name)
    prefix = prefill_prefix(model)
    ids = [model.prompt.chunk_ids(text) for text in TEXTS]
    scheme = QuantScheme((LayerScheme(), LayerScheme(raw=True), LayerScheme(group=16)))
    chunks = [quantize(prefill_chunk(model, prefix, chunk), scheme) for chunk in ids]
    question = torch.tensor(model.prompt.question_ids("When is rent due?"), device=DEVICE)
    where = plan(prefix.num_tokens, [len(chunk) for chunk in ids])
    size = where.num_slots + len(question) + 3
    tables = build_tables(model, size)
    cache = SlabCache(model, size)
    stitch(model, where, prefix, chunks, tables, cache)
    context = LazyContext(tuple(chunks), where.placements, tables)
    lazy = LazyCache(model, prefix, context, len(question) + 3)
    assert lazy.get_seq_length() == where.num_slots

    steps = [question, *(torch.tensor([token], device=DEVICE) for token in (9, 70, 200))]
    position = where.next_position
    for step in steps:
        expected = model.forward_all(step, cache, position)
        got = model.forward_all(step, lazy, position)
        torch.testing.assert_close(got, expected, rtol=2e-4, atol=2e-4)
        position += len(step)
    assert lazy.get_seq_length() == cache.get_seq_length() == position
    room = [layer.key_slab.shape[2] for layer in lazy.layers]
    plain = prefix.num_tokens + len(question) + 3
    assert room == [plain, size, plain], "the chunks must not be in the slabs, but for the layer that is not int8"
    assert lazy.capacity == size

    again = SlabCache(model, size)
    stitch(model, where, prefix, chunks, tables, again)
    first = model.forward_all(question, again, where.next_position)
    fresh = SlabCache(model, size)
    stitch(model, where, prefix, chunks, tables, fresh)
    assert torch.equal(first, model.forward_all(question, fresh, where.next_position))


def test_composite_positions_are_served_too() -> None:
    model = named("llama")
    prefix = prefill_prefix(model)
    ids = [model.prompt.chunk_ids(text) for text in TEXTS]
    chunks = [quantize(prefill_chunk(model, prefix, chunk), QuantScheme.uniform(3)) for chunk in ids]
    question = torch.tensor(model.prompt.question_ids("When is rent due?"), device=DEVICE)
    where = overlapping_plan(model, prefix.num_tokens, [len(chunk) for chunk in ids], Overlapping.COMPOSITE)
    tables = build_tables(model, where.next_position + len(question))
    cache = SlabCache(model, where.num_slots + len(question))
    stitch(model, where, prefix, chunks, tables, cache)
    lazy = LazyCache(model, prefix, LazyContext(tuple(chunks), where.placements, tables), len(question))
    expected = model.forward_all(question, cache, where.next_position)
    got = model.forward_all(question, lazy, where.next_position)
    torch.testing.assert_close(got, expected, rtol=2e-4, atol=2e-4)


def test_the_reader_answers_as_over_a_materialised_cache(reader: LanguageModel) -> None:
    """Greedy, through the product's own generation, with the product's own call."""
    prefix = prefill_prefix(reader)
    texts = ["Heating\nThe boiler was serviced on 12 November.", "Trip\nThe train to Porto leaves at 6.52."]
    ids = [reader.prompt.chunk_ids(text) for text in texts]
    scheme = QuantScheme.uniform(reader.spec.num_layers)
    chunks = tuple(quantize(prefill_chunk(reader, prefix, chunk), scheme) for chunk in ids)
    question = reader.prompt.question_ids("When does the train to Porto leave?")
    where = plan(prefix.num_tokens, [len(chunk) for chunk in ids])
    room = len(question) + 24
    tables = build_tables(reader, where.num_slots + room)
    whole = SlabCache(reader, where.num_slots + room)
    stitch(reader, where, prefix, chunks, tables, whole)
    lazy = LazyCache(reader, prefix, LazyContext(chunks, where.placements, tables), room)
    answers = [
        "".join(
            token.text
            for token in stream(reader, cache, question, where.next_position, max_new_tokens=24, stop=lambda: False)
        )
        for cache in (whole, lazy)
    ]
    assert answers[0] == answers[1]
    assert "6.52" in answers[0]


def test_each_layer_waits_for_its_chunks() -> None:
    """Chunks whose memory is filled only when their layer asks; without asking, the answer would be another."""
    model = named("llama")
    prefix = prefill_prefix(model)
    ids = [model.prompt.chunk_ids(text) for text in TEXTS]
    scheme = QuantScheme((LayerScheme(), LayerScheme(raw=True), LayerScheme()))
    full = [quantize(prefill_chunk(model, prefix, chunk), scheme) for chunk in ids]
    question = torch.tensor(model.prompt.question_ids("When is rent due?"), device=DEVICE)
    where = plan(prefix.num_tokens, [len(chunk) for chunk in ids])
    tables = build_tables(model, where.num_slots + len(question))

    def lazily(chunks: list[QuantizedKV], *, loaded: bool) -> LazyCache:
        context = LazyContext(tuple(chunks), where.placements, tables)
        return LazyCache(model, prefix, context, len(question), loaded=loaded)

    def parts(layer: LayerKV) -> list[torch.Tensor]:
        return [getattr(layer, name.name) for name in fields(layer)]

    def emptied() -> list[QuantizedKV]:
        return [
            QuantizedKV(tuple(type(layer)(*(torch.zeros_like(part) for part in parts(layer))) for layer in kv.layers))
            for kv in full
        ]

    expected = model.forward_all(question, lazily(full, loaded=True), where.next_position)
    late, asked = emptied(), []

    def wait(layer: int) -> None:
        asked.append(layer)
        for kv, source in zip(late, full, strict=True):
            for part, whole in zip(parts(kv.layers[layer]), parts(source.layers[layer]), strict=True):
                part.copy_(whole)

    cache = lazily(late, loaded=False)
    with arriving(model, cache, wait):
        got = model.forward_all(question, cache, where.next_position)
    assert asked == [0, 1, 2]
    assert torch.equal(got, expected)
    unasked = model.forward_all(question, lazily(emptied(), loaded=True), where.next_position)
    assert (unasked - expected).abs().max() > 1e-2


def test_ordinary_caches_are_served_as_before() -> None:
    """Once a model may run lazily, passes over other caches give the very same numbers."""
    model = named("qwen2")
    ids = torch.tensor(model.prompt.chunk_ids(TEXTS[0]), device=DEVICE)
    before = model.forward_all(ids, SlabCache(model, 64), 0)
    reference.enable(model)
    assert torch.equal(model.forward_all(ids, SlabCache(model, 64), 0), before)


@pytest.mark.parametrize("name", ["gemma2", "gemma3", "mistral-sliding"])
def test_sliding_and_soft_capped_models_are_refused(name: str) -> None:
    model = named(name)
    prefix = prefill_prefix(model)
    assert not supports(model)
    context = LazyContext((), (), build_tables(model, 64))
    with pytest.raises(UnsupportedModel, match="lazy"):
        LazyCache(model, prefix, context, 8)
