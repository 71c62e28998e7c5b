"""The walk takes the best sentence, lays it as decoding would have, and decoding goes on from there."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from desk_rag import generate
from desk_rag.config import ModelSettings
from desk_rag.embedding import Embedder, load_embedder
from desk_rag.kv.cache import SlabCache
from desk_rag.kv.lazy_attention import LazyContext
from desk_rag.kv.lazy_cache import LazyCache
from desk_rag.kv.passes import ModelPass, Pass, Slab
from desk_rag.kv.prefill import prefill_chunk, prefill_prefix
from desk_rag.kv.quant import QuantScheme, quantize
from desk_rag.kv.rope import build_tables
from desk_rag.kv.stitch import plan
from desk_rag.model import LanguageModel, load_model
from desk_rag.quote_walk import Laid, QuoteChooser, Rule
from desk_rag.sentences import quotable

LEASE = (
    "Lease\n\nThe tenants may take in a lodger if they tell the landlord the lodger's name beforehand. The tenants pay "
    "a deposit of 1,740 crowns, which is two months' rent. The tenants have the chimney swept once a year."
)
REPAIRS = "Repairs\n\nMr. Orde fitted the windows in May. The boiler was repaired by Falk & Sons.\nI paid them in cash."
TEXTS = (REPAIRS, LEASE)
DEPOSIT = "What deposit do the tenants pay?"


@pytest.fixture(scope="module")
def embedder() -> Embedder:
    return load_embedder(ModelSettings(device="cpu"))


class Known:
    """Vectors of one number, the cosine with every question."""

    is_embedded = True

    def __init__(self, cosines: Mapping[str, float]) -> None:
        self._cosines = cosines
        self.asked: list[str] = []

    def embed_chunks(self, texts: Sequence[str]) -> NDArray[np.float32]:
        self.asked += texts
        return np.array([[self._cosines.get(text, 0.0)] for text in texts], dtype=np.float32)

    def embed_question(self, text: str) -> NDArray[np.float32]:
        return np.ones(1, dtype=np.float32)


class Asked:
    """A question read behind its chunks, by a pass over one kind of cache."""

    def __init__(self, run: Pass, start: int, logits: torch.Tensor) -> None:
        self.run, self.start, self.logits = run, start, logits.clone()

    def choose(self, chooser: QuoteChooser, question: str, room: int = 160) -> Laid | None:
        first = int(self.logits.argmax())
        return chooser.choose(question, TEXTS, self.run, first, self.logits, self.start, room)


def over_full(model: LanguageModel, question: str) -> Asked:
    run = ModelPass(model, SlabCache(model, 700))
    ids = [*model.prompt.prefix_ids, *(token for text in TEXTS for token in model.prompt.chunk_ids(text))]
    ids += model.prompt.question_ids(question)
    return Asked(run, len(ids), run.forward(ids, 0))


def over_lean(model: LanguageModel, question: str) -> Asked:
    slab = Slab(model, prefill_prefix(model), build_tables(model, 700), 700, lean=True)
    assert slab.lean is not None
    ids = [*model.prompt.prefix_ids, *(token for text in TEXTS for token in model.prompt.chunk_ids(text))]
    ids += model.prompt.question_ids(question)
    run = slab.run()
    return Asked(run, len(ids), run.forward(ids, 0))


def over_lazy(model: LanguageModel, question: str) -> Asked:
    prefix, scheme = prefill_prefix(model), QuantScheme.uniform(model.spec.num_layers)
    chunks = [quantize(prefill_chunk(model, prefix, model.prompt.chunk_ids(text)), scheme) for text in TEXTS]
    where = plan(prefix.num_tokens, [chunk.num_tokens for chunk in chunks])
    cache = LazyCache(model, prefix, LazyContext(chunks, where.placements, build_tables(model, 700)), 300)
    ids = model.prompt.question_ids(question)
    run = ModelPass(model, cache)
    return Asked(run, where.next_position + len(ids), run.forward(ids, where.next_position))


def said(model: LanguageModel, laid: Laid | None) -> str:
    assert laid is not None
    return model.prompt.decode(laid.token_ids)


# Against plain decoding --------------------------------------------------------------------------------------------


def one_by_one(model: LanguageModel, question: str, choose: Callable[[torch.Tensor, list[int]], int]) -> list[int]:
    """Decoded token by token up to a line's end."""
    asked, ids = over_full(model, question), list[int]()
    logits = asked.logits
    while not ids or not model.prompt.decode(ids).endswith("\n"):
        ids.append(choose(logits, ids))
        logits = asked.run.forward(ids[-1:], asked.start + len(ids) - 1)
    return ids


