"""Streams end where they should, and never with half a character."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import pytest
import torch

from desk_rag.answering.evidence.selection import PendingToken, SelectedQuote
from desk_rag.answering.evidence.trie_decoding import Decoded
from desk_rag.answering.generation import DecodingStrategy, Greedy, Token, decode, refusal_probability
from desk_rag.kv.cache import SlabCache
from desk_rag.kv.forward.runner import ModelPass, Pass
from desk_rag.model.language_model import LanguageModel
from tests.models import FAMILIES, build_model, stream
from tests.scripted_pass import ScriptedPass

CONTEXT = list(range(40, 60))
STOP_ID = 2


@pytest.fixture(scope="module")
def model() -> LanguageModel:
    return build_model(next(family for family in FAMILIES if family.name == "qwen2"))


@contextmanager
def speaking(model: LanguageModel, ids: Sequence[int]) -> Iterator[None]:
    """While open, the model's most probable tokens are `ids`, one per forward pass; everything else stays real."""
    coming = iter(ids)

    def bend(_module: torch.nn.Module, _inputs: object, output: torch.Tensor) -> torch.Tensor:
        output = output.clone()
        output[..., -1, next(coming)] = output.max() + 10
        return output

    handle = model.module.lm_head.register_forward_hook(bend)
    try:
        yield
    finally:
        handle.remove()


def told(
    model: LanguageModel, *, limit: int = 50, stop: Callable[[], bool] = lambda: False, size: int = 120
) -> list[Token]:
    cache = SlabCache(model, size)
    return list(stream(model, cache, CONTEXT, 0, max_new_tokens=limit, stop=stop))


def as_ids(model: LanguageModel, text: str) -> list[int]:
    return model.prompt._plain.encode(text, add_special_tokens=False).ids


def test_greedy_decoding_over_a_cache_is_greedy_decoding_by_recomputation(model: LanguageModel) -> None:
    cache = SlabCache(model, 60)
    got = "".join(token.text for token in stream(model, cache, CONTEXT, 0, max_new_tokens=12, stop=lambda: False))
    ids = list(CONTEXT)
    for _ in range(12):
        with torch.inference_mode():
            logits = model.module(torch.tensor(ids)[None], use_cache=False).logits[0, -1]
        ids.append(int(logits.argmax()))
        if ids[-1] in model.prompt.stop_ids:
            break
    assert got == model.prompt.decode(ids[len(CONTEXT) :])


def test_positions_go_on_behind_a_prefilled_cache(model: LanguageModel) -> None:
    whole = [token.text for token in told(model, limit=6)]
    cache = SlabCache(model, 60)
    model.forward(torch.tensor(CONTEXT[:15]), cache, 0, logits=False)
    split = stream(model, cache, CONTEXT[15:], 15, max_new_tokens=6, stop=lambda: False)
    assert [token.text for token in split] == whole


@pytest.mark.parametrize("stop_id", [2, 0])
def test_a_stop_id_ends_the_stream_and_is_not_shown(model: LanguageModel, stop_id: int) -> None:
    prompt = model.prompt
    before = prompt.stop_ids
    prompt.stop_ids = frozenset({2, 0})
    try:
        with speaking(model, [*as_ids(model, "yes"), stop_id, *as_ids(model, "never shown")]):
            tokens = told(model)
    finally:
        prompt.stop_ids = before
    assert [token.text for token in tokens] == ["y", "e", "s", ""]


def test_an_answer_may_be_nothing_but_the_stop(model: LanguageModel) -> None:
    with speaking(model, [STOP_ID]):
        tokens = told(model)
    assert [token.text for token in tokens] == [""]
    assert tokens[0].refusal_probability is not None


@pytest.mark.parametrize("limit", [1, 2, 5])
def test_no_more_than_the_limit_and_no_pass_too_many(model: LanguageModel, limit: int) -> None:
    """The iterator of forced tokens is exactly as long as the limit: one pass more would raise StopIteration."""
    with speaking(model, as_ids(model, "abcdefgh")[:limit]):
        tokens = told(model, limit=limit)
    assert "".join(token.text for token in tokens) == "abcdefgh"[:limit]
    assert len(tokens) == limit


def test_stop_is_asked_between_tokens_and_keeps_what_came(model: LanguageModel) -> None:
    asked = 0

    def stop() -> bool:
        nonlocal asked
        asked += 1
        return asked == 3

    with speaking(model, as_ids(model, "abcdefgh")):
        tokens = told(model, stop=stop)
    assert "".join(token.text for token in tokens) == "abc"
    assert asked == 3


def test_a_character_of_several_tokens_is_held_back_until_it_is_whole(model: LanguageModel) -> None:
    text = "é€🙂x"
    with speaking(model, [*as_ids(model, text), STOP_ID]):
        pieces = [token.text for token in told(model)]
    assert pieces == ["", "é", "", "", "€", "", "", "", "🙂", "x", ""]


