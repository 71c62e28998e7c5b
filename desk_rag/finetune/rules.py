"""Generate questions by rule from a user's own documents, where no written questions are at hand.

Every answer is a run of words of its chunk, so each can be checked. The questions teach the form (read separately
prefilled chunks, copy the sentence that proves the answer, refuse if there is none), not the way people ask.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from desk_rag.finetune.data import QA, Sample, units, words

_FIELD = re.compile(r"(?:[-*•]\s+)?([A-Za-zÀ-ÿ][^:=|\n]{1,40}?)\s*[:=]\s+(\S[^\n]{0,80}?)\s*$")
_NUMBER = re.compile(r"[$€£]?\b\d[\d.,:/-]*\d\b%?|\b\d\b%?")
_NAME = re.compile(r"(?<![.!?]\s)(?<!^)\b[A-ZÀ-Þ][\wÀ-ÿ'’-]+(?:\s+[A-ZÀ-Þ][\wÀ-ÿ'’-]+)*")
_HEADING_MARK = " › "
_GAP = "____"
_FEWEST, _MOST = 6, 45
"""Words of a sentence that questions are made of."""


@dataclass(frozen=True, slots=True)
class FolderChunk:
    """One chunk of an indexed document."""

    text: str
    """A title line first, where the document has one."""
    document: str
    """The document's title or file name."""


def make_samples(chunks: Iterable[FolderChunk], seed: int = 0, per_chunk: int = 6) -> list[Sample]:
    """Make at most `per_chunk` different questions for every chunk; chunks that give none are left out.

    The same chunks in the same order and the same seed give the same questions.
    """
    listed = list(dict.fromkeys(chunks))
    counts = Counter(word for chunk in listed for word in set(words(chunk.text)))
    samples = []
    for number, chunk in enumerate(listed):
        rng = random.Random(f"{seed}/{number}/{chunk.text}")
        questions = _Maker(chunk, counts, rng).questions()
        rng.shuffle(questions)
        chosen = list({qa.question: qa for qa in questions}.values())[:per_chunk]
        if chosen:
            samples.append(Sample((chunk.text,), tuple(chosen)))
    return samples


class _Maker:
    """Makes the questions of one chunk."""

    def __init__(self, chunk: FolderChunk, counts: Counter[str], rng: random.Random) -> None:
        self._chunk = chunk
        self._counts = counts
        self._rng = rng
        self._title, _, body = chunk.text.partition("\n")
        self._units = units(body or chunk.text)
        self._sentences = [unit for unit in self._units if _FEWEST <= len(unit.split()) <= _MOST]

    def questions(self) -> list[QA]:
        """All that the rules give."""
        return [*self._fields(), *self._clozes(), *self._abouts(), *self._headings()]

    def _fields(self) -> list[QA]:
        """'Serial number: CL24-77031' answers 'What is the serial number?'."""
        questions = []
        for unit in self._units:
            match = _FIELD.fullmatch(unit)
            if match and len(match[1].split()) <= 5:
                name, value = match[1].strip("*_` ").lower(), match[2].strip("*_` ")
                if not name or not value:  # nothing but marks
                    continue
                frames = [f"What is the {name} in {self._chunk.document}?", f"What is the {name}?", f"{name}?"]
                questions.append(QA(self._rng.choice(frames), value, (unit,)))
        return questions

    def _clozes(self) -> list[QA]:
        questions = []
        for sentence in self._sentences:
            spans = [*_NUMBER.finditer(sentence), *_NAME.finditer(sentence)]
            usable = [span for span in spans if sentence.count(span.group()) == 1]
            if not usable:
                continue
            span = self._rng.choice(usable)
            gap = f"{sentence[: span.start()]}{_GAP}{sentence[span.end() :]}"
            frames = [f"Complete this sentence: {gap}", f"What fills the gap? {gap}", gap]
            questions.append(QA(self._rng.choice(frames), span.group(), (sentence,)))
        return questions

    def _abouts(self) -> list[QA]:
        """A sentence that alone in its chunk holds some rare words is what the document says about them."""
        questions = []
        for sentence in self._sentences:
            subject = self._subject(sentence)
            if subject:
                frames = [
                    f"What does {self._chunk.document} say about {subject}?",
                    f"What is said about {subject}?",
                    f"What do my documents say about {subject}?",
                ]
                questions.append(QA(self._rng.choice(frames), sentence, (sentence,)))
        return questions

    def _subject(self, sentence: str) -> str:
        others = Counter(word for unit in self._units for word in set(words(unit)))
        telling = [word for word in words(sentence) if len(word) > 4 and others[word] == 1 and not word[0].isdigit()]
        telling.sort(key=lambda word: (self._counts[word], word))
        chosen = telling[:2]
        if len(chosen) < 2:
            return ""
        chosen.sort(key=words(sentence).index)
        return " and ".join(chosen)

    def _headings(self) -> list[QA]:
        if _HEADING_MARK not in self._title or not self._sentences:
            return []
        heading = self._title.rsplit(_HEADING_MARK, 1)[1].strip()
        first = self._sentences[0]
        frames = [f"How does the section '{heading}' begin?", f"What is said first under {heading}?"]
        return [QA(self._rng.choice(frames), first, (first,))]


def describe(samples: Sequence[Sample]) -> str:
    """Describe the generated questions in one sentence."""
    count = sum(len(sample.qas) for sample in samples)
    return f"{count:,} questions made by rule from {len(samples):,} chunks; they teach the form, not how people ask."
