"""Every part of the identity makes another namespace; token ids and their order make another key."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path

import pytest

from desk_rag.kv.identity import Identity, hash_tokens, identify, kv_key
from desk_rag.kv.quant import LayerScheme, QuantScheme
from desk_rag.kv.types import Namespace
from desk_rag.model.language_model import LanguageModel
from desk_rag.store.store import Store
from tests.store import made

BASE = Identity(
    weights="w" * 32,
    adapter="",
    weight_quantization="none",
    tokenizer="t" * 32,
    config='{"rope_theta": 10000.0}',
    shape=(10, 2, 64),
    prefix=hash_tokens([1, 2, 3]),
    scheme="int8*10",
)
OTHER: dict[str, object] = {
    "weights": "v" * 32,
    "adapter": "lora-1",
    "weight_quantization": "nf4",
    "tokenizer": "u" * 32,
    "config": '{"rope_theta": 20000.0}',
    "shape": (10, 2, 32),
    "prefix": hash_tokens([1, 2, 4]),
    "scheme": "int8g64*10",
    "drift_epoch": 1,
    "capture_version": 999,
}


def test_the_list_of_changes_is_complete() -> None:
    assert set(OTHER) == {field.name for field in fields(Identity)}


@pytest.mark.parametrize("part", OTHER)
def test_changing_any_single_part_is_another_namespace(part: str) -> None:
    changed = replace(BASE, **{part: OTHER[part]})  # type: ignore[arg-type]
    assert changed.namespace() != BASE.namespace()
    ids = [5, 6, 7]
    assert kv_key(changed.namespace(), ids) != kv_key(BASE.namespace(), ids)


@pytest.mark.parametrize("shape", [(9, 2, 64), (10, 1, 64), (10, 2, 63), (2, 10, 64)])
def test_every_number_of_the_shape_counts(shape: tuple[int, int, int]) -> None:
    assert replace(BASE, shape=shape).namespace() != BASE.namespace()


def test_parts_cannot_run_into_each_other() -> None:
    one = replace(BASE, weights="ab", adapter="c")
    other = replace(BASE, weights="a", adapter="bc")
    assert one.namespace() != other.namespace()


def test_a_namespace_is_32_hex_digits_and_stays_the_same() -> None:
    name = BASE.namespace()
    assert len(name) == 32
    assert int(name, 16) >= 0
    assert replace(BASE).namespace() == name


@pytest.mark.parametrize(
    "other",
    [[2, 1, 3], [1, 2], [1, 2, 3, 0], [1, 2, 4], [], [258, 3], [1, 2, 3, 3]],
    ids=["order", "shorter", "zero appended", "one id", "none", "joined bytes", "repeated"],
)
def test_other_ids_or_another_order_hash_differently(other: list[int]) -> None:
    assert hash_tokens([1, 2, 3]) != hash_tokens(other)


def test_lists_and_tuples_of_the_same_ids_are_the_same_key() -> None:
    namespace = Namespace("0" * 32)
    assert kv_key(namespace, [1, 70000, 3]) == kv_key(namespace, (1, 70000, 3))
    assert kv_key(namespace, [1, 2]) != kv_key(Namespace("1" * 32), [1, 2])


def test_the_identity_of_a_loaded_model_names_what_it_is(reader: LanguageModel) -> None:
    scheme = QuantScheme.uniform(reader.spec.num_layers)
    identity = identify(reader.spec, reader.prompt.prefix_ids, scheme)
    assert identity.shape == (10, 2, 64)
    assert identity.scheme == "int8*10"
    assert json.loads(identity.config)["rope_parameters"]["rope_theta"] == 100000
    assert identity.prefix == hash_tokens(reader.prompt.prefix_ids)
    assert identity.weights == reader.spec.weights_fingerprint
    assert identity.weights != identity.tokenizer

    for other in (
        identify(reader.spec, [*reader.prompt.prefix_ids, 1], scheme),
        identify(reader.spec, reader.prompt.prefix_ids, QuantScheme.uniform(10, LayerScheme(raw=True))),
        identify(reader.spec, reader.prompt.prefix_ids, scheme, adapter="a"),
        identify(reader.spec, reader.prompt.prefix_ids, scheme, drift_epoch=1),
        identify(replace(reader.spec, weight_quantization="int8"), reader.prompt.prefix_ids, scheme),
        identify(replace(reader.spec, config_json="{}"), reader.prompt.prefix_ids, scheme),
        identify(replace(reader.spec, tokenizer_fingerprint="other"), reader.prompt.prefix_ids, scheme),
        identify(replace(reader.spec, weights_fingerprint="other"), reader.prompt.prefix_ids, scheme),
    ):
        assert other.namespace() != identity.namespace()


@pytest.mark.parametrize("part", OTHER)
def test_in_a_real_store_any_other_part_is_a_miss(part: str, tmp_path: Path) -> None:
    """The same tokens after a change of one part alone: nothing is read, nothing is lost, both may stand."""
    ids = [5, 6, 7]
    before = kv_key(BASE.namespace(), ids)
    after = kv_key(replace(BASE, **{part: OTHER[part]}).namespace(), ids)  # type: ignore[arg-type]
    with Store.open(tmp_path, made.settings(), writer=True) as store:
        store.put_document(made.document(Path("/d/a"), ["text"]), made.chunks(["text"]), made.stamp())
        assert store.put_kv(before, made.kv_for(before), [made.chunk_id("text")], 0.5)
        assert store.get_kv([after]) == [None]
        assert [chunk.text for chunk in store.chunks_without_kv(after.namespace, 9)] == ["text"]
        assert store.put_kv(after, made.kv_for(after), [made.chunk_id("text")], 0.5)
        for key, kv in zip((before, after), store.get_kv([before, after]), strict=True):
            assert made.same(kv, made.kv_for(key))
