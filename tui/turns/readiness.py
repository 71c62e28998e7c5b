"""Readiness of a question and what it waits for; pure functions of the status."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from desk_rag.tui.backend import Freshness, Status
from desk_rag.tui.keys.keymap import KeyMap
from desk_rag.tui.messages import Problem
from desk_rag.tui.wording import count


def must_wait(status: Status) -> bool:
    """Return whether files are still being read for the first time, so that an answer may miss them.

    An index that was complete before is asked at once; its folders are looked through meanwhile.
    """
    reading = status.reading
    return reading is not None and (reading.total > 0 or not status.files)


def waiting_text(status: Status, keymap: KeyMap) -> str:
    """Return what a question waits for, and the keys that help."""
    reading = status.reading
    if reading is not None and reading.total:
        text = f"waits for files: {reading.read:,} of {reading.total:,} read"
    else:
        text = "waits: the folders are being looked through"
    if status.freshness is Freshness.PAUSED:
        text = text.replace("waits", "indexing is paused; waits", 1) + f" · {keymap.shown('pause')} goes on"
    elif status.waiting:
        text += f" ({status.waiting})"
    return f"{text} · Enter answers from those" if status.files else text


def nothing_to_ask(status: Status, folders: Sequence[Path], keymap: KeyMap) -> Problem | None:
    """Return why no question can be answered, None if there are documents."""
    if status.files or status.reading is not None:
        return None
    if not folders:
        return Problem("There are no documents to answer from.", "Start desk-rag with a folder: desk-rag ~/Documents")
    if status.absent:
        return Problem("The folder is not there now, and nothing of it was read before.", "Connect its drive.")
    names = ", ".join(folder.name or str(folder) for folder in folders)
    left_out = f" ({count(status.failed, 'file')} could not be read)" if status.failed else ""
    return Problem(
        f"Nothing in {names} could be read{left_out}.",
        f"{keymap.shown('library')} says for each file why; {keymap.shown('pause')} goes on if indexing is paused.",
    )
