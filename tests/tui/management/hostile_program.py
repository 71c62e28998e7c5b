"""Run as `python -m tests.tui.management.hostile_program PLACE` it opens the app on an index of hostile files."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from desk_rag.config import IndexSettings, Settings, StoreSettings
from desk_rag.documents.status import IndexStage
from desk_rag.ingest.pipeline import sync_folder
from desk_rag.model.prompt import load_prompt
from desk_rag.store.store import Store
from desk_rag.store.types import Activity
from desk_rag.tui.app import run_with
from desk_rag.tui.management.session import Session
from tests.tui.management.conftest import READER
from tests.tui.scripted import HOSTILE, ScriptedBackend

NAME = HOSTILE.replace("/", "_")[:90]


class Bad(Enum):
    FAIL = "fail"


@dataclass(frozen=True)
class HostileFinding:
    name: str = HOSTILE
    verdict: Enum = Bad.FAIL
    detail: str = HOSTILE
    remedy: str = HOSTILE


def checks(_settings: Settings) -> Iterator[HostileFinding]:
    yield HostileFinding()


def main(place: Path, *, is_first_run: bool) -> int:
    """Open the app on an index of hostile files, or for the first time in a home directory that holds them."""
    folder = place / f"top {NAME}"
    (folder / f"dir {NAME}").mkdir(parents=True)
    (folder / f"dir {NAME}" / "inside.md").write_text(HOSTILE)
    (folder / f"note {NAME}.md").write_text(f"# {HOSTILE}\n\nThe gate is green. {HOSTILE}\n")
    (folder / f"broken {NAME}.pdf").write_bytes(b"%PDF-1.4\nnothing")
    Path(os.fsdecode(os.fsencode(folder) + b"/bytes \xff\x9b31m.md")).write_text("Bytes.\n")
    settings = Settings(
        data_dir=place / "data",
        index=IndexSettings(settle_seconds=0),
        store=StoreSettings(budget_gib=1, reserve_gib=0),
    )
    if not is_first_run:
        _index(folder, settings)
    folders = [] if is_first_run else [folder]
    session = Session(settings, folders, place / "config.toml", checks)
    return run_with(ScriptedBackend(session=session), folders)


def _index(folder: Path, settings: Settings) -> None:
    from tests.store.made import key, kv_for  # imports torch, which the first run does without

    with Store.open(settings.data_dir, settings.store, writer=True) as store:
        prompt = load_prompt(READER)
        for _ in sync_folder(store, folder, prompt, prompt.chunk_size, settings.index, lambda: False):
            pass
        passage = store.passages_of(folder / f"note {NAME}.md")[0]
        assert store.put_kv(key("x"), kv_for(key("x")), [passage.chunk.chunk_id], 0.1)
        store.pin(folder / f"dir {NAME}")
        store.publish_activity(
            Activity(os.getpid(), time.time(), IndexStage.WORDS, 1, 2, "files", 1.0, 1.0, HOSTILE, HOSTILE)
        )


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), is_first_run=sys.argv[2:] == ["first"]))
