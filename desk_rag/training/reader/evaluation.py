"""Scores on held-out passages while training: exact, F1, answer in the output, right chunk, refusals.

Knows the dev files and decoding. The numbers that are published come from `desk-rag bench quality`, which runs the
product's own code; these say within seconds whether a run was any good.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

import torch
from tokenizers import Tokenizer

from desk_rag.bench.answer_quality.metrics import contains, exact, f1
from desk_rag.model.trained_frame import IM_END, NO_ANSWER
from desk_rag.training.reader.architecture import Decoder
from desk_rag.training.reader.data.frame import mark_id
from desk_rag.training.reader.data.rows import QUESTION, Row, RowBuilder, attention_mask, visible
from desk_rag.training.reader.data.written import load_passages, load_together
from desk_rag.training.reader.decoding import decode
from desk_rag.training.reader.training import Group, compute_dtype

_LENGTH = 3072
_BATCH = 96
_LONGEST = 230


@dataclass(frozen=True, slots=True)
class Item:
    """A question over chunks; `gold` is the chunk with the answer, None where there is none."""

    question: str
    answer: str
    chunks: tuple[str, ...]
    gold: str | None
    begun: str = ""
    """Given beginning of the answer: the right quote, if only what follows it is asked for."""


def items(folder: Path, kind: str, count: int, chunks: int) -> list[Item]:
    """Held-out questions among random distractors; `kind`: all, books, desk, absent (its passage is left out),
    unanswerable or together."""
    passages = [p for p in load_passages(folder, "dev") if len(p.text.split()) <= _LONGEST]
    rng = Random(1)
    everything = [p.text for p in passages]
    if kind == "together":
        candidates = [(pair, list(one.texts), None) for one in load_together(folder, "dev") for pair in one.pairs]
        rng.shuffle(candidates)
        return [Item(pair.question, pair.answer, tuple(texts), None) for pair, texts, _ in candidates[:count]]
    items = []
    for passage in passages:
        if kind in ("books", "desk") and passage.desk != (kind == "desk"):
            continue
        questions = (
            [(q, NO_ANSWER) for q in passage.unanswerable]
            if kind == "unanswerable"
            else [(p.question, p.answer) for p in passage.pairs]
        )
        for question, answer in questions:
            others = rng.sample([text for text in everything if text != passage.text], chunks)
            around = others if kind == "absent" else [*others[: chunks - 1], passage.text]
            rng.shuffle(around)
            gold = passage.text if kind in ("books", "desk", "all") else None
            items.append(Item(question, NO_ANSWER if kind == "absent" else answer, tuple(around), gold))
    rng.shuffle(items)
    return items[:count]


def prompts(tokenizer: Tokenizer, asked: Sequence[Item]) -> list[Row]:
    """The rows that `answers` goes on from."""
    builder = RowBuilder(tokenizer, _LENGTH)
    rows = [builder.build(item.chunks, [(item.question, item.begun)]) for item in asked]
    assert all(row is not None for row in rows)
    return [row for row in rows if row is not None]


def answers(
    model: Decoder,
    tokenizer: Tokenizer,
    asked: Sequence[Item],
    group: Group,
    *,
    full: bool,
    rows: Sequence[Row] | None = None,
    at_once: int = _BATCH,
) -> list[str]:
    """Greedy answers, with stitched or full attention; what an answer began with is part of it.

    `rows` are their `prompts`, for whoever asks more than once.
    """
    rows = prompts(tokenizer, asked) if rows is None else rows
    stop = mark_id(tokenizer, IM_END)
    answers = []
    model.eval()
    for start in range(0, len(asked), at_once):
        batch, real = asked[start : start + at_once], rows[start : start + at_once]
        # The last learned token of the row is the stop mark; what stands before it is the prompt.
        lengths = torch.tensor([int(row.learned.max()) for row in real])
        width = -(-int(lengths.max()) // 16) * 16
        segments = _stack(real, "segments", width).to(group.device)
        beyond = torch.arange(width)[None] >= lengths[:, None]
        segments = segments.masked_fill(beyond.to(group.device), -1)
        flags = torch.full((len(real),), full, device=group.device)
        asks = torch.full_like(segments, QUESTION)
        given = decode(
            model,
            _stack(real, "ids", width).to(group.device),
            _stack(real, "positions", width).to(group.device),
            lengths.to(group.device),
            torch.tensor([int(row.positions[int(row.learned.max())]) for row in real]).to(group.device),
            attention_mask(segments, flags, compute_dtype(group)),
            visible(asks, segments, flags[:, None]),
            stop_id=stop,
            limit=96,
        )
        texts = tokenizer.decode_batch(given.cpu().tolist(), skip_special_tokens=True)
        answers += [item.begun + text for item, text in zip(batch, texts, strict=True)]
    return answers


def _stack(rows: Sequence[Row], field: str, width: int) -> torch.Tensor:
    """The first `width` values of a field of every row, int64 [rows, width]."""
    return torch.stack([torch.from_numpy(getattr(row, field)[:width].astype("int64")) for row in rows])


MARKS = ("exact", "f1", "contains", "right_chunk", "refused")


def marks(text: str, item: Item) -> tuple[float, ...]:
    """`MARKS` of one answer, each 0 to 1."""
    lines = text.strip().split("\n")
    short = next((line for line in reversed(lines) if not line.startswith('"')), lines[-1].strip('"'))
    quote = next((line.strip('"') for line in lines if line.startswith('"')), "")
    return (
        exact(short, item.answer),
        f1(short, item.answer),
        float(contains(text, item.answer)),
        float(bool(quote) and item.gold is not None and quote.strip() in item.gold),
        float(text.startswith(NO_ANSWER[:20])),
    )


def score(told: Sequence[str], asked: Sequence[Item]) -> dict[str, float]:
    """Means of the marks in per cent."""
    rows = [marks(text, item) for text, item in zip(told, asked, strict=True)]
    return {name: round(100 * sum(row[i] for row in rows) / max(1, len(rows)), 1) for i, name in enumerate(MARKS)}
