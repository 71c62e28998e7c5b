"""The compiled BERT gives the states of bfloat16 or closer ones, for texts of all lengths, alone and in batches."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from desk_rag.assets import assets_dir
from desk_rag.model.embedded import kernels
from desk_rag.model.embedded.bert import Bert, load_bert
from desk_rag.model.embedded.bert_bf16 import Bf16Bert
from desk_rag.model.embedded.compiled_bert import CompiledBert, fastest
from tests.model.embedded.test_bert_bf16 import rows
from tests.model.embedded.test_compiled import SETS, use_kernels_for

needs_kernels = pytest.mark.skipif(kernels.library() is None, reason="no kernels for this CPU, or no C compiler")


@pytest.fixture(scope="module")
def bert() -> Bert:
    return load_bert(assets_dir() / "embedder").eval()


@pytest.fixture(scope="module", params=SETS)
def kind(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Kernels for every kind of CPU that this one is, too."""
    with pytest.MonkeyPatch.context() as patch:
        use_kernels_for(request.param, tmp_path_factory, patch)
        yield request.param


@pytest.fixture(scope="module")
def compiled(bert: Bert, kind: str) -> CompiledBert:
    module = fastest(bert, in_half=True)
    assert isinstance(module, CompiledBert)
    return module


def relative(states: torch.Tensor, expected: torch.Tensor) -> float:
    return float((states - expected).square().mean().sqrt() / expected.std())


@needs_kernels
@pytest.mark.parametrize("length", [2, 15, 16, 17, 31, 32, 33, 100, 235, 448, 512])
@torch.inference_mode()
def test_states_are_as_close_to_fp32_as_torchs_in_bf16(
    bert: Bert, compiled: CompiledBert, kind: str, length: int
) -> None:
    """Whole numbers of 13 bits are closer than bfloat16."""
    inputs = rows(length)
    expected = bert(*inputs).last_hidden_state
    by_torch = relative(Bf16Bert(bert)(*inputs).last_hidden_state, expected)
    assert 0 < relative(compiled(*inputs).last_hidden_state, expected) < (1.5 if kind == "AMX" else 0.75) * by_torch


@needs_kernels
@pytest.mark.parametrize("threads", [1, 3])
@torch.inference_mode()
def test_a_text_has_the_same_states_alone_and_among_others(compiled: CompiledBert, threads: int) -> None:
    ids, kinds, known = rows(48, 17, 3, 48, 33)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    together = compiled(ids, kinds, known).last_hidden_state
    torch.set_num_threads(before)
    for text, length in enumerate((48, 17, 3, 48, 33)):
        own = slice(text, text + 1)
        alone = compiled(ids[own, :length], kinds[own, :length]).last_hidden_state[0]
        assert torch.equal(together[text, :length], alone)


@needs_kernels
@torch.inference_mode()
def test_large_states_and_scores_stay_finite(kind: str) -> None:
    """Softmax and GELU at the ends of their ranges, where approximations break first."""
    wide = load_bert(assets_dir() / "embedder").eval()
    for layer in wide.encoder["layer"].children():
        layer.attention["self"].query.weight.mul_(30.0)
        layer.intermediate["dense"].weight.mul_(10.0)
    inputs = rows(60)
    expected, states = wide(*inputs).last_hidden_state, fastest(wide, in_half=True)(*inputs).last_hidden_state
    assert states.isfinite().all()
    assert relative(states, expected) < 2 * relative(Bf16Bert(wide)(*inputs).last_hidden_state, expected)


@torch.inference_mode()
def test_without_kernels_torch_computes(bert: Bert, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DESK_RAG_KERNELS", "")
    assert fastest(bert, in_half=False) is bert
    module, inputs = fastest(bert, in_half=True), rows(40)
    assert type(module) is Bf16Bert
    assert torch.equal(module(*inputs).last_hidden_state, Bf16Bert(bert)(*inputs).last_hidden_state)
