"""Four bits a number: codes against a slow reference, what packing keeps, and gradients that pass."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from desk_rag.model.checkpoint.int4 import GROUP, unpack_int4, unpack_matrix
from desk_rag.training.pointer.int4 import pack, pack_whole, rounded


def by_hand(vector: list[float]) -> list[float]:
    """One vector, number by number."""
    square = sum(number * number for number in vector) / len(vector)
    step = float(torch.tensor(square**0.5 * 2.5 / 7).half())
    return [step * max(-7, min(7, round(number / step))) for number in vector]


@pytest.fixture
def vectors() -> Tensor:
    vectors = torch.randn(6, 384, generator=torch.manual_seed(1)) * torch.tensor([1e-3, 0.02, 0.3, 1, 5, 40])[:, None]
    vectors[2, 7], vectors[3, 8] = 9.0, -9.0  # far out
    return vectors


def test_numbers_become_multiples_of_their_vectors_step(vectors: Tensor) -> None:
    restored = rounded(vectors)
    for vector, few in zip(vectors.tolist(), restored, strict=True):
        torch.testing.assert_close(few, torch.tensor(by_hand(vector)), atol=0, rtol=1e-6)
        assert 9 <= len(few.unique()) <= 15
    assert (
        float(restored[2, 7]) == float(restored[2].max()) < 1.5
        and float(restored[3, 8]) == float(restored[3].min()) > -4
    )


def test_what_is_packed_comes_back_as_it_was_rounded(vectors: Tensor) -> None:
    codes, steps = pack(vectors)
    assert codes.dtype == torch.uint8 and codes.shape == (6, 192)
    assert steps.dtype == torch.float16 and steps.shape == (6,)
    torch.testing.assert_close(unpack_int4(codes, steps), rounded(vectors), atol=0, rtol=1e-6)


def test_it_errs_as_little_as_15_steps_can(vectors: Tensor) -> None:
    normal = vectors[[0, 1, 4, 5]]
    error = (rounded(normal) - normal).square().mean(1) / normal.square().mean(1)
    assert bool(((error > 0.010) & (error < 0.016)).all())  # of a normal distribution's variance 0.0129


def test_nothing_learned_stays_nothing() -> None:
    nothing = torch.zeros(2, 8)
    assert torch.equal(rounded(nothing), nothing)
    assert torch.equal(unpack_int4(*pack(nothing)), nothing)


def test_whole_multiples_of_a_step_lose_nothing() -> None:
    codes = torch.randint(-8, 8, (5, GROUP), generator=torch.manual_seed(3)).float()
    codes[:, 3] = -8
    codes[4] = 0
    vectors = codes * torch.tensor([1e-3, 0.02, -0.3, 4, 1]).half().float()[:, None]
    assert torch.equal(unpack_int4(*pack_whole(vectors)), vectors)


def test_a_matrix_is_unpacked_by_groups_of_its_columns(vectors: Tensor) -> None:
    codes, steps = pack(vectors.reshape(-1, GROUP))
    matrix = unpack_matrix(codes.view(6, -1), steps.view(6, -1))
    expected = [by_hand(group) for group in vectors.reshape(-1, GROUP).tolist()]
    torch.testing.assert_close(matrix, torch.tensor(expected).view(6, -1), atol=0, rtol=1e-6)
    with pytest.raises(RuntimeError, match="no pair"):
        unpack_matrix(codes.view(6, -1), steps.view(6, -1)[:5])


def test_gradients_pass_as_if_nothing_were_rounded(vectors: Tensor) -> None:
    vectors.requires_grad_()
    weights = torch.randn(vectors.shape, generator=torch.manual_seed(2))
    (rounded(vectors) * weights).sum().backward()
    assert vectors.grad is not None and torch.equal(vectors.grad, weights)
    assert not any(part.requires_grad for part in pack(vectors))


def test_what_is_no_pair_of_codes_and_steps_is_refused(vectors: Tensor) -> None:
    codes, steps = pack(vectors)
    for one, other in ((codes.int(), steps), (codes[0], steps), (codes, steps[:1]), (codes, steps * torch.inf)):
        with pytest.raises(RuntimeError, match="no pair"):
            unpack_int4(one, other)
    with pytest.raises(AssertionError):
        pack(vectors[:, 1:])
