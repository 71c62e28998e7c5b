"""Answer with less when memory runs out: chunks kept for later answers are given up first, then passages."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from desk_rag.answering.events import AnswerEvent, Finished, FirstToken
from desk_rag.answering.questions.asking import AskOnce, ChooseChunks
from desk_rag.errors import OutOfMemory
from desk_rag.model.memory.device import is_out_of_memory, release_unused

if TYPE_CHECKING:
    from desk_rag.retrieval.embedding import EmbedderLike
    from desk_rag.retrieval.search import RetrievedChunk

_log = logging.getLogger(__name__)


class _Best:
    """The best `most` of the chunks that `choose` returns; all of them for None."""

    def __init__(self, choose: ChooseChunks, most: int | None) -> None:
        self._choose, self._most = choose, most
        self.available = self.taken = 0

    def __call__(self, embedder: EmbedderLike, question: str) -> Sequence[RetrievedChunk]:
        chunks = self._choose(embedder, question)
        best = chunks[: self._most]
        self.available, self.taken = len(chunks), len(best)
        return best


def with_less_memory(once: AskOnce, forget_chunks: Callable[[], None], device: torch.device) -> AskOnce:
    """Return `once` with smaller steps where memory runs out before the first token.

    First what `forget_chunks` keeps is given up, then half of the passages, and again half; the answer says so. Raises
    OutOfMemory if one passage is too many, or if memory runs out in the middle of an answer.
    """

    def ask(question: str, choose: ChooseChunks, under: Sequence[Path]) -> Iterator[AnswerEvent]:
        most: int | None = None
        for attempt in range(64):
            best, begun = _Best(choose, most), False
            try:
                for event in once(question, best, under):
                    begun = begun or isinstance(event, FirstToken)
                    yield _with_notice(event, best) if isinstance(event, Finished) else event
                return
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
                if begun or (attempt and best.taken <= 1):
                    raise _too_little(device) from error
            # Outside of the handler, because the error holds the tensors of the failed attempt.
            _log.warning("Out of memory with %d passages; trying again with less", best.taken)
            forget_chunks()
            release_unused(device)
            most = max(1, best.taken // 2) if attempt else None

    return ask


def _with_notice(event: Finished, best: _Best) -> Finished:
    if best.taken == best.available:
        return event
    notice = (
        f"Memory was too short for all passages: the best {best.taken} of {best.available} were read. Close other "
        "programs, or choose a smaller model, or quantised weights (`desk-rag models fit`)."
    )
    return Finished(replace(event.answer, notices=(*event.answer.notices, notice)))


def _too_little(device: torch.device) -> OutOfMemory:
    place = "GPU memory" if device.type == "cuda" else "memory"
    return OutOfMemory(
        f"There is not enough {place} for an answer, even from one passage.",
        remedy="Close other programs that use it, take a smaller model, or --quantization nf4 on a GPU "
        "(`desk-rag models fit` compares).",
    )
