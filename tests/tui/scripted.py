"""A backend that plays answers from a script: same values every time, so that screens can be compared.

Run as `python -m tests.tui.scripted [plain]` it opens the real app on it, for tests in a pseudo-terminal; without
`plain` it answers with hostile text.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from desk_rag.answering.conversation.saved import Change
from desk_rag.answering.conversation.scope import Names
from desk_rag.answering.conversation.turns import Turn
from desk_rag.answering.events import (
    Answer,
    AnswerEvent,
    AnswerMode,
    AnswerText,
    Citation,
    Evidence,
    Finished,
    FirstToken,
    Retrieved,
    Source,
    Stage,
    Timings,
)
from desk_rag.config import Settings
from desk_rag.documents.chunking import Chunk, ChunkId, Location
from desk_rag.documents.status import IndexStage
from desk_rag.ingest.events import IndexEvent
from desk_rag.ingest.freshness import Backlog
from desk_rag.store.chats.records import SavedSource
from desk_rag.tui.backend import Freshness, Started, Status, Wanted
from desk_rag.tui.conversation.keeper import Keeper
from desk_rag.tui.management.session import Session
from desk_rag.tui.turns.together import Answering


class Clock:
    """Stands still but for what answers of the script take."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


CLOCK = Clock()
FOLDERS = (Path("/home/ada/Documents"),)
NOWHERE = Settings(data_dir=Path("/nonexistent/desk-rag"))
"""Settings without an index."""
_BOILER = FOLDERS[0] / "house" / "boiler-contract.pdf"
_MAIL = FOLDERS[0] / "mail" / "2023-installer.eml"
_NOTES = FOLDERS[0] / "notes" / "house.md"

WARRANTY = (
    "4.2 Term. The warranty period is five years from commissioning (14 March 2023) and requires an annual "
    "inspection by a certified engineer. Missed inspections end the warranty."
)


def chunk(number: int, text: str, location: Location) -> Chunk:
    return Chunk(ChunkId(f"{number:032x}"), number, text, len(text.split()), location)


DOCUMENT = tuple(
    chunk(ordinal, text, Location("Terms › 4 Warranty", 4, 4))
    for ordinal, text in enumerate(
        (
            "4 Warranty\nThis section says what the installer answers for, and for how long.",
            "4.1 Scope. The warranty covers the heat exchanger, the pump, the burner and the control unit, "
            "parts and labour. It does not cover damage by frost or by hard water.",
            WARRANTY,
            "4.3 Claims. Claims are made in writing to the installer within thirty days of the fault.",
            "5 Payment\nThe price is due in two parts, at commissioning and thirty days later.",
        )
    )
)


def source(number: int, path: Path, text: str, location: Location, *, warm: bool = True, stale: bool = False) -> Source:
    chunk_id = ChunkId(f"{2:032x}") if text == WARRANTY else ChunkId(f"{100 + number:032x}")
    return Source(number, chunk_id, path, "", location, text, 1.0 - number / 10, warm, stale)


SOURCES = (
    source(1, _BOILER, WARRANTY, Location("Terms › 4 Warranty", 4, 4)),
    source(2, _MAIL, "Your boiler was commissioned today.\nKeep the inspection log.", Location("", None, None, 12, 40)),
    source(3, _NOTES, "Boiler: 2025 service is booked for May.", Location("House", None, None, 88, 102), stale=True),
    source(
        4,
        FOLDERS[0] / "manuals" / "heating" / "controller-installation-guide.pdf",
        "Set the date.",
        Location("", 31, 32),
        warm=False,
    ),
)


def timings(ttft: float, tokens: int = 31) -> Timings:
    stages = (Stage("retrieve", 0.03), Stage("load", 0.02), Stage("prefill", ttft - 0.05))
    return Timings(stages, 1_412, 3_600_000, tokens / 31, tokens)


