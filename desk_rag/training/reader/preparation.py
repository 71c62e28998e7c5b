"""Prepare on the processor: tokenizer, token stream, books, neighbours, rows.

Each part is written to a work folder once. A part that is there already is not made again.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from random import Random

from tokenizers import Tokenizer

from desk_rag.errors import ConfigError
from desk_rag.training.reader.data import corpus
from desk_rag.training.reader.data.corpus import Book
from desk_rag.training.reader.data.frame import train_tokenizer
from desk_rag.training.reader.data.neighbours import nearest
from desk_rag.training.reader.data.rows import Row, RowBuilder, save_rows
from desk_rag.training.reader.data.scenes import Scenes, Stage
from desk_rag.training.reader.data.written import (
    Substitutes,
    find,
    load_passages,
    load_together,
    plain_title,
    read_lines,
)
from desk_rag.training.reader.question_writer import load_synthetic, writer_rows
from desk_rag.training.reader.synthetic.prose import Entry

ROW_LENGTH = 2048
SHORT_LENGTH = 688
_TOKENIZER_CHARACTERS = 100_000_000
_WORDS_PER_TOKEN = 0.66


@dataclass(frozen=True, slots=True)
class Work:
    """Directories and files of one run."""

    data: Path
    """corpus parts, qa_*, multi_*, unanswerable_*, synonyms."""
    folder: Path
    workers: int

    @property
    def tokenizer(self) -> Path:
        """The trained tokenizer."""
        return self.folder / "tokenizer.json"

    @property
    def stream(self) -> Path:
        """The corpus as uint16 tokens."""
        return self.folder / "tokens.bin"

    def done(self, part: str) -> Path:
        """Exists once `part` is complete."""
        return self.folder / f"{part}.done"

    def wait(self, part: str) -> None:
        """Return when another process has made `part`."""
        while not self.done(part).exists():
            if self.done("failed").exists():
                raise RuntimeError(f"preparing failed before '{part}' was made")
            time.sleep(1)

    def once(self, part: str, make: Callable[[], object]) -> None:
        """Make `part` unless it is there."""
        if not self.done(part).exists():
            began = time.perf_counter()
            summary = make()
            self.done(part).touch()
            print(f"prepared {part} in {time.perf_counter() - began:.0f} s: {summary}", flush=True)


def prepare_stream(work: Work, vocab: int) -> None:
    """Tokenizer and token stream: what the language model needs."""
    work.folder.mkdir(parents=True, exist_ok=True)
    work.once("tokenizer", lambda: _tokenizer(work, vocab))
    extra = [p.text for p in load_passages(work.data, "train")] * 2
    work.once("stream", lambda: corpus.write_stream(work.data, work.tokenizer, extra, work.stream, work.workers))


def prepare_rows(work: Work, short: int) -> None:
    """Books, neighbours, rows of the question writer, and the short rows."""
    work.once("books", lambda: _write_books(work))
    work.once("near", lambda: _write_near(work))
    work.once("rows-writer", lambda: _writer_rows(work))
    work.once("rows-short", lambda: make_rows(work, "short", Stage.SHORT, short, seed=11, synthetic=False))


def prepare_reading(work: Work, reading: int, final: int) -> None:
    """Rows that need the synthetic questions; waits for them."""
    work.wait("synthetic")
    work.once("rows-reading", lambda: make_rows(work, "reading", Stage.READING, reading, seed=21, synthetic=True))
    work.once("rows-last", lambda: make_rows(work, "last", Stage.FINAL, final, seed=22, synthetic=True))


def prepare_refining(work: Work, start: Path, rows: int) -> None:
    """Rows for going on with the reader in the directory `start`; they need no synthetic questions.

    Raises ConfigError where the data hold no written questions, or the work folder is another tokenizer's.
    """
    if not find(work.data, "qa_train"):
        raise ConfigError(f"{work.data} has no qa_train*.", remedy="For one: cp assets/training/*.xz DATA")
    work.folder.mkdir(parents=True, exist_ok=True)
    if not work.done("tokenizer").exists():
        work.once("tokenizer", lambda: shutil.copyfile(start / "tokenizer.json", work.tokenizer))
    elif work.tokenizer.read_bytes() != (start / "tokenizer.json").read_bytes():
        raise ConfigError(
            f"{work.folder} was made with another tokenizer than that of {start}.",
            remedy="Give --refine a WORK folder of its own.",
        )
    work.once("books", lambda: _write_books(work))
    work.once("near", lambda: _write_near(work))
    work.once("rows-refining", lambda: make_rows(work, "refining", Stage.REFINING, rows, seed=31, synthetic=False))


def load_books(work: Work) -> list[Book]:
    """The corpus as `prepare_rows` cut it."""
    with (work.folder / "books.jsonl").open(encoding="utf-8") as lines:
        return [Book(title, tuple(cut)) for title, cut in map(json.loads, lines)]


def make_rows(work: Work, name: str, stage: Stage, count: int, *, seed: int, synthetic: bool) -> int:
    """Draw scenes and write them as rows, NAME.WORKER.ids.npy and so on; returns how many."""
    for stale in work.folder.glob(f"{name}.*.npy"):  # of a run of more processes that was stopped
        stale.unlink()
    context = get_context("fork")  # the scenes' texts are shared, not copied
    scenes = _scenes(work, synthetic=synthetic)
    each = max(1, count // work.workers)
    jobs = [
        context.Process(target=_rows_worker, args=(work, scenes, name, stage, each, seed * 1000 + index, index))
        for index in range(work.workers)
    ]
    for job in jobs:
        job.start()
    for job in jobs:
        job.join()
    if any(job.exitcode for job in jobs):
        raise RuntimeError(f"a process that makes rows '{name}' failed")
    return each * work.workers


def _rows_worker(work: Work, scenes: Scenes, name: str, stage: Stage, count: int, seed: int, index: int) -> None:
    rng = Random(seed)
    length = SHORT_LENGTH if stage is Stage.SHORT else ROW_LENGTH
    builder = RowBuilder(Tokenizer.from_file(str(work.tokenizer)), length)
    rows: list[Row] = []
    most = 0.6 if stage is Stage.SHORT else 0.95
    while len(rows) < count:
        words = int((length - length // 5) * _WORDS_PER_TOKEN * rng.uniform(0.2, most))
        scene = scenes.draw(rng, stage, words)
        row = builder.build(scene.chunks, scene.asked)
        if row is not None:
            rows.append(row)
    save_rows(str(work.folder / f"{name}.{index:03d}"), rows)


def _scenes(work: Work, *, synthetic: bool) -> Scenes:
    passages = load_passages(work.data, "train")
    near = json.loads((work.folder / "near.json").read_text(encoding="utf-8"))
    synthetic_questions = load_synthetic(sorted(work.folder.glob("synthetic.*.jsonl"))) if synthetic else {}
    substitutes = Substitutes(passage.text for passage in passages)
    together = load_together(work.data, "train")
    return Scenes(load_books(work), synthetic_questions, passages, near, together, _synonyms(work), substitutes)


def _synonyms(work: Work) -> dict[str, Entry]:
    """The table of synonyms.json[.xz]: {word: [[synonym, ...], meaning]} on one line."""
    table: dict[str, Entry] = {}
    for path in work.data.glob("synonyms.json*"):
        for word, entry in next(read_lines(path)).items():
            assert isinstance(entry, list)
            alike, meaning = entry
            table[word] = alike, meaning
    return table


def _tokenizer(work: Work, vocab: int) -> int:
    parts = len(find(work.data, "part"))

    def sample() -> Iterator[str]:
        for path in find(work.data, "part"):
            used = 0
            for row in read_lines(path):
                text = str(row["text"])
                used += len(text)
                if used > _TOKENIZER_CHARACTERS / parts:
                    break
                yield text
        for passage in load_passages(work.data, "train"):
            yield passage.text
            yield "\n".join(pair.question for pair in passage.pairs)

    return train_tokenizer(sample(), vocab, work.tokenizer).get_vocab_size()


def _write_books(work: Work) -> int:
    """The corpus, and every written passage as a book of its own, of which more can be asked."""
    written = [Book(plain_title(p.title), (p.text,)) for p in load_passages(work.data, "train")]
    books = corpus.books(work.data) + written
    with (work.folder / "books.jsonl").open("w", encoding="utf-8") as out:
        for book in books:
            out.write(json.dumps([book.title, book.passages], ensure_ascii=False) + "\n")
    return len(books)


def _write_near(work: Work) -> int:
    neighbours = nearest(load_passages(work.data, "train"))
    (work.folder / "near.json").write_text(json.dumps(neighbours), encoding="utf-8")
    return len(neighbours)


def _writer_rows(work: Work) -> int:
    rows = list(writer_rows(load_passages(work.data, "train"), Tokenizer.from_file(str(work.tokenizer))))
    save_rows(str(work.folder / "writer.000"), rows)
    return len(rows)