@pytest.mark.parametrize("question", [DEPOSIT, "Who repaired the boiler?", "Who paid, and how?"])
def test_without_weight_and_look_ahead_it_is_greedy_among_the_sentences(reader: LanguageModel, question: str) -> None:
    units = [tuple(reader.prompt.quote_ids(unit)) for text in TEXTS for unit in quotable(text)]

    def allowed(logits: torch.Tensor, ids: list[int]) -> int:
        ways = {unit[len(ids)] for unit in units if unit[: len(ids)] == tuple(ids)}
        return max(ways, key=lambda token: float(logits[token]))

    chooser = QuoteChooser(reader.prompt, Known({}), Rule(weight=0, gate=math.inf, ahead=0))
    laid = over_full(reader, question).choose(chooser, question)
    assert laid is not None
    assert list(laid.token_ids) == one_by_one(reader, question, allowed)


@pytest.mark.parametrize("over", [over_full, over_lean, over_lazy])
def test_the_cache_is_left_as_token_by_token_decoding_leaves_it(
    reader: LanguageModel, embedder: Embedder, over: Callable[[LanguageModel, str], Asked]
) -> None:
    """With branches that were looked into and given up again."""
    chooser = QuoteChooser(reader.prompt, embedder, Rule(margin=math.inf))
    asked, other = over(reader, DEPOSIT), over(reader, DEPOSIT)
    laid = asked.choose(chooser, DEPOSIT)
    assert "a deposit of 1,740 crowns" in said(reader, laid)
    assert laid is not None
    for place, token in enumerate(laid.token_ids):
        expected = other.run.forward([token], other.start + place)
    torch.testing.assert_close(laid.logits, expected, atol=0.05, rtol=0.01)
    end = asked.start + len(laid.token_ids)
    probe = reader.prompt.quote_ids("1,740 crowns")
    torch.testing.assert_close(asked.run.forward(probe, end), other.run.forward(probe, end), atol=0.05, rtol=0.01)


def test_every_kind_of_cache_gives_the_same_quote(reader: LanguageModel, embedder: Embedder) -> None:
    chooser = QuoteChooser(reader.prompt, embedder)
    kinds = (over_full, over_lean, over_lazy)
    quotes = {said(reader, over(reader, DEPOSIT).choose(chooser, DEPOSIT)) for over in kinds}
    assert quotes == {'"The tenants pay a deposit of 1,740 crowns, which is two months\' rent."\n'}


@pytest.mark.gpu
def test_recorded_passes_choose_alike(embedder: Embedder) -> None:
    model = load_model(ModelSettings(device="cuda"))
    chooser = QuoteChooser(model.prompt, embedder, Rule(margin=math.inf))
    quotes = {said(model, over(model, DEPOSIT).choose(chooser, DEPOSIT)) for over in (over_full, over_lean, over_lazy)}
    assert quotes == {'"The tenants pay a deposit of 1,740 crowns, which is two months\' rent."\n'}


# The rule, on logits of our making ---------------------------------------------------------------------------------

ALE, ANT, BEE, CAT = "The ale is dark.", "The ant is small.", "The bee can sting.", "A cat purrs."
ANIMALS = (f"{ALE} {ANT}\n{BEE}\n{CAT}",)


class Scripted:
    """A pass whose logits are 0 but for what `favours` says of the text so far."""

    def __init__(self, model: LanguageModel, favours: Mapping[str, Mapping[str, float]]) -> None:
        self._prompt, self._favours = model.prompt, favours
        self._size = model.module.config.vocab_size
        self.ids: list[int] = []
        self.looked: list[str] = []

    def logits(self) -> torch.Tensor:
        logits = torch.zeros(self._size)
        for text, height in self._favours.get(self._prompt.decode(self.ids), {}).items():
            whole = self._prompt._plain.encode(text, add_special_tokens=False).ids
            logits[whole[0]] = height
        return logits

    def forward(self, token_ids: Sequence[int], start: int) -> torch.Tensor:
        assert start == 7 + len(self.ids)
        self.ids += token_ids
        return self.logits()

    def forward_all(self, token_ids: Sequence[int], start: int) -> torch.Tensor:
        rows = [self.forward([token], start + place) for place, token in enumerate(token_ids)]
        self.looked.append(self._prompt.decode(self.ids))
        return torch.stack(rows)

    def rewind(self, count: int) -> None:
        assert count <= len(self.ids)
        del self.ids[len(self.ids) - count :]


