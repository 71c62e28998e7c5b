"""The training forward pass against what ships: stitched caches for independent rows, plain prefill for full ones."""

from __future__ import annotations

import pytest
import torch

from desk_rag.finetune.masked import hidden_of, logits_of, loss_of, to_batch, visibility
from desk_rag.finetune.rows import (
    Asked,
    Context,
    Island,
    build_island,
    build_row,
    island_length,
    positions_needed,
    text_island,
)
from desk_rag.kv.cache import SlabCache
from desk_rag.kv.positions import plan
from desk_rag.kv.prefill import prefill_chunk, prefill_prefix
from desk_rag.kv.quant import keep_exact
from desk_rag.kv.rope import build_tables
from desk_rag.kv.stitch import has_sliding_layers, stitch
from desk_rag.model.language_model import LanguageModel
from tests.models import FAMILIES, Family, build_model, each_family

TEXTS = ("The boiler was serviced.", "Rent is due on Monday.", "Anna moved to Porto.")
QAS = (("When is rent due?", "On Monday."), ("Where did Anna go?", "Porto."))


def context_of(model: LanguageModel, *, full: bool) -> Context:
    prompt = model.prompt
    return Context(
        prefix=tuple(prompt.prefix_ids),
        chunks=tuple(tuple(prompt.chunk_ids(text)) for text in TEXTS),
        asked=tuple(Asked(tuple(prompt.question_ids(q)), tuple(prompt.answer_ids(a))) for q, a in QAS),
        full=full,
    )


def stitched_logits(model: LanguageModel, context: Context, asked: Asked) -> torch.Tensor:
    """Logits of question and answer over unquantised chunk KV, as the product computes them."""
    prefix = prefill_prefix(model)
    chunks = [keep_exact(prefill_chunk(model, prefix, chunk)) for chunk in context.chunks]
    lengths = [len(chunk) for chunk in context.chunks]
    chosen = plan(prefix.num_tokens, lengths)
    ids = torch.tensor([*asked.question, *asked.answer])
    size = chosen.next_position + len(ids)
    cache = SlabCache(model, size)
    stitch(model, chosen, prefix, chunks, build_tables(model, size), cache)
    return model.forward_all(ids, cache, chosen.next_position)


def plain_logits(model: LanguageModel, context: Context, asked: Asked) -> torch.Tensor:
    """Logits of full prefill."""
    before = [*context.prefix, *(token for chunk in context.chunks for token in chunk)]
    ids = torch.tensor([*before, *asked.question, *asked.answer])
    return model.forward_all(ids, SlabCache(model, len(ids)), 0)[len(before) :]


def row_logits(model: LanguageModel, context: Context, before: tuple[Island, ...] = ()) -> torch.Tensor:
    """Logits of all question and answer tokens in a padded row in which other islands may stand first."""
    island = build_island(context)
    assert len(island.ids) == island_length(context)
    ahead = sum(len(other.ids) for other in before)
    row = build_row([*before, island], ahead + len(island.ids) + 7)
    learned = sum(len(one.question) + len(one.answer) for one in context.asked)
    last = ahead + len(island.ids)
    with torch.no_grad():
        hidden = hidden_of(model.module, to_batch([row], model.device))
        return logits_of(model.module, hidden[0, last - learned : last])


def check(got: torch.Tensor, expected: list[torch.Tensor]) -> float:
    wanted = torch.cat(expected)
    assert got.shape == wanted.shape
    return float((got - wanted).abs().max() / wanted.std())


@each_family
def test_rows_compute_what_is_served(family: Family) -> None:
    model = build_model(family)
    independent, full = context_of(model, full=False), context_of(model, full=True)
    served = [stitched_logits(model, independent, asked) for asked in independent.asked]
    plain = [plain_logits(model, full, asked) for asked in full.asked]
    got = row_logits(model, independent)
    got_full = row_logits(model, full)
    assert check(got, served) < 2e-4
    assert check(got_full, plain) < 2e-4
    assert check(got, plain) > 0.05, "the two kinds of attention must differ, or the rest shows nothing"


@pytest.mark.parametrize("name", ["qwen2", "gemma3"])
def test_what_else_stands_in_the_row_changes_nothing(name: str) -> None:
    model = build_model(next(family for family in FAMILIES if family.name == name))
    assert has_sliding_layers(model) == (name == "gemma3")
    context = context_of(model, full=False)
    others = (build_island(context_of(model, full=True)), text_island(list(range(5, 45))))
    alone = row_logits(model, context)
    among = row_logits(model, context, others)
    assert check(among, [alone]) < 2e-4


def test_who_sees_whom() -> None:
    questions = (Asked((50,), (51, 52)), Asked((60,), (61,)))
    context = Context((1, 2), ((10, 11), (20,)), questions, full=False)
    island = build_island(context)
    assert island.ids == (1, 2, 10, 11, 1, 2, 20, 50, 51, 52, 60, 61)
    assert island.positions == (0, 1, 2, 3, 2, 3, 4, 5, 6, 7, 5, 6)
    assert island.weights == (0,) * 8 + (1, 1, 0, 1)
    assert positions_needed(context) == 8
    shown = visibility(to_batch([build_row([island], 13)], torch.device("cpu")))[0]
    seen = ["".join("x" if cell else "." for cell in line) for line in shown.tolist()]
    assert seen == [
        "x............", "xx...........",  # prefix
        "xxx..........", "xxxx.........",  # first chunk, behind the real prefix
        "....x........", "....xx.......",  # the second one's copy
        "....xxx......",  # second chunk: its copy and itself
        "xxxx..xx.....", "xxxx..xxx....", "xxxx..xxxx...",  # first question and answer
        "xxxx..x...x..", "xxxx..x...xx.",  # the second one does not see the first
        "............x",  # padding sees itself, so that no softmax is empty
    ]  # fmt: skip


def test_the_loss_is_that_of_the_answers_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build_model(next(family for family in FAMILIES if family.name == "gemma2"))
    contexts = [context_of(model, full=full) for full in (False, True)]
    islands = [build_island(context) for context in contexts]
    batch = to_batch([build_row([island], 600) for island in islands], model.device)
    expected, count = 0.0, 0
    for context, island in zip(contexts, islands, strict=True):
        for asked in context.asked:
            lengths = [len(one.question) + len(one.answer) for one in context.asked]
            question_start = len(island.ids) - sum(lengths)
            question_start += 0 if asked is context.asked[0] else lengths[0]
            logits = row_logits(model, context)
            start = question_start - (len(island.ids) - logits.shape[0]) + len(asked.question)
            chances = logits[start - 1 : start - 1 + len(asked.answer)].log_softmax(-1)
            expected -= float(chances[torch.arange(len(asked.answer)), list(asked.answer)].sum())
            count += len(asked.answer)
    loss = loss_of(model.module, batch)
    assert loss.weight == count
    assert float(loss.total) == pytest.approx(expected, rel=1e-4)
    monkeypatch.setattr("desk_rag.finetune.masked._PIECE", 7)
    weight = model.module.model.layers[0].self_attn.q_proj.weight.requires_grad_(True)
    (piecewise,) = torch.autograd.grad(loss_of(model.module, batch).total, weight)
    monkeypatch.setattr("desk_rag.finetune.masked._PIECE", 10_000)
    (whole,) = torch.autograd.grad(loss_of(model.module, batch).total, weight)
    assert torch.allclose(piecewise, whole, rtol=1e-3, atol=1e-3 * float(whole.abs().max()))
