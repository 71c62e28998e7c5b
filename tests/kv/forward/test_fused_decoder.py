"""The fused decoder gives the logits and the cache that transformers' own forward pass gives."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
pytest.importorskip("triton")

from desk_rag.kv.cache import SlabCache, SlabLayer, SlabRows
from desk_rag.kv.forward.attention import attend, attend_whole
from desk_rag.kv.forward.cuda_graphs import AttentionGraphs, GraphRecorder, PiecewiseGraphs
from desk_rag.kv.forward.families import is_plain, supports, windows
from desk_rag.kv.forward.fused_decoder import FusedDecoder
from desk_rag.kv.forward.inputs import Inputs, Questions, padded
from desk_rag.kv.kernels.flash_decoding_triton import FlashDecoding, SplitTuning
from desk_rag.kv.kernels.fused_inputs import TokenSlots
from desk_rag.kv.kernels.fused_ops import TorchOps
from desk_rag.kv.rope import build_tables
from desk_rag.model.language_model import LanguageModel
from tests.models import DEVICE, FAMILIES, Family, build_model, on_device

BY_NAME = {family.name: family for family in FAMILIES}
PLAIN = ["llama", "llama-llama3", "llama-yarn", "llama-mqa", "qwen2", "qwen3", "mistral"]
VARIED = ["phi3", "phi3-partial", "phi3-longrope", "granite", "glm", "glm4", "ernie4_5", "helium", "gemma", "seed-oss"]
SERVED = [*PLAIN, "mistral-sliding", "gemma3", "smollm3", *VARIED, "olmo2", "olmo3", "exaone4"]


def ids(count: int, batch: int = 1, seed: int = 3) -> torch.Tensor:
    return torch.randint(5, 200, (batch, count), generator=torch.Generator().manual_seed(seed))


def reference(model: LanguageModel, prompt: torch.Tensor, split: int) -> tuple[torch.Tensor, SlabCache]:
    cache = SlabCache(model, prompt.shape[1])
    model.forward(prompt[0, :split].to(model.device), cache, 0, logits=False)
    logits = model.forward(prompt[0, split:].to(model.device), cache, split, logits=True)
    assert logits is not None
    return logits, cache


@pytest.mark.parametrize("name", SERVED)
def test_a_question_over_a_filled_cache_has_the_models_own_logits(name: str) -> None:
    model = build_model(BY_NAME[name])
    prompt = ids(60)
    expected, theirs = reference(model, prompt, 41)
    cache = SlabCache(model, 60)
    model.forward(prompt[0, :41], cache, 0, logits=False)
    calls: list[int] = []
    logits = FusedDecoder(model, cache.layers, build_tables(model, 60)).run(prompt[:, 41:], 41, before=calls.append)
    spread = expected.std().item()
    assert (logits[0] - expected).abs().max().item() < 1e-4 * spread
    assert calls == list(range(model.spec.num_layers))
    for mine, other in zip(cache.layers, theirs.layers, strict=True):
        torch.testing.assert_close(mine.key_slab, other.key_slab, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(mine.value_slab, other.value_slab, rtol=1e-4, atol=1e-4)
    # The control: one position earlier is another answer, so the comparison above can fail.
    moved = FusedDecoder(model, theirs.layers, build_tables(model, 60)).run(prompt[:, 41:], 40)
    assert (moved[0] - expected).abs().max().item() > 1e-2 * spread


def test_a_whole_prompt_and_two_questions_side_by_side() -> None:
    model = build_model(BY_NAME["qwen2"])
    prompts = torch.cat([ids(30, seed=1), ids(30, seed=2)])
    spec = model.spec
    shape = (2, spec.num_kv_heads, 40, spec.head_dim)
    layers = [SlabLayer(torch.zeros(shape), torch.zeros(shape)) for _ in range(spec.num_layers)]
    both = FusedDecoder(model, layers, build_tables(model, 40))
    for attention in (attend, attend_whole):
        logits = both.run(prompts, 0, attention=attention)
        for row, prompt in enumerate(prompts):
            expected, _ = reference(model, prompt[None], 1)
            assert (logits[row] - expected).abs().max().item() < 1e-4 * expected.std().item()


def rows_of(model: LanguageModel, rows: int, capacity: int) -> SlabRows:
    """Slabs in which nobody has written yet: what is read of them would be no number."""
    slabs = SlabRows(model, rows, capacity)
    for layer in slabs.layers:
        layer.key_slab.fill_(float("nan"))
        layer.value_slab.fill_(float("nan"))
    return slabs


@pytest.mark.parametrize("by_kernel", [False, True])
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0), (1,)])
def test_questions_of_any_length_and_context_are_one_pass(order: tuple[int, ...], by_kernel: bool) -> None:
    """Each one's logits, and its row of the slabs, are those of a pass of its own."""
    model = on_device(build_model(BY_NAME["qwen3"]), DEVICE if by_kernel else torch.device("cpu"))
    prompts, splits = [ids(count, seed=count).to(model.device) for count in (60, 45, 33)], (41, 40, 20)
    slabs = rows_of(model, 4, 100)
    decoder = FusedDecoder(model, slabs.layers, build_tables(model, 100), graphs=False)
    if by_kernel:  # which reads from memory where each question is
        decoder._splits[0] = FlashDecoding(
            model.spec.num_heads, model.spec.num_kv_heads, model.spec.head_dim, torch.float32, model.device,
            SplitTuning(block=16, tile=16, stages=1),
        )  # fmt: skip
    chosen = [(prompts[index], splits[index], slabs.caches[index + 1]) for index in order]
    for prompt, split, cache in chosen:
        model.forward(prompt[0, :split], cache, 0, logits=False)
    calls: list[int] = []
    questions = Questions(
        tuple(split for _, split, _ in chosen), tuple(prompt.shape[1] - split for prompt, split, _ in chosen),
        tuple(index + 1 for index in order),
    )  # fmt: skip
    asked = padded([prompt[0, split:].tolist() for prompt, split, _ in chosen])
    logits = decoder.run(asked, questions, before=calls.append).clone()
    assert calls == [0, 1, 2] and logits.isfinite().all()
    for line, (prompt, split, cache) in enumerate(chosen):
        expected, theirs = reference(model, prompt, split)
        assert (logits[line] - expected).abs().max().item() < 1e-4 * expected.std().item()
        for mine, other in zip(cache.layers, theirs.layers, strict=True):
            used = slice(prompt.shape[1])
            torch.testing.assert_close(mine.key_slab[:, :, used], other.key_slab, rtol=1e-4, atol=1e-4)
            torch.testing.assert_close(mine.value_slab[:, :, used], other.value_slab, rtol=1e-4, atol=1e-4)
    assert all(layer.key_slab.isnan().all() for layer in slabs.caches[0].layers), "a row that nobody asked for"
    if len(order) > 1:  # the control: another question's row is another answer
        for layer in slabs.layers:
            layer.key_slab.nan_to_num_()
            layer.value_slab.nan_to_num_()
        turned = Questions(questions.starts, questions.counts, questions.rows[::-1])
        other = decoder.run(asked, turned)
        assert (other[0] - logits[0]).abs().max().item() > 1e-2 * logits[0].std().item()


