"""Pictures of the chat, of what opens over it, and of states in which something is wrong; see tests/tui/pictures."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from textual.pilot import Pilot
from textual.widgets import Input

from desk_rag.answering.events import (
    AnswerEvent,
    AnswerText,
    CheckedSentence,
    Finished,
    FirstToken,
    ReasoningText,
    Retrieved,
    SentenceChecked,
    Support,
)
from desk_rag.errors import DeskRagError, ModelError, ModelNotFound, StoreError
from desk_rag.tui.app import DeskRagApp
from desk_rag.tui.backend import Freshness, Started
from desk_rag.tui.widgets.answer_view import AnswerView
from tests.tui.conftest import ask, screen_text, text_of, until
from tests.tui.pictures import LOOKS, compare
from tests.tui.scripted import (
    FOLDERS,
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
        ("find", ("ctrl+f",), "find"),
        ("chats", ("ctrl+r",), "Saved chats"),
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


NO_ROOM = "no room for the caches of 9,000 chunks, so answers from them are slower"
STATES = {
    "welcome": ScriptedBackend(),
    "nothing-readable": ScriptedBackend(now=replace(WATCHING, files=0, chunks=0, with_vectors=0, warm=0)),
    "folder-absent": ScriptedBackend(now=replace(WATCHING, absent=(Path("/media/stick"),))),
    "disk-full": ScriptedBackend(now=replace(WATCHING, disk_full=NO_ROOM)),
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
    said = "The catalog was damaged and was built again from the files; caches were kept."
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
    app = DeskRagApp(ScriptedBackend(), ())
    app.look_for_folders = lambda: None  # type: ignore[assignment]

    async def act(pilot: Pilot[int]) -> None:
        await until(pilot, lambda: "No folder is chosen yet" in screen_text(app))
        assert isinstance(app.focused, Input) is False

    await compare("no-folder", app, act, looks)
