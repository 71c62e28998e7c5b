"""What is prepared beforehand: each part once, in the files that the training reads."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from desk_rag.model.trained_frame import HEAD, IM_END
from desk_rag.training.reader.data.corpus import books
from desk_rag.training.reader.data.scenes import Synthetic
from desk_rag.training.reader.data.written import load_passages
from desk_rag.training.reader.preparation import (
    ROW_LENGTH,
    SHORT_LENGTH,
    Work,
    load_books,
    prepare_reading,
    prepare_rows,
    prepare_stream,
)
from desk_rag.training.reader.question_writer import Draft, save_synthetic

FIELDS = ("ids", "segments", "positions", "learned")


@pytest.fixture(scope="module")
def work(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Work:
    """A work folder with everything that can be prepared."""
    work = Work(data, tmp_path_factory.mktemp("work") / "new", workers=1)
    prepare_stream(work, 400)
    prepare_rows(work, 6)
    quote = load_books(work)[0].passages[0].split(". ")[0] + "."
    one = Synthetic("What is told of it?", quote, quote.split()[1])
    save_synthetic(work.folder / "synthetic.0.jsonl", [(Draft(0, 0, quote), one, -0.5)])
    work.done("synthetic").touch()
    prepare_reading(work, 4, 3)
    return work


def test_every_part_is_there(work: Work) -> None:
    parts = ("tokenizer", "stream", "books", "near", "rows-writer", "rows-short", "rows-reading", "rows-last")
    assert all(work.done(part).exists() for part in parts) and not work.done("failed").exists()
    corpus, written = books(work.data), load_passages(work.data, "train")
    assert load_books(work)[: len(corpus)] == corpus
    assert [book.passages for book in load_books(work)[len(corpus) :]] == [(passage.text,) for passage in written]
    assert len(json.loads((work.folder / "near.json").read_text(encoding="utf-8"))) == 24
    assert work.stream.stat().st_size > 10_000


@pytest.mark.parametrize(("name", "count"), [("short", 6), ("reading", 4), ("last", 3), ("writer", 48)])
def test_rows_are_stacked_and_end_in_answers(work: Work, name: str, count: int) -> None:
    arrays = {field: np.load(work.folder / f"{name}.000.{field}.npy") for field in FIELDS}
    assert {len(array) for array in arrays.values()} == {count}
    tokenizer = Tokenizer.from_file(str(work.tokenizer))
    for ids, learned in zip(arrays["ids"], arrays["learned"], strict=True):
        known = learned[learned >= 0]
        assert tokenizer.decode(ids[known].tolist(), skip_special_tokens=False).endswith(IM_END)
        if name != "writer":
            head = tokenizer.encode(HEAD, add_special_tokens=False).ids
            assert len(ids) == (SHORT_LENGTH if name == "short" else ROW_LENGTH) and ids[: len(head)].tolist() == head


def test_a_part_that_is_there_is_not_made_again(work: Work) -> None:
    before = {path: path.stat().st_mtime_ns for path in work.folder.iterdir()}
    prepare_stream(work, 400)
    prepare_rows(work, 6)
    prepare_reading(work, 4, 3)
    assert {path: path.stat().st_mtime_ns for path in work.folder.iterdir()} == before


def test_waiting_ends_when_preparing_fails(tmp_path: Path) -> None:
    work = Work(tmp_path, tmp_path, workers=1)
    work.done("books").touch()
    work.wait("books")
    work.done("failed").touch()
    with pytest.raises(RuntimeError, match="'near'"):
        work.wait("near")


def test_a_part_that_fails_is_not_done(tmp_path: Path) -> None:
    work = Work(tmp_path, tmp_path, workers=1)
    with pytest.raises(FileNotFoundError):
        work.once("near", lambda: (tmp_path / "missing").read_text(encoding="utf-8"))
    assert not work.done("near").exists()
