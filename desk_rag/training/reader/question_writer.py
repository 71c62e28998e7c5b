"""Questions for the corpus: a model learns from written pairs how people ask, asks everywhere, and a reader checks it.

A sentence is chosen by rule, the writer gives an answer in it and a question for the answer; kept is what the reader,
asked the question with the passage before it, may answer with that sentence and that answer (round trip, after Alberti
and others, 'Synthetic QA corpora generation with roundtrip consistency', 2019).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from random import Random

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer

from desk_rag.documents.sentences import units
from desk_rag.model.trained_frame import IM_END, QUESTION_OPEN
from desk_rag.training.reader.architecture import Decoder, rotary_tables
from desk_rag.training.reader.data.corpus import Book
from desk_rag.training.reader.data.frame import Frame, answer_text, content_words, evidence, mark_id
from desk_rag.training.reader.data.rows import ANSWER_ROOM, PAD, QUESTION, Row, RowBuilder, attention_mask
from desk_rag.training.reader.data.scenes import Synthetic
from desk_rag.training.reader.data.written import Passage
from desk_rag.training.reader.decoding import decode
from desk_rag.training.reader.training import Group, compute_dtype, half, learned_of, row_states

WRITER_LENGTH = 512
CHECK_LENGTH = 704
_LIKELY = -6.0
"""Least log probability (nats) of quote and answer together for a question to be kept."""
_PROMPTS = (256, 6144, 16 << 20)
"""Decoded at once: on a CPU; at most on a GPU, where few rows take as long as many; bytes of it that each may need."""
_CHECKED = (32, 256, 200 << 20)
"""Rows checked at once, likewise."""
_JOB = 64
_OF_A_DOCUMENT = 4
"""Times as many drafts for a text that stands alone: there are few of them, and all that people ask about."""


@dataclass(frozen=True, slots=True)
class Draft:
    """A sentence of a passage about which something is to be asked."""

    book: int
    passage: int
    quote: str


@dataclass(frozen=True, slots=True)
class Planned:
    """A draft with the writer's prompt."""

    draft: Draft
    prompt: list[int]


@dataclass(frozen=True, slots=True)
class PlanJob:
    """Books of one call of `plan`, with their numbers."""

    tokenizer: Path
    books: tuple[tuple[int, Book], ...]
    each: int


@dataclass(frozen=True, slots=True)
class Round:
    """A passage and what is asked of it."""

    chunks: tuple[str, ...]
    pairs: tuple[tuple[Draft, Synthetic], ...]


@dataclass(frozen=True, slots=True)
class RoundJob:
    """Passages of one call of `round_rows`."""

    tokenizer: Path
    rounds: tuple[Round, ...]


def writer_rows(passages: Sequence[Passage], tokenizer: Tokenizer) -> Iterator[Row]:
    """One row per written pair: passage, quote -> answer, question."""
    frame = Frame(tokenizer)
    for passage in passages:
        for pair in passage.pairs:
            quote = evidence(passage.text, pair.question, pair.answer)
            if quote is None or pair.answer.strip(". ") == quote.strip(". "):
                continue
            row = _writer_row(
                frame, passage.title, passage.text, quote, f"{pair.answer}\n{QUESTION_OPEN}{pair.question}"
            )
            if row is not None:
                yield row


def _writer_prompt(frame: Frame, title: str, text: str, quote: str) -> list[int]:
    (body,) = frame.chunks([f"{title}\n{text}" if title else text])
    (request,) = frame.plain([f'"{quote}"\n'])
    return [*body, *request]


def _writer_row(frame: Frame, title: str, text: str, quote: str, told: str) -> Row | None:
    prompt = _writer_prompt(frame, title, text, quote)
    (answer,) = frame.answers([told])
    size = len(prompt) + len(answer)
    if size > WRITER_LENGTH or len(answer) > ANSWER_ROOM:
        return None
    blank = WRITER_LENGTH - size
    learned = list(range(len(prompt), size))
    return Row(
        np.array(prompt + answer + [0] * blank, np.uint16),
        np.array([QUESTION] * size + [PAD] * blank, np.int16),
        np.array(list(range(size)) + [0] * blank, np.int16),
        np.array(learned + [-1] * (ANSWER_ROOM - len(learned)), np.int16),
        np.zeros(ANSWER_ROOM, np.bool_),
    )


