"""Select the sentence an answer quotes, and the span inside it that is the short answer.

Every quotable sentence of the retrieved chunks is a candidate. Its score is the reader's log-probability of generating
it plus a weighted score from the span scorer. The best one is written into the KV cache as if the reader had generated
it; the spans of that sentence are then ranked the same way.

The reader alone would commit to a sentence at its first words, before it has seen where they lead. It still decides
whether there is an answer at all, unless the span scorer is sure of one. A question for two facts is asked in two parts
(`answering.questions`), so one quote is enough.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial

import torch

from desk_rag.answering.evidence.short_answers import ShortAnswers
from desk_rag.answering.evidence.siblings import Siblings, siblings_of
from desk_rag.answering.evidence.span_scorer import SpanScorerLike, SpanScores
from desk_rag.answering.evidence.subjects import tells_doing
from desk_rag.answering.evidence.trie_decoding import (
    Candidate,
    Decoded,
    LookaheadConfig,
    TrieDecoder,
    log_probabilities,
)
from desk_rag.answering.evidence.two_values import ValuePreference
from desk_rag.answering.requirements.answer_kinds import is_of_kind, kind_asked
from desk_rag.answering.requirements.objections import Objections, says_all
from desk_rag.answering.requirements.places import Lookup, Place, bare
from desk_rag.answering.requirements.requirements import Requirements
from desk_rag.answering.requirements.rows import look_up
from desk_rag.answering.requirements.statements.offices import names_holder
from desk_rag.answering.requirements.statements.value_doubts import ValueDoubts
from desk_rag.documents.sentences import quotable, quoted_parts, stands_in
from desk_rag.kv.forward.runner import Pass
from desk_rag.model.prompt import PromptFormat

_MAX_QUOTE_WORDS = 60
"""Maximum words of a quote the reader was trained on. Only the beginning of a longer sentence is selected; the reader
then decides where the quote ends."""
_BEGINNING_WORDS = 12
_MAX_QUOTE_TOKENS = 512
"""Upper bound on quote length when only the first token matters; large enough that no two quotes are truncated to the
same ids."""
_LOOKED_UP = 12.0
"""Least log-odds of the row of a table that the question names, see `rows.look_up`."""
_LEAD = 3.0
"""Log-odds by which a sentence must lead to be the one about what the question names."""
_TELLS_DOING = 2.0
"""Log-odds that a sentence gains that tells what the question says that somebody did."""
_NAMES_HOLDER = 2.0
"""Log-odds that a sentence gains that names the holder of the office that is asked for."""
_OTHER_KIND_NATS = 16.0
"""Nats that a short answer of another kind loses."""
_NUM_SPANS = 12
"""Spans of the quote that are compared as short answers."""


@dataclass(frozen=True, slots=True)
class SelectionConfig:
    """Weights of the reader's log-probabilities and the span scores."""

    sentence_weight: float = 3.0
    """Nats that one unit of span score adds to a sentence."""
    span_weight: float = 3.0
    """Nats that one unit of span score adds to a span."""
    quoted_penalty: float = 8.0
    """Span score that a sentence loses where a mail quotes it from an earlier one: the reply decides."""
    min_log_odds: float = -4.0
    """Smaller span scores count as this: among sentences that all look unanswering, their order means nothing."""
    override_refusal_at: float = 4.0
    """Span score, in log-odds, from which a sentence is quoted even though the reader refused to answer. See "Evidence
    selection and verification" in bench/LOG.md for all four values."""
    override_if_named_at: float = 1.0
    """The same for the one sentence about the year, date or number that the question names."""
    override_if_all_said_at: float = 0.0
    """The same for the sentence with all words of the question, and those that say as much."""
    lookahead: LookaheadConfig = LookaheadConfig()


@dataclass(frozen=True, slots=True)
class PendingToken:
    """A token that was chosen and is not in the cache yet."""

    run: Pass
    token_id: int
    logits: torch.Tensor
    """[vocab], those it was chosen by; valid until the next pass of `run`."""
    position: int


@dataclass(frozen=True, slots=True)
class SelectedQuote:
    """A quote that was written into the cache."""

    quote: Decoded
    append_answer: Callable[[], Decoded | None]
    """Append the short answer; call it before any other pass.

    Returns the ids of quote and answer together, which end with a stop id unless there was no room for one. None, with
    the cache unchanged, if the reader would rather end there."""
    is_answered: bool
    """True if there will be a short answer."""


