"""Whatever is edited away, deleted or purged, in any order, is in no file of the store afterwards."""

from __future__ import annotations

import random
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from desk_rag.store.store import Store
from tests.store import made
from tests.store.made import warm
from tests.store.maintenance.test_deletion import raw

FOLDERS = (Path("/home/u/open"), Path("/home/u/secret"))
LETTERS = "abcdefghijklmnopqrstuvwxyzäöüéЖщ日本0123456789"


@pytest.mark.parametrize("seed", range(12))
def test_no_word_survives_its_last_document(seed: int) -> None:
    steps = list(_steps(random.Random(seed)))
    with tempfile.TemporaryDirectory() as place:
        root = Path(place, "data")
        with Store.open(root, made.settings(), writer=True) as store:
            _carry_out(store, steps)
            assert store.checkpoint() and store.verify().clean
            now = {text for row in store.documents() for text in _texts_of(store, row.path)}
            before = {text for _, _, texts in steps for text in texts}
            _check(root, before - now, now)
            report = store.purge(FOLDERS[1], verify=True)
            assert report.traces == ()
            left = {text for row in store.documents(FOLDERS[0]) for text in _texts_of(store, row.path)}
            _check(root, before - left, left)
        _check(root, before - left, left)


def _steps(chance: random.Random) -> Iterator[tuple[str, int, list[str]]]:
    """A change of one of four files, with the texts it has afterwards."""
    for _ in range(chance.randrange(3, 14)):
        words = ["".join(chance.choices(LETTERS, k=chance.randrange(6, 24))) for _ in range(12)]
        texts = [" ".join(chance.sample(words, chance.randrange(1, 8))) for _ in range(chance.randrange(1, 5))]
        verb = chance.choice(("write", "write", "write", "warm", "delete", "purge"))
        yield verb, chance.randrange(4), list(dict.fromkeys(texts))


def _carry_out(store: Store, steps: list[tuple[str, int, list[str]]]) -> None:
    for verb, number, texts in steps:
        path = FOLDERS[number % 2] / f"{number}.md"
        if verb == "write":
            store.put_document(made.document(path, texts), made.chunks(texts), made.stamp())
        elif verb == "delete":
            store.remove_document(path)
        elif verb == "purge":
            assert store.purge(path, verify=True).traces == ()
        elif store.document(path) is not None:
            for text in _texts_of(store, path):
                warm(store, text)


def _texts_of(store: Store, path: Path) -> list[str]:
    return [passage.chunk.text for passage in store.passages_of(path)]


def _check(root: Path, gone: set[str], present: set[str]) -> None:
    """No word that stood only in `gone` is in any file, as it was or folded for the word index."""
    kept = "\n".join(present).casefold()
    content = raw(root)
    for word in {word for text in gone for word in re.findall(r"\w{6,}", text)}:
        if word.casefold() not in kept:
            assert word.encode() not in content and word.casefold().encode() not in content, word
