"""The pointer's network: rows of word pieces, spans against a slow reference, what was learned laid onto a new net."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import BertConfig, BertModel

from desk_rag.answering.evidence.span_model import (
    MOST_PIECES,
    QuestionChunkPair,
    SpanBatch,
    SpanHead,
    SpanModel,
    apply_adapter,
    build_batch,
    linear_layers,
)
from desk_rag.training.pointer.int4 import rounded
from desk_rag.training.pointer.low_rank import LowRankUpdate, adapter_tensors, add_adapters

WIDTH, RANK = 16, 3


@pytest.fixture(scope="module")
def small() -> SpanModel:
    """A random net of two layers."""
    torch.manual_seed(1)
    config = BertConfig(
        vocab_size=50, hidden_size=WIDTH, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24,
        max_position_embeddings=64, initializer_range=0.5,
    )  # fmt: skip
    return SpanModel(BertModel(config, add_pooling_layer=True)).eval()


@pytest.fixture
def net(small: SpanModel) -> SpanModel:
    return copy.deepcopy(small)


def row(*lengths: int) -> SpanBatch:
    """Rows of a question of 4 pieces, so many of a chunk and a closing piece, filled up to the longest."""
    shape = (len(lengths), max(lengths) + 5)
    ids, kinds = torch.zeros(shape, dtype=torch.int64), torch.zeros(shape, dtype=torch.int64)
    known, inside = torch.zeros(shape, dtype=torch.bool), torch.zeros(shape, dtype=torch.bool)
    for number, length in enumerate(lengths):
        ids[number, : length + 5] = torch.randint(1, 50, (length + 5,), generator=torch.manual_seed(length))
        kinds[number, 4 : length + 5] = 1
        known[number, : length + 5] = True
        inside[number, 4 : length + 4] = True
    return SpanBatch(ids, kinds, known, inside)


def by_hand(head: SpanHead, states: Tensor, inside: Tensor) -> Tensor:
    """Compute the scores of `SpanHead` one span after the other."""
    scores = torch.full((*inside.shape, inside.shape[1]), -torch.inf)
    rows, tokens = inside.shape
    for number in range(rows):
        for begin in range(tokens):
            for end in range(begin, min(tokens, begin + MOST_PIECES)):
                if inside[number, begin] and inside[number, end]:
                    first, last = states[number, begin], states[number, end]
                    ends = head.ends.weight[0] @ first + head.ends.weight[1] @ last + head.ends.bias.sum()
                    together = (head.first.weight @ first) @ (head.last.weight @ last)
                    scores[number, begin, end] = ends + together / math.sqrt(32)
    return scores


@torch.inference_mode()
def test_a_span_is_worth_its_begin_its_end_and_how_they_go_together() -> None:
    torch.manual_seed(2)
    head, states = SpanHead(WIDTH), torch.randn(2, MOST_PIECES + 9, WIDTH)
    inside = torch.zeros(2, MOST_PIECES + 9, dtype=torch.bool)
    inside[0, 3:-1] = True
    inside[1, 2:7] = True
    inside[1, 5] = False  # a hole: no span may begin or end there
    scores = head(states, inside)
    torch.testing.assert_close(scores, by_hand(head, states, inside), atol=1e-5, rtol=1e-5)
    assert scores.shape == (2, MOST_PIECES + 9, MOST_PIECES + 9) and scores.dtype == torch.float32
    assert int((scores[1] > -torch.inf).sum()) == 4 + 3 + 2 + 1


@torch.inference_mode()
def test_the_longest_span_has_so_many_pieces_and_none_runs_backwards() -> None:
    head, tokens = SpanHead(WIDTH), MOST_PIECES + 5
    scores = head(torch.randn(1, tokens, WIDTH), torch.ones(1, tokens, dtype=torch.bool))[0]
    lengths = {int(end - begin) + 1 for begin, end in (scores > -torch.inf).nonzero()}
    assert lengths == set(range(1, MOST_PIECES + 1))
    nothing = head(torch.randn(1, 4, WIDTH), torch.zeros(1, 4, dtype=torch.bool))
    assert bool((nothing == -torch.inf).all())


@torch.inference_mode()
def test_the_head_counts_in_fp32_whatever_goes_on_around_it() -> None:
    torch.manual_seed(3)
    head, states = SpanHead(WIDTH), torch.randn(1, 9, WIDTH).bfloat16()
    inside = torch.ones(1, 9, dtype=torch.bool)
    expected = head(states.float(), inside)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        scores = head(states, inside)
    assert scores.dtype == torch.float32 and torch.equal(scores, expected)


@torch.inference_mode()
def test_a_row_that_is_filled_up_scores_as_it_does_alone(net: SpanModel) -> None:
    together = net(row(20, 7, 13))
    for number, length in enumerate((20, 7, 13)):
        alone = net(row(length))[0]
        size = length + 5
        torch.testing.assert_close(together[number, :size, :size], alone, atol=1e-5, rtol=1e-5)
        assert bool((together[number, size:] == -torch.inf).all())
        assert bool((together[number, :, size:] == -torch.inf).all())


@torch.inference_mode()
def test_the_network_is_the_transformer_and_the_head(net: SpanModel) -> None:
    line = row(12)
    states = net.bert(input_ids=line.ids, token_type_ids=line.kinds).last_hidden_state
    torch.testing.assert_close(net(line), by_hand(net.head, states, line.inside), atol=1e-4, rtol=1e-4)
    told_apart = net(replace(line, kinds=torch.zeros_like(line.kinds)))
    assert float(difference(told_apart, net(line))) > 0.01


def test_every_linear_layer_of_the_blocks_is_named_and_nothing_else(net: SpanModel) -> None:
    linear_by_name = linear_layers(net.bert)
    parts = ("attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense")
    names = {f"encoder.layer.{n}.{part}" for n in (0, 1) for part in (*parts, "intermediate.dense", "output.dense")}
    assert set(linear_by_name) == names
    assert all(net.bert.get_submodule(name) is linear for name, linear in linear_by_name.items())


@torch.no_grad()
def test_a_thawed_net_says_the_same_until_it_learns(net: SpanModel, small: SpanModel) -> None:
    expected = small(row(15))
    learning = add_adapters(net, RANK)
    assert torch.equal(net(row(15)), expected)
    pairs = [module for module in net.modules() if isinstance(module, LowRankUpdate)]
    wanted = {id(part) for module in pairs for part in (module.up, module.down)} | {
        id(part) for part in net.head.parameters()
    }
    assert len(pairs) == 12 and {id(part) for part in learning} == wanted
    # up is 0 at first, so down must not be: else neither would ever move
    assert all(bool((module.up == 0).all()) and bool((module.down != 0).any()) for module in pairs)


def test_learning_moves_the_head_and_the_low_ranks_alone(net: SpanModel, small: SpanModel) -> None:
    learning = add_adapters(net, RANK)
    step = torch.optim.SGD(learning, lr=0.1)
    for _ in range(2):
        step.zero_grad()
        net(row(15)).logsumexp((1, 2)).sum().backward()
        assert all(part.grad is not None for part in learning)
        step.step()
    before = small.bert.state_dict()
    after = {name.replace(".parametrizations.weight.original", ".weight"): tensor
             for name, tensor in net.bert.state_dict().items() if ".weight.0." not in name}  # fmt: skip
    assert set(after) == set(before) and all(torch.equal(after[name], before[name]) for name in before)
    assert all(bool((module.up != 0).any()) for module in net.modules() if isinstance(module, LowRankUpdate))


@torch.no_grad()
def moved(net: SpanModel) -> SpanModel:
    """`net` as if it had learned."""
    torch.manual_seed(4)
    for part in add_adapters(net, RANK):
        part.add_(0.2 * torch.randn_like(part))
    return net


def difference(one: Tensor, other: Tensor) -> Tensor:
    """The largest between spans; the same must be none."""
    spans = one > -torch.inf
    assert torch.equal(spans, other > -torch.inf)
    return (one[spans] - other[spans]).abs().max()


@torch.no_grad()
def test_what_was_learned_gives_a_fresh_net_the_same_scores(net: SpanModel, small: SpanModel, tmp_path: Path) -> None:
    learned_net = moved(net)
    learned = adapter_tensors(learned_net)
    file = tmp_path / "learned.safetensors"
    save_file(learned, file)
    fresh = copy.deepcopy(small)
    apply_adapter(fresh, load_file(file))
    inputs = row(25, 18)
    expected = learned_net(inputs)
    assert float(difference(fresh(inputs), expected)) < 0.05
    assert float(difference(small(inputs), expected)) > 1
    # The rounding of the head to fp16 is all there is between them: what was learned was learned in few bits.
    for part in learned_net.head.parameters():
        part.copy_(part.half().float())
    torch.testing.assert_close(fresh(inputs), learned_net(inputs), atol=1e-4, rtol=1e-4)
    assert not [module for module in fresh.modules() if isinstance(module, LowRankUpdate)]


def test_changes_are_few_bits_and_fp16_tensors_of_their_own(net: SpanModel) -> None:
    learned = adapter_tensors(moved(net))
    assert len(learned) == 12 * 4 + 4
    assert {name for name in learned if name.startswith("head.")} == {
        "head.ends.weight", "head.ends.bias", "head.first.weight", "head.last.weight",
    }  # fmt: skip
    wide = "encoder.layer.1.intermediate.dense"
    assert learned[f"{wide}.up"].shape == (RANK, 24 // 2) and learned[f"{wide}.down"].shape == (RANK, WIDTH // 2)
    assert learned[f"{wide}.up_steps"].shape == learned[f"{wide}.down_steps"].shape == (RANK,)
    codes = {name for name in learned if name.endswith((".up", ".down"))}
    assert len(codes) == 24
    assert all(tensor.dtype == (torch.uint8 if name in codes else torch.float16) for name, tensor in learned.items())
    assert all(tensor.is_contiguous() and not tensor.requires_grad for tensor in learned.values())


def test_a_low_rank_change_is_a_product_of_what_the_bits_can_say(net: SpanModel) -> None:
    matrix = nn.Parameter(torch.randn(5, 7))
    low = LowRankUpdate(matrix, 2)
    nn.init.normal_(low.up)
    changed = low(matrix) - matrix
    torch.testing.assert_close(changed, rounded(low.up.mT).mT @ rounded(low.down))
    assert not torch.equal(rounded(low.down), low.down)
    assert int(torch.linalg.matrix_rank(changed.detach())) == 2


@pytest.mark.parametrize("name", ["encoder.layer.1.output.dense.up", "encoder.layer.0.attention.self.key.down_steps"])
def test_a_change_that_is_not_there_is_named(net: SpanModel, small: SpanModel, name: str) -> None:
    learned = adapter_tensors(moved(net))
    del learned[name]
    with pytest.raises(KeyError, match=name):
        apply_adapter(copy.deepcopy(small), learned)


def test_a_head_that_lacks_a_part_or_has_another_shape_is_refused(net: SpanModel, small: SpanModel) -> None:
    learned = adapter_tensors(moved(net))
    with pytest.raises(RuntimeError, match=r"ends\.bias"):
        apply_adapter(copy.deepcopy(small), {name: part for name, part in learned.items() if name != "head.ends.bias"})
    with pytest.raises(RuntimeError, match="first"):
        apply_adapter(copy.deepcopy(small), learned | {"head.first.weight": torch.zeros(32, WIDTH + 1)})
    name = "encoder.layer.0.output.dense.down"
    with pytest.raises(RuntimeError):
        apply_adapter(copy.deepcopy(small), learned | {name: learned[name][:, 1:]})


# Rows of word pieces


def test_question_and_chunk_stand_apart_and_the_rest_is_filling() -> None:
    pairs = [QuestionChunkPair([7, 8], [20, 21, 22]), QuestionChunkPair([9], []), QuestionChunkPair([], [23])]
    batch = build_batch(pairs, 1, 2, width=8)
    assert batch.ids.tolist() == [[1, 7, 8, 2, 20, 21, 22, 2], [1, 9, 2, 2, 0, 0, 0, 0], [1, 2, 23, 2, 0, 0, 0, 0]]
    assert batch.kinds.tolist() == [[0, 0, 0, 0, 1, 1, 1, 1], [0, 0, 0, 1, 0, 0, 0, 0], [0, 0, 1, 1, 0, 0, 0, 0]]
    assert batch.known.sum(1).tolist() == [8, 4, 4] == [pair.length for pair in pairs]
    assert [row.nonzero().flatten().tolist() for row in batch.inside] == [[4, 5, 6], [], [2]]
    assert [pair.start for pair in pairs] == [4, 3, 2]


def test_a_chunk_that_is_too_long_is_cut_and_the_row_is_closed() -> None:
    pair = QuestionChunkPair((5,), tuple(range(30, 60)))
    assert pair.length == 34
    batch = build_batch([pair], 1, 2, width=10)
    assert batch.ids.tolist() == [[1, 5, 2, *range(30, 36), 2]]
    assert batch.inside[0].tolist() == [False] * 3 + [True] * 6 + [False] and bool(batch.known.all())


def test_what_is_done_to_each_is_done_to_all() -> None:
    batch = build_batch([QuestionChunkPair([7], [8])], 1, 2, width=5).map(lambda part: part.repeat(2, 1))
    assert batch.ids.shape == batch.kinds.shape == batch.known.shape == batch.inside.shape == (2, 5)
    assert batch.ids.dtype == torch.int64 and batch.inside.dtype == torch.bool
