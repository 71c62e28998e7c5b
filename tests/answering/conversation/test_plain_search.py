"""'/words' in a prompt: passages with all words come before those with some, and the sentence says which."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from desk_rag.answering.conversation.plain_search import search
from desk_rag.answering.events import Answer, Finished
from desk_rag.config import IndexSettings, StoreSettings
from desk_rag.ingest.pipeline import sync_folder
from desk_rag.model.prompt import load_prompt
from desk_rag.store.store import Store
from tests.tui.management.conftest import READER

_FILES = {
    "handover.txt": "Meter meter meter: the meter stands in the cellar, the meter is read in May.\n",
    "contract.md": "The gas company reads the meters once a year. It sends a letter before it comes to the house.\n",
    "gas/list.md": "One meter was replaced.\n",
    "garden.md": "The apple tree was planted in March.\n",
}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    folder = tmp_path / "docs"
    for name, text in _FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    with Store.open(tmp_path / "data", StoreSettings(budget_gib=1, reserve_gib=0), writer=True) as store:
        prompt = load_prompt(READER)
        for _ in sync_folder(store, folder, prompt, prompt.chunk_size, IndexSettings(settle_seconds=0), lambda: False):
            pass
        yield store


def _listed(store: Store, text: str) -> tuple[list[str], str]:
    last = list(search(store, text, ()))[-1]
    assert isinstance(last, Finished) and isinstance(last.answer, Answer)
    return [source.path.name for source in last.answer.sources], last.answer.text


def test_passages_with_all_words_stand_first_and_the_sentence_says_so(store: Store) -> None:
    names, said = _listed(store, "/gas meter")
    assert set(names[:2]) == {"contract.md", "list.md"} and names[2:] == ["handover.txt"], "a folder's name counts"
    assert said == "3 passages: [1] to [2] have all of these words, the other has only some."


@pytest.mark.parametrize(
    ("text", "number", "said"),
    [
        ("/apple tree", 1, "1 passage with all of these words."),
        ("/meter", 3, "3 passages with this word, the best first."),
        ("/the meter", 3, "3 passages with this word, the best first."),
        ("/letter apple", 2, "No passage has all of these words; 2 passages with some of them, the best first."),
        ("/walrus", 0, "No passage has this word."),
        ("/walrus piano", 0, "No passage has any of these words."),
    ],
)
def test_the_sentence_says_what_was_matched(store: Store, text: str, number: int, said: str) -> None:
    names, text = _listed(store, text)
    assert (len(names), text) == (number, said)
