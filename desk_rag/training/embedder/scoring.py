"""Score an embedder on held-out passages: is the right one of all passages first, or among five?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import BertModel

from desk_rag.training.embedder.rows import Packer, Texts, with_title
from desk_rag.training.embedder.training import encode, token_similarities
from desk_rag.training.pointer.material import Material

_BATCH = 128
_QUESTIONS = 600
"""Questions that are asked, about as many."""
_COMPARED = 96
"""Nearest passages that are compared by token vectors, as retrieval does."""


@dataclass(frozen=True, slots=True)
class Score:
    """Shares in [0, 1] of questions whose passage is the first, and among the first five, of all."""

    questions: int
    first: float
    among_five: float
    first_by_tokens: float
    among_five_by_tokens: float

    def __str__(self) -> str:
        return (
            f"{self.questions} held-out questions: first {100 * self.first:.1f}, among five "
            f"{100 * self.among_five:.1f}; by token vectors {100 * self.first_by_tokens:.1f} and "
            f"{100 * self.among_five_by_tokens:.1f}"
        )


@torch.no_grad()
def score(bert: BertModel, of: Material, packer: Packer) -> Score:
    """Rank all passages, as they were written and without titles, for questions about the held-out ones."""
    texts = [with_title(versions[0], False) for versions in of.versions]
    parts = [_encode(bert, packer, texts[at : at + _BATCH]) for at in range(0, len(texts), _BATCH)]
    vectors = torch.cat([vectors for vectors, _, _ in parts])
    tokens = [(piece, each) for _, pieces, read in parts for piece, each in zip(pieces, read, strict=True)]
    asked = [(number, one) for number in sorted(of.held) for one in of.versions[number][0].asked if one.answer]
    ranks, token_ranks = [], []
    for number, one in asked[:: max(1, len(asked) // _QUESTIONS)]:
        question = _on(bert, packer.pack([one.ids]))
        vector, words = encode(bert, question)
        order: list[int] = (vectors @ vector[0]).argsort(descending=True).tolist()
        ranks.append(order.index(number) + 1)
        nearest = order[:_COMPARED]
        cosines = [_late(words, question, *tokens[passage]) for passage in nearest]
        by_tokens = [passage for _, passage in sorted(zip(cosines, nearest, strict=True), reverse=True)]
        token_ranks.append(by_tokens.index(number) + 1 if number in nearest else len(order))
    shares = [sum(rank <= most for rank in each) / len(each) for each in (ranks, token_ranks) for most in (1, 5)]
    return Score(len(ranks), *shares)


def _encode(bert: BertModel, packer: Packer, texts: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor, Tensor]:
    packed = _on(bert, packer.pack(texts))
    vectors, tokens = encode(bert, packed)
    return vectors, tokens.half(), packed.words


def _late(question: Tensor, asked: Texts, passage: Tensor, words: Tensor) -> float:
    read = Texts(words[None], words[None], words[None])
    return float(token_similarities(question, asked, passage[None].float(), read))


def _on(bert: BertModel, texts: Texts) -> Texts:
    return texts.each(lambda tensor: tensor.to(bert.device))
