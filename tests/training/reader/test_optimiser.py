"""Muon and its company."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from desk_rag.training.reader.optimiser import Optimiser, orthogonalise
from tests.training.reader.conftest import decoder


@pytest.mark.parametrize("shape", [(3, 24, 24), (2, 64, 16), (2, 16, 64)])
def test_singular_values_come_near_one(shape: tuple[int, int, int]) -> None:
    torch.manual_seed(0)
    u, _, vh = torch.linalg.svd(torch.randn(shape), full_matrices=False)
    update = u * torch.linspace(1, 20, u.shape[-1]) @ vh * 40
    values = torch.linalg.svdvals(orthogonalise(update).float())
    assert values.shape == (shape[0], min(shape[1:])) and values.min() > 0.6 and values.max() < 1.3
    # Same singular vectors: the update still points where it pointed.
    assert ((orthogonalise(update).float() * update).sum((1, 2)) > 0).all()


def test_matrices_step_by_the_rate_whatever_the_gradient() -> None:
    moved = []
    for size in (1e-4, 1e4):
        torch.manual_seed(0)
        layer = nn.Linear(16, 16)
        before = layer.weight.detach().clone()
        layer.weight.grad, layer.bias.grad = torch.randn(16, 16) * size, torch.zeros(16)
        Optimiser(layer, muon=0.1, adam=0.0, decay=0.0).step(0.5)
        moved.append((layer.weight.detach() - before).norm().item())
        assert layer.weight.grad is None
    assert moved[0] == pytest.approx(moved[1], rel=0.1) and 0.1 < moved[0] < 0.3


def test_matrices_decay_and_embeddings_do_not() -> None:
    model = decoder(3)
    embedding, matrix = model.embed_tokens.weight, model.layers[0].get_parameter("mlp.up_proj.weight")
    before = embedding.detach().clone(), matrix.detach().clone()
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    Optimiser(model, muon=0.1, adam=0.1, decay=0.5).step(1.0)
    assert torch.equal(embedding, before[0])
    torch.testing.assert_close(matrix, before[1] * 0.95)


def test_a_small_problem_is_solved() -> None:
    torch.manual_seed(0)
    wanted = nn.Linear(12, 12)
    model = nn.Sequential(nn.Linear(12, 12))
    optimiser = Optimiser(model, muon=0.05, adam=0.02, decay=0.0)
    x = torch.randn(64, 12)
    losses = []
    for step in range(120):
        loss = (model(x) - wanted(x).detach()).pow(2).mean()
        torch.autograd.backward(loss)
        optimiser.step(1 - step / 120)
        losses.append(loss.item())
    assert losses[-1] < losses[0] * 0.02
