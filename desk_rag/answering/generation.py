"""Generate an answer: prefill the question over a filled KV cache, then decode greedily.

A caller that knows the sources may replace the first token and have the first quote, and the short answer after it,
written into the cache in one go (see `evidence.selection`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from desk_rag.answering.evidence.selection import SelectedQuote
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


class SelectQuote(Protocol):
    """Writes the quote that an answer opens with into the cache."""

    def __call__(
        self, run: Pass, first: int, logits: torch.Tensor, start: int, max_tokens: int
    ) -> SelectedQuote | None:
        """See `EvidenceSelector.select_quote`, which this is for one question and its chunks."""
        ...


def decode(
    prompt: PromptFormat,
    run: Pass,
    token_ids: Sequence[int],
    start: int,
    *,
    max_new_tokens: int,
    stop: Callable[[], bool],
    prefill: Callable[[], torch.Tensor] | None = None,
    first_token: Callable[[int], int] | None = None,
    select_quote: SelectQuote | None = None,
) -> Iterator[Token]:
    """Prefill `token_ids` at positions from `start`, then decode to a stop id, limit or `stop`.

    Args:
        prefill: replaces the first pass; must leave the same cache and return the same logits [vocab].
        first_token: given the model's first token, returns the one to begin with.
        select_quote: called once, after the first token; may write a quote and the short answer after it into the
            cache, each of which is yielded as one `Token`.
    """
    detokenizer = _Detokenizer(prompt)
    logits = run.forward(token_ids, start) if prefill is None else prefill()
    position = start + len(token_ids)
    refusal = refusal_probability(prompt, logits)
    while True:
        token_id = next_token(prompt, detokenizer.ids, int(logits.argmax()), logits)
        is_first = not detokenizer.ids
        if first_token is not None and is_first:
            token_id = first_token(token_id)
        now, reported_refusal = time.perf_counter(), refusal if is_first else None
        if token_id in prompt.stop_ids:
            yield Token(detokenizer.flush(), now, reported_refusal)
            return
        yield Token(detokenizer.push(token_id), now, reported_refusal)
        if stop() or len(detokenizer.ids) == max_new_tokens:
            break
        selected = None
        if select_quote is not None and is_first:
            selected = select_quote(run, token_id, logits, position, max_new_tokens)
        if selected is None:
            logits = run.forward([token_id], position)
            position += 1
            continue
        if (yield from _quote_and_answer(detokenizer, selected, stop, max_new_tokens)):
            break
        logits = selected.quote.logits
        position += len(selected.quote.token_ids)
    tail = detokenizer.flush()
    if tail:
        yield Token(tail, time.perf_counter(), None, 0)


def _quote_and_answer(
    detokenizer: _Detokenizer, selected: SelectedQuote, stop: Callable[[], bool], max_tokens: int
) -> Generator[Token, None, bool]:
    """Yield the quote, then the short answer if there is one.

    Returns True if decoding is to end.
    """
    quote = selected.quote
    yield Token(detokenizer.replace(quote.token_ids), time.perf_counter(), None, len(quote.token_ids) - 1)
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
