"""The slab cache appends in place, crops by a number, and gives the model the same logits as transformers' cache."""

from __future__ import annotations

import pytest
import torch
from transformers import DynamicCache

from desk_rag.kv.cache import SlabCache
from desk_rag.model.language_model import LanguageModel
from tests.models import FAMILIES, build_model


@pytest.fixture(scope="module")
def model() -> LanguageModel:
    return build_model(next(family for family in FAMILIES if family.name == "qwen2"))


def test_a_model_computes_the_same_over_it_as_over_a_dynamic_cache(model: LanguageModel) -> None:
    ids = torch.arange(20, 60)
    ours, theirs = SlabCache(model, 64), DynamicCache()
    for start, end in ((0, 25), (25, 26), (26, 40)):
        part = ids[start:end]
        assert torch.equal(model.forward_all(part, ours, start), model.forward_all(part, theirs, start))
    assert ours.get_seq_length() == theirs.get_seq_length() == 40
    assert ours.layers[1].keys.equal(theirs.layers[1].keys)


def test_appending_copies_the_new_token_only(model: LanguageModel) -> None:
    cache = SlabCache(model, 10)
    place = cache.layers[0].key_slab.data_ptr()
    model.forward(torch.tensor([7, 8, 9]), cache, 0, logits=False)
    assert cache.layers[0].keys.data_ptr() == place
    assert cache.layers[0].keys.shape[2] == 3
    before = cache.layers[0].keys.clone()
    model.forward(torch.tensor([7]), cache, 3, logits=False)
    assert cache.layers[0].keys.data_ptr() == place
    assert cache.layers[0].keys[:, :, :3].equal(before)


def test_a_cropped_cache_answers_as_if_nothing_had_followed(model: LanguageModel) -> None:
    context, question = torch.arange(20, 40), torch.arange(60, 66)
    cache = SlabCache(model, 40)
    model.forward(context, cache, 0, logits=False)
    first = model.forward_all(question, cache, 20)
    cache.crop(-6)
    assert cache.get_seq_length() == 20
    again = model.forward_all(question, cache, 20)
    assert first.equal(again)


def test_cropping_by_a_positive_number_is_refused_like_transformers_does(model: LanguageModel) -> None:
    """A positive length once meant 'keep so many'; accepting it would leave a stale question in the cache."""
    cache = SlabCache(model, 10)
    cache.set_length(5)
    with pytest.raises(AssertionError):
        cache.crop(3)
    with pytest.raises(AssertionError):
        cache.crop(-6)
    cache.crop(0)
    assert cache.get_seq_length() == 5


def test_written_slots_count_only_once_declared(model: LanguageModel) -> None:
    cache = SlabCache(model, 12)
    keys, values = cache.write(1, 4, 3)
    assert keys.shape == values.shape == (model.spec.num_kv_heads, 3, model.spec.head_dim)
    keys.fill_(2.0)
    values.fill_(3.0)
    assert cache.get_seq_length() == 0
    cache.set_length(7)
    assert cache.layers[1].keys.shape[2] == 7
    assert (cache.layers[1].keys[0, :, 4:7] == 2).all()
    assert (cache.layers[1].values[0, :, 4:7] == 3).all()


def test_more_than_its_capacity_is_a_programming_error(model: LanguageModel) -> None:
    cache = SlabCache(model, 4)
    with pytest.raises(AssertionError, match="slab too small"):
        model.forward(torch.arange(20, 25), cache, 0, logits=False)
    with pytest.raises(AssertionError):
        cache.set_length(5)


def test_dtype_is_the_models_unless_another_is_asked_for(model: LanguageModel) -> None:
    assert SlabCache(model, 4).layers[0].key_slab.dtype is torch.float32
    assert SlabCache(model, 4, torch.bfloat16).layers[0].value_slab.dtype is torch.bfloat16