@dataclass(frozen=True, slots=True)
class _Sentence:
    text: str
    ids: tuple[int, ...]
    is_whole: bool
    """False if `ids` cover only its beginning."""


@dataclass(frozen=True, slots=True)
class _Occurrence:
    """Place of a sentence in a chunk; of several places, the one with the highest score."""

    scores: SpanScores
    chunk: str
    begin: int
    end: int
    penalty: float
    unmet: float
    """Log-odds lost because the sentence is not about what the question names, see `Requirements.penalty`."""

    labels: str
    """Name of the file and headings over it."""
    looked_up: tuple[int, int] | None
    """Characters of the chunk with the cell that the question asks for, if this is the row that it names."""

    @property
    def log_odds(self) -> float:
        return self.scores.log_odds(self.begin, self.end) - self.penalty

    @property
    def rank(self) -> float:
        """Log-odds by which sentences are compared."""
        return self.log_odds - self.unmet if self.looked_up is None else max(self.log_odds, _LOOKED_UP)


@dataclass(frozen=True, slots=True)
class _Penalties:
    """Penalties of sentences by their places, for one question."""

    quoted: Mapping[Place, Sequence[tuple[int, int]]]
    quoted_penalty: float
    question: str
    requirements: Requirements
    objections: Objections
    siblings: Mapping[Place, Siblings]
    lookup: Lookup | None

    def of(self, place: Place, begin: int, end: int) -> tuple[float, float, str, tuple[int, int] | None]:
        """`penalty`, `unmet`, `labels` and `looked_up` of an occurrence."""
        sentence = place.text[begin:end]
        penalty = self.quoted_penalty * stands_in(begin, self.quoted[place])
        penalty -= _TELLS_DOING * tells_doing(self.question, sentence, place.labels)
        penalty -= _NAMES_HOLDER * names_holder(self.question, sentence)
        unmet = self.requirements.penalty(place, begin, end) if self.requirements else 0.0
        unmet += self.objections.penalty(sentence) + self.objections.of_origin(place, sentence)
        unmet += self.siblings[place].penalty(sentence)
        lookup = self.lookup
        is_row = lookup is not None and (place, begin, end) == lookup.row
        return penalty, unmet, place.labels, lookup.value if lookup is not None and is_row else None


