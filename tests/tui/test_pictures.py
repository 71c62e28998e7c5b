"""Pictures of the chat, of what opens over it, and of states in which something is wrong; see tests/tui/pictures."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from textual.pilot import Pilot

from desk_rag.answering.events import (
    Absence,
    AnswerEvent,
    AnswerText,
    CheckedSentence,
    FilesWaiting,
    Finished,
    FirstToken,
    Missing,
    ReasoningText,
    Retrieved,
    SentenceChecked,
    Support,
)
from desk_rag.documents.status import IndexStage
from desk_rag.errors import DeskRagError, ModelError, ModelNotFound, StoreError
from desk_rag.ingest.freshness import Backlog
from desk_rag.store.chats.records import ChatRow
from desk_rag.store.opening import CATALOG_RESET, INDEX_AGAIN
from desk_rag.tui.app import DeskRagApp
from desk_rag.tui.backend import Freshness, Started
from desk_rag.tui.conversation.keeper import Keeper
from desk_rag.tui.management.session import Session
from desk_rag.tui.widgets.answer_view import AnswerView
from tests.tui.conftest import ask, screen_text, text_of, until
from tests.tui.pictures import LOOKS, compare
from tests.tui.scripted import (
    FOLDERS,
    NOWHERE,
    QUOTE,
    SOURCES,
    WARMING,
    WATCHING,
    ScriptedBackend,
    answer,
    hostile_backend,
    play,
)

Q = "when does the boiler warranty end?"
Act = Callable[[Pilot[int]], object]


class OutOfMemoryError(RuntimeError):
    """As torch names it."""


class AcceleratorError(RuntimeError):
    """As torch names it."""


def app_of(pilot: Pilot[int]) -> DeskRagApp:
    assert isinstance(pilot.app, DeskRagApp)
    return pilot.app


def status(app: DeskRagApp) -> str:
    return text_of(app, "#status")


async def watching(pilot: Pilot[int]) -> None:
    await until(pilot, lambda: "·" in text_of(app_of(pilot), "#model"))
    await until(pilot, lambda: "starting" not in text_of(app_of(pilot), "#status"))


async def answered(pilot: Pilot[int], question: str = Q) -> None:
    await watching(pilot)
    await ask(pilot, question)
    await until(pilot, lambda: [view.over for view in app_of(pilot)._chat.query(AnswerView)] == [True])
    await until(pilot, lambda: not app_of(pilot)._chat.query_one(AnswerView).sources
                or "source" in text_of(app_of(pilot), "#side-title"))  # fmt: skip


def after(question: str, *keys: str, sign: str = "", backend: ScriptedBackend | None = None) -> tuple[DeskRagApp, Act]:
    """The app after one answer and some keys."""

    async def act(pilot: Pilot[int]) -> None:
        await answered(pilot, question)
        await pilot.press(*keys)
        await until(pilot, lambda: sign in screen_text(app_of(pilot)))

    return DeskRagApp(backend or ScriptedBackend(), FOLDERS), act


@LOOKS
@pytest.mark.parametrize(
    ("name", "keys", "sign"),
    [
        ("answer", (), "first word"),
        ("answer-timing", ("alt+t",), "first token"),
        ("comparison", ("f7",), "23 times"),
        ("help", ("f1",), "Keys of the chat"),
        ("menu", ("alt+m",), "Copy the quotes"),
        ("jump", ("ctrl+g",), ""),
        ("find", ("ctrl+f", *"boiler"), "1 of 1 turn"),
        ("names", tuple("@ho"), "house.md"),
        ("sources", ("alt+2",), "Keep the inspection log"),
        ("chats-none", ("ctrl+r",), "There are no saved chats"),
        ("document", ("alt+v",), "5 Payment"),
        ("palette", ("ctrl+p",), "Search for commands"),
    ],
)
async def test_chat(name: str, keys: tuple[str, ...], sign: str, looks: Sequence[str]) -> None:
    app, act = after(Q, *keys, sign=sign)
    await compare(name, app, act, looks)  # type: ignore[arg-type]


@LOOKS
async def test_export(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, looks: Sequence[str]) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    app, act = after(Q, "alt+s", sign="Export this conversation")
    await compare("export", app, act, looks)  # type: ignore[arg-type]


@LOOKS
async def test_hostile(looks: Sequence[str]) -> None:
    app, act = after("hostile", backend=hostile_backend())
    await compare("hostile", app, act, looks)  # type: ignore[arg-type]


@LOOKS
async def test_not_found_while_caches_are_filled(looks: Sequence[str]) -> None:
    final = answer(Q, "I could not find that in the documents.", found=False)
    app, act = after(Q, backend=ScriptedBackend({Q: play(final)}, now=WARMING))
    await compare("not-found", app, act, looks)  # type: ignore[arg-type]


@LOOKS
async def test_written_answer_with_marks_and_folded_reasoning(looks: Sequence[str]) -> None:
    text = "The warranty period is five years. [1] A longer one can be bought."
    right = CheckedSentence(0, 38, Support.SUPPORTED, "", 0.9, (QUOTE,))
    invented = CheckedSentence(39, len(text), Support.UNSUPPORTED, "no passage says this", 0.1)
    final = replace(
        answer(Q, text, citations=(QUOTE,)), sentences=(right, invented), reasoning="It is in the contract."
    )
    script: list[AnswerEvent | threading.Event | Exception] = [
        Retrieved(SOURCES), FirstToken(final.timings), ReasoningText("It is in the contract."),
        AnswerText(text[:38]), SentenceChecked(right), AnswerText(text[38:]), SentenceChecked(invented),
        Finished(final),
    ]  # fmt: skip
    backend = ScriptedBackend({Q: script}, started=Started("a chat model", "CPU", markdown=True))
    app, act = after(Q, backend=backend)
    await compare("written", app, act, looks)  # type: ignore[arg-type]


@LOOKS
async def test_streaming_with_a_question_waiting(looks: Sequence[str]) -> None:
    gate = threading.Event()
    steps = play(answer(Q, "The warranty ends on 14 March 2028."))
    backend = ScriptedBackend({Q: [*steps[:6], gate, *steps[6:]]})

    async def act(pilot: Pilot[int]) -> None:
        await watching(pilot)
        await ask(pilot, Q)
        await until(pilot, lambda: "warranty ends" in text_of(app_of(pilot), ".words"))
        await ask(pilot, "and who do I call?")
        await until(pilot, lambda: "waits for the answer above" in text_of(app_of(pilot), ".note"))
        await pilot.press(*"typing on")

    try:
        await compare("streaming", DeskRagApp(backend, FOLDERS), act, looks)
    finally:
        gate.set()


NO_ROOM = "disk full: 9,000 chunks without cache, so answers are slower"
STATES = {
    "welcome": ScriptedBackend(),
    "nothing-readable": ScriptedBackend(now=replace(WATCHING, files=0, chunks=0, with_vectors=0, warm=0)),
    "folder-absent": ScriptedBackend(now=replace(WATCHING, absent=(Path("/media/stick"),))),
    "caches-away": ScriptedBackend(
        now=replace(WATCHING, no_caches="the caches are not there now, so answers are slower")
    ),
    "disk-full": ScriptedBackend(now=replace(WATCHING, no_caches=NO_ROOM)),
    "files-gone": ScriptedBackend(now=replace(WATCHING, missing=240, missing_seconds=80_000.0)),
    "paused": ScriptedBackend(now=replace(WATCHING, freshness=Freshness.PAUSED, paused_seconds=3_400.0)),
    "other-process": ScriptedBackend(now=replace(WATCHING, writer=4321)),
    "nobody-indexes": ScriptedBackend(now=replace(WATCHING, freshness=Freshness.UNATTENDED)),
}


@LOOKS
@pytest.mark.parametrize("name", STATES)
async def test_state_of_the_index(name: str, looks: Sequence[str]) -> None:
    await compare(name, DeskRagApp(STATES[name], FOLDERS), watching, looks)


@LOOKS
async def test_catalog_that_was_rebuilt(looks: Sequence[str]) -> None:
    said = CATALOG_RESET.replace(INDEX_AGAIN, "Your folders are being read again.")
    app = DeskRagApp(ScriptedBackend(started=Started("embedded reader", "CPU", notices=(said,))), FOLDERS)

    async def act(pilot: Pilot[int]) -> None:
        await watching(pilot)
        await until(pilot, lambda: "was damaged" in screen_text(app))

    await compare("catalog-rebuilt", app, act, looks)


FAILED_STARTS: dict[str, DeskRagError] = {
    "model-missing": ModelNotFound("No weights in /models/nothing.", remedy="Name a directory with weights."),
    "other-version": StoreError(
        "The data directory was written by a newer desk-rag (format 9; this one knows 7).",
        remedy="Update desk-rag, or name another directory with --data-dir.",
    ),
    "engine-ended": ModelError(
        "The process that answers has ended while it started.",
        remedy="It was started twice. Close programs that need much memory, or choose a smaller model.",
    ),
}


@LOOKS
@pytest.mark.parametrize("name", FAILED_STARTS)
async def test_start_that_failed(name: str, looks: Sequence[str]) -> None:
    app = DeskRagApp(ScriptedBackend(start_error=FAILED_STARTS[name]), FOLDERS)

    async def act(pilot: Pilot[int]) -> None:
        await until(pilot, lambda: "could not start" in text_of(app, "#welcome"))

    await compare(name, app, act, looks)


@LOOKS
@pytest.mark.parametrize(
    ("name", "error"),
    [("out-of-memory", OutOfMemoryError("CUDA out of memory")), ("gpu-lost", AcceleratorError("device-side assert"))],
)
async def test_answer_that_failed(name: str, error: Exception, looks: Sequence[str]) -> None:
    backend = ScriptedBackend({Q: [Retrieved(SOURCES), error]})
    app, act = after(Q, backend=backend)
    await compare(name, app, act, looks)  # type: ignore[arg-type]


class Kept(Keeper):
    """Lists two saved chats."""

    def rows(self, words: str = "") -> list[ChatRow]:
        day = time.mktime((2026, 3, 14, 9, 30, 0, 0, 0, -1))
        return [
            ChatRow(7, "When does the boiler warranty end, and what does it ask of us every year?", day, 3),
            ChatRow(2, "Who repaired the dishwasher?", day - 900_000, 1),
        ]


@LOOKS
async def test_saved_chats(looks: Sequence[str]) -> None:
    backend = ScriptedBackend(keeper=Kept(Path("/nonexistent"), save=True))
    backend.keeper.save = lambda turn, answer: None  # type: ignore[method-assign]
    app, act = after(Q, "ctrl+r", sign="Who repaired the dishwasher?", backend=backend)
    await compare("chats", app, act, looks)  # type: ignore[arg-type]


@LOOKS
async def test_plain_search(looks: Sequence[str]) -> None:
    question = "/boiler warranty"
    final = replace(answer(question, "4 passages have these words."), is_search=True)
    app, act = after(question, backend=ScriptedBackend({question: play(final)}))
    await compare("search", app, act, looks)  # type: ignore[arg-type]


@LOOKS
async def test_question_that_waits_for_files(looks: Sequence[str]) -> None:
    gate = threading.Event()
    new = tuple(FOLDERS[0] / f"new {number}.md" for number in range(22))
    reading = replace(
        WATCHING, freshness=Freshness.INDEXING, stage=IndexStage.WORDS, files=18, failed=0, chunks=60, with_vectors=0,
        warm=0, kv_bytes=0, done=18, total=40, eta_seconds=12.0, is_reading=True,
    )  # fmt: skip
    app = DeskRagApp(ScriptedBackend({Q: [FilesWaiting(Backlog(18, new)), gate]}, now=reading), FOLDERS)

    async def act(pilot: Pilot[int]) -> None:
        await watching(pilot)
        await ask(pilot, Q)
        await until(pilot, lambda: "waits for files" in text_of(app, ".note"))

    try:
        await compare("waiting-for-files", app, act, looks)
    finally:
        gate.set()


@LOOKS
async def test_answer_that_was_stopped_and_an_earlier_one_whose_file_is_gone(looks: Sequence[str]) -> None:
    gate = threading.Event()
    gone = replace(SOURCES[0], stale=True, absence=Absence(Missing.FILE_GONE, 0.0))
    first = answer(Q, "On 14 March 2028 [1].", sources=(gone, *SOURCES[1:]), citations=(QUOTE,))
    steps = play(answer("and then?", "The contract says nothing more of it."))
    app = DeskRagApp(ScriptedBackend({Q: play(first), "and then?": [*steps[:6], gate]}), FOLDERS)

    async def act(pilot: Pilot[int]) -> None:
        await answered(pilot)
        await ask(pilot, "and then?")
        await until(pilot, lambda: "contract says" in text_of(app, ".words"))
        await pilot.press("escape")
        await until(pilot, lambda: "stopped" in text_of(app, ".note"))

    try:
        await compare("stopped", app, act, looks)
    finally:
        gate.set()


@LOOKS
async def test_files_that_are_gone_are_decided_on(looks: Sequence[str]) -> None:
    app = DeskRagApp(STATES["files-gone"], FOLDERS)

    async def act(pilot: Pilot[int]) -> None:
        await watching(pilot)
        app.action_decide_gone()
        await until(pilot, lambda: "Keep them in the index" in screen_text(app))

    await compare("files-gone-choice", app, act, looks)


@LOOKS
async def test_question_about_an_empty_folder(looks: Sequence[str]) -> None:
    nothing = replace(WATCHING, files=0, chunks=0, with_vectors=0, warm=0, failed=0)
    app = DeskRagApp(ScriptedBackend(now=nothing), FOLDERS)

    async def act(pilot: Pilot[int]) -> None:
        await watching(pilot)
        await ask(pilot, Q)
        await until(pilot, lambda: "holds no file" in text_of(app, ".note"))

    await compare("nothing-to-ask", app, act, looks)


@LOOKS
async def test_no_folder(looks: Sequence[str]) -> None:
    nowhere = Session(NOWHERE, (), NOWHERE.data_dir / "config.toml")
    app = DeskRagApp(ScriptedBackend(session=nowhere), ())

    async def act(pilot: Pilot[int]) -> None:
        await until(pilot, lambda: "Which folder" in screen_text(app))
        await pilot.press("escape")
        await until(pilot, lambda: "No folder is chosen yet" in screen_text(app) and "no folder" in status(app))

    await compare("no-folder", app, act, looks)
