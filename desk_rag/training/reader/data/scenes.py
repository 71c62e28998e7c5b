"""Contexts to learn from: chunks with questions, drawn from written pairs, synthetic pairs over the corpus and rules.

Questions whose answer is left out are learned as 'could not find'; among them are questions about a document whose
names and numbers were exchanged.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from random import Random

from desk_rag.documents.sentences import sentences, units
from desk_rag.model.trained_frame import NO_ANSWER
from desk_rag.training.reader.data.corpus import Book
from desk_rag.training.reader.data.frame import answer_text, evidence
from desk_rag.training.reader.data.written import Pair, Passage, Substitutes, Together, plain_title
from desk_rag.training.reader.synthetic.desk import desk_scene
from desk_rag.training.reader.synthetic.facts import joined_facts
from desk_rag.training.reader.synthetic.needles import needles
from desk_rag.training.reader.synthetic.prose import Synonyms, make_question, noisy_question

Asked = tuple[str, str]
"""A question and its answer in the trained form."""
_MOST_ASKED = 14
_CHUNK_WORDS = 230
"""A longer passage is cut: chunks of at most about 280 tokens are what the product makes."""


class Stage(Enum):
    """Kind of mixture."""

    SHORT = "short"
    """Few chunks, many questions, nearly all made by rule: there is no end of them."""
    READING = "reading"
    """Much and varied: mostly synthetic questions over the corpus."""
    FINAL = "final"
    """Mostly written questions."""
    REFINING = "refining"
    """Written questions, more of them about desk documents and among passages like theirs: what the product sees."""

    @property
    def late(self) -> bool:
        """True if it is about written questions."""
        return self in (Stage.FINAL, Stage.REFINING)


@dataclass(frozen=True, slots=True)
class Synthetic:
    """A question that the question writer made for one passage of a book."""

    question: str
    quote: str
    answer: str


@dataclass(frozen=True, slots=True)
class Scene:
    """Chunks, and questions about them."""

    chunks: list[str]
    asked: list[Asked]


_SHARES = {
    # synthetic, written, rule-made documents, texts that belong together; the rest is prose with rule-made questions
    Stage.SHORT: (0.0, 0.10, 0.42, 0.45),
    Stage.READING: (0.54, 0.64, 0.80, 0.85),
    Stage.FINAL: (0.24, 0.82, 0.90, 0.97),
    Stage.REFINING: (0.0, 0.86, 0.91, 0.98),
}
_STREWN = {Stage.SHORT: 0.12, Stage.READING: 0.10, Stage.FINAL: 0.06, Stage.REFINING: 0.05}
"""Probability that numbers and codes are strewn over a scene's chunks."""
_DESK = {Stage.SHORT: 0.35, Stage.READING: 0.35, Stage.FINAL: 0.45, Stage.REFINING: 0.6}
"""Probability that a written passage is looked for among desk documents alone."""
_RENAMED = {Stage.SHORT: (0.5, 0.3), Stage.READING: (0.5, 0.3), Stage.FINAL: (0.5, 0.3), Stage.REFINING: (0.7, 0.5)}
"""Probabilities that a written desk document, and another written passage, gets other names and numbers."""
_FILLED = {Stage.SHORT: 0.35, Stage.READING: 0.35, Stage.FINAL: 0.35, Stage.REFINING: 0.7}
"""Probability that an unrelated chunk is a written passage and not one of a book."""
_NEEDLES_A_CHUNK = 8


