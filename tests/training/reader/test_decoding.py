"""Decoding many rows with a cache against one row after another without."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from desk_rag.training.reader.architecture import Decoder, rotary_tables
from desk_rag.training.reader.decoding import decode
from tests.training.reader.conftest import VOCAB, decoder

LENGTHS = (9, 14, 5)
LIMIT = 12
STOP = VOCAB - 1


def prompts() -> tuple[Tensor, Tensor]:
    """ids [B, 16], of which LENGTHS count, and which of them the answers may see: not the second token of row 1."""
    torch.manual_seed(9)
    ids = torch.randint(0, STOP, (len(LENGTHS), 16))
    seen = torch.arange(16)[None] < torch.tensor(LENGTHS)[:, None]
    seen[1, 1] = False
    return ids, seen


def cached(model: Decoder, stop: int, **how: float) -> Tensor:
    ids, seen = prompts()
    batch, width = ids.shape
    order = torch.arange(width)
    causal = torch.zeros(width, width).masked_fill(order[:, None] < order[None], float("-inf"))
    lengths = torch.tensor(LENGTHS)
    return decode(
        model,
        ids,
        order[None].expand(batch, -1),
        lengths,
        lengths + 3,  # a gap in positions, as behind a shortened prompt
        causal.expand(batch, 1, -1, -1),
        seen,
        stop_id=stop,
        limit=LIMIT,
        **how,  # type: ignore[arg-type]
    )


def naive(model: Decoder, row: int) -> list[int]:
    """Everything computed again for every token."""
    ids, seen = prompts()
    size = LENGTHS[row]
    tokens = ids[row, :size].tolist()
    cos, sin = rotary_tables(model.shape, "cpu")
    for _ in range(LIMIT):
        total = len(tokens)
        positions = torch.tensor([*range(size), *range(size + 3, total + 3)])
        mask = torch.full((total, total), float("-inf")).triu(1)
        mask[size:, :size].masked_fill_(~seen[row, :size], float("-inf"))
        with torch.no_grad():
            hidden = model.hidden(torch.tensor([tokens]), cos[positions], sin[positions], mask[None, None])
            tokens.append(int(model.logits(hidden[0, -1]).argmax()))
    return tokens[size:]


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_greedy_is_what_a_loop_without_cache_gives(seed: int) -> None:
    model = decoder(seed)
    sampled = cached(model, stop=VOCAB + 5)
    assert sampled.tolist() == [naive(model, row) for row in range(len(LENGTHS))]
    assert len({token for line in sampled.tolist() for token in line}) > 5


def test_a_row_that_has_ended_is_filled_up() -> None:
    model = decoder(0)
    free = cached(model, stop=VOCAB + 5).tolist()
    stop = free[0][3]
    for line, was in zip(cached(model, stop=stop).tolist(), free, strict=True):
        end = was.index(stop) if stop in was else LIMIT
        assert line[: end + 1] == was[: end + 1] and set(line[end:]) <= {stop}


def test_the_likeliest_of_one_is_greedy_and_of_many_is_not() -> None:
    model = decoder(1)
    greedy = cached(model, stop=VOCAB + 5)
    assert torch.equal(cached(model, stop=VOCAB + 5, temperature=5.0, top_k=1), greedy)
    torch.manual_seed(0)
    assert not torch.equal(cached(model, stop=VOCAB + 5, temperature=50.0, top_k=50), greedy)