def answer(
    question: str,
    text: str,
    *,
    mode: AnswerMode = AnswerMode.CACHED,
    sources: tuple[Source, ...] = SOURCES,
    citations: tuple[Citation, ...] = (),
    found: bool = True,
    dropped: tuple[str, ...] = (),
    stopped: bool = False,
) -> Answer:
    warm = sum(one.warm for one in sources) if mode is AnswerMode.CACHED else 0
    ttft = 0.19 if mode is AnswerMode.CACHED else 4.31
    return Answer(
        question,
        text,
        found,
        citations,
        dropped,
        sources,
        timings(ttft),
        warm,
        len(sources) - warm,
        mode,
        "scripted",
        text,
        stopped,
    )


QUOTE = Citation(
    1,
    _BOILER,
    Location("Terms › 4 Warranty", 4, 4),
    "The warranty period is five years from commissioning (14 March 2023) and requires an annual inspection",
)


def play(final: Answer, pieces: Sequence[str] | None = None) -> list[AnswerEvent]:
    """The events that lead to `final`."""
    words = list(pieces) if pieces is not None else [word + " " for word in final.text.split(" ")]
    return [
        Retrieved(final.sources),
        FirstToken(final.timings),
        *[Evidence(citation) for citation in final.citations],
        *[AnswerText(piece) for piece in words],
        Finished(final),
    ]


WATCHING = Status(
    Freshness.WATCHING,
    files=12_431,
    failed=3,
    chunks=80_000,
    with_vectors=80_000,
    warm=48_900,
    kv_bytes=38 * 1024**3,
    budget_bytes=60 * 1024**3,
)
WARMING = Status(
    Freshness.INDEXING,
    files=12_431,
    chunks=80_000,
    with_vectors=78_500,
    warm=48_900,
    kv_bytes=38 * 1024**3,
    budget_bytes=60 * 1024**3,
    stage=IndexStage.WARM,
    done=900,
    total=32_000,
    eta_seconds=7_300.0,
    waiting="the GPU is busy",
)


@dataclass
class ScriptedBackend:
    """Plays `script[question]`; a threading.Event in a script is waited for, an exception raised."""

    script: dict[str, Sequence[AnswerEvent | threading.Event | Exception]] = field(default_factory=dict)
    now: Status = WATCHING
    started: Started = Started("embedded reader", "CPU")
    start_gate: threading.Event | None = None
    start_error: Exception | None = None
    chunks: Sequence[Chunk] = DOCUMENT
    asked: list[tuple[str, AnswerMode]] = field(default_factory=list)
    expected: list[str] = field(default_factory=list)
    """Questions that were announced by `prefetch`."""
    pauses: list[float | None] = field(default_factory=list)
    decisions: list[bool] = field(default_factory=list)
    """Decisions about missing files: True if they are kept."""
    session: Session = field(default_factory=lambda: Session(NOWHERE, FOLDERS, NOWHERE.data_dir / "config.toml"))
    stops: int = 0
    earlier: list[tuple[Turn, ...]] = field(default_factory=list)
    """Turns that came with each question."""
    together: int = 1
    """Questions that are answered together."""
    groups: list[list[str]] = field(default_factory=list)
    """Questions that were asked together."""
    files: Sequence[Path] = (_BOILER, _MAIL, _NOTES)
    keeper: Keeper = field(default_factory=lambda: Keeper(Path("/nonexistent"), save=False))
    listen: Callable[[IndexEvent], None] | None = None

    def has_ended(self) -> bool:
        return False

    def start(self, report: Callable[[str], None], listen: Callable[[IndexEvent], None]) -> Started:
        report("loading the model")
        self.listen = listen
        if self.start_gate is not None:
            self.start_gate.wait(20)
        if self.start_error is not None:
            raise self.start_error
        return self.started

    def backlog(self) -> Backlog:
        return Backlog()

    def ask(
        self,
        question: str,
        stop: Callable[[], bool],
        mode: AnswerMode = AnswerMode.CACHED,
        *,
        wait: Callable[[], bool] = lambda: True,
        turn: int | None = None,
        earlier: Sequence[Turn] = (),
    ) -> Iterator[AnswerEvent]:
        for event in self._events(question, stop, mode, earlier):
            if isinstance(event, Finished) and turn is not None:
                self.keeper.save(turn, event.answer)
            yield event

    def ask_all(
        self, wanted: Sequence[Wanted], stop: Callable[[], bool], *, wait: Callable[[], bool], earlier: Sequence[Turn]
    ) -> Generator[Answering, None, None]:
        """Answer as many as `together` says, all with the turns before the first."""
        self.groups.append([one.question for one in wanted[: self.together]])
        for one in wanted[: self.together]:
            yield Answering(one.turn, self.ask(one.question, stop, wait=wait, turn=one.turn, earlier=earlier))

    def names(self) -> Names:
        return Names(self.files, FOLDERS)

    def change_of(self, source: SavedSource) -> Change:
        return Change.GONE

    def _events(
        self, question: str, stop: Callable[[], bool], mode: AnswerMode, earlier: Sequence[Turn]
    ) -> Iterator[AnswerEvent]:
        self.asked.append((question, mode))
        self.earlier.append(tuple(earlier))
        scripted = self.script.get(question)
        steps = scripted if scripted is not None and mode is AnswerMode.CACHED else play(self._plain(question, mode))
        text = ""
        for step in steps:
            if isinstance(step, threading.Event):
                while not step.wait(0.01):
                    if stop():
                        break
            elif isinstance(step, Exception):
                raise step
            else:
                text += step.text if isinstance(step, AnswerText) else ""
                CLOCK.now += step.timings.ttft if isinstance(step, FirstToken) else 0.0
                yield step
            if stop():
                yield Finished(answer(question, text, mode=mode, stopped=True))
                return

    def _plain(self, question: str, mode: AnswerMode) -> Answer:
        return answer(
            question,
            "The warranty ends on 14 March 2028 [1], if a yearly inspection is logged [1][2].",
            mode=mode,
            citations=(QUOTE,),
        )

    def prefetch(self, question: str) -> None:
        self.expected.append(question)

    def status(self) -> Status:
        return self.now

    def document(self, path: Path) -> Sequence[Chunk]:
        return self.chunks

    def pause(self, seconds: float | None) -> None:
        self.pauses.append(seconds)
        self.now = (
            WATCHING
            if seconds is None
            else Status(
                Freshness.PAUSED,
                files=12_431,
                chunks=80_000,
                with_vectors=80_000,
                warm=48_900,
                kv_bytes=38 * 1024**3,
                budget_bytes=60 * 1024**3,
                paused_seconds=seconds,
            )
        )

    def decide_deletions(self, *, keep: bool) -> int:
        self.decisions.append(keep)
        missing, self.now = self.now.missing, replace(self.now, missing=0)
        return missing

    def stop(self) -> bool:
        self.stops += 1
        return True


