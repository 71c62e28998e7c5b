"""Questions that wait are asked together: each with the words that it has alone, apart from the others."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from desk_rag.answering.conversation.turns import Request, turn_of
from desk_rag.answering.events import Answer, AnswerEvent, AskedAs, FilesWaiting, Finished, Retrieved
from desk_rag.config import IdleSettings, IndexSettings, Settings
from desk_rag.indexer.resident import attending
from desk_rag.indexer.resident.attended import Attended
from desk_rag.indexer.resident.protocol import Message, NoResident
from desk_rag.ingest.freshness import Backlog
from desk_rag.tui.app import DeskRagApp
from desk_rag.tui.backend import Wanted
from desk_rag.tui.live_backend import LiveBackend
from desk_rag.tui.management.session import Session
from desk_rag.tui.turns.together import Answering
from desk_rag.tui.widgets.answer_view import AnswerView
from desk_rag.tui.widgets.question_input import QuestionInput
from tests.answering.together import as_on_a_gpu
from tests.indexer.conftest import wait_for
from tests.loaded_once import loaded_once
from tests.tui.conftest import Run, ask, until
from tests.tui.scripted import SOURCES, ScriptedBackend, answer, play

_DOOR, _ROOF, _CELLAR = "What colour is the kitchen door?", "In which month was the roof of the house repaired?", (
    "Which key opens the lock of the cellar door at Mill Quay 7?"
)  # fmt: skip
_FILES = {
    "house/doors.md": "# Doors\n\nThe kitchen door is painted green. The front door is painted black.\n",
    "house/roof.txt": "The roof was repaired in May 2021. The roofer left a ladder in the garden.\n",
    "cellar.md": "# Cellar\n\nThe lock of the cellar door at Mill Quay 7 is opened by the brass key.\n",
}


def scripted(together: int, *questions: str) -> tuple[ScriptedBackend, dict[str, threading.Event]]:
    """A backend whose answers wait for their events."""
    gates = {question: threading.Event() for question in questions}
    script = {
        question: [Retrieved(SOURCES), gate, *play(answer(question, f"The answer to {question}."))[1:]]
        for question, gate in gates.items()
    }
    return ScriptedBackend(script, together=together), gates


def said(app: DeskRagApp) -> dict[str, str]:
    """The text of each turn's answer, '' while there is none."""
    return {view.question: view.answer.text if view.answer else "" for view in app._chat.query(AnswerView)}


async def test_a_queue_is_asked_at_once_and_each_answer_goes_to_its_question(running: Run) -> None:
    backend, gates = scripted(3, "first", "second", "third", "fourth")
    async with running(backend) as pilot:
        app = pilot.app
        assert isinstance(app, DeskRagApp)
        for question in gates:
            await ask(pilot, question)
        gates["first"].set()
        await until(pilot, lambda: len(backend.asked) == 2)
        await ask(pilot, "fifth")
        for question in ("second", "third", "fourth"):
            gates[question].set()
        await until(pilot, lambda: len(said(app)) == 5 and all(view.over for view in app._chat.query(AnswerView)))
        assert backend.groups == [["first"], ["second", "third", "fourth"], ["fifth"]]
        assert all(text == f"The answer to {question}." for question, text in said(app).items() if question in gates)
        assert len(backend.earlier[-1]) == 4, "what is asked later may lean on all of them"


async def test_one_that_is_withdrawn_meanwhile_is_not_told_and_the_others_are(running: Run) -> None:
    backend, gates = scripted(4, "first", "second", "third", "fourth")
    async with running(backend) as pilot:
        app = pilot.app
        assert isinstance(app, DeskRagApp)
        for question in gates:
            await ask(pilot, question)
        gates["first"].set()
        await until(pilot, lambda: len(backend.asked) == 2)
        await pilot.press("alt+down", "escape")
        await until(pilot, lambda: "third" not in said(app))
        assert app.screen.query_one(QuestionInput).text == "third"
        for gate in gates.values():
            gate.set()
        await until(pilot, lambda: bool(said(app)["fourth"]) and app._chat._answering is None)
        assert backend.groups == [["first"], ["second", "third", "fourth"], ["fourth"]]
        assert [question for question, _ in backend.asked] == ["first", "second", "fourth"]


async def test_stopping_one_stops_no_other(running: Run) -> None:
    backend, gates = scripted(3, "first", "second", "third")
    async with running(backend) as pilot:
        app = pilot.app
        assert isinstance(app, DeskRagApp)
        for question in gates:
            await ask(pilot, question)
        gates["first"].set()
        await until(pilot, lambda: len(backend.asked) == 2)
        gates["third"].set()
        await pilot.press("escape")
        await until(pilot, lambda: bool(said(app)["third"]) and app._chat._answering is None)
        stopped = {view.question: view.answer.stopped for view in app._chat.query(AnswerView) if view.answer}
        assert stopped == {"first": False, "second": True, "third": False}
        assert backend.groups == [["first"], ["second", "third"], ["third"]]


async def test_one_that_is_stopped_before_it_begins_is_shown_as_stopped(running: Run) -> None:
    class Stopped(ScriptedBackend):
        def ask_all(self, *_: object, **__: object) -> Generator[Answering, None, None]:
            yield from ()

    async with running(Stopped()) as pilot:
        app = pilot.app
        assert isinstance(app, DeskRagApp)
        await ask(pilot, "first")
        await until(pilot, lambda: [view.over for view in app._chat.query(AnswerView)] == [True])
        assert app._chat.query_one(AnswerView).has_class("-stopped")


