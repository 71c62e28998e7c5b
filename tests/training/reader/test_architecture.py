"""The training architecture against transformers' own Qwen3."""

from __future__ import annotations

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from desk_rag.training.reader.architecture import READER, Decoder, config_json, rotary_tables
from tests.training.reader.conftest import VOCAB, decoder


def test_logits_are_those_of_transformers() -> None:
    model = decoder(4)
    theirs = Qwen3ForCausalLM(Qwen3Config.from_dict(config_json(model.shape, 2))).eval()
    named = {f"model.{name}": weight for name, weight in model.state_dict().items()}
    assert theirs.load_state_dict(named, strict=False).missing_keys == ["lm_head.weight"]
    theirs.tie_weights()
    ids = torch.randint(0, VOCAB, (2, 40))
    cos, sin = (table[:40] for table in rotary_tables(model.shape, "cpu"))
    with torch.no_grad():
        torch.testing.assert_close(model.logits(model.hidden(ids, cos, sin)), theirs(ids).logits, atol=2e-4, rtol=1e-4)


def test_a_causal_mask_is_the_same_as_none() -> None:
    model = decoder(5)
    ids = torch.randint(0, VOCAB, (1, 24))
    cos, sin = (table[:24] for table in rotary_tables(model.shape, "cpu"))
    mask = torch.full((24, 24), float("-inf")).triu(1)[None, None]
    with torch.no_grad():
        torch.testing.assert_close(model.hidden(ids, cos, sin, mask), model.hidden(ids, cos, sin))


def test_dropout_works_in_training_only() -> None:
    model = decoder(6)
    ids = torch.randint(0, VOCAB, (1, 24))
    cos, sin = (table[:24] for table in rotary_tables(model.shape, "cpu"))
    with torch.no_grad():
        before = model.hidden(ids, cos, sin)
        model.set_dropout(0.5)
        assert torch.equal(model.hidden(ids, cos, sin), before)
        assert not torch.allclose(model.train().hidden(ids, cos, sin), before)
        model.set_dropout(0.0)
        assert torch.equal(model.hidden(ids, cos, sin), before)


def test_the_reader_has_the_size_it_is_told_to_have() -> None:
    with torch.device("meta"):
        count = sum(parameter.numel() for parameter in Decoder(READER).parameters())
    assert round(count / 1e6, 2) == 30.55
