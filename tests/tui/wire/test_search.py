"""A search in the prompt, as the real program shows it."""

from __future__ import annotations

import pytest

from desk_rag.indexer.resident.protocol import has_unix_sockets
from tests.tui.wire.test_error_states import Desk, desk

__all__ = ["desk"]
pytestmark = [pytest.mark.slow, pytest.mark.skipif(not has_unix_sockets(), reason="needs Unix sockets")]


def test_the_best_hit_is_in_view_and_excerpts_keep_their_indent(desk: Desk) -> None:
    for number in range(24):
        text = f"The piano stands in room {number}, where nobody has played it since the house was sold to a school."
        (desk.notes / f"piano {number}.md").write_text(f"# Piano\n\n{text} {text}\n")
    (desk.notes / "tuner.md").write_text(
        "# Tuner\n\nThe piano was tuned on 4 May 2023 by Ida Korn, who came by train.\n"
    )
    desk.run("index", "--no-kv", str(desk.notes))
    desk.open()
    desk.send("/piano tuned\r")
    desk.sees("› /piano tuned", "20 passages: [1] has all of these words", "[1] · tuner.md", "tuned on 4 May")
    terminal = desk.terminal
    assert terminal is not None
    excerpts = [line for line in terminal.text.splitlines() if "has played" in line or "sold to a" in line]
    assert len(excerpts) > 2
    assert {line[2:8].strip() for line in excerpts} == {""}, "every line of an excerpt is indented"
    desk.send("/roof\r")
    desk.sees("› /roof", "1 passage with this word.", "repaired by Jonas Weil")
    desk.quit()
