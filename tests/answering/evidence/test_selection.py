"""The walk takes the best sentence and the best span of it and lays both as decoding would have."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence

import pytest
import torch

from desk_rag.answering import generation
from desk_rag.answering.evidence.quote_matching import DOUBLE_QUOTES
from desk_rag.answering.evidence.selection import (
    EvidenceDecoding,
    EvidenceSelector,
    PendingToken,
    SelectedQuote,
    SelectionConfig,
)
from desk_rag.answering.evidence.span_scorer import SpanScorer, SpanScores, _Window, load_span_scorer
from desk_rag.answering.evidence.trie_decoding import Decoded, LookaheadConfig, log_probabilities
from desk_rag.answering.requirements.places import Place, bare
from desk_rag.config import ModelSettings
from desk_rag.documents.sentences import quotable
from desk_rag.kv.cache import SlabCache
from desk_rag.kv.forward.runner import ModelPass, ModelRunner, Pass
from desk_rag.kv.lazy.cache import LazyCache
from desk_rag.kv.lazy.reference import LazyContext
from desk_rag.kv.positions import plan
from desk_rag.kv.prefill import prefill_chunk, prefill_prefix
from desk_rag.kv.quant import QuantScheme, quantize
from desk_rag.kv.rope import build_tables
from desk_rag.model.language_model import LanguageModel
from desk_rag.model.loading import load_model
from desk_rag.model.prompt import NO_ANSWER
from desk_rag.retrieval import embedding
from tests.scripted_pass import ScriptedPass

LEASE = (
    "Lease\n\nThe tenants may take in a lodger if they tell the landlord the lodger's name beforehand. The tenants pay "
    "a deposit of 1,740 crowns, which is two months' rent. The tenants have the chimney swept once a year."
)
REPAIRS = "Repairs\n\nMr. Orde fitted the windows in May. The boiler was repaired by Falk & Sons.\nI paid them in cash."
TEXTS = (REPAIRS, LEASE)
DEPOSIT, BOILER = "What deposit do the tenants pay?", "Who repaired the boiler?"
QUOTE = '"The tenants pay a deposit of 1,740 crowns, which is two months\' rent."\n'
EVERYWHERE, NOWHERE = LookaheadConfig(margin=math.inf), LookaheadConfig(num_tokens=0)


@pytest.fixture(scope="module")
def pointer() -> SpanScorer:
    return load_span_scorer(embedding.load_embedder(ModelSettings(device="cpu")))


class Known:
    """A pointer that thinks of every sentence what `worths` says, else 0, and of its spans what `spans` says.

    A sentence without spans of its own is one span.
    """

    fingerprint = "known"

    def __init__(self, worths: Mapping[str, float] | None = None, spans: Mapping[str, float] | None = None) -> None:
        self._worths, self._spans = worths or {}, spans or {}
        self.asked: list[str] = []

    def read(self, question: str, chunks: Sequence[str | Place]) -> list[SpanScores]:
        texts = [bare(chunk).text for chunk in chunks]
        self.asked += texts
        return [self._field(text) for text in texts]

    def _field(self, text: str) -> SpanScores:
        pieces = tuple(match.span() for match in re.finditer(r"\w+|[^\w\s]", text))
        firsts, lasts = [begin for begin, _ in pieces], [end for _, end in pieces]
        scores = torch.full((len(pieces), len(pieces)), -torch.inf)
        for unit in quotable(text):
            scores_by_span = {span: score for span, score in self._spans.items() if span in unit}
            for span, score in (scores_by_span or {unit: self._worths.get(unit, 0.0)}).items():
                begin = text.index(unit) + unit.index(span)
                scores[firsts.index(begin), lasts.index(begin + len(span))] = score
        return SpanScores([_Window(pieces, scores)])


class Asked:
    """A question read behind its chunks, by a pass over one kind of cache."""

    def __init__(self, run: Pass, start: int, logits: torch.Tensor) -> None:
        self.run, self.start, self.logits = run, start, logits.clone()

    def choose(
        self, chooser: EvidenceSelector, question: str, room: int = 160, texts: Sequence[str] = TEXTS
    ) -> Decoded | None:
        first = int(self.logits.argmax())
        quoted = chooser.select_quote(question, texts, PendingToken(self.run, first, self.logits, self.start), room)
        return None if quoted is None else quoted.append_answer() or quoted.quote


Over = Callable[[LanguageModel, str], Asked]


def over_full(model: LanguageModel, question: str, texts: Sequence[str] = TEXTS) -> Asked:
    run = ModelPass(model, SlabCache(model, 700))
    ids = [*model.prompt.prefix_ids, *(token for text in texts for token in model.prompt.chunk_ids(text))]
    ids += model.prompt.question_ids(question)
    return Asked(run, len(ids), run.forward(ids, 0))


def over_lean(model: LanguageModel, question: str) -> Asked:
    slab = ModelRunner(model, prefill_prefix(model), build_tables(model, 700), 700, fused=True)
    assert slab.fused is not None
    ids = [*model.prompt.prefix_ids, *(token for text in TEXTS for token in model.prompt.chunk_ids(text))]
    ids += model.prompt.question_ids(question)
    run = slab.run()
    return Asked(run, len(ids), run.forward(ids, 0))


def over_lazy(model: LanguageModel, question: str) -> Asked:
    prefix, scheme = prefill_prefix(model), QuantScheme.uniform(model.spec.num_layers)
    chunks = [quantize(prefill_chunk(model, prefix, model.prompt.chunk_ids(text)), scheme) for text in TEXTS]
    where = plan(prefix.num_tokens, [chunk.num_tokens for chunk in chunks])
    cache = LazyCache(model, prefix, LazyContext(tuple(chunks), where.placements, build_tables(model, 700)), 300)
    ids = model.prompt.question_ids(question)
    run = ModelPass(model, cache)
    return Asked(run, where.next_position + len(ids), run.forward(ids, where.next_position))


KINDS: tuple[Over, ...] = (over_full, over_lean, over_lazy)


def said(model: LanguageModel, laid: Decoded | None) -> str:
    assert laid is not None
    return model.prompt.decode(laid.token_ids)


# Against plain decoding --------------------------------------------------------------------------------------------


def one_by_one(model: LanguageModel, pointer: SpanScorer, question: str) -> list[int]:
    """Decoded token by token: greedy among the sentences, then among the spans of the one that is quoted."""
    prompt, asked, ids = model.prompt, over_full(model, question), list[int]()
    units = {tuple(prompt.quote_ids(unit)): (text, unit) for text in TEXTS for unit in quotable(text)}
    ways, logits = list(units), asked.logits
    while True:
        best = int(logits.argmax())
        if tuple(ids) in units:
            if best in prompt.stop_ids or prompt.decode([best])[:1] in DOUBLE_QUOTES:
                return ids
            text, unit = units[tuple(ids)]
            (field,) = pointer.read(question, [text])
            spans = field.best(text.index(unit), text.index(unit) + len(unit), 12)
            ways = [(*ids, *prompt.answer_ids(text[span.begin : span.end])) for span in spans]
        going_on = {way[len(ids)] for way in ways if way[: len(ids)] == tuple(ids)}
        ids.append(max(going_on, key=lambda token: float(logits[token])))
        if ids[-1] in prompt.stop_ids:
            return ids
        logits = asked.run.forward(ids[-1:], asked.start + len(ids) - 1)


@pytest.mark.parametrize("question", [DEPOSIT, BOILER, "Who paid, and how?"])
def test_without_weight_and_look_ahead_it_is_greedy_among_sentences_and_spans(
    reader: LanguageModel, pointer: SpanScorer, question: str
) -> None:
    chooser = EvidenceSelector(
        reader.prompt, pointer, SelectionConfig(sentence_weight=0, span_weight=0, lookahead=NOWHERE)
    )
    laid = over_full(reader, question).choose(chooser, question)
    assert laid is not None
    assert list(laid.token_ids) == one_by_one(reader, pointer, question)


@pytest.mark.parametrize("answered", [True, False], ids=["answer", "quote alone"])
@pytest.mark.parametrize("over", KINDS)
def test_the_cache_is_left_as_token_by_token_decoding_leaves_it(
    reader: LanguageModel, pointer: SpanScorer, over: Over, answered: bool
) -> None:
    """With branches that were looked into and given up again."""
    chooser = EvidenceSelector(reader.prompt, pointer, SelectionConfig(lookahead=EVERYWHERE))
    asked, other = over(reader, DEPOSIT), over(reader, DEPOSIT)
    quote = reader.prompt.quote_ids(QUOTE.strip('"\n'))
    laid = asked.choose(chooser, DEPOSIT, 160 if answered else len(quote))
    assert laid is not None
    read = [token for token in laid.token_ids if token not in reader.prompt.stop_ids]
    assert read[: len(quote)] == quote
    assert len(laid.token_ids) - len(read) == answered, "the id that ends it is told, and is not in the cache"
    for place, token in enumerate(read):
        expected = other.run.forward([token], other.start + place)
    end = asked.start + len(read)
    own_log_probs, wanted = log_probabilities(laid.logits), log_probabilities(expected)
    torch.testing.assert_close(own_log_probs, wanted, atol=0.05, rtol=0.01)
    probe = reader.prompt.quote_ids("1,740 crowns")
    torch.testing.assert_close(asked.run.forward(probe, end), other.run.forward(probe, end), atol=0.05, rtol=0.01)


def test_every_kind_of_cache_gives_the_same_words(reader: LanguageModel, pointer: SpanScorer) -> None:
    chooser = EvidenceSelector(reader.prompt, pointer)
    for question, words in ((DEPOSIT, f"{QUOTE}1,740 crowns"), (BOILER, None), ("When were the windows fitted?", None)):
        quotes = {said(reader, over(reader, question).choose(chooser, question)) for over in KINDS}
        assert len(quotes) == 1 and words in (None, *quotes)


@pytest.mark.gpu
def test_recorded_passes_choose_alike(pointer: SpanScorer) -> None:
    model = load_model(ModelSettings(device="cuda"))
    on_gpu = load_span_scorer(embedding.load_embedder(ModelSettings(device="cuda")))
    for thinks in (pointer, on_gpu):
        chooser = EvidenceSelector(model.prompt, thinks, SelectionConfig(lookahead=EVERYWHERE))
        quotes = {said(model, over(model, DEPOSIT).choose(chooser, DEPOSIT)) for over in KINDS}
        assert quotes == {f"{QUOTE}1,740 crowns"}


# The rule, on logits and worths of our making ----------------------------------------------------------------------

ALE, ANT, BEE, CAT = "The ale is dark.", "The ant is small.", "The bee can sting.", "A cat purrs."
ANIMALS = (f"{ALE} {ANT}\n{BEE}\n{CAT}",)
STOP = "<stop>"
Favours = Mapping[str, Mapping[str, float]]
QUOTES_ALONE: Mapping[str, float] = {STOP: 30.0}


class Scripted(ScriptedPass):
    """Logits are 0 but for what `favours` says of the text so far; `behind` is said of every whole quote."""

    def __init__(self, model: LanguageModel, favours: Favours, behind: Mapping[str, float] = QUOTES_ALONE) -> None:
        self._prompt, self._favours, self._behind = model.prompt, {"": {'"': 20.0}, **favours}, behind
        super().__init__(model.module.config.vocab_size, self._heights)

    def _heights(self, ids: tuple[int, ...]) -> Mapping[int, float]:
        text = self._prompt.decode(ids)
        logits_by_token = self._favours.get(text, self._behind if text.endswith("\n") else {})
        return {self._first(words): height for words, height in logits_by_token.items()}

    def _first(self, words: str) -> int:
        if words == STOP:
            return self._prompt.answer_ids("")[0]
        first: int = self._prompt._plain.encode(words, add_special_tokens=False).ids[0]
        return first

    def lay(
        self, pointer: Known, rule: SelectionConfig, texts: Sequence[str] = ANIMALS, room: int = 160, opening: str = '"'
    ) -> str | None:
        """What is laid, the stop id as STOP."""
        pending = PendingToken(self, self._first(opening), self.logits(), 7)
        quoted = EvidenceSelector(self._prompt, pointer, rule).select_quote("?", texts, pending, room)
        if quoted is None:
            assert self.ids == [] and self.read == [] and pointer.asked == []
            return None
        assert self.ids == list(quoted.quote.token_ids)
        laid = quoted.append_answer() or quoted.quote
        over = laid.token_ids[-1] in self._prompt.stop_ids
        assert list(laid.token_ids[: -1 if over else None]) == self.ids and len(laid.token_ids) <= room
        torch.testing.assert_close(log_probabilities(laid.logits), log_probabilities(self.logits()))
        return self._prompt.decode(laid.token_ids) + (STOP if over else "")

    def looked_into(self) -> list[str]:
        return [self._prompt.decode(ids) for ids in self.looked]


def quoted(unit: str) -> str:
    return f'"{unit}"\n'


@pytest.mark.parametrize(("worth", "chosen"), [(0.0, BEE), (2.4, BEE), (2.6, ANT)])
def test_the_pointers_worth_and_the_readers_likelihood_are_weighed(
    reader: LanguageModel, worth: float, chosen: str
) -> None:
    run = Scripted(reader, {'"The': {" bee": 5.0}})
    rule = SelectionConfig(sentence_weight=2.0, lookahead=NOWHERE)
    assert run.lay(Known({ANT: worth}), rule) == quoted(chosen) and run.looked == []


def test_close_sentences_are_looked_into(reader: LanguageModel) -> None:
    opening = {'"': {"The": 20.0}}
    favours = {**opening, '"The': {" ale": 6.0, " ant": 5.0, " bee": 1.0}, '"The ant': {" is": 9.0}}
    for ahead, chosen in ((0, ALE), (5, ANT)):
        run = Scripted(reader, favours)
        assert run.lay(
            Known(), SelectionConfig(lookahead=LookaheadConfig(num_tokens=ahead, max_candidates=2))
        ) == quoted(chosen)
        assert len(run.looked) == (2 if ahead else 0)
        assert all(text.startswith(('"The ale is', '"The ant is')) for text in run.looked_into())
    run = Scripted(reader, {**favours, '"The': {" ale": 6.0, " ant": 2.5}})
    assert run.lay(Known(), SelectionConfig()) == quoted(ALE) and run.looked == []


def test_the_pointer_reads_every_different_chunk_once(reader: LanguageModel) -> None:
    """What the reader would hardly begin with is weighed as well."""
    near, far, none = f"{ALE} {ANT}", f"{CAT}\nA dog barks.", "Prices"
    for worth, chosen in ((2.0, ALE), (9.0, CAT)):
        pointer = Known({CAT: worth})
        selected = Scripted(reader, {'"': {"The": 20.0, "A": 13.0}}).lay(
            pointer, SelectionConfig(lookahead=NOWHERE), (near, far, none, near)
        )
        assert selected == quoted(chosen) and pointer.asked == [near, far, none]


def test_tokens_that_hold_the_first_word_compete_with_the_mark_alone(reader: LanguageModel) -> None:
    """'"I' is a token of its own."""
    cash, boiler = "I paid them in cash.", "The boiler hums."
    assert reader.prompt.quote_ids(cash)[0] != reader.prompt.quote_ids(boiler)[0]
    for worth, chosen in ((9.0, cash), (0.0, boiler)):
        run = Scripted(reader, {"": {'"': 20.0, '"I': 16.0}})
        assert run.lay(Known({cash: worth}), SelectionConfig(), (f"{cash} {boiler}",)) == quoted(chosen)
        assert run.ids == reader.prompt.quote_ids(chosen)


def test_a_sentence_alone_is_quoted_and_its_answer_chosen(reader: LanguageModel) -> None:
    run = Scripted(reader, {}, {})
    assert run.lay(Known(spans={"purrs": 1.0}), SelectionConfig(), (CAT,)) == f"{quoted(CAT)}purrs{STOP}"


@pytest.mark.parametrize(("first", "second"), [(5.0, 0.0), (0.0, 5.0)])
def test_a_sentence_of_two_chunks_is_worth_what_it_is_in_the_better_one(
    reader: LanguageModel, first: float, second: float
) -> None:
    """And its answer is chosen there."""

    class Unlike(Known):
        def _field(self, text: str) -> SpanScores:
            if text.startswith("One"):
                return Known(spans={"cat": first, "ale": 3.0})._field(text)
            return Known(spans={"purrs": second, "ale": 3.0})._field(text)

    run = Scripted(reader, {}, {})
    selected = run.lay(Unlike(), SelectionConfig(), (f"One animal.\n{CAT}", f"Two animals.\n{CAT}\n{ALE}"))
    assert selected == f"{quoted(CAT)}{'cat' if first else 'purrs'}{STOP}"


@pytest.mark.parametrize("lines", [("most_hours = 60", "hours = 6"), ("hours = 6", "most_hours = 60")], ids=str)
def test_what_stands_within_a_longer_line_too_is_weighed_where_it_stands_itself(
    reader: LanguageModel, lines: tuple[str, str]
) -> None:
    text = "\n".join(lines)

    class OneField(Known):
        def _field(self, text: str) -> SpanScores:
            pieces = tuple(match.span() for match in re.finditer(r"[a-z]+|\d+|[_=]", text))
            scores = torch.full((len(pieces), len(pieces)), -torch.inf)
            for place, (begin, end) in enumerate(pieces):
                scores[place, place] = {"6": 2.0, "60": 1.0, "hours": -9.0}.get(text[begin:end], -torch.inf)
            return SpanScores([_Window(pieces, scores)])

    run = Scripted(reader, {}, {})
    assert run.lay(OneField(), SelectionConfig(), (text,)) == f"{quoted('hours = 6')}6{STOP}"


# Short answers -----------------------------------------------------------------------------------------------------

FERRY = "The ferry to Harwick leaves at noon."
SPANS = {"Harwick": 1.0, "noon": 0.0}


@pytest.mark.parametrize(("height", "chosen"), [(0.0, "Harwick"), (2.9, "Harwick"), (3.1, "noon")])
def test_spans_are_weighed_as_sentences_are(reader: LanguageModel, height: float, chosen: str) -> None:
    run = Scripted(reader, {quoted(FERRY): {"noon": height}})
    selected = run.lay(Known(spans=SPANS), SelectionConfig(span_weight=3.0, lookahead=NOWHERE), (FERRY,))
    assert selected == f"{quoted(FERRY)}{chosen}{STOP}"


def test_close_spans_are_looked_into(reader: LanguageModel) -> None:
    begun = f"{quoted(FERRY)}Har"
    favours = {quoted(FERRY): {"Harwick": 1.0}, quoted(FERRY) + "noon": {STOP: 9.0}}
    for ahead, chosen in ((0, "Harwick"), (5, "noon")):
        run = Scripted(reader, favours)
        selected = run.lay(
            Known(spans={"Harwick": 0.0, "noon": 0.0}),
            SelectionConfig(lookahead=LookaheadConfig(num_tokens=ahead)),
            (FERRY,),
        )
        assert selected == f"{quoted(FERRY)}{chosen}{STOP}"
        assert any(text.startswith(begun) for text in run.looked_into()) == bool(ahead)


def test_words_that_stand_twice_count_as_where_they_are_worth_most(reader: LanguageModel) -> None:
    text = "The ferry and the bus leave at noon, at noon sharp."

    class Twice(Known):
        def _field(self, text: str) -> SpanScores:
            pieces = tuple(match.span() for match in re.finditer(r"\w+", text))
            scores = torch.full((len(pieces), len(pieces)), -torch.inf)
            for place, score in ((7, 2.0), (9, -5.0), (4, 0.0)):
                scores[place, place] = score
            return SpanScores([_Window(pieces, scores)])

    selected = Scripted(reader, {}, {}).lay(Twice(), SelectionConfig(lookahead=NOWHERE), (text,))
    assert selected == f"{quoted(text)}noon{STOP}"


@pytest.mark.parametrize(("end", "on", "chosen"), [(9.0, 5.0, "Falk"), (5.0, 9.0, "Falk & Sons")])
def test_the_reader_says_where_a_span_ends(reader: LanguageModel, end: float, on: float, chosen: str) -> None:
    text = "The boiler was repaired by Falk & Sons."
    run = Scripted(reader, {f"{quoted(text)}Falk": {STOP: end, " &": on}}, {"Falk": 9.0})
    pointer = Known(spans={"Falk": 0.0, "Falk & Sons": 0.0, "boiler": 0.0})
    assert run.lay(pointer, SelectionConfig(lookahead=NOWHERE), (text,)) == f"{quoted(text)}{chosen}{STOP}"


def test_where_the_reader_ends_no_span_is_laid(reader: LanguageModel) -> None:
    """A quote may be the answer."""
    run = Scripted(reader, {quoted(FERRY): {STOP: 9.0, "noon": 8.9}})
    assert run.lay(Known(spans=SPANS), SelectionConfig(), (FERRY,)) == quoted(FERRY)


@pytest.mark.parametrize("behind", ['"', '"The', "noon"])
def test_one_quote_is_enough(reader: LanguageModel, behind: str) -> None:
    """The reader may want to quote again; a question for two facts is asked in two parts instead."""
    run = Scripted(reader, {quoted(FERRY): {behind: 9.0, "noon": 8.9}})
    assert run.lay(Known(spans=SPANS), SelectionConfig(), (FERRY,)) == f"{quoted(FERRY)}noon{STOP}"


def test_a_long_unit_is_only_begun_and_nothing_is_laid_behind_it(reader: LanguageModel) -> None:
    for count, whole in ((60, True), (61, False)):
        long = " ".join(f"word{number}" for number in range(count))
        selected = Scripted(reader, {}, {}).lay(Known({long: 9.0}), SelectionConfig(), (f"{long}\n{CAT}",), 2000)
        assert selected is not None
        if whole:
            assert selected == f"{quoted(long)}{long}{STOP}"
        else:
            assert f'"{long}'.startswith(selected) and 5 < len(selected.split()) < 20


def test_what_is_laid_is_cut_to_its_room(reader: LanguageModel) -> None:
    """No shorter span takes the place of one that does not fit: half a number is told as half, not as the answer."""
    pointer = Known(spans={"0417 301 16": 1.0, "0417 301": 0.9, "0417": 0.8})
    number = "Her number is 0417 301 16."
    whole = [*reader.prompt.quote_ids(number), *reader.prompt.answer_ids("0417 301 16")]
    favours = {quoted(number) + "0417 301": {" ": 9.0}, quoted(number) + "0417": {" ": 9.0}}
    for room in range(2, len(whole) + 2):
        run = Scripted(reader, favours, {})
        selected = run.lay(pointer, SelectionConfig(), (number,), room)
        assert selected == reader.prompt.decode(whole[:room]) + (STOP if room >= len(whole) else "")
        assert run.ids == whole[: min(room, len(whole) - 1)]


@pytest.mark.parametrize(
    ("opening", "texts", "room"),
    [("The", ANIMALS, 160), ('"', (), 160), ('"', ("Prices",), 160), ('"', ANIMALS, 1), ('"I', ANIMALS, 160)],
    ids=["no quote", "no text", "no sentence", "no room", "no such sentence"],
)
def test_where_there_is_nothing_to_quote_nothing_is_read(
    reader: LanguageModel, opening: str, texts: Sequence[str], room: int
) -> None:
    assert Scripted(reader, {}).lay(Known(), SelectionConfig(), texts, room, opening) is None


def test_answers_made_otherwise_have_another_name(reader: LanguageModel) -> None:
    other = Known()
    other.fingerprint = "other"
    choosers = [
        EvidenceSelector(reader.prompt, Known()),
        EvidenceSelector(reader.prompt, other),
        EvidenceSelector(reader.prompt, Known(), SelectionConfig(span_weight=2.0)),
        EvidenceSelector(reader.prompt, Known(), SelectionConfig(lookahead=NOWHERE)),
    ]
    assert len({chooser.name for chooser in choosers}) == 4
    assert choosers[0].name == EvidenceSelector(reader.prompt, Known({CAT: 1.0}), SelectionConfig()).name


def test_long_sentences_that_begin_alike_are_told_apart(reader: LanguageModel) -> None:
    """As clauses of contracts do; each has more words than are quoted whole."""
    head = "This agreement is made between the traders named above and the client named below and provides that the"
    first, second = (f"{head} {kind} {' and'.join([' so forth'] * 50)}." for kind in ("fee", "deposit"))
    for chosen, kind in ((first, "fee"), (second, "deposit")):
        quoted = Scripted(reader, {}, {}).lay(Known({chosen: 9.0}), SelectionConfig(), (f"{first}\n{second}",), 2000)
        assert quoted is not None and quoted.rstrip().endswith(f"the {kind}") and STOP not in quoted


@pytest.mark.parametrize(("worth", "chosen"), [(-3.0, ANT), (-9.0, BEE)])
def test_what_the_pointer_finds_nowhere_it_does_not_choose_by(reader: LanguageModel, worth: float, chosen: str) -> None:
    """Below the floor differences count for nothing, above it as ever."""
    run = Scripted(reader, {'"The': {" bee": 2.0}})
    pointer = Known({ANT: worth, BEE: -20.0, ALE: -20.0, CAT: -20.0})
    assert run.lay(pointer, SelectionConfig(lookahead=NOWHERE)) == quoted(chosen)


# In the stream -----------------------------------------------------------------------------------------------------


def tokens(
    model: LanguageModel,
    chooser: EvidenceSelector,
    limit: int,
    *,
    stop: Callable[[], bool] = lambda: False,
    most: int = 160,
    texts: Sequence[str] = TEXTS,
) -> list[generation.Token]:
    """`most` is how much is laid, `texts` what is laid from."""
    asked = over_full(model, DEPOSIT)

    class Limited(generation.Greedy):
        def select_quote(self, pending: PendingToken, max_tokens: int) -> SelectedQuote | None:
            return chooser.select_quote(DEPOSIT, texts, pending, min(max_tokens, most))

    return list(
        generation.decode(
            model.prompt, asked.run, asked.logits, asked.start, max_new_tokens=limit, stop=stop, strategy=Limited()
        )
    )


def test_the_quote_is_told_and_then_the_answer_which_is_the_last(reader: LanguageModel, pointer: SpanScorer) -> None:
    first, quote, answer = tokens(reader, EvidenceSelector(reader.prompt, pointer), 160)
    assert first.text == '"' and first.refusal_probability is not None and first.count == 1
    assert first.text + quote.text == QUOTE and answer.text == "1,740 crowns"
    assert quote.refusal_probability is answer.refusal_probability is None
    assert quote.count == len(reader.prompt.quote_ids(QUOTE.strip('"\n'))) - 1
    assert answer.count == len(reader.prompt.answer_ids(answer.text))
    assert first.sampled_at <= quote.sampled_at <= answer.sampled_at


def test_behind_a_quote_alone_the_reader_answers(reader: LanguageModel, pointer: SpanScorer) -> None:
    ids = reader.prompt.quote_ids(QUOTE.strip('"\n'))
    first, quote, *rest = tokens(reader, EvidenceSelector(reader.prompt, pointer), 160, most=len(ids))
    assert first.text + quote.text == QUOTE
    assert "1,740 crowns" in "".join(token.text for token in rest)
    assert [token.count for token in (first, quote, *rest)] == [1, len(ids) - 1, *(1 for _ in rest)]


def test_the_limit_holds_within_quote_and_answer(reader: LanguageModel, pointer: SpanScorer) -> None:
    chooser, quote = EvidenceSelector(reader.prompt, pointer), reader.prompt.quote_ids(QUOTE.strip('"\n'))
    whole = [*quote, *reader.prompt.answer_ids("1,740 crowns")]
    for limit in (len(quote) - 1, len(quote), len(quote) + 1, len(whole) - 1, len(whole)):
        token_ids = tokens(reader, chooser, limit)
        assert "".join(token.text for token in token_ids) == reader.prompt.decode(whole[:limit])
        assert sum(token.count for token in token_ids) == limit
    units = [unit for text in TEXTS for unit in quotable(text)]
    for limit in (1, 2, 9):  # so early that other sentences begin alike
        token_ids = tokens(reader, chooser, limit)
        assert sum(token.count for token in token_ids) == limit
        assert any(quoted(unit).startswith("".join(token.text for token in token_ids)) for unit in units)


def test_stop_is_asked_before_what_is_laid_and_behind_a_quote(reader: LanguageModel, pointer: SpanScorer) -> None:
    chooser, room = EvidenceSelector(reader.prompt, pointer), len(reader.prompt.quote_ids(QUOTE.strip('"\n')))
    for allowed, most, count in ((0, 160, 1), (1, 160, 2), (1, room, 2), (2, room, 3), (9, 160, 3)):
        asked = 0

        def stop(allowed: int = allowed) -> bool:
            nonlocal asked
            asked += 1
            return asked > allowed

        assert len(tokens(reader, chooser, 160, stop=stop, most=most)) == count


ABSENT = "Who won the chess tournament of the village?"


@pytest.mark.parametrize(("worth", "speaks"), [(3.9, False), (4.1, True)])
def test_the_reader_finds_no_answer_unless_the_pointer_is_sure(
    reader: LanguageModel, worth: float, speaks: bool
) -> None:
    unit = "The tenants have the chimney swept once a year."
    chooser = EvidenceSelector(reader.prompt, Known({unit: worth}))
    asked = over_full(reader, ABSENT)
    first = int(asked.logits.argmax())
    assert first == reader.prompt.no_answer_ids()[0]
    opens = chooser.first_token(ABSENT, TEXTS, first)
    assert opens == (reader.prompt.quote_ids(unit)[0] if speaks else first)
    tokens = generation.decode(
        reader.prompt, asked.run, asked.logits, asked.start, max_new_tokens=160, stop=lambda: False,
        strategy=EvidenceDecoding(chooser, ABSENT, TEXTS),
    )  # fmt: skip
    text = "".join(token.text for token in tokens)
    assert text.startswith(f'"{unit}"') if speaks else text == NO_ANSWER


@pytest.mark.parametrize(
    ("question", "worth", "speaks"),
    [
        ("How often is the chimney of the tenants swept?", 0.1, True),
        ("How often is the chimney of the tenants swept?", -0.1, False),
        ("How often is the chimney of the tenants painted?", 0.1, False),
        ("Why is the chimney of the tenants swept?", 0.1, False),
    ],
)
def test_a_sentence_with_all_words_of_the_question_needs_less(
    reader: LanguageModel, question: str, worth: float, speaks: bool
) -> None:
    unit = "The tenants have the chimney swept once a year."
    others = {one: -5.0 for text in TEXTS for one in quotable(text)}
    chooser = EvidenceSelector(reader.prompt, Known({**others, unit: worth}))
    refusal, opening = reader.prompt.no_answer_ids()[0], reader.prompt.quote_ids(unit)[0]
    assert chooser.first_token(question, TEXTS, refusal) == (opening if speaks else refusal)


def test_only_a_refusal_is_objected_to(reader: LanguageModel) -> None:
    unit = "The tenants have the chimney swept once a year."
    known = Known({unit: 9.0})
    chooser, (refusal, *_) = EvidenceSelector(reader.prompt, known), reader.prompt.no_answer_ids()
    others = (reader.prompt.quote_ids(unit)[0], refusal + 1, *reader.prompt.stop_ids)
    assert [chooser.first_token(ABSENT, TEXTS, first) for first in others] == list(others) and known.asked == []
    assert chooser.first_token(ABSENT, [], refusal) == chooser.first_token(ABSENT, ["\n"], refusal) == refusal
    never = EvidenceSelector(reader.prompt, known, SelectionConfig(override_refusal_at=math.inf))
    assert never.first_token(ABSENT, TEXTS, refusal) == refusal


def test_without_a_choice_decoding_is_greedy(reader: LanguageModel) -> None:
    asked = over_full(reader, DEPOSIT)
    plain = generation.decode(
        reader.prompt, asked.run, asked.logits, asked.start, max_new_tokens=60, stop=lambda: False
    )
    expected = [token.text for token in plain]
    declined = tokens(reader, EvidenceSelector(reader.prompt, Known()), 60, texts=("Prices",))
    assert [token.text for token in declined] == expected
    assert expected[0] == '"' and len(expected) > 20