def test_the_same_prepared_model_runs_over_other_slabs() -> None:
    model = build_model(BY_NAME["qwen2"])
    prompt = ids(50)
    expected, _ = reference(model, prompt, 41)
    decoder = FusedDecoder(model, SlabCache(model, 60).layers, build_tables(model, 100))
    slabs = rows_of(model, 2, 90)
    model.forward(prompt[0, :41], slabs.caches[1], 0, logits=False)
    logits = decoder.over(slabs.layers).run(prompt[:, 41:], Questions((41,), (9,), (1,)))
    assert (logits[0] - expected).abs().max().item() < 1e-4 * expected.std().item()


class Rerun:
    """Does on any device what a CUDA graph does: runs its piece again and leaves the result in the same memory."""

    def __init__(self, piece: Callable[[], None], results: Callable[[], list[torch.Tensor]]) -> None:
        self._piece, self._results = piece, results
        piece()
        self._kept = results()

    def replay(self) -> None:
        self._piece()
        for kept, fresh in zip(self._kept, self._results(), strict=True):
            kept.copy_(fresh)


@pytest.mark.parametrize("count", [1, 5, 16, 19])
def test_passes_padded_to_a_bucket_are_the_same(count: int) -> None:
    """Test padding, buckets, positions and lengths around the graphs, without a GPU to record them."""
    model = build_model(BY_NAME["qwen2"])
    prompt = ids(41 + count)
    expected, theirs = reference(model, prompt, 41)
    cache = SlabCache(model, 100)
    model.forward(prompt[0, :41], cache, 0, logits=False)
    decoder = FusedDecoder(model, cache.layers, build_tables(model, 100))
    bucket = next(size for size in (1, 16, 32) if size >= count)
    with torch.inference_mode():
        numbers = torch.tensor([[100 - bucket], [0], [bucket - 1]])
        inputs = Inputs(torch.zeros((1, bucket), dtype=torch.int64), numbers)
        spots: list[list[TokenSlots]] = []
        attended = torch.zeros((1, bucket, model.spec.num_heads * model.spec.head_dim))
        state: list[torch.Tensor] = []
        pieces, results = [], []
        for index in range(model.spec.num_layers + 1):
            before = state[0] if state else None

            def piece(index: int = index, before: torch.Tensor | None = before) -> None:
                if not index:
                    spots[:] = [decoder._places(inputs)]
                state[:] = decoder._piece(index, inputs, spots[0], before, attended)

            pieces.append(Rerun(piece, lambda: list(state)))
            results.append(state[1])
        queries, logits = tuple(results[:-1]), results[-1]
        captured = PiecewiseGraphs(inputs, attended, tuple(pieces), queries, logits)  # type: ignore[arg-type]
        for _ in range(2):
            replayed = decoder._replay(captured, prompt[:, 41:], Questions.alike(1, 41, count), None, attend)
    assert (replayed[0] - expected).abs().max().item() < 1e-4 * expected.std().item()
    for mine, other in zip(cache.layers, theirs.layers, strict=True):
        torch.testing.assert_close(mine.key_slab[:, :, : 41 + count], other.key_slab, rtol=1e-4, atol=1e-4)


