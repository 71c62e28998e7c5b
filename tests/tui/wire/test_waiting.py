"""What a question waits for, and how it is withdrawn, as the real program shows it."""

from __future__ import annotations

import pytest

from desk_rag.indexer.resident.protocol import has_unix_sockets
from tests.tui.wire.test_error_states import Desk, desk

__all__ = ["desk"]
pytestmark = [pytest.mark.slow, pytest.mark.skipif(not has_unix_sockets(), reason="needs Unix sockets")]


def test_a_first_question_says_what_it_waits_for(desk: Desk) -> None:
    desk.open(sign="Ask about your files")
    desk.send("What colour is the garden gate?\r")
    desk.sees("waits for the model to load: first use: testing answers from caches, ")
    desk.sees("painted green", "first word")
    desk.quit()
