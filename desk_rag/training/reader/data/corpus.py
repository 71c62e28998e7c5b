"""The corpus: documents cut into passages, and their token stream for the language-model stage."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing import Pool
from pathlib import Path
from random import Random

import numpy as np
from tokenizers import Tokenizer

from desk_rag.documents.sentences import sentences
from desk_rag.model.trained_frame import END_OF_TEXT
from desk_rag.training.reader.data.frame import mark_id
from desk_rag.training.reader.data.written import find, read_lines

_BATCH = 100
_SHORTEST = 25
"""Words of the shortest passage."""


@dataclass(frozen=True, slots=True)
class Book:
    """A document of the corpus as passages in order."""

    title: str
    passages: tuple[str, ...]


def texts(folder: Path) -> Iterator[tuple[str, str]]:
    """(title, text) of every document in part-*.jsonl[.xz]."""
    for path in find(folder, "part"):
        for row in read_lines(path):
            yield str(row.get("title") or ""), str(row["text"])


def passages(text: str, smallest: int = 50, largest: int = 190) -> Iterator[str]:
    """Paragraphs packed into passages of `smallest` to `largest` words; long paragraphs are cut between sentences."""
    current: list[str] = []
    words = 0
    for paragraph in re.split(r"\n\s*\n", text):
        size = len(paragraph.split())
        if not size:
            continue
        for piece in sentences(paragraph) if size > largest * 1.6 else [paragraph]:
            size = len(piece.split())
            if words + size > largest and words >= smallest:
                yield "\n".join(current)
                current, words = [], 0
            current.append(piece)
            words += size
    if words >= _SHORTEST:
        yield "\n".join(current)


def books(folder: Path, share: float = 1.0) -> list[Book]:
    """The corpus as books; `share` of the documents, evenly taken."""
    kept_books = []
    for index, (title, text) in enumerate(texts(folder)):
        if (index * 0.618033988749895) % 1.0 < share:
            cut = tuple(p for p in passages(text) if len(p.split()) <= 320)
            if cut:
                kept_books.append(Book(title, cut))
    return kept_books


def write_stream(folder: Path, tokenizer: Path, extra: list[str], target: Path, workers: int) -> int:
    """Write the shuffled corpus and `extra` texts as uint16 tokens, parted by <|endoftext|>; returns how many."""
    everything = [f"{title}\n{text}" for title, text in texts(folder)] + extra
    Random(0).shuffle(everything)
    jobs = [(tokenizer, everything[start : start + _BATCH]) for start in range(0, len(everything), _BATCH)]
    with Pool(workers) as pool:
        stream = np.concatenate(list(pool.imap(_encode, jobs)))
    stream.tofile(target)
    return len(stream)


def _encode(job: tuple[Path, list[str]]) -> np.ndarray[tuple[int], np.dtype[np.uint16]]:
    path, batch = job
    tokenizer = Tokenizer.from_file(str(path))
    end = mark_id(tokenizer, END_OF_TEXT)
    tokenizer.encode_special_tokens = True  # a text that holds a mark does not end there
    ids: list[int] = []
    for encoded in tokenizer.encode_batch(batch, add_special_tokens=False):
        ids += [end, *encoded.ids]
    return np.array(ids, np.uint16)
