"""Label each chunk token with the answering model's attention on it, counted in the auxiliary model's tokens.

The label of a question is the share of attention that each token of the chunks' texts gets from the question's tokens
when the answering model reads everything with full attention: the mean over its middle layers, its heads and the
question's tokens. Another tokenizer's tokens get what falls on their characters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from desk_rag.finetune.auxiliary.attention import question_attention
from desk_rag.finetune.masked import to_batch
from desk_rag.finetune.rows import IS_CHUNK, Asked, Context, Island, build_island, build_row
from desk_rag.kv.recompute.selectors import observed_layers
from desk_rag.kv.recompute.token_alignment import Span, token_spans
from desk_rag.model.language_model import LanguageModel
from desk_rag.model.prompt import PromptFormat

Shares = npt.NDArray[np.float32]
_LEAST = 1e-12


@dataclass(frozen=True, slots=True)
class Reading:
    """Chunk texts in their order, and questions to them."""

    texts: tuple[str, ...]
    questions: tuple[str, ...]


def context_of(prompt: PromptFormat, reading: Reading, *, full: bool) -> Context:
    """Return the token ids of a reading, without answers."""
    chunks = tuple(tuple(prompt.chunk_ids(text)) for text in reading.texts)
    asked = tuple(Asked(tuple(prompt.question_ids(question)), ()) for question in reading.questions)
    return Context(tuple(prompt.prefix_ids), chunks, asked, full)


def text_spans(prompt: PromptFormat, texts: Sequence[str]) -> list[list[Span | None]]:
    """Character range of each token of each chunk; None for a frame's token."""
    return [token_spans(prompt, text) for text in texts]


def chunk_tokens(island: Island) -> npt.NDArray[np.int64]:
    """Numbers of the island's chunk tokens, copies of the prefix left out."""
    return np.flatnonzero(np.array(island.roles) & IS_CHUNK)


def mean_matrix(asked: Sequence[Asked]) -> Shares:
    """Matrix [questions, tokens of all questions] that takes the mean over each question's tokens."""
    lengths = [len(one.question) for one in asked]
    matrix = np.zeros((len(lengths), sum(lengths)), np.float32)
    start = 0
    for number, length in enumerate(lengths):
        matrix[number, start : start + length] = 1 / length
        start += length
    return matrix


class Teacher:
    """The answering model as a source of labels."""

    def __init__(self, model: LanguageModel) -> None:
        self.model = model
        self._layers = observed_layers(model)

    def shares(self, prompt: PromptFormat, reading: Reading) -> Shares:
        """Shares [questions, tokens of the texts] of attention for the tokens of `prompt`, frames left out."""
        context = context_of(self.model.prompt, reading, full=True)
        island = build_island(context)
        row = build_row([island], len(island.ids))
        with torch.inference_mode():
            weights = question_attention(self.model.module, to_batch([row], self.model.device), self._layers)[0]
        on_chunks = mean_matrix(context.asked) @ weights.cpu().numpy()[:, chunk_tokens(island)]
        own, other = text_spans(self.model.prompt, reading.texts), text_spans(prompt, reading.texts)
        rows = [_transferred(row, own, other, reading.texts) for row in on_chunks]
        shares = np.stack(rows)
        normalised: Shares = shares / np.maximum(shares.sum(1, keepdims=True), _LEAST)
        return normalised


def _transferred(
    weights: Shares, own: Sequence[Sequence[Span | None]], other: Sequence[Sequence[Span | None]], texts: Sequence[str]
) -> Shares:
    """Weights [chunk tokens], spread over their characters and summed over those of each of the other tokens.

    Other tokens that share a character, as pieces of its bytes do, get equal parts of it.
    """
    moved: list[float] = []
    start = 0
    for own_spans, other_spans, text in zip(own, other, texts, strict=True):
        by_character = np.zeros(len(text))
        for weight, span in zip(weights[start : start + len(own_spans)], own_spans, strict=True):
            if span is not None and span[0] < span[1]:
                by_character[span[0] : span[1]] += weight / (span[1] - span[0])
        start += len(own_spans)
        sharing = np.zeros(len(text))
        for span in other_spans:
            if span is not None:
                sharing[span[0] : span[1]] += 1
        by_character /= np.maximum(sharing, 1)
        moved += [float(by_character[span[0] : span[1]].sum()) for span in other_spans if span is not None]
    return np.array(moved, np.float32)