def test_half_a_character_at_the_limit_comes_out_once_as_a_replacement(model: LanguageModel) -> None:
    ids = as_ids(model, "a🙂")[:3]
    with speaking(model, ids):
        tokens = told(model, limit=3)
    text = "".join(token.text for token in tokens)
    assert text[0] == "a"
    assert set(text[1:]) == {"\ufffd"}
    assert text == model.prompt.decode(ids)


def test_half_a_character_before_the_stop_comes_out_with_it(model: LanguageModel) -> None:
    with speaking(model, [*as_ids(model, "🙂")[:2], STOP_ID]):
        tokens = told(model)
    assert [token.text for token in tokens][:2] == ["", ""]
    assert set(tokens[2].text) == {"\ufffd"}


def test_the_pieces_together_are_the_decoded_whole(reader: LanguageModel) -> None:
    """With a tokenizer whose tokens depend on their neighbours."""
    text = "“Grüße”, said Zoë – 12.50 € for the 2nd 🙂, naïve café"
    ids = reader.prompt._plain.encode(text, add_special_tokens=False).ids
    with speaking(reader, [*ids, *reader.prompt.stop_ids]):
        cache = SlabCache(reader, 400)
        tokens = list(stream(reader, cache, [900, 901], 0, max_new_tokens=300, stop=lambda: False))
    assert "".join(token.text for token in tokens) == text
    assert not any("\ufffd" in token.text for token in tokens)


def test_times_rise_and_only_the_first_token_has_a_refusal_probability(model: LanguageModel) -> None:
    first = model.prompt.no_answer_ids()[0]
    with speaking(model, [first, *as_ids(model, "bcd")]):
        tokens = told(model, limit=4)
    assert [token.sampled_at for token in tokens] == sorted(token.sampled_at for token in tokens)
    assert tokens[0].refusal_probability is not None
    assert tokens[0].refusal_probability > 0.5
    assert all(token.refusal_probability is None for token in tokens[1:])
    with speaking(model, as_ids(model, "z")):
        assert (told(model, limit=1)[0].refusal_probability or 0.0) < 0.5


@pytest.mark.parametrize("other", [None, 3], ids=["refused", "goes on otherwise"])
def test_a_refusal_takes_one_pass_and_may_turn_into_something_else(model: LanguageModel, other: int | None) -> None:
    """What the model says does not depend on what was read ahead."""
    ids, size = model.prompt.no_answer_ids(), model.module.config.vocab_size
    said = [*ids, STOP_ID] if other is None else [*ids[:other], *as_ids(model, "xyz"), STOP_ID]

    def says(seen: tuple[int, ...]) -> dict[int, float]:
        return {said[min(len(seen), len(said) - 1)]: 30.0}

    one_by_one, at_once = (ScriptedPass(size, says, reads_at_once=at_once) for at_once in (False, True))
    texts = [
        [token.text for token in decode(model.prompt, run, run.logits(), 7, max_new_tokens=50, stop=lambda: False)]
        for run in (one_by_one, at_once)
    ]
    assert texts[0] == texts[1] and "".join(texts[0]) == model.prompt.decode(said[:-1])
    assert one_by_one.ids == at_once.ids == said[:-1]
    assert len(one_by_one.read) == len(said) - 1 and one_by_one.looked == []
    assert at_once.looked == [tuple(ids)] and len(at_once.read) == (0 if other is None else 3)


# What is laid ------------------------------------------------------------------------------------------------------


class Laying(Greedy):
    """Lays `ids` by reading them, and `answer` behind them, the id that ends answers apart; knows what it was asked."""

    def __init__(self, ids: Sequence[int] | None, answer: Sequence[int] = ()) -> None:
        self._ids, self._answer = ids, answer
        self.asked: list[tuple[int, int, int]] = []

    def select_quote(self, pending: PendingToken, max_tokens: int) -> SelectedQuote | None:
        assert int(pending.logits.argmax()) == pending.token_id
        self.asked.append((pending.token_id, pending.position, max_tokens))
        if self._ids is None:
            return None
        quote = Decoded(tuple(self._ids), pending.run.forward(self._ids, pending.position))
        append_answer = partial(self._answered, pending.run, quote, pending.position + len(self._ids))
        return SelectedQuote(quote, append_answer, is_answered=bool(self._answer))

    def _answered(self, run: Pass, quote: Decoded, start: int) -> Decoded | None:
        if not self._answer:
            return None
        read = [token for token in self._answer if token != STOP_ID]
        return Decoded((*quote.token_ids, *self._answer), run.forward(read, start))


def with_laid(
    model: LanguageModel, strategy: DecodingStrategy, *, limit: int = 50, stop: Callable[[], bool] = lambda: False
) -> list[Token]:
    run = ModelPass(model, SlabCache(model, 120))
    logits, position = run.forward(CONTEXT, 0), len(CONTEXT)
    return list(decode(model.prompt, run, logits, position, max_new_tokens=limit, stop=stop, strategy=strategy))


