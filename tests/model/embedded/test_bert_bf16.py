"""A BERT whose matrices are packed in bfloat16 gives what autocast gives, bit for bit."""

from __future__ import annotations

import pytest
import torch

from desk_rag.assets import assets_dir
from desk_rag.model.embedded.bert import Bert, load_bert
from desk_rag.model.embedded.bert_bf16 import Bf16Bert
from desk_rag.retrieval.embedding import _half_precision_pays

pytestmark = pytest.mark.skipif(
    not _half_precision_pays(torch.device("cpu")), reason="this CPU does not multiply bfloat16, so it is not used here"
)
Inputs = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


@pytest.fixture(scope="module")
def bert() -> Bert:
    return load_bert(assets_dir() / "embedder").eval()


def rows(*lengths: int) -> Inputs:
    """Word pieces, their kinds, and which of them are not there to fill up a row."""
    torch.manual_seed(len(lengths))
    shape = (len(lengths), max(lengths))
    known = torch.arange(shape[1]) < torch.tensor(lengths)[:, None]
    ids = torch.randint(1000, 20000, shape) * known
    return ids, (torch.arange(shape[1]) > 7).long().expand(shape) * known, known.long()


@pytest.mark.parametrize("lengths", [(3,), (64,), (235,), (48, 17, 33)])
@torch.inference_mode()
def test_states_are_those_of_autocast(bert: Bert, lengths: tuple[int, ...]) -> None:
    inputs = rows(*lengths)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        expected = bert(*inputs).last_hidden_state
    states = Bf16Bert(bert)(*inputs).last_hidden_state
    assert states.dtype == torch.float32
    assert torch.equal(states[inputs[2].bool()], expected[inputs[2].bool()])


@torch.inference_mode()
def test_without_packed_products_states_are_the_same(bert: Bert, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = rows(50)
    expected = Bf16Bert(bert)(*inputs).last_hidden_state

    def missing(*_: object) -> None:
        raise RuntimeError("no oneDNN")

    monkeypatch.setattr(torch.ops.mkldnn, "_reorder_linear_weight", missing)
    assert torch.equal(Bf16Bert(bert)(*inputs).last_hidden_state, expected)


@torch.inference_mode()
def test_a_row_that_is_filled_up_hardly_differs_from_itself_alone(bert: Bert) -> None:
    packed, (ids, kinds, known) = Bf16Bert(bert), rows(48, 17)
    together = packed(ids, kinds, known).last_hidden_state[1, :17]
    alone = packed(ids[1:, :17], kinds[1:, :17], known[1:, :17]).last_hidden_state[0]
    torch.testing.assert_close(together, alone, atol=0.1, rtol=0.05)
