"""Text of an empty transcript, from the folders, the status and a failed start."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from textual.content import Content

from desk_rag.tui.backend import Freshness, Status
from desk_rag.tui.messages import Problem
from desk_rag.tui.wording import count, safe


def welcome(folders: Sequence[Path], status: Status, problem: Problem | None) -> Content:
    """Return what stands in an empty transcript: what to do next, or why nothing can be done."""
    if problem is not None:
        return Content.assemble(
            ("desk-rag could not start\n\n", "bold $error"), safe(problem.message), "\n\n", safe(problem.remedy)
        )
    if not folders:
        return Content.assemble(
            ("No folder yet\n\n", "bold"),
            "Ctrl+P, “Choose a folder”; or start desk-rag with one:  desk-rag ~/Documents",
        )
    names = ", ".join(str(folder) for folder in folders)
    if status.freshness is Freshness.STARTING:
        state = "Starting. You can type already; a question waits until the model is there."
    elif status.absent and not status.files:
        state = "The folder is not there now, and nothing of it was read before."
    elif not status.files and not status.is_reading:
        state = "Nothing in it could be read. desk-rag why FOLDER says for each file why."
    elif not status.files:
        state = "Nothing has been read yet. A question waits until the files have been."
    else:
        state = f"{count(status.files, 'file')}, {count(status.chunks, 'chunk')}: "
        state += "all warm." if status.warm >= status.chunks else f"{status.warm:,} warm, the rest answer more slowly."
    return Content.assemble(
        ("Ask a question; the answer quotes your documents and says where\n\n", "bold"),
        safe(names, "$foreground 60%", single_line=True, most=300),
        "\n",
        (state, "$foreground 60%"),
        "\n\n",
        ("Nothing leaves this machine. F1 shows the keys.", "$foreground 60%"),
    )
