"""Pictures of the README: `python -m tests.tui.pictures.readme` takes them from the real program."""

from __future__ import annotations

import re

import pytest

from tests.tui.pictures import text_of
from tests.tui.pictures.readme import PICTURES

_MOST_BYTES = 80_000
SHOWN = {
    "answer": ("Norrfell nature park", "200 crowns", "travel/norrfell-walk.md · line 102", "100%"),
    "source": ("~/Documents/travel/norrfell-walk.md", "Camping is forbidden in the whole of the Norrfell nature park"),
    "library": ("repairs.md", "chunks, 100% warm", "~/Documents/home"),
}


@pytest.mark.parametrize("name", SHOWN)
def test_a_picture_is_small_and_names_no_place_of_the_computer_it_was_taken_on(name: str) -> None:
    picture = (PICTURES / f"{name}.svg").read_text()
    assert len(picture.encode()) < _MOST_BYTES
    assert "@font-face" not in picture and "url(http" not in picture, "nothing is fetched from elsewhere"
    text = "\n".join(text_of(picture))
    for sign in SHOWN[name]:
        assert sign in text
    assert not re.search(r"(?<!\w)/(tmp|home|root|work|Users|var)\b", text)
    assert {file.stem for file in PICTURES.glob("*")} == set(SHOWN)
