"""Reason why no question can be answered, as a function of the status."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from desk_rag.tui.backend import Freshness, Status
from desk_rag.tui.keys.keymap import KeyMap
from desk_rag.tui.messages import Problem
from desk_rag.tui.wording import count

NO_FOLDER = Problem("No folder is chosen yet.", "Enter chooses one; or start desk-rag with it: desk-rag ~/Documents")
"""The state of a UI that was started without a folder, as long as none was chosen."""


def nothing_to_ask(status: Status, folders: Sequence[Path], keymap: KeyMap) -> Problem | None:
    """Return why no question can be answered, None if there are documents."""
    if status.files or status.is_reading:
        return None
    if not folders:
        return NO_FOLDER
    if status.absent:
        return Problem("The folder is not there now, and nothing of it was read before.", "Connect its drive.")
    if status.freshness is Freshness.PAUSED:
        return Problem("Nothing has been read yet, and indexing is paused.", f"{keymap.shown('pause')} goes on.")
    names = ", ".join(folder.name or str(folder) for folder in folders)
    if not status.failed:
        return Problem(
            f"{names} holds no file that desk-rag reads.",
            f"{keymap.shown('library')} shows what is left out and why. A file that you add is read at once.",
        )
    return Problem(
        f"Nothing in {names} could be read ({count(status.failed, 'file')} could not be read).",
        f"{keymap.shown('library')} says for each file why.",
    )
