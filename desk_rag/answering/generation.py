"""A cache that is ready plus question tokens becomes a stream of text: query prefill, then greedy decode.

Knows token ids, stop ids and passes; knows nothing of sources, citations or where the cache came from. Who knows the
sources may put another first token in place of the model's, and lay the first quote and the answer behind it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from desk_rag.answering.evidence.selection import Quoted
from desk_rag.answering.token_choice import next_token
from desk_rag.kv.cache import SlabCache
from desk_rag.kv.forward.runner import ModelPass, Pass
from desk_rag.model.language_model import LanguageModel
from desk_rag.model.prompt import PromptFormat


@dataclass(frozen=True, slots=True)
class Token:
    """One sampled token, or a quote that was laid in one go."""

    text: str
    """Text that became certain with this token; may be empty while a character is incomplete."""
    at: float
    """time.perf_counter() when it was sampled."""
    refusal_probability: float | None
    """First token only: probability that the model gave to opening like the sentence 'not found', whatever was told."""
    count: int = 1
    """Tokens that it stands for."""


class Quote(Protocol):
    """Lays the quote that an answer opens with, and the rest of the answer if it can."""

    def __call__(self, run: Pass, first: int, logits: torch.Tensor, start: int, room: int) -> Quoted | None:
        """As `evidence.selection.QuoteChooser.choose`, for one question and its chunks."""
        ...


def stream(
    model: LanguageModel,
    cache: SlabCache,
    token_ids: Sequence[int],
    start: int,
    *,
    max_new_tokens: int,
    stop: Callable[[], bool],
) -> Iterator[Token]:
    """As `decode`, by the model's own forward pass over `cache`."""
    return decode(model.prompt, ModelPass(model, cache), token_ids, start, max_new_tokens=max_new_tokens, stop=stop)


def decode(
    prompt: PromptFormat,
    run: Pass,
    token_ids: Sequence[int],
    start: int,
    *,
    max_new_tokens: int,
    stop: Callable[[], bool],
    prefill: Callable[[], torch.Tensor] | None = None,
    opening: Callable[[int], int] | None = None,
    quote: Quote | None = None,
) -> Iterator[Token]:
    """Prefill `token_ids` at positions start.. by `run`, then decode, up to a stop id, the limit or `stop`.

    Greedy but for `next_token`, for `opening`, which may put another first token in place of the model's, and for what
    `quote` lays once that is out: the quote and the answer behind it, a Token each.
    `prefill` stands in for the first pass, for whoever computes more in it than the question; it leaves what `run`
    would leave in the cache and returns the same logits [vocab].
    """
    pieces = _Detokenizer(prompt)
    logits = run.forward(token_ids, start) if prefill is None else prefill()
    position = start + len(token_ids)
    refusal = refusal_probability(prompt, logits)
    while True:
        token_id = next_token(prompt, pieces.ids, int(logits.argmax()), logits)
        if opening is not None and not pieces.ids:
            token_id = opening(token_id)
        now, doubt = time.perf_counter(), None if pieces.ids else refusal
        if token_id in prompt.stop_ids:
            yield Token(pieces.flush(), now, doubt)
            return
        yield Token(pieces.push(token_id), now, doubt)
        if stop() or len(pieces.ids) == max_new_tokens:
            break
        quoted = None
        if quote is not None and doubt is not None:
            quoted = quote(run, token_id, logits, position, max_new_tokens)
        if quoted is None:
            logits = run.forward([token_id], position)
            position += 1
            continue
        if (yield from _laid(pieces, quoted, stop, max_new_tokens)):
            break
        logits = quoted.laid.logits
        position += len(quoted.laid.token_ids)
    tail = pieces.flush()
    if tail:
        yield Token(tail, time.perf_counter(), None, 0)


def _laid(pieces: _Detokenizer, quoted: Quoted, stop: Callable[[], bool], room: int) -> Generator[Token, None, bool]:
    """The quote, then the answer behind it if one is laid; True where no more is wanted."""
    yield Token(pieces.lay(quoted.laid.token_ids), time.perf_counter(), None, len(quoted.laid.token_ids) - 1)
    if stop() or len(pieces.ids) >= room:
        return True
    answer = quoted.answer()
    if answer is None:
        return False
    added = len(answer.token_ids) - len(pieces.ids)
    yield Token(pieces.lay(answer.token_ids), time.perf_counter(), None, added)
    return True


def refusal_probability(prompt: PromptFormat, logits: torch.Tensor) -> float:
    """That an answer opens like the sentence 'not found', from logits [vocab] of its first token."""
    first = prompt.no_answer_ids()[0]
    return float(torch.softmax(logits.float(), -1)[first])


class _Detokenizer:
    """Turns ids into text piece by piece; holds back bytes of a character that is not complete yet."""

    def __init__(self, prompt: PromptFormat) -> None:
        self._prompt = prompt
        self.ids: list[int] = []
        self._given = ""

    def push(self, token_id: int) -> str:
        return self._extend([token_id])

    def lay(self, token_ids: Sequence[int]) -> str:
        """These instead of what there is, with whose text they begin; an id that ends answers has none."""
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
        piece = text[len(self._given) :]
        self._given = text
        return piece
