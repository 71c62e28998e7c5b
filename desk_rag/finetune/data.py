"""Read training data: chunks, and questions with known answers and evidence.

A `.jsonl` or `.jsonl.xz` file holds one JSON object per line, each in one of these forms:

    {"chunks": ["…", …], "qas": [{"question": "…", "answer": "…", "quotes": ["…", …]}, …]}
        the general form; `answer` is null if the chunks do not hold it; without `quotes`, they are searched for
    {"texts": ["…", …], "qas": [["question", "answer"], …], "evidence": [["…", …], …]}
        questions that need several chunks; `evidence` is optional
    {"passage": "…", "title": "…", "question": "…", "answer": "…"}
        one question about one chunk; rows with the same passage form one sample; without `answer`: unanswerable
"""

from __future__ import annotations

import hashlib
import json
import lzma
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from desk_rag.errors import ConfigError
from desk_rag.model.prompt import NO_ANSWER

_SENTENCE_END = re.compile(r"(?<=[a-z0-9)\"'%])[.!?][\"')]?\s+(?=[A-Z\"'(0-9])")
_WORD = re.compile(r"[^\W_]+(?:['’-][^\W_]+)*")
_LONGEST_QUOTE = 60
"""Words; a longer unit is cut to a stretch around the answer."""


@dataclass(frozen=True, slots=True)
class QA:
    """One question to a sample."""

    question: str
    answer: str | None
    """None: the sample's chunks do not hold it."""
    quotes: tuple[str, ...] = ()
    """Runs of the chunks' own words that prove the answer."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Chunks that belong together, and questions to them."""

    chunks: tuple[str, ...]
    qas: tuple[QA, ...]

    def as_json(self) -> dict[str, object]:
        """The general form."""
        return {
            "chunks": list(self.chunks),
            "qas": [{"question": qa.question, "answer": qa.answer, "quotes": list(qa.quotes)} for qa in self.qas],
        }


def load_samples(path: Path) -> list[Sample]:
    """Read a file of any of the forms. Raises ConfigError naming the line that cannot be used."""
    grouped: dict[tuple[str, ...], list[QA]] = {}
    for number, line in enumerate(_lines(path), start=1):
        if not line.strip():
            continue
        try:
            chunks, qas = _read(json.loads(line))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigError(
                f"{path}, line {number}: {_reason(error)}",
                remedy='Each line is {"chunks": […], "qas": [{"question": …, "answer": …, "quotes": […]}]}.',
            ) from error
        grouped.setdefault(chunks, []).extend(qas)
    samples = [Sample(chunks, tuple(dict.fromkeys(qas))) for chunks, qas in grouped.items()]
    if not samples:
        raise ConfigError(f"{path} holds no questions.", remedy="Give a file with at least one line of data.")
    return samples


def save_samples(samples: Iterable[Sample]) -> bytes:
    """The general form, one line each."""
    return "".join(json.dumps(sample.as_json(), ensure_ascii=False) + "\n" for sample in samples).encode()


def digest(samples: Iterable[Sample]) -> str:
    """32 hex digits over chunks and questions, order included."""
    return hashlib.blake2b(save_samples(samples), digest_size=16).hexdigest()


def hold_out(samples: Sequence[Sample], share: float) -> tuple[list[Sample], list[Sample]]:
    """(for training, held out): decided by each sample's own chunks, so that more data moves none across."""
    held_out: list[Sample] = []
    kept: list[Sample] = []
    for sample in samples:
        number = int.from_bytes(hashlib.blake2b("\n".join(sample.chunks).encode(), digest_size=4).digest(), "big")
        (held_out if number < share * 2**32 else kept).append(sample)
    if not kept:
        return held_out, []
    return kept, held_out


def target(qa: QA) -> str:
    """Return the answer the model is taught to write (see citations.py for how it is read)."""
    if qa.answer is None:
        return NO_ANSWER
    if not qa.quotes:
        return qa.answer
    lines = [f'"{quote}"' for quote in qa.quotes]
    if qa.answer.strip(". ") != qa.quotes[-1].strip(". "):
        lines.append(qa.answer)
    return "\n".join(lines)


