"""The corpus: passages, books and the token stream."""

from __future__ import annotations

from pathlib import Path
from random import Random

import numpy as np
from tokenizers import Tokenizer

from desk_rag.model.trained_frame import END_OF_TEXT
from desk_rag.training.reader.data.corpus import books, passages, texts, write_stream
from tests.training.reader.invented import document

MARKED = f"One more, with {END_OF_TEXT} in it."


def test_passages_hold_the_whole_text_in_order_and_keep_their_size() -> None:
    text = document(Random(2), 120)
    cut = list(passages(text))
    assert " ".join(cut).split() == text.split()
    assert all(50 <= len(piece.split()) <= 190 for piece in cut[:-1]) and len(cut) > 5


def test_a_long_paragraph_is_cut_between_sentences_and_a_short_rest_left_out() -> None:
    long = " ".join(f"Sentence number {n} says something about tin." for n in range(60))
    cut = list(passages(long))
    assert len(cut) > 1 and all(piece.endswith("tin.") for piece in cut)
    assert list(passages("too short to keep")) == []


def test_books_take_an_even_share(data: Path) -> None:
    everything = books(data)
    assert [book.title for book in everything] == [f"Harbour book {n}" for n in range(6)]
    assert all(book.passages for book in everything)
    share = books(data, 0.5)
    assert 2 <= len(share) <= 4 and set(share) < set(everything)


def test_stream_holds_every_document_once_behind_its_mark(
    data: Path, tokenizer_path: Path, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    count = write_stream(data, tokenizer_path, [MARKED], tmp_path / "tokens.bin", workers=1)
    stream = np.fromfile(tmp_path / "tokens.bin", np.uint16)
    assert len(stream) == count and stream[0] == 0
    pieces = np.split(stream, np.flatnonzero(stream == 0))[1:]
    decoded = {tokenizer.decode(piece[1:].tolist(), skip_special_tokens=False) for piece in pieces}
    assert len(pieces) == 7
    assert decoded == {MARKED, *(f"{title}\n{text}" for title, text in texts(data))}