def plan(job: PlanJob) -> list[Planned]:
    """Up to `each` sentences of every passage that say something, with the writer's prompt for each."""
    frame = Frame(Tokenizer.from_file(str(job.tokenizer)))
    rng = Random(job.books[0][0])
    drafts = []
    for number, book in job.books:
        for index, text in enumerate(book.passages):
            good = [unit for unit in units(text) if 5 <= len(unit.split()) <= 48 and len(content_words(unit)) >= 3]
            each = job.each if len(book.passages) > 1 else job.each * _OF_A_DOCUMENT
            for quote in rng.sample(good, min(each, len(good))):
                prompt = _writer_prompt(frame, book.title, text, quote)
                if len(prompt) <= WRITER_LENGTH - 64:
                    drafts.append(Planned(Draft(number, index, quote), prompt))
    return drafts


def plan_all(tokenizer: Path, books: Sequence[tuple[int, Book]], each: int, workers: Executor) -> list[Planned]:
    """`plan` for all these books."""
    jobs = [PlanJob(tokenizer, tuple(books[start : start + _JOB]), each) for start in range(0, len(books), _JOB)]
    return [one for batch in workers.map(plan, jobs) for one in batch]


def write_questions(
    model: Decoder, tokenizer: Tokenizer, todo: Sequence[Planned], group: Group
) -> list[tuple[Draft, Synthetic]]:
    """A question and an answer for each draft that the writer makes sense of."""
    stop = mark_id(tokenizer, IM_END)
    questions = []
    prompts = sorted(todo, key=lambda one: len(one.prompt))
    size = _at_once(_PROMPTS, group.device)
    for start in range(0, len(prompts), size):
        batch = prompts[start : start + size]
        lengths = torch.tensor([len(one.prompt) for one in batch])
        width = -(-int(lengths.max()) // 16) * 16
        ids = torch.zeros(len(batch), width, dtype=torch.long)
        for row, one in enumerate(batch):
            ids[row, : len(one.prompt)] = torch.tensor(one.prompt)
        order = torch.arange(width)
        mask = torch.zeros(width, width).masked_fill(order[:, None] < order[None, :], float("-inf"))
        outputs = decode(
            model,
            ids.to(group.device, non_blocking=True),
            order[None].expand(len(batch), -1).to(group.device, non_blocking=True),
            lengths.to(group.device, non_blocking=True),
            lengths.to(group.device, non_blocking=True),
            mask.to(group.device, compute_dtype(group))[None, None].expand(len(batch), 1, -1, -1),
            (order[None] < lengths[:, None]).to(group.device, non_blocking=True),
            stop_id=stop,
            limit=48,
            temperature=0.8,
            top_k=20,
        )
        texts = tokenizer.decode_batch(outputs.cpu().tolist(), skip_special_tokens=True)
        for one, text in zip(batch, texts, strict=True):
            question = _parse(one.draft, text)
            if question is not None:
                questions.append((one.draft, question))
    return questions


def _at_once(sizes: tuple[int, int, int], device: torch.device) -> int:
    on_cpu, most, nbytes = sizes
    if device.type != "cuda":
        return on_cpu
    return max(1, min(most, torch.cuda.get_device_properties(device).total_memory // nbytes))


def _parse(draft: Draft, text: str) -> Synthetic | None:
    answer, parted, question = text.partition(f"\n{QUESTION_OPEN}")
    answer, question = answer.strip(), question.strip()
    if not parted or "\n" in question or not 3 <= len(question.split()) <= 25:
        return None
    if not answer or answer not in draft.quote or answer.lower() in question.lower() or len(answer.split()) > 20:
        return None
    return Synthetic(question, draft.quote, answer)


def check(
    reader: Decoder,
    tokenizer: Path,
    books: Sequence[Book],
    made: Sequence[tuple[Draft, Synthetic]],
    group: Group,
    workers: Executor,
) -> list[tuple[Draft, Synthetic, float]]:
    """Answer of the reader in that form, with its log probability."""
    by_passage: dict[tuple[int, int], list[tuple[Draft, Synthetic]]] = {}
    for draft, one in made:
        by_passage.setdefault((draft.book, draft.passage), []).append((draft, one))
    rounds = []
    for (number, index), pairs in by_passage.items():
        book = books[number]
        rounds.append(Round((book.passages[index],), tuple(pairs)))
    jobs = [RoundJob(tokenizer, tuple(rounds[start : start + _JOB])) for start in range(0, len(rounds), _JOB)]
    rows = [one for found in workers.map(round_rows, jobs) for one in found]
    rows.sort(key=lambda one: _length(one[0]))
    cos, sin = rotary_tables(reader.shape, group.device)
    kept = []
    size = _at_once(_CHECKED, group.device)
    for start in range(0, len(rows), size):
        batch = rows[start : start + size]
        scores = _scores(reader, [row for row, _ in batch], cos, sin, group)
        for (row, part), score in zip(batch, scores, strict=True):
            for (draft, one), value in zip(part, _per_question(row, score), strict=False):
                if value > _LIKELY:
                    kept.append((draft, one, value))
    return kept


def round_rows(job: RoundJob) -> list[tuple[Row, tuple[tuple[Draft, Synthetic], ...]]]:
    """A row for each passage with questions, where it fits."""
    builder = RowBuilder(Tokenizer.from_file(str(job.tokenizer)), CHECK_LENGTH)
    rows = []
    for one in job.rounds:
        row = builder.build(one.chunks, [(p.question, answer_text([p.quote], p.answer)) for _, p in one.pairs])
        if row is not None:
            rows.append((row, one.pairs))
    return rows


@torch.no_grad()
def _scores(
    reader: Decoder, rows: Sequence[Row], cos: torch.Tensor, sin: torch.Tensor, group: Group
) -> list[list[float]]:
    """Log probability of each learned token of each row."""
    width = max(_length(row) for row in rows)
    stacked = {
        field: np.stack([getattr(row, field)[:size] for row in rows]).astype(np.int64)
        for field, size in (("ids", width), ("segments", width), ("positions", width), ("learned", ANSWER_ROOM))
    }
    taken = {field: torch.from_numpy(values).to(group.device) for field, values in stacked.items()}
    with half(group), torch.compiler.set_stance("force_eager"):
        full = torch.zeros(len(rows), dtype=torch.bool, device=group.device)
        mask = attention_mask(taken["segments"], full, compute_dtype(group))
        states, targets, known = learned_of(row_states(reader, taken, cos, sin, mask), taken)
        most = int(known.sum(1).max())
        logits = reader.logits(states[:, :most])
        likely = F.log_softmax(logits, -1).gather(-1, targets[:, :most, None])[..., 0]
    return [line[: int(n)] for line, n in zip(likely.float().cpu().tolist(), known.sum(1).tolist(), strict=True)]


def _length(row: Row) -> int:
    """Tokens before the padding."""
    return int((row.segments != PAD).sum())


def _per_question(row: Row, score: Sequence[float]) -> list[float]:
    """Sums over runs of tokens of one segment, in the order asked; a question that did not fit ends the list."""
    sums: list[float] = []
    last, expected = None, QUESTION
    for position, value in zip(row.learned[row.learned >= 0].tolist(), score, strict=True):
        segment = int(row.segments[position])
        if segment != last:
            if segment != expected:
                break
            sums.append(0.0)
            last, expected = segment, expected + 1
        sums[-1] += value
    return sums


def save_synthetic(path: Path, kept: Sequence[tuple[Draft, Synthetic, float]]) -> None:
    """JSONL, one question a line."""
    lines = [
        json.dumps(
            [draft.book, draft.passage, one.question, one.quote, one.answer, round(value, 2)], ensure_ascii=False
        )
        for draft, one, value in kept
    ]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def load_synthetic(paths: Sequence[Path]) -> dict[tuple[int, int], list[Synthetic]]:
    """Load what `save_synthetic` wrote, by book and passage."""
    questions: dict[tuple[int, int], list[Synthetic]] = {}
    for path in paths:
        for line in path.read_text(encoding="utf-8").splitlines():
            if line:
                book, passage, question, quote, answer, _ = json.loads(line)
                questions.setdefault((book, passage), []).append(Synthetic(question, quote, answer))
    return questions
