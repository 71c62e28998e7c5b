"""The auxiliary model finds what background prefill left for it, and says what is missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from desk_rag.answering import auxiliary
from desk_rag.answering.auxiliary import open_auxiliary, prepare_all, prepare_auxiliary
from desk_rag.config import AnswerSettings, ModelSettings, Settings
from desk_rag.errors import Cancelled, ModelNotFound
from desk_rag.kv.calibration.gate import GateReport, Score
from desk_rag.kv.identity import kv_key
from desk_rag.kv.prefill import prefill_prefix
from desk_rag.kv.prefix_variants.variants import PrefixVariant, PrefixVariants
from desk_rag.kv.quant import LayerScheme, QuantScheme
from desk_rag.kv.recompute.auxiliary_model import AuxiliaryModel
from desk_rag.kv.recompute.policy import SMOLLM
from desk_rag.kv.serving import ServingModel
from desk_rag.kv.types import KVKey, Namespace, QuantizedKV
from tests.models import FAMILIES, build_model

TEXTS = ("The boiler was serviced.", "Rent is due on Monday.")


class Stored:
    """The part of the store that chunk KV comes from."""

    def __init__(self) -> None:
        self.kept: dict[KVKey, QuantizedKV] = {}
        self.asked: list[int] = []

    def get_kv(self, keys: list[KVKey]) -> list[QuantizedKV | None]:
        self.asked.append(len(keys))
        return [self.kept.get(key) for key in keys]

    def has_kv(self, keys: list[KVKey]) -> set[KVKey]:
        return self.kept.keys() & set(keys)


def test_the_store_is_asked_for_what_memory_lacks() -> None:
    model, exact = build_model(FAMILIES[0]), Score(mean_kl=0.0, top1=1.0, tokens=1)
    scheme = QuantScheme.uniform(model.spec.num_layers, LayerScheme(raw=True))
    plain = PrefixVariant(0, prefill_prefix(model), Namespace("0" * 32))
    prepared = ServingModel(model, PrefixVariants((plain,)), GateReport(scheme, exact, exact, 0, 0))
    store = Stored()
    ids = tuple(prepared.model.prompt.chunk_ids(TEXTS[0]))
    chunk_kv = AuxiliaryModel(prepared.model, scheme=prepared.gate.scheme).prefill(TEXTS[:1])[0]
    store.kept[kv_key(prepared.namespace, ids)] = chunk_kv
    opened = open_auxiliary(prepared, store)  # type: ignore[arg-type]
    assert opened.has(TEXTS) == [True, False] and store.asked == [], "nothing is read to know it"
    learnt = opened.prefill(TEXTS)
    assert learnt[0] is chunk_kv and store.asked == [2]
    assert all(type(layer).__name__ == "RawLayer" for layer in learnt[1].layers)  # the gate's coding, not a default
    # The second was prefilled and stays in memory; what came from the store is asked for again, it is quick to read.
    again = opened.prefill(TEXTS)
    assert again[1] is learnt[1] and store.asked == [2, 1]
    assert opened.has(TEXTS) == [True, True]


def test_prefill_gives_way_and_keeps_nothing_unfinished() -> None:
    opened = AuxiliaryModel(build_model(FAMILIES[0]))
    with pytest.raises(Cancelled):
        opened.prefill(TEXTS, lambda: True)
    assert opened.has(TEXTS) == [False, False]


@pytest.mark.parametrize(
    ("change", "shared"),
    [
        ({}, True),
        ({"device": "cuda"}, True),  # on whatever device the model answers, it is there already
        ({"rungs": (0, 1)}, True),
        ({"adapter": "taught"}, False),
        ({"quantization": "nf4"}, False),
        ({"name": "big/model"}, False),
    ],
)
def test_a_model_that_is_its_own_auxiliary_is_loaded_once(
    change: dict[str, object], shared: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[ModelSettings] = []
    exact = Score(mean_kl=0.0, top1=1.0, tokens=1)
    model = build_model(FAMILIES[0])
    scheme = QuantScheme.uniform(model.spec.num_layers)

    def prepare(settings: Settings, _say: object, _stop: object) -> ServingModel:
        loaded.append(settings.model)
        plain = PrefixVariant(0, prefill_prefix(model), Namespace(f"{len(loaded):032}"))
        return ServingModel(model, PrefixVariants((plain,)), GateReport(scheme, exact, exact, 0, 0))

    monkeypatch.setattr(auxiliary, "prepare", prepare)
    chosen = ModelSettings().model_copy(update=change)
    answer = AnswerSettings(recompute=0.2, selector="aux")
    serving = prepare_all(Settings(data_dir=tmp_path, model=chosen, answer=answer))
    assert serving.auxiliary is not None and len(loaded) == (1 if shared else 2)
    assert (serving.auxiliary_namespace is None) is shared
    loaded.clear()
    assert prepare_all(Settings(data_dir=tmp_path, model=chosen)).auxiliary is None and len(loaded) == 1


def test_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[ModelSettings] = []
    monkeypatch.setattr(auxiliary, "prepare", lambda settings, _say, _stop: seen.append(settings.model))
    big = ModelSettings(name="big/model", device="cuda", quantization="nf4", adapter="for the big one")
    settings = Settings(data_dir=tmp_path, model=big)
    prepare_auxiliary(settings)
    prepare_auxiliary(settings, "smollm2-135m")
    prepare_auxiliary(settings, "org/other", "cuda")
    assert [(model.name, model.device, model.quantization) for model in seen] == [
        ("embedded", "cpu", "none"),
        (SMOLLM, "cpu", "none"),
        ("org/other", "cuda", "none"),
    ]
    assert not any(model.adapter for model in seen), "an adapter fits the model it was made for only"
    monkeypatch.undo()
    with pytest.raises(ModelNotFound):
        prepare_auxiliary(settings, str(tmp_path / "nothing"))