class Scenes:
    """Draws scenes. All state is read only; the caller brings the random numbers."""

    def __init__(
        self,
        books: Sequence[Book],
        synthetic: Mapping[tuple[int, int], Sequence[Synthetic]],
        passages: Sequence[Passage],
        near: Sequence[Sequence[Sequence[int]]],
        together: Sequence[Together],
        synonyms: Synonyms,
        substitutes: Substitutes,
    ) -> None:
        self._books, self._synthetic, self._passages, self._near = books, synthetic, passages, near
        self._together, self._synonyms, self._substitutes = together, synonyms, substitutes
        self._asked_passages = sorted(synthetic)
        self._with_pairs = [i for i, p in enumerate(passages) if p.pairs]
        self._desk = [i for i in self._with_pairs if passages[i].desk]
        self._with_absent = [i for i, p in enumerate(passages) if p.unanswerable]
        self._fillers = [
            sentence
            for i in self._desk
            for sentence in sentences(passages[i].text.replace("\n", " "))
            if 3 <= len(sentence.split()) <= 22 and sentence[-1:] in ".!?"
        ]

    def draw(self, rng: Random, stage: Stage, words: int) -> Scene:
        """One scene of about `words` words."""
        kind = rng.random()
        synthetic, written, documents, together = _SHARES[stage]
        if kind < synthetic and self._asked_passages:
            scene = self._from_book(rng, words)
        elif kind < written:
            scene = self._from_written(rng, words, stage)
        elif kind < documents:
            scene = self._from_rules(rng)
        elif kind < together and self._together:
            scene = self._from_together(rng)
        else:
            scene = self._from_prose(rng)
        if rng.random() < (0.12 if stage.late else 0.2):
            self._add_facts(rng, scene)
        self._fill(rng, scene, words, stage)
        if rng.random() < _STREWN[stage]:
            self._strew(rng, scene)
        if not any(answer == NO_ANSWER for _, answer in scene.asked) and rng.random() < 0.25:
            self._ask_elsewhere(rng, scene)
        rng.shuffle(scene.chunks)
        rng.shuffle(scene.asked)
        del scene.asked[_MOST_ASKED:]
        return scene

    # kinds ------------------------------------------------------------------------------------------------------

    def _from_book(self, rng: Random, words: int) -> Scene:
        """Neighbouring passages of a book with synthetic questions: distractors on the same subject."""
        scene = Scene([], [])
        while (
            sum(len(chunk.split()) for chunk in scene.chunks) < words * rng.uniform(0.4, 0.9) and len(scene.chunks) < 9
        ):
            number, passage = rng.choice(self._asked_passages)
            book = self._books[number]
            start = max(0, passage - rng.randint(0, 2))
            span = range(start, min(len(book.passages), max(passage + 1, start + rng.randint(1, 4))))
            left_out = rng.choice(span) if len(span) > 2 and rng.random() < 0.2 else None
            body = " ".join(book.passages[index] for index in span if index != left_out).lower()
            for index in span:
                pairs = self._synthetic.get((number, index), ())
                if index == left_out:
                    absent = [p for p in pairs if p.answer.lower() not in body]
                    scene.asked.extend((self._noisy(rng, p.question), NO_ANSWER) for p in absent[:1])
                    continue
                text, title = book.passages[index], book.title
                chosen = rng.sample(pairs, min(len(pairs), 3))
                if rng.random() < 0.15:
                    title, text, chosen = self._renamed(rng, title, text, chosen)
                scene.chunks.append(_titled(rng, title, text))
                scene.asked.extend((self._noisy(rng, p.question), answer_text([p.quote], p.answer)) for p in chosen)
        return scene

    def _renamed(
        self, rng: Random, title: str, text: str, pairs: Sequence[Synthetic]
    ) -> tuple[str, str, list[Synthetic]]:
        flat = [title, text, *(part for p in pairs for part in (p.question, p.quote, p.answer))]
        title, text, *parts = self._substitutes.apply(rng, flat)
        renamed = [Synthetic(*parts[start : start + 3]) for start in range(0, len(parts), 3)]
        return title, text, [p for p in renamed if p.answer in p.quote and p.quote in text]

    def _from_written(self, rng: Random, words: int, stage: Stage) -> Scene:
        """Written pairs among passages that look like them."""
        scene = Scene([], [])
        used: set[int] = set()
        for _ in range(rng.choice([1, 2, 2, 3, 3])):
            pool = self._desk if rng.random() < _DESK[stage] else self._with_pairs
            if rng.random() < 0.12 and self._with_absent:
                pool = self._with_absent
            index = rng.choice(pool)
            if index not in used:
                self._add_written(rng, scene, index, used, stage)
        return scene

    def _add_written(self, rng: Random, scene: Scene, index: int, used: set[int], stage: Stage) -> None:
        passage = self._passages[index]
        pairs = rng.sample(passage.pairs, min(len(passage.pairs), 5))
        used.add(index)
        if pairs and rng.random() < 0.10:  # the passage is left out: what looks like it does not answer
            pair = rng.choice(pairs)
            scene.asked.append((self._noisy(rng, pair.question), NO_ANSWER))
            self._add_near(rng, scene, index, [pair], rng.randint(2, 5), used)
            return
        title, text, absent = passage.title, passage.text, list(passage.unanswerable)
        if rng.random() < _RENAMED[stage][0 if passage.desk else 1]:
            flat = [title, text, *absent, *(part for p in pairs for part in (p.question, p.answer))]
            changed = self._substitutes.apply(rng, flat)
            renamed = [
                Pair(q, a) for q, a in zip(changed[2 + len(absent) :: 2], changed[3 + len(absent) :: 2], strict=True)
            ]
            if rng.random() < 0.3:  # the same document about others: questions that name what it no longer names
                strangers = [
                    old for old, new in zip(pairs, renamed, strict=True) if _names_others(old, new, changed[1])
                ]
                scene.asked.extend((self._noisy(rng, p.question), NO_ANSWER) for p in strangers[:2])
                if rng.random() < 0.5:
                    scene.chunks.append(_titled(rng, plain_title(changed[0]), changed[1]))
                    renamed = [p for p in renamed if p.answer in changed[1]][:2]
                    scene.asked.extend(self._answers(rng, changed[1], renamed))
                    return
            title, text, absent, pairs = changed[0], changed[1], changed[2 : 2 + len(absent)], renamed
        text, pairs = _cropped(rng, text, pairs)
        scene.chunks.append(_titled(rng, plain_title(title), text))
        scene.asked.extend(self._answers(rng, text, pairs))
        if absent and rng.random() < 0.7:
            scene.asked.extend((self._noisy(rng, q), NO_ANSWER) for q in absent[: rng.randint(1, 2)])
        if rng.random() < 0.75:
            self._add_near(rng, scene, index, passage.pairs[:2], rng.randint(1, 5), used)

    def _add_near(
        self, rng: Random, scene: Scene, index: int, pairs: Sequence[Pair], most: int, used: set[int]
    ) -> None:
        numbers = {number for each in self._near[index] for number in each[:8]} - used
        for number in rng.sample(sorted(numbers), min(len(numbers), most)):
            other = self._passages[number]
            if any(pair.answer.lower() in other.text.lower() for pair in pairs):
                continue
            used.add(number)
            text, _ = _cropped(rng, other.text, ())
            scene.chunks.append(_titled(rng, plain_title(other.title), text))

    def _from_rules(self, rng: Random) -> Scene:
        chunks, asked, absent = desk_scene(rng, lambda r: r.choice(self._fillers))
        scene = Scene(
            [_titled(rng, title, text) if rng.random() < 0.5 else f"{title}\n{text}" for title, text in chunks],
            list(asked[:8]),
        )
        if absent:
            scene.asked.append((absent[0], NO_ANSWER))
        return scene

    def _from_together(self, rng: Random) -> Scene:
        one = rng.choice(self._together)
        return Scene(
            list(one.texts),
            [
                (pair.question, answer_text(lines, pair.answer))
                for pair, lines in zip(one.pairs, one.evidence, strict=True)
            ],
        )

    def _from_prose(self, rng: Random) -> Scene:
        book = rng.choice(self._books)
        scene = Scene([], [])
        for text in rng.sample(book.passages, min(len(book.passages), rng.randint(1, 4))):
            scene.chunks.append(_titled(rng, book.title, text))
            for unit in rng.sample(units(text), min(len(units(text)), 4)):
                question = make_question(self._synonyms, rng, unit)
                if question:
                    scene.asked.append(question)
        return scene

    # additions --------------------------------------------------------------------------------------------------

    def _add_facts(self, rng: Random, scene: Scene) -> None:
        """Facts that need two chunks, each put into a chunk of its own."""
        lines, questions = joined_facts(rng)
        while len(scene.chunks) < len(lines):
            scene.chunks.append(rng.choice(self._fillers))
        for line, place in zip(lines, rng.sample(range(len(scene.chunks)), len(lines)), strict=True):
            text = scene.chunks[place]
            scene.chunks[place] = f"{text}\n{line}" if rng.random() < 0.6 else f"{line}\n{text}"
        scene.asked.extend(rng.sample(questions, min(2, len(questions))))

    def _strew(self, rng: Random, scene: Scene) -> None:
        """Numbers and codes, a line here and there or chunks of nothing else."""
        haystack = needles(rng, rng.choice([1, 1, 3, 6, 12]))
        lines = rng.sample(haystack.lines, len(haystack.lines))
        if len(lines) > 3 and rng.random() < 0.5:
            glue = rng.choice([" ", "\n"])
            starts = range(0, len(lines), _NEEDLES_A_CHUNK)
            scene.chunks.extend(glue.join(lines[start : start + _NEEDLES_A_CHUNK]) for start in starts)
        else:
            for line in lines:
                place = rng.randrange(len(scene.chunks))
                scene.chunks[place] = _inserted(rng, scene.chunks[place], line)
        scene.asked.extend(haystack.asked)

    def _fill(self, rng: Random, scene: Scene, words: int, stage: Stage) -> None:
        """Unrelated chunks until there are enough words."""
        while sum(len(chunk.split()) for chunk in scene.chunks) < words and len(scene.chunks) < 12:
            if rng.random() < _FILLED[stage]:
                passage = self._passages[rng.choice(self._desk if rng.random() < 0.6 else self._with_pairs)]
                if any(passage.text[:80] in chunk for chunk in scene.chunks):
                    continue
                most = 2 if stage.late else 0
                pairs = rng.sample(passage.pairs, min(len(passage.pairs), most))
                text, pairs = _cropped(rng, passage.text, pairs)
                scene.chunks.append(_titled(rng, plain_title(passage.title), text))
                scene.asked.extend(self._answers(rng, text, pairs))
            else:
                book = rng.choice(self._books)
                text = rng.choice(book.passages)
                if not any(text[:80] in chunk for chunk in scene.chunks):
                    scene.chunks.append(_titled(rng, book.title, text))

    def _ask_elsewhere(self, rng: Random, scene: Scene) -> None:
        """A question about something that is not here."""
        passage = self._passages[rng.choice(self._with_pairs)]
        pair = rng.choice(passage.pairs)
        if not any(pair.answer.lower() in chunk.lower() for chunk in scene.chunks):
            scene.asked.append((self._noisy(rng, pair.question), NO_ANSWER))

    def _answers(self, rng: Random, text: str, pairs: Sequence[Pair]) -> list[Asked]:
        questions = []
        for pair in pairs:
            quote = evidence(text, pair.question, pair.answer)
            questions.append((self._noisy(rng, pair.question), answer_text([quote] if quote else [], pair.answer)))
        return questions

    def _noisy(self, rng: Random, question: str) -> str:
        """Vary a question as people type: sometimes without capitals, without a question mark, or in other words."""
        return noisy_question(self._synonyms, rng, question)