def scripted(
    model: LanguageModel, favours: Mapping[str, Mapping[str, float]], cosines: Mapping[str, float], rule: Rule
) -> tuple[str, Scripted, Known]:
    run, vectors = Scripted(model, {"": {'"': 20.0}, **favours}), Known(cosines)
    logits = run.logits()
    chooser = QuoteChooser(model.prompt, vectors, rule)
    laid = chooser.choose("?", ANIMALS, run, int(logits.argmax()), logits, 7, 160)
    assert laid is not None and list(laid.token_ids) == run.ids
    assert torch.equal(laid.logits, run.logits())
    return said(model, laid).strip('"\n'), run, vectors


@pytest.mark.parametrize(("cosine", "chosen"), [(0.0, BEE), (0.15, BEE), (0.25, ANT)])
def test_nearness_and_likelihood_are_weighed(reader: LanguageModel, cosine: float, chosen: str) -> None:
    favours = {'"The': {" bee": 5.0}}
    got, run, _ = scripted(reader, favours, {ANT: cosine}, Rule(gate=math.inf, ahead=0))
    assert (got, run.looked) == (chosen, [])


def test_close_branches_are_looked_into(reader: LanguageModel) -> None:
    opening = {'"': {"The": 20.0}}
    favours = {**opening, '"The': {" ale": 6.0, " ant": 5.0, " bee": 1.0}, '"The ant': {" is": 9.0}}
    for ahead, chosen in ((0, ALE), (5, ANT)):
        got, run, _ = scripted(reader, favours, {}, Rule(ahead=ahead, looks=2))
        assert got == chosen
        assert len(run.looked) == (2 if ahead else 0)
        assert all(text.startswith(('"The ale is', '"The ant is')) for text in run.looked)
    far = {**favours, '"The': {" ale": 6.0, " ant": 2.5}}
    got, run, _ = scripted(reader, far, {}, Rule())
    assert (got, run.looked) == (ALE, [])


def test_only_what_the_model_might_say_is_embedded(reader: LanguageModel) -> None:
    favours = {'"': {"The": 20.0, "A": 13.0}}
    cosines = {CAT: 0.9}
    got, _, vectors = scripted(reader, favours, cosines, Rule(ahead=0))
    assert got != CAT and sorted(vectors.asked) == sorted([ALE, ANT, BEE])
    got, _, vectors = scripted(reader, favours, cosines, Rule(gate=8, ahead=0))
    assert got == CAT and sorted(vectors.asked) == sorted([ALE, ANT, BEE, CAT])
    got, _, vectors = scripted(reader, {'"': {"A": 20.0}}, cosines, Rule())
    assert got == CAT and vectors.asked == []  # nothing else is left


def test_tokens_that_hold_the_first_word_compete_with_the_mark_alone(reader: LanguageModel) -> None:
    """'"I' is a token of its own."""
    texts = ("I paid them in cash. The boiler hums.",)
    ids = {text: reader.prompt.quote_ids(text) for text in quotable(texts[0])}
    assert len({each[0] for each in ids.values()}) == 2
    for cosine, chosen in ((0.9, "I paid them in cash."), (0.0, "The boiler hums.")):
        run = Scripted(reader, {"": {'"': 20.0, '"I': 16.0}})
        logits = run.logits()
        chooser = QuoteChooser(reader.prompt, Known({"I paid them in cash.": cosine}), Rule(gate=20.0))
        laid = chooser.choose("?", texts, run, int(logits.argmax()), logits, 7, 160)
        assert said(reader, laid) == f'"{chosen}"\n'
        assert run.ids == ids[chosen]


def test_a_long_unit_is_only_begun(reader: LanguageModel) -> None:
    long = " ".join(f"word{number}" for number in range(90))
    run = Scripted(reader, {"": {'"': 20.0}})
    logits = run.logits()
    chooser = QuoteChooser(reader.prompt, Known({long: 0.9}), Rule(gate=math.inf))
    laid = chooser.choose("?", (f"{long}\n{CAT}",), run, int(logits.argmax()), logits, 7, 160)
    text = said(reader, laid)
    assert long.startswith(text[1:]) and 5 < len(text.split()) < 20


