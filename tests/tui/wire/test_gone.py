"""Many files that are gone at once, as the real program shows it."""

from __future__ import annotations

from pathlib import Path

import pytest

from desk_rag.indexer.resident.protocol import has_unix_sockets
from tests.tui.wire.test_error_states import Desk, desk

__all__ = ["desk"]
pytestmark = [pytest.mark.slow, pytest.mark.skipif(not has_unix_sockets(), reason="needs Unix sockets")]
_F3, _F4, _PALETTE = "\x1bOR", "\x1bOS", "\x10"


def test_activity_says_how_many_files_are_gone_and_what_was_decided(desk: Desk) -> None:
    letters: list[Path] = [desk.notes / f"letter {number}.md" for number in range(63)]
    for number, letter in enumerate(letters):
        letter.write_text(f"# Letter {number}\n\nThe parcel {number} was sent to Castell.\n")
    desk.run("index", "--no-kv", str(desk.notes))
    for letter in letters:
        letter.unlink()
    desk.open()
    desk.sees("! 63 files gone, kept 3 days more (^p: remove or keep)")
    desk.send(_F4)
    desk.sees("! 63 files gone, kept 3 days more (^p: remove or keep)", "answers still quote them; F3 lists them")
    desk.send(_F4)
    desk.sees("Ask about your files")
    desk.send(_F3)
    desk.sees("its file is gone; kept for 3 days more")
    desk.send(_F3)
    desk.send(_PALETTE)
    desk.sees("Search for commands")
    desk.send("files that are gone")
    desk.sees("Remove")
    desk.send("\r")
    desk.sees("Keep them in the index")
    desk.send("k")
    desk.sees("63 documents kept in the index.")
    desk.send(_F4)
    desk.sees("63 files gone and kept, as you decided")
    desk.send(_F4)
    desk.sees("Ask about your files")
    desk.send(_F3)
    desk.sees("its file is gone; kept, as you decided")
    desk.quit()
