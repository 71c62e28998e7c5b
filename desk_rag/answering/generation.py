"""Decode an answer over a filled KV cache, greedily but for how it begins.

The beginning follows a strategy, which may replace the first token and write the first quote, and the short answer
after it, into the cache in one go (see `evidence.selection`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from desk_rag.answering.evidence.selection import PendingToken, SelectedQuote
from desk_rag.answering.evidence.trie_decoding import ReadAhead
from desk_rag.answering.token_choice import next_token
from desk_rag.kv.forward.runner import Pass
from desk_rag.model.prompt import PromptFormat


@dataclass(frozen=True, slots=True)
class Token:
    """One sampled token, or a quote that was written in one go."""

    text: str
    """Text that this token completes; may be empty while a character is incomplete."""
    sampled_at: float
    """time.perf_counter() when it was sampled."""
    refusal_probability: float | None
    """First token only: the model's probability of beginning a refusal, whichever token was taken."""
    count: int = 1
    """Number of tokens it stands for."""
    ends_quotes: bool = False
    """True if this completes the only quote of the answer, so that it can be verified at once."""


class DecodingStrategy(Protocol):
    """The beginning of one answer."""

    def first_token(self, first: int) -> int:
        """Return the token to begin with, given the model's own choice."""
        ...

    def select_quote(self, pending: PendingToken, max_tokens: int) -> SelectedQuote | None:
        """Write a quote that begins with the first token into the cache; None to decode on from that token."""
        ...


class Greedy:
    """Begins as the model does."""

    def first_token(self, first: int) -> int:
        """As in `DecodingStrategy`."""
        return first

    def select_quote(self, pending: PendingToken, max_tokens: int) -> SelectedQuote | None:
        """As in `DecodingStrategy`."""
        return None


def decode(
    prompt: PromptFormat,
    run: Pass,
    logits: torch.Tensor,
    position: int,
    *,
    max_new_tokens: int,
    stop: Callable[[], bool],
    strategy: DecodingStrategy | None = None,
) -> Iterator[Token]:
    """Decode to a stop id, the limit or `stop`; a quote and the short answer after it are one `Token` each.

    Args:
        logits: [vocab], of the prompt's last token, which `run` has in its cache.
        position: that of the first token to come.
        strategy: by default `Greedy`.
    """
    detokenizer, strategy, ahead = _Detokenizer(prompt), strategy or Greedy(), ReadAhead(run)
    refusal: float | None = refusal_probability(prompt, logits)
    token_id = strategy.first_token(next_token(prompt, (), int(logits.argmax()), logits))
    while True:
        now, is_first, reported_refusal = time.perf_counter(), refusal is not None, refusal
        refusal = None
        if token_id in prompt.stop_ids:
            yield Token(detokenizer.flush(), now, reported_refusal)
            return
        yield Token(detokenizer.push(token_id), now, reported_refusal)
        if stop() or len(detokenizer.ids) == max_new_tokens:
            break
        pending = PendingToken(run, token_id, logits, position)
        selected = strategy.select_quote(pending, max_new_tokens) if is_first else None
        if selected is None:
            if is_first and run.reads_at_once and (reported_refusal or 0.0) > 0.5:
                _read_refusal(prompt, ahead, token_id, position, max_new_tokens)
            logits = ahead.step(token_id, position)
            position += 1
        elif (yield from _quote_and_answer(detokenizer, selected, stop, max_new_tokens)):
            break
        else:
            logits = selected.quote.logits
            position += len(selected.quote.token_ids)
        token_id = next_token(prompt, detokenizer.ids, int(logits.argmax()), logits)
    tail = detokenizer.flush()
    if tail:
        yield Token(tail, time.perf_counter(), None, 0)


def _read_refusal(prompt: PromptFormat, ahead: ReadAhead, first: int, position: int, max_tokens: int) -> None:
    """Read the whole sentence in one pass if the answer begins like it; what the model says otherwise is dropped.

    A model that writes refuses in words of its own.
    """
    ids = prompt.no_answer_ids()
    if first == ids[0] and not prompt.writes:
        ahead.read(ids[:max_tokens], position)


def _quote_and_answer(
    detokenizer: _Detokenizer, selected: SelectedQuote, stop: Callable[[], bool], max_tokens: int
) -> Generator[Token, None, bool]:
    """Yield the quote, then the short answer if there is one.

    Returns True if decoding is to end.
    """
    quote = selected.quote
    text, is_only = detokenizer.replace(quote.token_ids), selected.is_answered
    yield Token(text, time.perf_counter(), None, len(quote.token_ids) - 1, is_only)
    if stop() or len(detokenizer.ids) >= max_tokens:
        return True
    answer = selected.append_answer()
    if answer is None:
        return False
    added = len(answer.token_ids) - len(detokenizer.ids)
    yield Token(detokenizer.replace(answer.token_ids), time.perf_counter(), None, added)
    return True


def refusal_probability(prompt: PromptFormat, logits: torch.Tensor) -> float:
    """Probability that an answer is a refusal, from the logits [vocab] of its first token."""
    first = prompt.no_answer_ids()[0]
    return float(torch.softmax(logits.float(), -1)[first])


class _Detokenizer:
    """Turns ids into text piece by piece; holds back the bytes of an incomplete character."""

    def __init__(self, prompt: PromptFormat) -> None:
        self._prompt = prompt
        self.ids: list[int] = []
        self._emitted = ""

    def push(self, token_id: int) -> str:
        return self._extend([token_id])

    def replace(self, token_ids: Sequence[int]) -> str:
        """Replace all ids by `token_ids`, whose text begins with the text so far.

        Stop ids have no text.
        """
        self.ids.clear()
        return self._extend([token for token in token_ids if token not in self._prompt.stop_ids])

    def _extend(self, token_ids: Sequence[int]) -> str:
        self.ids += token_ids
        text = self._prompt.decode(self.ids)
        if text.endswith("\ufffd"):
            return ""
        return self._advance(text)

    def flush(self) -> str:
        return self._advance(self._prompt.decode(self.ids)) if self.ids else ""

    def _advance(self, text: str) -> str:
        piece = text[len(self._emitted) :]
        self._emitted = text
        return piece