@pytest.mark.parametrize(
    ("opening", "texts", "room"),
    [("The", ANIMALS, 160), ('"', (CAT,), 160), ('"', (), 160), ('"', ANIMALS, 1), ('"I', ANIMALS, 160)],
    ids=["no quote", "no choice", "no text", "no room", "no such sentence"],
)
def test_where_there_is_nothing_to_choose_nothing_is_read(
    reader: LanguageModel, opening: str, texts: Sequence[str], room: int
) -> None:
    run = Scripted(reader, {})
    first = reader.prompt._plain.encode(opening, add_special_tokens=False).ids[0]
    laid = QuoteChooser(reader.prompt, Known({}), Rule()).choose("?", texts, run, first, run.logits(), 7, room)
    assert laid is None and run.ids == []


# In the stream -----------------------------------------------------------------------------------------------------


def tokens(
    model: LanguageModel, chooser: QuoteChooser, limit: int, stop: Callable[[], bool] = lambda: False
) -> list[generate.Token]:
    asked = over_full(model, DEPOSIT)

    def quote(run: Pass, first: int, logits: torch.Tensor, start: int, room: int) -> Laid | None:
        return chooser.choose(DEPOSIT, TEXTS, run, first, logits, start, room)

    made = generate.decode(
        model.prompt, asked.run, [0] * asked.start, 0, max_new_tokens=limit, stop=stop,
        prefill=lambda: asked.logits, quote=quote,
    )  # fmt: skip
    return list(made)


def test_a_quote_comes_as_one_token_and_the_answer_follows(reader: LanguageModel, embedder: Embedder) -> None:
    told = tokens(reader, QuoteChooser(reader.prompt, embedder), 160)
    first, quote, *rest = told
    assert first.text == '"' and first.refusal_probability is not None
    assert quote.text == 'The tenants pay a deposit of 1,740 crowns, which is two months\' rent."\n'
    assert "1,740 crowns" in "".join(token.text for token in rest)
    ids = reader.prompt.quote_ids(quote.text.rstrip('"\n'))
    assert [token.count for token in told] == [1, len(ids) - 1, *(1 for _ in rest)]
    assert [token.at for token in told] == sorted(token.at for token in told)


@pytest.mark.parametrize("limit", [1, 2, 9])
def test_the_limit_holds_within_a_quote(reader: LanguageModel, embedder: Embedder, limit: int) -> None:
    told = tokens(reader, QuoteChooser(reader.prompt, embedder), limit)
    assert sum(token.count for token in told) == limit
    text = "".join(token.text for token in told)
    assert '"The tenants pay a deposit of 1,740 crowns'.startswith(text) or limit == 9
    assert any(f'"{unit}'.startswith(text) for unit in quotable(LEASE))


def test_stop_is_asked_before_the_quote_and_behind_it(reader: LanguageModel, embedder: Embedder) -> None:
    for allowed in (0, 1):
        asked = 0

        def stop(allowed: int = allowed) -> bool:
            nonlocal asked
            asked += 1
            return asked > allowed

        told = tokens(reader, QuoteChooser(reader.prompt, embedder), 160, stop)
        assert len(told) == 1 + allowed


def test_without_a_choice_decoding_is_greedy(reader: LanguageModel) -> None:
    chooser = QuoteChooser(reader.prompt, Known({}), Rule())
    asked = over_full(reader, DEPOSIT)
    plain = generate.decode(
        reader.prompt, asked.run, [0] * asked.start, 0, max_new_tokens=60, stop=lambda: False,
        prefill=lambda: asked.logits,
    )  # fmt: skip
    expected = [token.text for token in plain]
    again = over_full(reader, DEPOSIT)

    def quote(run: Pass, first: int, logits: torch.Tensor, start: int, room: int) -> Laid | None:
        return chooser.choose(DEPOSIT, (CAT,), run, first, logits, start, room)

    declined = generate.decode(
        reader.prompt, again.run, [0] * again.start, 0, max_new_tokens=60, stop=lambda: False,
        prefill=lambda: again.logits, quote=quote,
    )  # fmt: skip
    assert [token.text for token in declined] == expected
    assert expected[0] == '"' and len(expected) > 20
