"""The decode benchmark compares like with like, and tells what it found."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
import torch

from desk_rag.bench import decode
from desk_rag.bench.decode import Side
from desk_rag.errors import ConfigError
from desk_rag.kv.forward.runner import FusedPass, ModelRunner
from desk_rag.kv.prefill import prefill_prefix
from desk_rag.kv.rope import build_tables
from desk_rag.model.embedded import kernels
from desk_rag.model.packed_linear import PackedLinear, pack_linears
from tests.models import FAMILIES, build_model


def test_the_stock_twin_has_the_same_weights_in_transformers_own_modules() -> None:
    model = build_model(next(family for family in FAMILIES if family.name == "qwen2"))
    plain = {name: parameter.clone() for name, parameter in model.module.named_parameters()}
    pack_linears(model.module)
    twin = decode.stock_twin(model)
    assert twin.config._attn_implementation == "sdpa"
    assert not any(isinstance(module, PackedLinear) for module in twin.modules())
    names = dict(twin.named_parameters())
    assert set(names) == set(plain)
    for name, parameter in names.items():
        torch.testing.assert_close(parameter, plain[name], rtol=1e-3, atol=1e-4)


def test_all_sides_are_measured_in_every_round_over_the_same_cache() -> None:
    model = build_model(next(family for family in FAMILIES if family.name == "qwen3"))
    options = decode._arguments(["--tokens", "2", "--rounds", "3"])
    row = decode.measure(model, decode.stock_twin(model), 40, options)
    assert {side: len(times) for side, times in row.times.items()} == dict.fromkeys(Side, 3)
    assert all(time > 0 for times in row.times.values() for time in times)
    assert row.difference < 1e-3
    assert row.ratio(Side.OURS).median == 1.0


def test_our_side_is_the_pass_that_answers_are_decoded_by(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where that is the lean one: every token goes through it, and its logits are stock's."""
    model = build_model(next(family for family in FAMILIES if family.name == "qwen2"))
    stock = decode.stock_twin(model)
    room = 3
    prefix = prefill_prefix(model)
    slab = ModelRunner(model, prefix, build_tables(model, 40 + room), 40 + room, fused=True)
    positions: list[int] = []
    forward = FusedPass.forward

    def counted(self: FusedPass, token_ids: Sequence[int], start: int) -> torch.Tensor:
        positions.append(start)
        return forward(self, token_ids, start)

    monkeypatch.setattr(FusedPass, "forward", counted)
    monkeypatch.setattr(decode, "shipped", lambda *_: slab)
    row = decode.measure(model, stock, 40, decode._arguments(["--tokens", "2", "--rounds", "1"]))
    assert row.way == "lean pass"
    assert positions == [40, 40, 41, 40, 41], "first logits, a round unreported, a round"
    assert row.difference < 1e-3


def test_contexts_past_the_models_positions_are_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    model = build_model(next(family for family in FAMILIES if family.name == "qwen3"))
    limit = model.spec.max_context
    options = decode._arguments(["--contexts", f"16,{limit}", "--tokens", "2"])
    assert decode._contexts(options, model) == [16]
    assert f"{limit:,}" in capsys.readouterr().out
    with pytest.raises(ConfigError, match="positions"):
        decode._contexts(decode._arguments(["--contexts", str(limit)]), model)


def test_a_rewound_side_starts_from_the_context_again() -> None:
    model = build_model(next(family for family in FAMILIES if family.name == "llama"))
    slab = decode.shipped(model, prefill_prefix(model), 24)
    decoders = decode._decoders(model, slab, decode.stock_twin(model), 20, room=4)
    for decoder in decoders.values():
        with torch.inference_mode():
            first = decode._first_logits(decoder, 20)
            decode._decode(decoder, 20, 3, torch.device("cpu"))
            again = decode._first_logits(decoder, 20)
        torch.testing.assert_close(again, first)


@pytest.mark.parametrize("compiled", [True, False])
def test_it_ends_in_one_json_line(
    compiled: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It names the pass that decodes: compiled layers where this CPU has kernels, else the decode step."""
    if not compiled:
        monkeypatch.setenv("DESK_RAG_KERNELS", "")
    elif kernels.library() is None:
        pytest.skip("no kernels for this CPU, or no C compiler")
    arguments = ["--contexts", "16,32", "--tokens", "1", "--rounds", "2", "--device", "cpu", "--threads", "1"]
    assert decode.main(arguments) == 0
    report = json.loads(capsys.readouterr().out.strip().splitlines()[-1])
    assert report["bench"] == "decode"
    assert [entry["context"] for entry in report["contexts"]] == [16, 32]
    way = "the compiled layers" if compiled else "the decode step"
    assert {entry["ours"] for entry in report["contexts"]} == {way}
    assert set(report["contexts"][0]["stock_over_ours"]) == {"ours", "dynamic", "static"}
