"""Text of an empty transcript, from the folders, the status and a failed start."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from textual.content import Content

from desk_rag.sanitize import home_path
from desk_rag.tui.backend import Freshness, Status
from desk_rag.tui.keys.keymap import KeyMap
from desk_rag.tui.messages import Problem
from desk_rag.tui.turns.readiness import NO_FOLDER
from desk_rag.tui.wording import count, safe


def welcome(folders: Sequence[Path], status: Status, problem: Problem | None, keymap: KeyMap) -> Content:
    """Return what stands in an empty transcript: what to do next, or why nothing can be done."""
    keys = f"{keymap.shown('help')} shows the keys, {keymap.shown('chats')} your earlier chats."
    if not folders and (problem is None or problem is NO_FOLDER):
        return Content.assemble((f"{NO_FOLDER.message}\n\n", "bold"), NO_FOLDER.remedy)
    if problem is not None:
        return Content.assemble(
            ("desk-rag could not start\n\n", "bold $error"), safe(problem.message), "\n\n", safe(problem.remedy)
        )
    names = ", ".join(home_path(folder) for folder in folders)
    if status.freshness is Freshness.STARTING:
        state = "Starting. You can type already; a question waits until the model is loaded."
    elif status.absent and not status.files:
        state = "The folder is not there now, and nothing of it was read before."
    elif not status.files and not status.is_reading:
        state = f"Nothing in it could be read. {keymap.shown('library')} says for each file why."
    elif not status.files:
        state = "Nothing has been read yet. A question waits until the files have been."
    else:
        state = f"{count(status.files, 'file')}, {count(status.chunks, 'passage')}: "
        if status.warm >= status.chunks:
            state += "all read ahead of time, so answers come fast."
        else:
            state += f"{status.warm:,} read ahead of time, the rest answer more slowly."
    return Content.assemble(
        ("Ask a question; the answer quotes your documents and says where\n\n", "bold"),
        safe(names, "$foreground 60%", single_line=True, most=300),
        "\n",
        (state, "$foreground 60%"),
        "\n\n",
        (f"Nothing leaves this machine. {keys}", "$foreground 60%"),
    )