HOSTILE = (
    "before\x1b[2J\x1b]52;c;cm0gLXJm\x07\x1b]8;;http://evil.example\x1b\\link\x1b]8;;\x1b\\"
    "\x9b31mred\x90q\x9c\x1b]0;owned\x07\u202egnp.exe\u202c zero\u200bwidth [/x] [bold]not bold[/bold] "
    "[@click=app.quit]click[/] 漢字かな交じり文 after"
)


def hostile_answer(question: str) -> Answer:
    """An answer in which every untrusted field is hostile."""
    path = FOLDERS[0] / HOSTILE.replace("/", "_")
    place = Location(HOSTILE, None, None, 3, 5)
    bad = Source(1, ChunkId("e" * 32), path, HOSTILE, place, f"{HOSTILE}\n{'x' * 1_000_000}", 0.5, True, True)
    return answer(question, HOSTILE, sources=(bad,), citations=(Citation(1, path, place, HOSTILE),), dropped=(HOSTILE,))


def hostile_backend() -> ScriptedBackend:
    """Plays hostile text, cut in the middle of its escape sequences."""
    final = hostile_answer("hostile")
    pieces = [HOSTILE[at : at + 3] for at in range(0, len(HOSTILE), 3)]
    place = final.sources[0].location
    chunks = [Chunk(ChunkId(c * 32), i, f"{HOSTILE} {c}", 9, place) for i, c in enumerate("def")]
    return ScriptedBackend({"hostile": play(final, pieces)}, chunks=chunks)


if __name__ == "__main__":
    from desk_rag.tui.app import run_with

    sys.exit(run_with(ScriptedBackend() if "plain" in sys.argv else hostile_backend(), FOLDERS))