def _names_others(old: Pair, new: Pair, text: str) -> bool:
    """Does the old question name somebody or something that the changed text does not?"""
    if old.question == new.question:
        return False
    removed = set(re.findall(r"\w+", old.question)) - set(re.findall(r"\w+", new.question))
    return not any(re.search(rf"\b{re.escape(word)}\b", text) for word in removed)


def _inserted(rng: Random, text: str, line: str) -> str:
    """The text with a line between two of its lines or sentences."""
    pieces, glue = (text.split("\n"), "\n") if "\n" in text else (sentences(text), " ")
    index = rng.randint(0, len(pieces))
    return glue.join([*pieces[:index], line, *pieces[index:]])


def _titled(rng: Random, title: str, text: str) -> str:
    return text if not title or rng.random() < 0.4 else f"{title}\n{text}"


def _cropped(rng: Random, text: str, pairs: Sequence[Pair]) -> tuple[str, list[Pair]]:
    """Sometimes, and always where it is too long, a run of the passage's lines or sentences, with its pairs."""
    pieces, glue = (text.split("\n"), "\n") if "\n" in text else (sentences(text), " ")
    total = len(text.split())
    if len(pieces) < 4 or (total <= _CHUNK_WORDS and rng.random() > 0.25):
        return text, list(pairs)
    want = min(_CHUNK_WORDS, int(total * rng.uniform(0.4, 0.9)))
    anchor = rng.choice(pairs).answer if pairs else None
    middle = next((i for i, piece in enumerate(pieces) if anchor and anchor in piece), rng.randrange(len(pieces)))
    low, high = middle, middle + 1
    while len(glue.join(pieces[low:high]).split()) < want and (low > 0 or high < len(pieces)):
        if low > 0 and (high == len(pieces) or rng.random() < 0.5):
            low -= 1
        else:
            high += 1
    body = glue.join(pieces[low:high])
    return body, [pair for pair in pairs if pair.answer in body]
