"""A form's name, a path and a drawing become samples; needles need no path. The one doorway to all data sets."""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import Enum
from pathlib import Path

from desk_rag.assets import assets_dir
from desk_rag.bench.answer_quality.data import public
from desk_rag.bench.answer_quality.data.distractors import Drawing, Splitter
from desk_rag.bench.answer_quality.data.files import read_text
from desk_rag.bench.answer_quality.data.niah import VARIANTS, Hay, Haystack, niah_samples
from desk_rag.bench.answer_quality.data.own import own_samples
from desk_rag.bench.answer_quality.data.sample import Sample
from desk_rag.documents.sentences import SentenceCutter, TokenCounter
from desk_rag.errors import ConfigError

_PARAGRAPH = re.compile(r"\n\s*\n")
_SENTENCE = re.compile(r"(?<=[.!?])\s+")
_SAMPLE_PROSE = (".md", ".rst", ".txt")


class Form(Enum):
    """Form of a data file."""

    OWN = "own"
    RGB = "rgb"
    LONGBENCH = "longbench"
    SQUAD = "squad"


def load_samples(form: Form, file: Path, drawing: Drawing, counter: TokenCounter, chunk_tokens: int) -> list[Sample]:
    """Samples of a file; long contexts are cut into chunks of at most `chunk_tokens`. Raises ConfigError."""
    if form is Form.RGB:
        return public.rgb_samples(file, drawing)
    if form is Form.LONGBENCH:
        return public.longbench_samples(file, drawing, splitter(counter, chunk_tokens))
    if form is Form.SQUAD:
        return public.squad_samples(file, drawing)
    return own_samples(file, drawing, counter.count)


def load_needles(
    names: Sequence[str], tokens: int, number: int, seed: int, counter: TokenCounter, chunk_tokens: int,
    essay: Path | None = None,
) -> list[Sample]:  # fmt: skip
    """Needles in `tokens` tokens of hay; `essay` is running text, the sample documents by default.

    Raises ConfigError for a variant that does not exist or a file without sentences.
    """
    wanted = list(VARIANTS) if list(names) == ["all"] else list(names)
    unknown = [name for name in wanted if name not in VARIANTS]
    if unknown:
        raise ConfigError(f"There is no needle task '{unknown[0]}'.", remedy=f"Known: all, {', '.join(VARIANTS)}.")
    sentences: list[str] = []
    if any(VARIANTS[name].hay is Hay.ESSAY for name in wanted):
        sentences = _sentences(essay)
    return niah_samples(wanted, Haystack(tokens, chunk_tokens, sentences), counter.count, number, seed)


def splitter(counter: TokenCounter, chunk_tokens: int) -> Splitter:
    """Cuts text at sentence ends into chunks of at most about `chunk_tokens` tokens."""
    cutter = SentenceCutter(counter, max(8, chunk_tokens // 8))

    def split(text: str) -> list[str]:
        chunks: list[str] = []
        used = 0
        for _, piece in cutter.cut(text):
            size = counter.count(piece)
            if chunks and used + size <= chunk_tokens:
                chunks[-1] += piece
                used += size
            else:
                chunks.append(piece)
                used = size
        return [chunk.strip() for chunk in chunks if chunk.strip()]

    return split


def _sentences(essay: Path | None) -> list[str]:
    if essay is not None:
        texts = [read_text(essay)]
    else:
        folder = assets_dir() / "sample_docs"
        texts = [read_text(file) for file in sorted(folder.rglob("*")) if file.suffix in _SAMPLE_PROSE]
    paragraphs = [part for text in texts for part in _PARAGRAPH.split(text) if part[:1].isalnum()]
    lines = [" ".join(line.split()) for part in paragraphs for line in _SENTENCE.split(part)]
    sentences = [line for line in lines if len(line.split()) >= 4 and line[-1] in ".!?"]
    if not sentences:
        raise ConfigError(f"{essay} holds no sentences.", remedy="Give --essay a file of running text.")
    return sentences