def test_without_a_process_it_is_said_where_the_first_answer_is_read() -> None:
    def send(message: Message) -> Generator[Message, None, None]:
        sent.append(message)
        raise NoResident("it has ended")
        yield

    sent: list[Message] = []
    long, short = Request("x" * 200_000), Request("Where?")
    for requests, count in ([short, short], 2), ([long, long], 1), ([replace(long, question="x" * 300_000)], 0):
        sent.clear()
        answers = attending.several(requests, send)
        first = next(answers)
        with pytest.raises(NoResident):
            next(first)
        assert [len(message["requests"]) for message in sent] == ([count] if count else [])  # type: ignore[arg-type]


# The real engine ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", autouse=True)
def _models_loaded_once() -> Iterator[None]:
    with loaded_once():
        yield


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> tuple[Settings, Path]:
    """A data directory kept through the module."""
    root = tmp_path_factory.mktemp("together")
    for name, text in _FILES.items():
        (root / "docs" / name).parent.mkdir(parents=True, exist_ok=True)
        (root / "docs" / name).write_text(text)
    idle = IdleSettings(quiet_seconds=0, cpu_busy_percent=100, on_battery=True)
    return Settings(data_dir=root / "data", idle=idle, index=IndexSettings(settle_seconds=0)), root / "docs"


@pytest.fixture(params=["one after the other", "at once"])
def sizes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Numbers of questions that were answered at once: none, as on a CPU, and as on a GPU."""
    return as_on_a_gpu(monkeypatch) if request.param == "at once" else []


@pytest.fixture
def backend(place: tuple[Settings, Path], sizes: list[int]) -> Iterator[LiveBackend]:
    settings, folder = place
    live = LiveBackend(Session(settings, [folder]), in_process=True)
    live.start(lambda _: None, lambda _: None)
    wait_for(lambda: live.status().chunks == live.status().with_vectors == len(_FILES))
    yield live
    live.stop()


@pytest.fixture
def groups(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The questions that the engine was asked together."""
    questions: list[list[str]] = []
    ask_all = Attended.ask_all

    def noted(self: Attended, requests: list[Request], stop: Callable[[], bool]) -> object:
        questions.append([request.question for request in requests])
        return ask_all(self, requests, stop)

    monkeypatch.setattr(Attended, "ask_all", noted)
    return questions


def answered(backend: LiveBackend, *questions: str, earlier: tuple[Answer, ...] = ()) -> list[Answer]:
    wanted = [Wanted(turn, question) for turn, question in enumerate(questions, 1)]
    turns = [turn_of(one) for one in earlier]
    answers = backend.ask_all(wanted, lambda: False, wait=lambda: True, earlier=turns)
    return [finished(events) for _, events in answers]


def finished(events: Iterator[AnswerEvent]) -> Answer:
    last = list(events)[-1]
    assert isinstance(last, Finished)
    return last.answer


def words(answers: list[Answer]) -> list[tuple[str, str, tuple[str, ...]]]:
    return [(one.question, one.text, tuple(citation.quote for citation in one.citations)) for one in answers]


def test_together_they_have_the_words_that_they_have_alone(
    backend: LiveBackend, groups: list[list[str]], sizes: list[int]
) -> None:
    alone = [one for question in (_DOOR, _ROOF, _CELLAR) for one in answered(backend, question)]
    assert not groups and [one.found for one in alone] == [True] * 3
    together = answered(backend, _DOOR, _ROOF, _CELLAR)
    assert groups == [[_DOOR, _ROOF, _CELLAR]] and words(together) == words(alone) and sizes in ([], [3])
    assert backend.keeper.rows()[0].num_turns == 3, "each is saved in its own place"


@pytest.mark.parametrize("follow_up", ["And the front door?", "Who painted it?", "What about @cellar.md?", "/roof"])
def test_a_question_that_leans_on_one_before_it_is_not_asked_with_it(
    backend: LiveBackend, groups: list[list[str]], follow_up: str
) -> None:
    assert [one.question for one in answered(backend, _DOOR, follow_up, _ROOF)] == [_DOOR]
    assert not groups


def test_one_that_turns_out_to_lean_on_the_answer_is_left_for_later(
    backend: LiveBackend, groups: list[list[str]]
) -> None:
    """Three words that the quoted document has: whether they continue the talk is known once it is quoted."""
    (roof,) = (first := answered(backend, _ROOF, "Who left the ladder?"))
    assert groups == [[_ROOF, "Who left the ladder?"]] and first[0].found
    events = list(backend.ask("Who left the ladder?", lambda: False, earlier=[turn_of(roof)]))
    assert isinstance(events[0], AskedAs)


def test_the_first_may_lean_on_what_was_answered_before(backend: LiveBackend, groups: list[list[str]]) -> None:
    (door,) = answered(backend, _DOOR)
    front, roof = answered(backend, "And the front door?", _ROOF, earlier=(door,))
    assert front.asked_as == "What colour is the front door?" and "black" in front.text
    assert roof.asked_as == "" and words([roof]) == words(answered(backend, _ROOF)) and len(groups) == 1


def _waiting(self: Attended, requests: list[Request], stop: Callable[[], bool]) -> Iterator[Iterator[AnswerEvent]]:
    yield iter([FilesWaiting(Backlog())])
    raise AssertionError("nothing more is read")


def _gone(self: Attended, requests: list[Request], stop: Callable[[], bool]) -> Iterator[Iterator[AnswerEvent]]:
    def events() -> Iterator[AnswerEvent]:
        raise NoResident("it has ended")
        yield

    for _ in requests:
        yield events()


@pytest.mark.parametrize("ask_all", [_waiting, _gone])
def test_while_files_are_read_or_without_a_process_they_are_asked_one_by_one(
    backend: LiveBackend, monkeypatch: pytest.MonkeyPatch, ask_all: object
) -> None:
    monkeypatch.setattr(Attended, "ask_all", ask_all)
    (door,) = answered(backend, _DOOR, _ROOF)
    assert "green" in door.text
