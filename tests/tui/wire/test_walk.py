"""A walk through the real program in a terminal of 80x24: from an empty home to an exported chat, and back again.

`DESK_RAG_SCREENS=DIRECTORY pytest tests/tui/wire/test_walk.py -m slow` also writes the screen of each step there.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from desk_rag.indexer.resident.protocol import has_unix_sockets
from desk_rag.tui.keys.keymap import KeyMap
from tests.tui.terminal import Terminal
from tests.tui.wire.keys import sent

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not has_unix_sockets(), reason="needs Unix sockets")]
NOTES = {
    "house/gate.md": "# Gate\n\nThe garden gate is painted green. It was painted by Mara Lind in May 2021.\n",
    "house/roof.md": "# Roof\n\nThe roof was repaired by Jonas Weil in June 2020.\n",
    "letters/aunt.txt": "Dear Tom,\n\nthe plums are ripe. Yours, Aunt Isolde\n",
}
_SECONDS = 120.0
_DOWN = "\x1b[B"


class Visitor:
    """A new user at a terminal: sends keys, and waits for what the screen says."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self._numbers = count(1)
        self._env = {"HOME": str(home), "XDG_CONFIG_HOME": "", "XDG_CACHE_HOME": "", "XDG_DATA_HOME": ""}
        self._keymap = KeyMap()
        self.terminal = self._started()

    def _started(self) -> Terminal:
        return Terminal(["-m", "desk_rag"], columns=80, rows=24, env=self._env)

    def start_again(self) -> None:
        self.terminal.close()
        self.terminal = self._started()

    def types(self, text: str) -> None:
        self.terminal.send(text)

    def presses(self, *actions: str) -> None:
        self.terminal.send("".join(sent(self._keymap.key(action)) for action in actions))

    def sees(self, *signs: str) -> str:
        """Wait until the screen shows all of this, line breaks aside; return its words."""
        self.terminal.until(lambda: all(sign in self.words for sign in signs), _SECONDS)
        if place := os.environ.get("DESK_RAG_SCREENS"):
            name = f"{next(self._numbers):02} {signs[0][:40].replace('/', '-')}.txt"
            (Path(place) / name).write_text(self.terminal.text)
        return self.words

    def sees_no(self, sign: str) -> None:
        self.terminal.until(lambda: sign not in self.words, _SECONDS)

    @property
    def words(self) -> str:
        return " ".join(word for word in self.terminal.text.split() if word not in ("▎", "▏", "▌"))

    def holds_no_model(self) -> None:
        """The UI's own process has loaded no library of the models in all this."""
        maps = Path("/proc", str(self.terminal.pid), "maps")
        assert not maps.exists() or "libtorch" not in maps.read_text()

    def quits(self) -> None:
        self.presses("quit")
        assert self.terminal.wait(30) == 0 and self.terminal.was_restored()
        assert b"Traceback" not in self.terminal.raw


@pytest.fixture
def visitor(tmp_path: Path) -> Iterator[Visitor]:
    for name, text in NOTES.items():
        (tmp_path / "Documents" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "Documents" / name).write_text(text)
    visitor = Visitor(tmp_path)
    yield visitor
    visitor.terminal.close()


def test_from_an_empty_home_to_an_exported_chat(visitor: Visitor) -> None:
    documents = visitor.home / "Documents"
    # The first run: a folder is offered, looked at, started.
    visitor.sees("Which folder do you want to ask about?", "~/Documents", "sample documents, to try desk-rag")
    visitor.types("\r")
    visitor.sees("will read 3 files", "md 2 · txt 1", "embedded reader: needs no download", "Nothing leaves this")
    visitor.types("\r")
    # A question before anything was read waits, and is answered from all files.
    visitor.sees("Ask about your files")
    visitor.types("What colour is the garden gate?\r")
    visitor.sees("waits for")
    visitor.sees("[1] house/gate.md · line 3", "first word", "embedded reader · CPU")
    assert "painted green" in visitor.words and "could not find" not in visitor.words
    # A follow-up, an answer limited to a folder, words without an answer.
    visitor.types("And who painted it?\r")
    visitor.sees("↳ asked as:", "Mara Lind")
    visitor.types("@lett")
    visitor.sees("@letters/")
    visitor.types("\twho repaired the roof?\r")
    visitor.sees("searched only letters")
    assert "Jonas Weil" not in visitor.words
    visitor.types("/plums\r")
    visitor.sees("1 passage with this word.", "first word")
    # The library: a file is left out, and is back after an undo. A new file is noticed.
    visitor.presses("library")
    visitor.sees("3 files read", "▸ house/")
    visitor.types("roof")
    visitor.sees("● house/roof.md")
    visitor.types("\r")
    visitor.sees("house/roof.md · as desk-rag read it", "repaired by Jonas Weil")
    visitor.types("\x1b")
    visitor.sees("● house/roof.md")
    visitor.presses("entry_actions")
    visitor.sees("Exclude it …")
    visitor.types("x")
    visitor.sees("Exclude roof.md?", "1 document will leave the index")
    visitor.types("y")
    visitor.sees("2 files read", "F9 undoes it")
    visitor.presses("undo")
    visitor.sees("3 files read")
    visitor.types("\x1b")
    visitor.presses("library")
    (documents / "oven.md").write_text("# Oven\n\nThe oven was bought at Castell for 480 crowns.\n")
    visitor.sees("4 files")
    visitor.types("What did the oven cost?\r")
    visitor.sees("[1] oven.md · line 3", "480 crowns")
    # Settings, activity, cache, models, doctor open over the chat, and their key leaves them.
    for screen, sign in (
        ("settings", "model.name"), ("activity", "found by words"), ("cache", "of 20 GiB"),
        ("models", "ships with desk-rag"), ("doctor", "checks: "),
    ):  # fmt: skip
        visitor.presses(screen)
        visitor.sees(sign)
        visitor.presses(screen)
        visitor.sees("Ask about your files")
    # The chat is saved, opened again, exported.
    visitor.presses("new_chat")
    visitor.sees("New chat.", "Ask a question; the answer quotes your documents")
    visitor.presses("chats")
    visitor.sees("Saved chats", "What colour is the garden gate?", "4 turns")
    visitor.types("\r")
    visitor.sees("[1] oven.md · line 3")
    visitor.presses("export")
    visitor.sees("Export this conversation with its sources", "~/chat-what-colour-is-the-garden-gate.md")
    visitor.types("\r")
    visitor.sees("Written to")
    exported = (visitor.home / "chat-what-colour-is-the-garden-gate.md").read_text()
    assert exported.count("\n## ") == 4 and "> The garden gate is painted green." in exported
    assert "`~/Documents/oven.md` line 3" in exported
    visitor.holds_no_model()
    visitor.quits()
    # The next start knows the folder, and the questions.
    visitor.start_again()
    visitor.sees("Ask a question; the answer quotes your documents", "4 files", "embedded reader · CPU")
    visitor.types("\x1b[A")
    visitor.sees("What did the oven cost?")
    visitor.types("\r")
    visitor.sees("480 crowns", "first word")
    visitor.quits()
