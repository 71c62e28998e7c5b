"""The real app on a scripted backend that saves chats below a directory, with hostile names of files.

Run as `python -m tests.tui.conversation.program DIRECTORY` by tests in a pseudo-terminal.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from desk_rag.answering.events import AskedAs
from desk_rag.store.layout import Layout
from desk_rag.tui.app import run_with
from desk_rag.tui.conversation.keeper import Keeper
from tests.tui.scripted import FOLDERS, HOSTILE, ScriptedBackend, hostile_answer, play

QUESTION = "hostile"


def main(root: Path) -> int:
    Layout(root).create()
    final = replace(hostile_answer(QUESTION), asked_as=HOSTILE, limited_to=(FOLDERS[0] / HOSTILE.replace("/", "_"),))
    events = [AskedAs(HOSTILE), *play(final)]
    names = [FOLDERS[0] / f"bad{HOSTILE.replace('/', '_')}.md", FOLDERS[0] / "badger.md"]
    return run_with(ScriptedBackend({QUESTION: events}, files=names, keeper=Keeper(root, save=True)), FOLDERS)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
