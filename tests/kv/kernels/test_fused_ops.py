"""The kernels between matrix products against the reference: in Triton's interpreter, or compiled on a GPU."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch.nn.functional import rms_norm, silu

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
pytest.importorskip("triton")

from desk_rag.kv.cache import SlabCache
from desk_rag.kv.forward.fused_decoder import FusedDecoder
from desk_rag.kv.kernels.fused_inputs import Pairing, QKNorms, TokenSlots
from desk_rag.kv.kernels.fused_ops import FusedOps, TorchOps, agrees, fused_ops_for
from desk_rag.kv.kernels.fused_ops_triton import TritonOps
from desk_rag.kv.rope import build_tables, rotate
from tests.models import DEVICE, FAMILIES, build_model, on_device

UNTOUCHED = 777.0
CAPACITY = 19
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)


def random(*shape: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype)


def by_shape(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))


def close(got: torch.Tensor, wanted: torch.Tensor) -> None:
    """fp32 to rounding of a few operations; fp16 to one step; bf16 to two, because the interpreter truncates."""
    assert got.dtype == wanted.dtype
    relative = {torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 1.6e-2}[got.dtype]
    largest = wanted.abs().max().item()
    torch.testing.assert_close(got.float(), wanted.float(), rtol=relative, atol=relative * largest)


@DTYPES
@pytest.mark.parametrize("shape", [(1, 1, 64), (2, 7, 96), (1, 5, 131), (2, 1, 3584), (1, 2, 5000)], ids=by_shape)
def test_sums_are_added_and_normed(shape: tuple[int, int, int], dtype: torch.dtype) -> None:
    hidden, delta = random(*shape, dtype=dtype) * 3, random(*shape, dtype=dtype, seed=1)
    weight = random(shape[-1], dtype=dtype, seed=2)
    total, normed = TritonOps().add_norm(hidden, delta, weight, 1e-2)
    expected_total, expected = TorchOps().add_norm(hidden, delta, weight, 1e-2)
    close(total, expected_total)
    if dtype != torch.bfloat16 or DEVICE.type == "cuda":
        assert torch.equal(total, expected_total), "the sum is the one that others go on with"
    close(normed, expected)
    alone, normed = TritonOps().add_norm(hidden, None, weight, 1e-2)
    assert alone is hidden
    close(normed, TorchOps().add_norm(hidden, None, weight, 1e-2)[1])


def test_the_epsilon_and_the_rounding_of_the_sum_are_seen() -> None:
    """Rows so small that epsilon is all there is; and a sum of which fp16 keeps nothing of the second number."""
    hidden, weight = torch.full((1, 2, 64), 1e-3, device=DEVICE), torch.ones(64, device=DEVICE)
    _, normed = TritonOps().add_norm(hidden, None, weight, 1e-2)
    close(normed, torch.full_like(hidden, 1e-3 / (1e-6 + 1e-2) ** 0.5))
    hidden, delta, weight = (torch.full((64,), number, device=DEVICE).half() for number in (2048.0, 0.0, 2047.0))
    delta[9] = 1.0
    total, normed = TritonOps().add_norm(hidden[None, None], delta[None, None], weight, 0.0)
    assert total.unique().tolist() == [2048.0], "2049 has no place in fp16"
    assert normed.unique().tolist() == [2047.0], "so that number is like all others, and not 2048 after its norm"


SHAPES = [
    # batch, tokens, heads, key heads, head size
    (1, 1, 4, 2, 64), (2, 7, 6, 2, 128), (1, 3, 28, 4, 128), (2, 3, 3, 1, 96), (1, 3, 9, 9, 80), (1, 2, 2, 1, 256),
]  # fmt: skip


def rotated(
    ops: FusedOps, shape: tuple[int, int, int, int, int], dtype: torch.dtype, normed: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, TokenSlots]:
    """(query, key slab, value slab, places) of random projections at scattered slots."""
    batch, count, heads, kv_heads, dim = shape
    slots = torch.randperm(CAPACITY, generator=torch.Generator().manual_seed(dim))[:count].to(DEVICE)
    angle = torch.rand(count, dim // 2, generator=torch.Generator().manual_seed(count)) * 6
    cos = torch.cat((angle.cos(), angle.cos()), -1).to(DEVICE, dtype)
    sin = torch.cat((-angle.sin(), angle.sin()), -1).to(DEVICE, dtype)
    places = TokenSlots(slots, cos, sin)
    norms = QKNorms(random(dim, dtype=dtype, seed=3), random(dim, dtype=dtype, seed=4), 1e-2) if normed else None
    slabs = [torch.full((batch, kv_heads, CAPACITY, dim), UNTOUCHED, dtype=dtype, device=DEVICE) for _ in range(2)]
    projected = random(batch, count, (heads + 2 * kv_heads) * dim, dtype=dtype)
    query = ops.rotate_scatter(projected, norms, places, slabs[0], slabs[1])
    return query, slabs[0], slabs[1], places


@DTYPES
@pytest.mark.parametrize("normed", [False, True], ids=["plain", "normed"])
@pytest.mark.parametrize("shape", SHAPES, ids=by_shape)
def test_queries_turn_and_keys_and_values_find_their_slots(
    shape: tuple[int, int, int, int, int], normed: bool, dtype: torch.dtype
) -> None:
    batch, count, heads, kv_heads, dim = shape
    query, keys, values, places = rotated(TritonOps(), shape, dtype, normed)
    expected = rotated(TorchOps(), shape, dtype, normed)
    assert query.shape == (batch, heads, count, dim) and query.transpose(1, 2).is_contiguous()
    close(query, expected[0])
    others = torch.ones(CAPACITY, dtype=torch.bool, device=DEVICE)
    others[places.slots] = False
    for mine, reference in ((keys, expected[1]), (values, expected[2])):
        close(mine[:, :, places.slots], reference[:, :, places.slots])
        assert (mine[:, :, others] == UNTOUCHED).all() and (mine[:, :, places.slots] != UNTOUCHED).all()
    assert torch.equal(values, expected[2]), "values are copied"


PAIRINGS = [Pairing(48), Pairing(64), Pairing(interleaved=True), Pairing(32, interleaved=True, query_scale=0.3)]


@pytest.mark.parametrize("normed", [False, True], ids=["plain", "normed"])
@pytest.mark.parametrize("pairing", PAIRINGS, ids=str)
@pytest.mark.parametrize("ops", [TorchOps(), TritonOps()], ids=["torch", "triton"])
def test_parts_of_heads_and_neighbours_turn_as_chunk_keys_do(ops: FusedOps, pairing: Pairing, normed: bool) -> None:
    count, heads, kv_heads, dim = 3, 5, 2, 64
    angle = torch.rand(count, (pairing.turned or dim) // 2, generator=torch.Generator().manual_seed(9)) * 6
    cos, sin = angle.cos().to(DEVICE), angle.sin().to(DEVICE)
    slots = torch.tensor([4, 0, 11], device=DEVICE)
    norms = QKNorms(*(random(dim, dtype=torch.float32, seed=seed) for seed in (3, 4)), 1e-2) if normed else None
    projected = random(1, count, (heads + 2 * kv_heads) * dim, dtype=torch.float32)
    slabs = [torch.full((1, kv_heads, CAPACITY, dim), UNTOUCHED, device=DEVICE) for _ in range(2)]
    places = TokenSlots(slots, *pairing.table(cos, sin, dim), pairing)
    query = ops.rotate_scatter(projected, norms, places, slabs[0], slabs[1])
    parts = list(projected.view(1, count, -1, dim).transpose(1, 2).split((heads, kv_heads, kv_heads), 1))
    if norms is not None:
        parts[:2] = [rms_norm(part, (dim,), by, 1e-2) for part, by in ((parts[0], norms.query), (parts[1], norms.key))]
    turned = [rotate(part, cos, sin, interleaved=pairing.interleaved) for part in parts[:2]]
    close(query, turned[0] * pairing.query_scale)
    close(slabs[0][:, :, slots], turned[1])
    assert torch.equal(slabs[1][:, :, slots], parts[2])
    if pairing.turned:
        assert torch.equal(turned[1][..., pairing.turned :], parts[1][..., pairing.turned :]), "the rest stands still"


def test_what_is_added_is_scaled_first() -> None:
    hidden, delta = random(2, 3, 96, dtype=torch.float32), random(2, 3, 96, dtype=torch.float32, seed=1)
    weight = random(96, dtype=torch.float32, seed=2)
    for ops in (TorchOps(), TritonOps()):
        total, normed = ops.add_norm(hidden, delta, weight, 1e-2, 0.22)
        close(total, hidden + 0.22 * delta)
        close(normed, rms_norm(hidden + 0.22 * delta, (96,), weight, 1e-2))


def test_one_rotation_is_what_its_angle_says() -> None:
    """Without the reference: a pair (1, 0) turned by a right angle is (0, 1)."""
    cos, sin = torch.zeros(1, 64, device=DEVICE), torch.ones(1, 64, device=DEVICE)
    sin[:, :32] = -1
    projected = torch.zeros(1, 1, 3 * 64, device=DEVICE)
    projected[..., 5] = projected[..., 64 + 7] = 1
    slabs = [torch.zeros(1, 1, 4, 64, device=DEVICE) for _ in range(2)]
    places = TokenSlots(torch.tensor([2], device=DEVICE), cos, sin)
    query = TritonOps().rotate_scatter(projected, None, places, slabs[0], slabs[1])
    assert query.nonzero().tolist() == [[0, 0, 0, 5 + 32]] and slabs[0].nonzero().tolist() == [[0, 0, 2, 7 + 32]]
    assert not slabs[1].any()


@pytest.mark.filterwarnings("ignore:overflow encountered in exp")  # the interpreter says so, a GPU does not
@DTYPES
@pytest.mark.parametrize("shape", [(1, 1, 64), (2, 7, 96), (1, 3, 27), (1, 2, 2500)], ids=by_shape)
def test_gates_open(shape: tuple[int, int, int], dtype: torch.dtype) -> None:
    both = random(*shape[:2], 2 * shape[2], dtype=dtype) * 4
    both[0, 0, 0], both[0, 0, 1] = -200.0, 200.0
    for got, expected in (
        (TritonOps().swiglu(both), TorchOps().swiglu(both)),
        (TritonOps().geglu(both), TorchOps().geglu(both)),
    ):
        assert got.shape == shape and got.isfinite().all()
        close(got, expected)


def test_what_is_not_contiguous_is_refused() -> None:
    wide = torch.zeros(2, 3, 128, device=DEVICE)
    strided, weight = wide[..., ::2], torch.ones(64, device=DEVICE)
    for refused in (
        lambda: TritonOps().swiglu(wide[..., :64]),
        lambda: TritonOps().add_norm(strided, None, weight, 1e-6),
        lambda: TritonOps().add_norm(strided.contiguous(), strided, weight, 1e-6),
    ):
        with pytest.raises(AssertionError):
            refused()
    slab, table = torch.zeros(2, 1, 9, 32, device=DEVICE), torch.ones(3, 32, device=DEVICE)
    slots = torch.arange(3, device=DEVICE)
    for keys, places in (
        (torch.zeros(2, 1, 18, 32, device=DEVICE)[:, :, ::2], TokenSlots(slots, table, table)),
        (slab, TokenSlots(torch.arange(6, device=DEVICE)[::2], table, table)),
        (slab, TokenSlots(slots, table[:2], table)),
    ):
        with pytest.raises(AssertionError):
            TritonOps().rotate_scatter(wide, None, places, keys, slab)


def test_what_is_rounded_on_the_way_and_what_is_not() -> None:
    """Nearly every number of fp16 to the bit; one rounding more or less would move a third of them."""
    both = random(1, 20, 400, dtype=torch.float16)
    gate, up = both.chunk(2, -1)
    same = TritonOps().swiglu(both) == (silu(gate.float()).half().float() * up.float()).half()
    assert same.float().mean().item() > 0.98
    heads, dim = 12, 64
    projected = random(1, 5, (heads + 2) * dim, dtype=torch.float16)
    cos, sin, weight = (random(5, dim, dtype=torch.float16, seed=seed) for seed in (5, 6, 7))
    places, norms = TokenSlots(torch.arange(5, device=DEVICE), cos, sin), QKNorms(weight[0], weight[1], 1e-6)
    slabs = [torch.zeros(1, 1, 5, dim, device=DEVICE).half() for _ in range(2)]
    query = TritonOps().rotate_scatter(projected, norms, places, slabs[0], slabs[1])
    rows = projected.view(1, 5, heads + 2, dim)[:, :, :heads].float()
    rounded = rms_norm(rows, (dim,), weight[0].float(), 1e-6).half().float()
    turned = rounded * cos[:, None].float() + rounded.roll(dim // 2, -1) * sin[:, None].float()
    assert (query.transpose(1, 2) == turned.half()).float().mean().item() > 0.98


class Broken(TorchOps):
    """The reference with one fault."""

    def __init__(self, fault: str) -> None:
        self._fault = fault

    def add_norm(
        self,
        hidden: torch.Tensor,
        delta: torch.Tensor | None,
        weight: torch.Tensor,
        eps: float,
        delta_scale: float = 1.0,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        scale = 1.0 if self._fault == "scale" else delta_scale
        total, normed = super().add_norm(hidden, delta, weight, eps, scale)
        return (hidden if self._fault == "sum" else total), (total if self._fault == "norm" else normed)

    def rotate_scatter(
        self,
        projected: torch.Tensor,
        norms: QKNorms | None,
        places: TokenSlots,
        key_slab: torch.Tensor,
        value_slab: torch.Tensor,
    ) -> torch.Tensor:
        if self._fault == "head norms":
            norms = None
        if self._fault == "sine":
            places = replace(places, sin=-places.sin)
        if self._fault == "slots":
            places = replace(places, slots=places.slots.flip(0))
        if self._fault == "pairs":
            places = replace(places, pairing=replace(places.pairing, interleaved=False))
        if self._fault == "part of a head":
            places = replace(places, pairing=replace(places.pairing, turned=0))
        if self._fault == "query scale":
            places = replace(places, pairing=replace(places.pairing, query_scale=1.0))
        query = super().rotate_scatter(projected, norms, places, key_slab, value_slab)
        if self._fault == "another slot":
            value_slab[-1, -1, 2] = 0
        return query * float("nan") if self._fault == "no number" else query

    def swiglu(self, gate_up: torch.Tensor) -> torch.Tensor:
        gate, up = gate_up.chunk(2, -1)
        return super().swiglu(torch.cat((up, gate), -1) if self._fault == "gate" else gate_up)


@DTYPES
def test_the_proof_tells_right_from_wrong(dtype: torch.dtype) -> None:
    assert agrees(TritonOps(), DEVICE, dtype)
    faults = ["sum", "scale", "norm", "head norms", "sine", "slots", "another slot", "no number", "gate"]
    for fault in (*faults, "pairs", "part of a head", "query scale"):
        assert not agrees(Broken(fault), DEVICE, dtype), fault
    assert agrees(Broken("none"), DEVICE, dtype)


def test_without_a_gpu_the_reference_is_used() -> None:
    assert isinstance(fused_ops_for(torch.device("cpu"), torch.float32), TorchOps)
    assert isinstance(fused_ops_for(torch.device("cuda", 0), torch.float64), TorchOps)


@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3", "phi3-partial", "granite", "glm4", "olmo2"])
def test_a_pass_with_the_kernels_has_the_models_own_logits(name: str) -> None:
    model = on_device(build_model(next(family for family in FAMILIES if family.name == name)))
    prompt = torch.randint(5, 200, (1, 40), generator=torch.Generator().manual_seed(3)).to(DEVICE)
    theirs, mine = SlabCache(model, 40), SlabCache(model, 45)
    model.forward(prompt[0, :31], theirs, 0, logits=False)
    expected = model.forward(prompt[0, 31:], theirs, 31, logits=True)
    assert expected is not None
    model.forward(prompt[0, :31], mine, 0, logits=False)
    decoder = FusedDecoder(model, mine.layers, build_tables(model, 45), ops=TritonOps(), graphs=False)
    logits = decoder.run(prompt[:, 31:], 31)
    spread = expected.std().item()
    assert (logits[0] - expected).abs().max().item() < 1e-4 * spread
    for layer, other in zip(mine.layers, theirs.layers, strict=True):
        torch.testing.assert_close(layer.key_slab[:, :, :40], other.key_slab, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(layer.value_slab[:, :, :40], other.value_slab, rtol=1e-4, atol=1e-4)
    # The control: one position earlier is another answer, so the comparison above can fail.
    moved = decoder.run(prompt[:, 31:], 30)
    assert (moved[0] - expected).abs().max().item() > 1e-2 * spread


@pytest.mark.gpu
@DTYPES
def test_on_a_gpu_the_kernels_are_proven_and_used(dtype: torch.dtype) -> None:
    assert isinstance(fused_ops_for(torch.device("cuda"), dtype), TritonOps)


@pytest.mark.gpu
@pytest.mark.parametrize("make", [TorchOps, TritonOps])
def test_a_recorded_graph_follows_the_slots_in_memory(make: Callable[[], FusedOps]) -> None:
    ops, dim = make(), 64
    projected = random(1, 2, 4 * dim, dtype=torch.bfloat16)
    places = TokenSlots(torch.tensor([0, 1], device=DEVICE), *(random(2, dim, dtype=torch.bfloat16) for _ in range(2)))
    keys, values = (torch.zeros(1, 1, 9, dim, dtype=torch.bfloat16, device=DEVICE) for _ in range(2))

    def piece() -> torch.Tensor:
        _, normed = ops.add_norm(projected, projected, projected[0, 0].clone(), 1e-6)
        return ops.rotate_scatter(ops.swiglu(torch.cat((normed, normed), -1)), None, places, keys, values)

    piece()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        query = piece()
    values.zero_()
    places.slots.copy_(torch.tensor([7, 4]))
    graph.replay()
    assert values[0, 0].any(-1).nonzero().flatten().tolist() == [4, 7]
    close(query, piece())