class EvidenceSelector:
    """Selects quotes and short answers for one reader with one span scorer."""

    def __init__(
        self, prompt: PromptFormat, span_scorer: SpanScorerLike, config: SelectionConfig = SelectionConfig()
    ) -> None:
        self._prompt, self._span_scorer, self._config = prompt, span_scorer, config

    @property
    def name(self) -> str:
        """Configuration and span scorer in words, to tell apart answers that were made differently."""
        return f"{self._config}, {self._span_scorer.fingerprint}"

    def first_token(self, question: str, texts: Sequence[str | Place], first: int) -> int:
        """Return the token an answer begins with, given the reader's choice `first`.

        That is `first`, unless the reader begins to refuse and the span scorer is sure of a sentence: then the token
        that opens a quote of it. `select_quote` still compares all sentences.
        """
        if first != self._prompt.no_answer_ids()[0]:
            return first
        places = [bare(text) for text in texts]
        sentences = self._sentences(places, '"', max_tokens=_MAX_QUOTE_TOKENS)
        if not sentences:
            return first
        occurrences = self._best_occurrences(question, places, sentences)
        best = max(sentences, key=lambda sentence: occurrences[sentence].rank)
        complete = {one for one in sentences if says_all(question, one.text, occurrences[one].labels)}
        rivals = [one for one in sentences if one != best and not {one, best} <= complete]
        occurrence = occurrences[best]
        lead = occurrence.rank - max((occurrences[other].rank for other in rivals), default=-torch.inf)
        least = self._config.override_refusal_at
        if occurrence.unmet == 0 and lead >= _LEAD:
            least = self._config.override_if_named_at if Requirements(question).has_values else least
            least = self._config.override_if_all_said_at if best in complete else least
        return best.ids[0] if occurrence.rank >= least else first

    def select_quote(
        self, question: str, texts: Sequence[str | Place], pending: PendingToken, max_tokens: int
    ) -> SelectedQuote | None:
        """Choose the best sentence of the chunks `texts` and write it into the cache.

        Chunks that are given with their place can be told from others of other years, sheets or numbers.

        Args:
            pending: the answer's first token; quotes begin with its text.
            max_tokens: upper bound on the tokens of quote and short answer together.

        Returns None if that token opens no quote, or no sentence begins with it or fits.
        """
        opening = self._prompt.decode([pending.token_id])
        if not opening.startswith('"') or max_tokens < 2:
            return None
        places = [bare(text) for text in texts]
        sentences = self._sentences(places, opening, max_tokens)
        if not sentences:
            return None
        occurrences = self._best_occurrences(question, places, sentences)
        decoder, start = TrieDecoder(pending.run, self._config.lookahead, self._prompt.stop_ids), pending.position
        candidates = [Candidate(sentence.ids, self._sentence_bonus(occurrences[sentence])) for sentence in sentences]
        by_ids = {sentence.ids: sentence for sentence in sentences}

        def likely_answer(candidate: Candidate) -> Sequence[int]:
            sentence = by_ids[candidate.ids]
            room = max_tokens - len(candidate.ids)
            answers = self._answer_candidates(question, sentence, occurrences[sentence], room)
            return max(answers, key=lambda answer: answer.bonus).ids if answers else ()

        quote = decoder.decode_best(candidates, log_probabilities(pending.logits), start, cache(likely_answer))
        chosen = by_ids[quote.token_ids]
        answers = self._short_answers(question, quote, chosen, occurrences[chosen], max_tokens)
        append_answer = partial(_append_answer, decoder, quote, answers, start)
        return SelectedQuote(quote, append_answer, is_answered=bool(answers))

    def _short_answers(
        self, question: str, quote: Decoded, sentence: _Sentence, occurrence: _Occurrence, max_tokens: int
    ) -> list[Candidate]:
        """The short answers that may follow a quote; none if the reader would rather end there."""
        if int(quote.logits.argmax()) in self._prompt.stop_ids:
            return []
        return self._answer_candidates(question, sentence, occurrence, max_tokens - len(quote.token_ids))

    def _answer_candidates(
        self, question: str, sentence: _Sentence, occurrence: _Occurrence, room: int
    ) -> list[Candidate]:
        """The short answers in a sentence, of at most `room` tokens; none if only its beginning is quoted."""
        if not sentence.is_whole:
            return []
        candidates_by_ids: dict[tuple[int, ...], Candidate] = {}
        begin, end = occurrence.begin, occurrence.end
        preference = ValuePreference(question, sentence.text)
        if preference.value is not None:
            begin, end = (occurrence.begin + offset for offset in preference.value)
        exact = (begin, end) if preference.is_whole else occurrence.looked_up
        if exact is not None:
            begin, end = exact
            ids = tuple(self._prompt.answer_ids(occurrence.chunk[begin:end]))[:room]
            candidates_by_ids[ids] = Candidate(ids, 0.0)
        spans = [] if candidates_by_ids else occurrence.scores.best(begin, end, _NUM_SPANS)
        kind = kind_asked(question)
        shorts, doubts = ShortAnswers(question, sentence.text), ValueDoubts(question, sentence.text)
        for span in spans:
            offsets = shorts.whole(span.begin - occurrence.begin, span.end - occurrence.begin)
            if offsets is None:
                continue
            text = sentence.text[slice(*offsets)]
            ids = tuple(self._prompt.answer_ids(text))[:room]
            if ids:  # truncated like a quote: a shorter span that fits would be another answer, shown as if complete
                bonus = self._bonus(self._config.span_weight, span.score)
                bonus += preference.nats(*offsets)
                is_fit = (kind is None or is_of_kind(kind, text)) and not doubts.reason(*offsets)
                bonus -= 0.0 if is_fit else _OTHER_KIND_NATS
                candidates_by_ids.setdefault(ids, Candidate(ids, bonus))
        return list(candidates_by_ids.values())

    def _sentence_bonus(self, occurrence: _Occurrence) -> float:
        weight = self._config.sentence_weight
        if occurrence.looked_up is not None:
            return weight * max(occurrence.log_odds, _LOOKED_UP)
        return self._bonus(weight, occurrence.log_odds) - weight * occurrence.unmet

    def _bonus(self, weight: float, log_odds: float) -> float:
        return weight * max(log_odds, self._config.min_log_odds)

    def _sentences(self, places: Sequence[Place], opening: str, max_tokens: int) -> list[_Sentence]:
        """Distinct quotable sentences that begin with `opening`, cut to `max_tokens`."""
        sentences_by_ids: dict[tuple[int, ...], _Sentence] = {}
        quotable_texts = dict.fromkeys(text for place in places for text in quotable(place.text))
        words_by_text = {text: text.split() for text in quotable_texts if f'"{text}'.startswith(opening)}
        for text in words_by_text:
            sentence = self._sentence(text, words_by_text, max_tokens)
            sentences_by_ids.setdefault(sentence.ids, sentence)
        return [sentence for sentence in sentences_by_ids.values() if len(sentence.ids) > 1]

    def _sentence(self, text: str, words_by_text: Mapping[str, Sequence[str]], max_tokens: int) -> _Sentence:
        words = words_by_text[text]
        is_whole = len(words) <= _MAX_QUOTE_WORDS
        quoted_text = text if is_whole else " ".join(words[: _distinct_beginning(text, words_by_text)])
        ids = self._prompt.quote_ids(quoted_text, closed=is_whole)
        return _Sentence(text, tuple(ids[:max_tokens]), is_whole and len(ids) <= max_tokens)

    def _best_occurrences(
        self, question: str, places: Sequence[Place], sentences: Sequence[_Sentence]
    ) -> dict[_Sentence, _Occurrence]:
        distinct = list(dict.fromkeys(places))
        scores = self._span_scorer.read(question, distinct)
        scores_by_place = dict(zip(distinct, scores, strict=True))
        quoted = {place: quoted_parts(place.text) for place in distinct}
        requirements, lookup = Requirements(question), look_up(question, distinct)
        objections, siblings = Objections(question), siblings_of(question, distinct)
        penalties = _Penalties(
            quoted, self._config.quoted_penalty, question, requirements, objections, siblings, lookup
        )
        return {
            sentence: max(
                _occurrences(sentence.text, scores_by_place, penalties),
                key=lambda occurrence: occurrence.rank,
            )
            for sentence in sentences
        }


