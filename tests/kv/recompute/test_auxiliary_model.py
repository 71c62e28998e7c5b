"""The auxiliary model looks at its own tokens, remembers its own chunk KV, and is heard across tokenizers."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from desk_rag.errors import UnsupportedModel
from desk_rag.kv.recompute import attention_scores
from desk_rag.kv.recompute.auxiliary_model import AuxiliaryModel, AuxiliaryScores, MemoryKVStore
from desk_rag.kv.recompute.policy import SelectorName
from desk_rag.kv.recompute.selectors import SelectionContext, select
from desk_rag.kv.types import QuantizedKV
from desk_rag.model.language_model import LanguageModel
from tests.kv.stitched_cases import QUESTION, TEXTS, stitched_case
from tests.models import FAMILIES, build_model


@pytest.fixture(scope="module")
def small() -> LanguageModel:
    return build_model(next(family for family in FAMILIES if family.name == "qwen3"))


class CountingShelf(MemoryKVStore):
    """Counts what had to be prefilled."""

    def __init__(self) -> None:
        super().__init__()
        self.learnt = 0

    def put(self, token_ids: tuple[int, ...], kv: QuantizedKV) -> None:
        self.learnt += 1
        super().put(token_ids, kv)


def test_weights_are_the_last_layer_s_attention(small: LanguageModel) -> None:
    looked = AuxiliaryModel(small).score(TEXTS, QUESTION)
    case = stitched_case(small)
    seen = attention_scores.question_attention(small, case.stitched, case.question_ids, [small.spec.num_layers - 1])
    start = 0
    for scores, ids, text in zip(looked, case.chunk_ids, TEXTS, strict=True):
        inner = [index for index, span in enumerate(scores.spans)]
        assert len(scores.weights) == len(inner) == len(text)
        expected = seen.mean((0, 1, 2))[start + 1 : start + 1 + len(text)]
        # The auxiliary model's chunk KV is int8, the other is not.
        assert torch.allclose(scores.weights, expected, rtol=0.2, atol=2e-3)
        start += len(ids)


def test_a_chunk_is_prefilled_once_whatever_stands_around_it(small: LanguageModel) -> None:
    shelf = CountingShelf()
    auxiliary = AuxiliaryModel(small, shelf=shelf)
    auxiliary.prefill(TEXTS[1:2])
    assert shelf.learnt == 1
    auxiliary.score(TEXTS, QUESTION)
    auxiliary.score(TEXTS[::-1], "What was serviced?")
    assert shelf.learnt == len(TEXTS)


def test_the_shelf_lets_go_of_what_was_used_longest_ago(small: LanguageModel) -> None:
    auxiliary = AuxiliaryModel(small)
    kvs = auxiliary.prefill(TEXTS)
    ids = [tuple(small.prompt.chunk_ids(text)) for text in TEXTS]
    shelf = MemoryKVStore(kvs[0].nbytes + kvs[2].nbytes)
    shelf.put(ids[0], kvs[0])
    shelf.put(ids[1], kvs[1])
    assert shelf.get(ids[:1]) == kvs[:1]
    shelf.put(ids[2], kvs[2])
    assert shelf.get(ids) == [kvs[0], None, kvs[2]]
    shelf.put(ids[0], kvs[0])
    assert shelf.get(ids[2:]) == kvs[2:]


def test_more_text_than_fits_is_read_in_turns(small: LanguageModel) -> None:
    whole = AuxiliaryModel(small)
    narrow = AuxiliaryModel(small)
    narrow._max_chunk_tokens = len(small.prompt.chunk_ids(TEXTS[2])) + 2
    apart = narrow.score(TEXTS, QUESTION)
    assert [scores.spans for scores in apart] == [scores.spans for scores in whole.score(TEXTS, QUESTION)]
    assert all(torch.isfinite(scores.weights).all() for scores in apart)
    with pytest.raises(UnsupportedModel, match="auxiliary"):
        narrow.score([TEXTS[2] + " And on."], QUESTION)
    with pytest.raises(UnsupportedModel, match="auxiliary"):
        narrow.has([TEXTS[2] + " And on."])


def test_no_text_is_nothing_to_look_at(small: LanguageModel) -> None:
    assert AuxiliaryModel(small).score([], QUESTION) == []


class Pointing(AuxiliaryModel):
    """Looks hard at one word, in tokens of three letters."""

    def __init__(self, word: str) -> None:
        self.word = word

    def score(self, texts: object, question: str) -> list[AuxiliaryScores]:
        looked = []
        for text in TEXTS:
            spans = tuple((at, min(at + 3, len(text))) for at in range(0, len(text), 3))
            start = text.find(self.word)
            hit = [float(0 <= start < b and a < start + len(self.word)) for a, b in spans]
            looked.append(AuxiliaryScores(torch.tensor(hit), spans))
        return looked


def test_windows_of_its_tokens_become_tokens_of_the_answering_model(small: LanguageModel) -> None:
    """Windows of 8 tokens of 3 letters: characters 0-23 and 24-33 of the third text."""
    case = stitched_case(small)
    context: SelectionContext = replace(case.context, auxiliary=Pointing("moved to Porto, th"))
    ratio = 24 / sum(len(ids) for ids in case.chunk_ids)
    chosen = select(SelectorName.AUX, ratio, context)
    first = case.stitched.plan.placements[2].slot + 1  # behind the frame's first token
    assert chosen.slots == tuple(range(first, first + 24))
    # As published, picks equal the budget: eight take the window they fall in, five leave it.
    strict = select(SelectorName.AUX_STRICT, ratio, context)
    assert strict.slots == chosen.slots
    assert select(SelectorName.AUX_STRICT, ratio * 5 / 8, context).slots == ()
