"""Provide the documents and questions to measure on: the samples, or a set of questions from a file."""

from __future__ import annotations

import json
import lzma
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from desk_rag.assets import assets_dir
from desk_rag.config import IndexSettings
from desk_rag.errors import ConfigError
from desk_rag.ingest import background_prefill, pipeline
from desk_rag.kv.calibration.texts import GROUPS
from desk_rag.retrieval.search import retrieve

if TYPE_CHECKING:
    from desk_rag.answering.engine import AnswerEngine
    from desk_rag.model.prompt import PromptFormat
    from desk_rag.store.store import Store


@dataclass(frozen=True, slots=True)
class Posed:
    """A question and the chunk texts it is asked over."""

    question: str
    chunks: tuple[str, ...]


def sample_folder() -> Path:
    """The sample documents that ship with desk-rag."""
    return assets_dir() / "sample_docs"


@dataclass(frozen=True, slots=True)
class Question:
    """A question, and the wordings of a right answer."""

    text: str
    answers: tuple[str, ...] | None = None
    """One of them must be in the answer; none at all: the documents do not say. None: not known."""


def questions(file: Path | None) -> list[Question]:
    """A JSON list of strings, or of objects with a `question` and perhaps `answers`; the demo's by default.

    Raises ConfigError.
    """
    place = file or assets_dir() / "demo_questions.json"
    try:
        listed = json.loads(place.read_text(encoding="utf-8"))
        if not isinstance(listed, list) or not listed:
            raise ValueError("not a list with something in it")
        return [_question(entry) for entry in listed]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{place} holds no questions: {error}", remedy='Give a JSON list such as ["When is the rent due?"].'
        ) from error


def _question(entry: object) -> Question:
    if not isinstance(entry, dict):
        return Question(str(entry))
    answers = entry.get("answers")
    return Question(str(entry["question"]), None if answers is None else tuple(str(answer) for answer in answers))


def sync(store: Store, folder: Path, prompt: PromptFormat, settings: IndexSettings | None = None) -> int:
    """Index a folder by words; returns how many chunks there are. Raises ConfigError if there are none."""
    rules = settings or IndexSettings()
    for _ in pipeline.sync_folder(store, folder, prompt, prompt.chunk_size, rules, lambda: False):
        pass
    chunks = store.counts(None, None).chunks
    if not chunks:
        raise ConfigError(f"No document in {folder} could be indexed.", remedy="Give --folder one with documents.")
    return chunks


def index(engine: AnswerEngine, folder: Path, *, warm: bool = True) -> None:
    """Index a folder by words and by meaning and make every chunk warm. Raises ConfigError if there are none."""
    sync(engine.store, folder.expanduser().absolute(), engine.model.prompt, engine.settings.index)
    for _ in pipeline.embed_pending(engine.store, engine.embedder, lambda: False):
        pass
    if warm:
        for _ in background_prefill.warm_pending(engine.store, engine.serving, engine.turn, lambda: False):
            pass


def posed_on_samples(store: Store, asked: Sequence[Question], top_k: int) -> list[Posed]:
    """Every question over the chunks that the word search finds for it (no embedder needed)."""
    posed = []
    for question in asked:
        texts = tuple(hit.passage.chunk.text for hit in retrieve(store, None, question.text, top_k))
        if texts:
            posed.append(Posed(question.text, texts))
    return posed


def posed_for_bytes(count: int, per_question: int = 4) -> list[Posed]:
    """Questions for models whose tokens are bytes: short runs of the gate's texts, for their statistics alone."""
    posed = []
    for index in range(count):
        group = GROUPS[index % len(GROUPS)]
        start = 60 * (index // len(GROUPS))
        posed.append(Posed(group.question, tuple(text[start : start + 240] for text in group.chunks[:per_question])))
    return posed


def posed_held_out(file: Path, count: int, per_question: int, prompt: PromptFormat, seed: int = 5) -> list[Posed]:
    """Questions of a JSON-lines file (.xz or plain; `passage`, `title`, `question`), each over its own passage among
    others drawn at random. Raises ConfigError."""
    try:
        content = file.read_bytes()
        text = (lzma.decompress(content) if file.suffix == ".xz" else content).decode("utf-8")
        rows = [json.loads(line) for line in text.splitlines()]
        pairs = [(str(row["question"]), f"{row['title']}\n{row['passage']}") for row in rows]
    except (OSError, lzma.LZMAError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{file} holds no questions: {error}", remedy="Leave --data out to do without it.") from error
    fitting = [pair for pair in pairs if prompt.count(pair[1]) <= prompt.chunk_size.largest]
    texts = sorted({text for _, text in fitting})
    draw = random.Random(seed)
    posed = []
    for question, own in draw.sample(fitting, min(count, len(fitting))):
        chunks = [own, *draw.sample([text for text in texts if text != own], min(per_question, len(texts)) - 1)]
        draw.shuffle(chunks)
        posed.append(Posed(question, tuple(chunks)))
    return posed