def by_torch(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    out: torch.Tensor | None = None,
    start: torch.Tensor | None = None,
) -> torch.Tensor:
    """Attention that is told in memory where its tokens are, without a kernel."""
    assert out is not None and start is not None
    used = int(start[0]) + query.shape[2]
    return out.copy_(attend(query, keys[:, :, :used], values[:, :, :used]))


@pytest.mark.parametrize(("count", "layers"), [(1, 4), (5, 1), (16, 2), (19, 3)])
def test_stretches_with_their_attentions_are_the_same(count: int, layers: int) -> None:
    """As above for graphs that hold attentions: no length is told to them, only where the question begins."""
    model = build_model(BY_NAME["qwen2"])
    prompt = ids(41 + count)
    expected, theirs = reference(model, prompt, 41)
    cache = SlabCache(model, 100)
    for layer in cache.layers:  # what nobody has written must not be read
        layer.key_slab.fill_(float("nan"))
        layer.value_slab.fill_(float("nan"))
    model.forward(prompt[0, :41], cache, 0, logits=False)
    decoder = FusedDecoder(model, cache.layers, build_tables(model, 100), layers_per_graph=layers)
    decoder._splits[0] = by_torch
    bucket = next(size for size in (1, 16, 32) if size >= count)
    with torch.inference_mode():
        inputs, attended = decoder._memory(1, bucket)
        ends = decoder._ends(bucket)
        assert ends == ((3,) if count == 1 else {1: (0, 1, 2, 3), 2: (0, 2, 3), 3: (0, 3)}[layers])
        calls: list[int] = []

        class Once:
            """Notes when it is its turn."""

            def replay(self) -> None:
                calls.append(-1)

        inputs.set(prompt[:, 41:], Questions.alike(1, 41, count))
        assert inputs.ids[0, :count].equal(prompt[0, 41:]) and (inputs.ids[0, count:] == prompt[0, -1]).all()
        logits = decoder._stretches(inputs, attended, ends, lambda part: part())
        graphs: Any = tuple(Once() for _ in ends)
        attention_graphs = AttentionGraphs(inputs, attended, ends, graphs, logits)
        assert decoder._replay_stretches(
            attention_graphs, prompt[:, 41:], Questions.alike(1, 41, count), calls.append
        ) is logits
    assert [layer for layer in calls if layer >= 0] == [0, 1, 2] and calls[-1] == -1 and len(calls) == 3 + len(ends)
    assert (logits[0] - expected).abs().max().item() < 1e-4 * expected.std().item()
    for mine, other in zip(cache.layers, theirs.layers, strict=True):
        torch.testing.assert_close(mine.key_slab[:, :, : 41 + count], other.key_slab, rtol=1e-4, atol=1e-4)
    # The control: told another beginning, the same pass is another one.
    with torch.inference_mode():
        inputs.numbers[0] = 40
        moved = decoder._stretches(inputs, attended, ends, lambda part: part())
    assert (moved[0] - expected).abs().max().item() > 1e-2 * expected.std().item()