def test_behind_what_was_laid_decoding_goes_on_as_if_it_had_said_that(model: LanguageModel) -> None:
    """Positions, cache and logits: the model's own first tokens, laid, are followed by its own next ones."""
    run = ModelPass(model, SlabCache(model, 60))
    logits, ids = run.forward(CONTEXT, 0), list[int]()
    for place in range(12):
        ids.append(int(logits.argmax()))
        logits = run.forward(ids[-1:], len(CONTEXT) + place)
    assert STOP_ID not in ids
    for count in (1, 2, 7, 12):
        quote = Laying(ids[:count])
        tokens = with_laid(model, quote, limit=12)
        assert quote.asked == [(ids[0], len(CONTEXT), 12)]
        assert [token.count for token in tokens][: 14 - count] == [1, count - 1, *(1 for _ in ids[count:])]
        assert "".join(token.text for token in tokens) == model.prompt.decode(ids)


def test_another_first_token_is_told_read_and_shown_to_who_lays(model: LanguageModel) -> None:
    """Only the first is asked for, and the model goes on from what it was given."""
    run = ModelPass(model, SlabCache(model, 60))
    begins = int(run.forward(CONTEXT, 0).argmax())
    other, asked = as_ids(model, "x")[0], list[int]()
    assert begins != other
    expected = int(run.forward([other], len(CONTEXT)).argmax())

    class Opening(Greedy):
        def first_token(self, first: int) -> int:
            asked.append(first)
            return other

    run.rewind(len(CONTEXT) + 1)
    tokens = with_laid(model, Opening(), limit=2)
    assert asked == [begins]
    assert "".join(token.text for token in tokens) == model.prompt.decode([other, expected])
    # the reported probability is the model's own
    assert tokens[0].refusal_probability == refusal_probability(model.prompt, run.forward(CONTEXT, 0))


def test_what_ends_with_a_stop_id_ends_the_stream(model: LanguageModel) -> None:
    """Without a pass more: `speaking` has words for the question's and the laid ones only."""
    ids = as_ids(model, "all of it")
    quote = Laying(ids[:3], [*ids[3:], STOP_ID])
    with speaking(model, [ids[0]] * 3):
        tokens = with_laid(model, quote)
    assert [(token.text, token.count) for token in tokens] == [("a", 1), ("ll", 2), (" of it", len(ids) - 2)]
    assert [token.refusal_probability is None for token in tokens] == [False, True, True]
    assert tokens[0].sampled_at <= tokens[1].sampled_at <= tokens[2].sampled_at


def test_who_is_stopped_behind_the_quote_lays_no_answer(model: LanguageModel) -> None:
    """Without a pass more, as above."""
    ids, asked = as_ids(model, "all of it"), list[int]()

    def stop() -> bool:
        asked.append(len(asked))
        return len(asked) == 2

    with speaking(model, [ids[0]] * 2):
        tokens = with_laid(model, Laying(ids[:3], [*ids[3:], STOP_ID]), stop=stop)
    assert [token.text for token in tokens] == ["a", "ll"]


def test_half_a_character_at_the_end_of_what_was_laid(model: LanguageModel) -> None:
    """It is held back where words follow, and told where none do."""
    ids = as_ids(model, "a\N{SLIGHTLY SMILING FACE}")
    with speaking(model, [ids[0], *ids[3:], STOP_ID]):
        tokens = with_laid(model, Laying(ids[:3]))
    assert [token.text for token in tokens] == ["a", "", "", "\N{SLIGHTLY SMILING FACE}", ""]
    with speaking(model, [ids[0]] * 3):
        tokens = with_laid(model, Laying(ids[:2], [ids[2], STOP_ID]))
    assert [token.text for token in tokens[:-1]] == ["a", "", ""] and set(tokens[-1].text) == {"\ufffd"}


def test_nothing_is_laid_where_nothing_may_follow(model: LanguageModel) -> None:
    first = as_ids(model, "a")
    for words, limit, stopped in (([STOP_ID], 9, False), (first, 1, False), (first, 9, True)):
        quote = Laying(first)
        with speaking(model, words):
            tokens = with_laid(model, quote, limit=limit, stop=lambda stopped=stopped: stopped)  # type: ignore[misc]
        assert len(tokens) == 1 and quote.asked == []


def test_who_lays_nothing_is_asked_once_and_changes_nothing(model: LanguageModel) -> None:
    quote = Laying(None)
    assert [token.text for token in with_laid(model, quote, limit=8)] == [token.text for token in told(model, limit=8)]
    assert len(quote.asked) == 1


@pytest.mark.parametrize("length", [4, 5])
def test_what_was_laid_counts_against_the_limit(model: LanguageModel, length: int) -> None:
    ids = as_ids(model, "abcdefgh")[:length]
    with speaking(model, [ids[0], *as_ids(model, "xyz")]):
        tokens = with_laid(model, Laying(ids), limit=5)
    assert "".join(token.text for token in tokens) == ("abcdx" if length == 4 else "abcde")
    assert sum(token.count for token in tokens) == 5
