"""Guesses are carried out never while an answer has no first token, and only the latest."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

import pytest

from desk_rag.answering.prefetch import Prefetcher
from desk_rag.errors import StoreError
from desk_rag.kv.types import KVKey, Namespace, TokenHash


def keys(*names: str) -> list[KVKey]:
    return [KVKey(Namespace("n"), TokenHash(name)) for name in names]


class Heard:
    """Record of the prefetches asked for, in order."""

    def __init__(self) -> None:
        self.brought: list[list[KVKey]] = []
        self.called_off = 0

    def bring(self, wanted: Sequence[KVKey]) -> None:
        self.brought.append(list(wanted))

    def call_off(self) -> None:
        self.called_off += 1


@pytest.fixture
def heard() -> Heard:
    return Heard()


@pytest.fixture
def ahead(heard: Heard) -> Iterator[Prefetcher]:
    prefetcher = Prefetcher(heard.bring, heard.call_off)
    yield prefetcher
    prefetcher.close()


def test_a_guess_is_carried_out_when_nobody_waits(ahead: Prefetcher, heard: Heard) -> None:
    ahead.prefetch_question("q", lambda: keys("a", "b"))
    ahead.settle()
    assert heard.brought == [keys("a", "b")]


def test_nothing_begins_before_the_first_token(ahead: Prefetcher, heard: Heard) -> None:
    looked = threading.Event()

    def guess() -> list[KVKey]:
        looked.set()
        return keys("next")

    ahead.prefetch_question("next", guess)
    with ahead.paused() as go_ahead:
        ahead.prefetch_neighbours(lambda: keys("beside", "next"))
        assert not looked.wait(0.2)
        assert heard.brought == []
        go_ahead()
        ahead.settle()
        assert heard.brought == [keys("next", "beside")], "the question first, each once"


def test_an_answer_that_ends_early_lets_go_as_well(ahead: Prefetcher, heard: Heard) -> None:
    with pytest.raises(ZeroDivisionError), ahead.paused():
        ahead.prefetch_question("q", lambda: keys("a"))
        raise ZeroDivisionError
    ahead.settle()
    assert heard.brought == [keys("a")]
    with ahead.paused() as go_ahead, ahead.paused():
        go_ahead()
        go_ahead()
        ahead.prefetch_question("q", lambda: keys("b"))
        assert ahead._answers_waiting == 1, "the other answer still waits"


def test_only_the_latest_question_counts_and_one_that_is_asked_counts_no_more(ahead: Prefetcher, heard: Heard) -> None:
    with ahead.paused():
        ahead.prefetch_question("old", lambda: keys("old"))
        ahead.prefetch_question("new", lambda: keys("new"))
    ahead.settle()
    assert heard.brought == [keys("new")]
    with ahead.paused():
        ahead.prefetch_question("asked", lambda: keys("asked"))
        ahead.question_asked("another")
        ahead.question_asked("asked")
    ahead.settle()
    ahead.prefetch_question("dropped", lambda: keys("dropped"))
    ahead.clear()
    ahead.settle()
    assert heard.brought == [keys("new")]
    assert heard.called_off == 1


def test_a_guess_that_comes_too_late_brings_nothing(ahead: Prefetcher, heard: Heard) -> None:
    begun, answered = threading.Event(), threading.Event()

    def slow() -> list[KVKey]:
        begun.set()
        answered.wait(10)
        return keys("late")

    ahead.prefetch_question("q", slow)
    assert begun.wait(10)
    with ahead.paused():
        answered.set()
        for _ in range(500):
            with ahead._changed:
                if ahead._idle:
                    break
            threading.Event().wait(0.01)
        assert ahead._idle
    ahead.settle()
    assert heard.brought == []


def test_what_is_forgotten_while_it_is_worked_out_is_not_brought(ahead: Prefetcher, heard: Heard) -> None:
    begun, forgotten = threading.Event(), threading.Event()

    def slow() -> list[KVKey]:
        begun.set()
        forgotten.wait(10)
        return keys("forgotten")

    ahead.prefetch_question("q", slow)
    assert begun.wait(10)
    ahead.clear()
    forgotten.set()
    ahead.settle()
    assert heard.brought == []
    ahead.prefetch_question("q", lambda: keys("a"))
    ahead.settle()
    assert heard.brought == [keys("a")]


def test_what_is_forgotten_while_it_is_brought_is_called_off() -> None:
    actions: list[str] = []

    def bring(_wanted: Sequence[KVKey]) -> None:
        looking.clear()
        actions.append("brought")

    looking = Prefetcher(bring, lambda: actions.append("called off"))
    looking.prefetch_question("q", lambda: keys("a"))
    looking.settle()
    assert actions == ["called off", "brought", "called off"]
    looking.close()


@pytest.mark.parametrize("error", [StoreError("closed"), ValueError("odd")])
def test_a_guess_that_fails_harms_nobody(ahead: Prefetcher, heard: Heard, error: Exception) -> None:
    def failing() -> list[KVKey]:
        raise error

    ahead.prefetch_question("q", failing)
    ahead.settle()
    ahead.prefetch_question("q", lambda: keys("a"))
    ahead.settle()
    assert heard.brought == [keys("a")]