def test_a_machine_that_cannot_record_runs_the_pass_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build_model(BY_NAME["qwen2"])
    prompt = ids(50)
    expected, _ = reference(model, prompt, 41)
    cache = SlabCache(model, 100)
    model.forward(prompt[0, :41], cache, 0, logits=False)
    decoder = FusedDecoder(model, cache.layers, build_tables(model, 100))
    tried: list[str] = []

    def refuse(recorder: GraphRecorder, parts: Any) -> None:
        tried.append(parts.func.__name__)
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(GraphRecorder, "record", refuse)
    decoder._graphs = True
    decoder._splits[0] = lambda query, keys, values, out=None, start=None: attend(query, keys, values)
    for _ in range(2):
        logits = decoder.run(prompt[:, 41:], 41)
        assert (logits[0] - expected).abs().max().item() < 1e-4 * expected.std().item()
    assert tried == ["_stretches", "_pieces"] and not decoder.uses_graphs


def test_a_recording_that_memory_is_too_short_for_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another program may give memory back, so graphs are not given up for good."""
    model = build_model(BY_NAME["qwen2"])
    prompt = ids(50)
    expected, _ = reference(model, prompt, 41)
    cache = SlabCache(model, 100)
    model.forward(prompt[0, :41], cache, 0, logits=False)
    decoder = FusedDecoder(model, cache.layers, build_tables(model, 100))
    recordings: list[str] = []

    def too_short(recorder: GraphRecorder, parts: Any) -> None:
        recordings.append(parts.func.__name__)
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(GraphRecorder, "record", too_short)
    decoder._graphs = True
    decoder._splits[0] = lambda query, keys, values, out=None, start=None: attend(query, keys, values)
    for _ in range(2):
        logits = decoder.run(prompt[:, 41:], 41)
        assert (logits[0] - expected).abs().max().item() < 1e-4 * expected.std().item()
    assert recordings == ["_stretches", "_pieces"] * 2 and decoder.uses_graphs


class Counting(TorchOps):
    """The reference, and how often its SwiGLU was asked for."""

    def __init__(self) -> None:
        self.asked = 0

    def swiglu(self, gate_up: torch.Tensor) -> torch.Tensor:
        self.asked += 1
        return super().swiglu(gate_up)


@pytest.mark.parametrize(("activation", "asked"), [("silu", 3), ("swish", 3), ("gelu", 0)])
def test_only_gates_that_go_through_silu_are_given_to_the_glue(activation: str, asked: int) -> None:
    model_class, config = BY_NAME["qwen2"].build()
    config.hidden_act = activation
    model = build_model(Family("qwen2", lambda: (model_class, config)))
    prompt, ops = ids(30), Counting()
    expected, _ = reference(model, prompt, 1)
    decoder = FusedDecoder(model, SlabCache(model, 30).layers, build_tables(model, 30), ops=ops)
    assert (decoder.run(prompt, 0)[0] - expected).abs().max().item() < 1e-4 * expected.std().item()
    assert ops.asked == asked


def test_projections_are_moved_once_and_still_belong_to_their_modules() -> None:
    model = build_model(BY_NAME["qwen2"])
    prompt = ids(20)
    expected, _ = reference(model, prompt, 5)
    layer = model.decoder_layers[0]
    places = []
    for _ in range(2):
        FusedDecoder(model, SlabCache(model, 20).layers, build_tables(model, 20))
        places.append([layer.self_attn.q_proj.weight.data_ptr(), layer.self_attn.v_proj.weight.data_ptr()])
        again, _ = reference(model, prompt, 5)
        assert torch.equal(again, expected)
    assert places[0] == places[1]
    narrow, wide = (getattr(layer.self_attn, name).weight for name in ("k_proj", "q_proj"))
    assert narrow.data_ptr() == wide.data_ptr() + wide.numel() * wide.element_size()


def test_models_are_told_apart_by_what_their_layers_do() -> None:
    assert is_plain(build_model(BY_NAME["qwen3"])) and supports(build_model(BY_NAME["qwen3"]))
    for name in ("mistral-sliding", "gemma3", "smollm3", *VARIED, "olmo2"):
        model = build_model(BY_NAME[name])
        assert supports(model) and not is_plain(model), "the passes for layers that are all alike"
    sliding = windows(build_model(BY_NAME["gemma3"]))
    assert any(sliding) and not all(sliding)
    assert not supports(build_model(BY_NAME["gemma2"])), "soft-capped scores"
    assert not any(supports(build_model(BY_NAME[name])) for name in ("cohere", "stablelm", "qwen3-moe", "hunyuan"))


@pytest.mark.parametrize("name", ["mistral-sliding", "gemma3"])
def test_windows_are_shorter_than_the_context_of_these_tests(name: str) -> None:
    assert 0 < max(windows(build_model(BY_NAME[name]))) < 41


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
@pytest.mark.parametrize("count", [1, 5, 19, 100])
@pytest.mark.parametrize(
    ("layers", "name"), [*((layers, "qwen2") for layers in (0, 1, 2, 28)), (2, "gemma3"), (2, "mistral-sliding")]
)
def test_graphs_give_what_the_eager_pass_gives(count: int, layers: int, name: str) -> None:
    model = on_device(build_model(BY_NAME[name], torch.bfloat16))
    prompt = ids(50 + count).cuda()
    tables = build_tables(model, 512)
    outputs = []
    for graphs in (False, True):
        cache = SlabCache(model, 512)
        model.forward(prompt[0, :50], cache, 0, logits=False)
        decoder = FusedDecoder(model, cache.layers, tables, graphs=graphs, layers_per_graph=layers)
        # Another beginning first: a graph that had learnt it would now read and write there.
        decoder.run(prompt[:, 50 : 50 + count], 30)
        # Graphs know addresses alone: what a pass does not keep for them is another tensor's now.
        torch.cuda.empty_cache()
        others = [torch.full((1 << size,), float("nan"), device="cuda") for size in range(8, 22) for _ in range(8)]
        cache.set_length(0)
        model.forward(prompt[0, :50], cache, 0, logits=False)
        outputs.append(decoder.run(prompt[:, 50 : 50 + count], 50)[0].float().clone())
        assert all(bool(other.isnan().all()) for other in others), "the pass wrote into memory that is not its own"
    whole = layers and None not in decoder._splits.values()
    recorded = decoder._attention_graphs if whole else decoder._piecewise_graphs
    assert recorded, "no graph was recorded: both passes were the same one"
    assert (outputs[0] - outputs[1]).abs().max().item() <= 0.25 * outputs[0].std().item()
    expected, _ = reference(model, prompt, 50)
    assert (outputs[1] - expected.float()).abs().max().item() <= 0.25 * expected.float().std().item()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
@pytest.mark.parametrize("layers", [0, 2])
@pytest.mark.parametrize("counts", [(1, 1, 1), (5, 19, 12), (100, 3, 64)])
def test_graphs_of_several_questions_give_what_each_gives_alone(counts: tuple[int, ...], layers: int) -> None:
    model = on_device(build_model(BY_NAME["qwen2"], torch.bfloat16))
    slabs = rows_of(model, 4, 512)
    decoder = FusedDecoder(model, slabs.layers, build_tables(model, 512), layers_per_graph=layers)
    starts = (50, 111, 9)
    prompts = [ids(start + count, seed=start) for start, count in zip(starts, counts, strict=True)]
    for rows in ((0, 1, 3), (3, 2, 1)):  # what the first has recorded serves the second
        for row, prompt, start in zip(rows, prompts, starts, strict=True):
            model.forward(prompt[0, :start].cuda(), slabs.caches[row], 0, logits=False)
        asked = padded([prompt[0, start:].tolist() for prompt, start in zip(prompts, starts, strict=True)])
        logits = decoder.run(asked, Questions(starts, counts, rows)).float().clone()
        assert decoder.recorded(max(counts)) == [3], "no graph was recorded"
        for line, (prompt, start) in enumerate(zip(prompts, starts, strict=True)):
            expected, _ = reference(model, prompt, start)
            assert (logits[line] - expected.float()).abs().max().item() <= 0.25 * expected.float().std().item()
        for cache in slabs.caches:
            cache.set_length(0)
