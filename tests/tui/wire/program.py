"""Run as `python -m tests.tui.wire.program PLACE [KEYS]` it opens the app on a small index, with scripted answers.

KEYS is a TOML table of keys by action. Answers are saved, so that chats can be listed and exported.
"""

from __future__ import annotations

import sys
import time
import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import count
from pathlib import Path

from desk_rag.answering.conversation.turns import Turn
from desk_rag.answering.events import AnswerEvent, AnswerMode
from desk_rag.config import IndexSettings, Settings, StoreSettings, UISettings
from desk_rag.ingest.pipeline import sync_folder
from desk_rag.model.prompt import load_prompt
from desk_rag.store.store import Store
from desk_rag.tui.app import run_with
from desk_rag.tui.conversation.keeper import Keeper
from desk_rag.tui.management.checks import Finding
from desk_rag.tui.management.session import Session
from tests.tui.management.conftest import FILES, READER
from tests.tui.scripted import QUOTE, ScriptedBackend, answer, play

FOLLOW_UP = "and until when?"
SLOW = "what takes long?"
"""Its answer ends, whether it is stopped or not, once there is a file 'go'."""


class _Backend(ScriptedBackend):
    """Backend with one question whose stop is heeded late, as that of a large model is."""

    def _events(
        self, question: str, stop: Callable[[], bool], mode: AnswerMode, earlier: Sequence[Turn]
    ) -> Iterator[AnswerEvent]:
        while question == SLOW and not (self.session.settings.data_dir.parent / "go").exists():
            time.sleep(0.02)
        yield from super()._events(question, stop, mode, earlier)


def backend_in(place: Path, keys: dict[str, str]) -> ScriptedBackend:
    """Index some files below `place` and return a backend over them."""
    folder, settings = place / "docs", settings_in(place, keys)
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (folder / "broken.pdf").write_bytes(b"%PDF-1.4\nnothing")
    with Store.open(settings.data_dir, settings.store, writer=True) as store:
        prompt = load_prompt(READER)
        for _ in sync_folder(store, folder, prompt, prompt.chunk_size, settings.index, lambda: False):
            pass
    completed = "Until when does the warranty of the boiler last?"
    follow_up = replace(answer(FOLLOW_UP, "Until 14 March 2028 [1].", citations=(QUOTE,)), asked_as=completed)
    return _Backend(
        script={FOLLOW_UP: play(follow_up)},
        session=Session(settings, [folder], place / "config.toml", _counted),
        keeper=Keeper(settings.data_dir, save=True),
    )


class _Verdict(Enum):
    OK = "ok"


@dataclass(frozen=True)
class _Look:
    """Finding that says how often the checks were run."""

    detail: str
    name: str = "looks"
    verdict: Enum = _Verdict.OK
    remedy: str = ""


_looks = count(1)


def _counted(_settings: Settings) -> Iterator[Finding]:
    yield _Look(f"time {next(_looks)} of all")


def settings_in(place: Path, keys: dict[str, str]) -> Settings:
    """Return settings whose data lie below `place`."""
    return Settings(
        data_dir=place / "data",
        index=IndexSettings(settle_seconds=0),
        store=StoreSettings(budget_gib=1, reserve_gib=0),
        ui=UISettings(keys=keys),
    )


if __name__ == "__main__":
    home = Path(sys.argv[1])
    chosen = tomllib.loads(sys.argv[2]) if len(sys.argv) > 2 else {}
    sys.exit(run_with(backend_in(home, chosen), [home / "docs"]))