@dataclass(frozen=True, slots=True)
class EvidenceDecoding:
    """Begins one answer with a selected quote, see `generation.DecodingStrategy`."""

    selector: EvidenceSelector
    question: str
    texts: Sequence[str | Place]
    """The chunks' texts, best first, alone or with their places."""

    def first_token(self, first: int) -> int:
        """See `EvidenceSelector.first_token`."""
        return self.selector.first_token(self.question, self.texts, first)

    def select_quote(self, pending: PendingToken, max_tokens: int) -> SelectedQuote | None:
        """See `EvidenceSelector.select_quote`."""
        return self.selector.select_quote(self.question, self.texts, pending, max_tokens)


def _append_answer(decoder: TrieDecoder, quote: Decoded, answers: Sequence[Candidate], start: int) -> Decoded | None:
    """See `SelectedQuote.append_answer`."""
    if not answers:
        decoder.drop_from(start + len(quote.token_ids))
        return None
    answer = decoder.decode_best(answers, log_probabilities(quote.logits), start + len(quote.token_ids))
    return Decoded((*quote.token_ids, *answer.token_ids), answer.logits)


def _distinct_beginning(text: str, words_by_text: Mapping[str, Sequence[str]]) -> int:
    """Number of words that distinguish a long sentence from the others.

    Clauses of contracts often begin alike.
    """
    words, count = words_by_text[text], _BEGINNING_WORDS
    others = [other for name, other in words_by_text.items() if name != text]
    while count < len(words) and any(other[:count] == words[:count] for other in others):
        count += 1
    return count


def _occurrences(
    sentence: str,
    scores_by_place: Mapping[Place, SpanScores],
    penalties: _Penalties,
) -> list[_Occurrence]:
    """All places of a sentence, several per chunk too.

    'hours = 6' also stands within 'most_hours = 60'.
    """
    occurrences, length = list[_Occurrence](), len(sentence)
    for place, scores in scores_by_place.items():
        begin = place.text.find(sentence)
        while begin >= 0:
            end = begin + length
            occurrences.append(_Occurrence(scores, place.text, begin, end, *penalties.of(place, begin, end)))
            begin = place.text.find(sentence, end)
    return occurrences