def units(text: str) -> list[str]:
    """The sentences of a text, each line by itself."""
    samples = []
    for line in text.splitlines():
        start = 0
        for match in _SENTENCE_END.finditer(line):
            samples.append(line[start : match.end()].strip())
            start = match.end()
        samples.append(line[start:].strip())
    return [unit for unit in samples if unit]


def words(text: str) -> list[str]:
    """Words in lower case."""
    return [match.group().lower() for match in _WORD.finditer(text)]


def evidence(chunks: Sequence[str], question: str, answer: str) -> tuple[str, ...]:
    """The unit of text that holds the answer, the one most like the question where several do; () where none does."""
    question_words = set(words(question))
    holding = [unit for chunk in chunks for unit in units(chunk) if answer in unit]
    if not holding:
        return ()
    # '12' stands in '120' as well: a unit that has the answer as words of its own comes before one that has not.
    whole = re.compile(rf"(?<!\w){re.escape(answer)}(?!\w)")
    best = max(holding, key=lambda unit: (whole.search(unit) is not None, len(question_words & set(words(unit)))))
    return (_shortened(best, answer),)


def _shortened(unit: str, answer: str) -> str:
    pieces = unit.split()
    if len(pieces) <= _LONGEST_QUOTE:
        return unit
    before = len(unit[: unit.find(answer)].split())
    start = max(0, min(before - _LONGEST_QUOTE // 2, len(pieces) - _LONGEST_QUOTE))
    return " ".join(pieces[start : start + _LONGEST_QUOTE])


def _lines(path: Path) -> Iterator[str]:
    try:
        if path.suffix == ".xz":
            with lzma.open(path, "rt", encoding="utf-8") as file:
                yield from file
        else:
            with path.open(encoding="utf-8") as file:
                yield from file
    except (OSError, lzma.LZMAError, EOFError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}.", remedy="Give a .jsonl or .jsonl.xz file.") from error


def _read(row: Any) -> tuple[tuple[str, ...], list[QA]]:
    if "chunks" in row:
        chunks = _texts(row["chunks"])
        return chunks, [_general(chunks, qa) for qa in row["qas"]]
    if "texts" in row:
        chunks = _texts(row["texts"])
        evidence = row.get("evidence") or [()] * len(row["qas"])
        return chunks, [
            _qa(chunks, question, answer, quotes)
            for (question, answer), quotes in zip(row["qas"], evidence, strict=True)
        ]  # fmt: skip
    passage, title = row["passage"], row.get("title") or ""
    chunks = _texts([f"{title}\n{passage}" if title else passage])
    return chunks, [_qa(chunks, row["question"], row.get("answer"), ())]


def _general(chunks: Sequence[str], row: Any) -> QA:
    return _qa(chunks, row["question"], row["answer"], row.get("quotes") or ())


def _qa(chunks: Sequence[str], question: Any, answer: Any, quotes: Sequence[Any]) -> QA:
    if not isinstance(question, str) or not question.strip():
        raise ValueError("a question is empty or no text")
    if answer is None or answer == NO_ANSWER:
        return QA(question, None)
    if not isinstance(answer, str) or not answer.strip():
        raise ValueError(f"the answer to '{question}' is empty or no text")
    quoted = tuple(dict.fromkeys(_texts(quotes))) if quotes else evidence(chunks, question, answer)
    missing = [quote for quote in quoted if not any(" ".join(quote.split()) in " ".join(c.split()) for c in chunks)]
    if missing:
        raise ValueError(f"the quote '{missing[0][:80]}' stands in none of the chunks")
    return QA(question, answer, quoted)


def _texts(values: Any) -> tuple[str, ...]:
    if not isinstance(values, list | tuple) or not values or not all(isinstance(v, str) and v.strip() for v in values):
        raise ValueError("chunks and quotes must be lists of text")
    return tuple(values)


def _reason(error: Exception) -> str:
    if isinstance(error, KeyError):
        return f"{error} is missing."
    return f"{str(error) or type(error).__name__}."
