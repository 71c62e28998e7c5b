"""Tests of several questions that are answered at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partialmethod

import pytest

from desk_rag.answering.engine import AnswerEngine
from desk_rag.answering.events import AnswerEvent
from desk_rag.answering.together.asking import Ask, Together


def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Answer three questions at once, although this is a CPU; return a list that gets the number of each group."""
    sizes: list[int] = []
    opened, answering = AnswerEngine.__init__, Together.answering

    def counted(self: Together, asks: Sequence[Ask]) -> AbstractContextManager[list[Iterator[AnswerEvent]]]:
        sizes.append(len(asks))
        return answering(self, asks)

    monkeypatch.setattr(AnswerEngine, "__init__", partialmethod(opened, lean=True))
    monkeypatch.setattr(Together, "of", lambda engine, _count: Together(engine, 3))
    monkeypatch.setattr(Together, "answering", counted)
    return sizes
