"""Public data sets become samples, from the files that their authors publish: RGB, LongBench, SQuAD.

Their forms:
  RGB        arXiv 2309.01431: query, answer, positive, negative (noise, rejection); `positive` as lists of lists
             (integration); positive_wrong and fakeanswer (counterfactual)
  LongBench  arXiv 2308.14508: input, context, answers
  SQuAD      arXiv 1606.05250 and 1806.03822: data > paragraphs > qas, with is_impossible in version 2
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

from desk_rag.bench.answer_quality.data.distractors import Distractors, Drawing, Splitter, drawn, place
from desk_rag.bench.answer_quality.data.files import Line, read_document, read_lines
from desk_rag.bench.answer_quality.data.sample import Parts, Sample, alternatives
from desk_rag.errors import ConfigError

_PASSAGE = re.compile(r"^(?:Passage \d+:|文章\d+)\s*$", re.MULTILINE)
_TRIVIA = re.compile(r"\A\s*Passage:\s*(?P<passage>.*?)\s*Question:\s*(?P<question>.*?)\s*(?:Answer:)?\s*\Z", re.DOTALL)


# RGB --------------------------------------------------------------------------------------------------------------


def rgb_samples(file: Path, drawing: Drawing) -> list[Sample]:
    """Every question at every share of noise: the number of noise chunks is rounded up, as RGB does it.

    At a share of 1.0 no chunk helps and refusing is right. Counterfactual files take the changed chunks for the right
    ones. Raises ConfigError.
    """
    lines = read_lines(file)
    chosen = [lines[index] for index in drawn(len(lines), drawing)]
    return [_rgb(line, noise, drawing) for noise in drawing.noise for line in chosen]


def _rgb(line: Line, noise: float, drawing: Drawing) -> Sample:
    def read(value: Mapping[str, object]) -> Sample:
        question = str(value["query"])
        # The order within a group is drawn too; the same chunks then serve every share of noise.
        draw = random.Random(f"{drawing.seed}|{question}")
        answers, wrong = _rgb_answers(value["answer"]), value.get("fakeanswer")
        kind, helping = _rgb_helping(value, draw)
        count = max(0, drawing.chunks - math.ceil(drawing.chunks * noise))
        own = helping[: max(count, _most_parts(value)) if noise < 1 else 0]
        others = _listed(value["negative"])[: max(0, drawing.chunks - len(own))]
        if not own and not others:
            raise ValueError("no chunk is left")
        placed = place(own, others, drawing.order, draw)
        if noise >= 1:
            return Sample(question, (), placed.contexts, "rgb-rejection", ())
        fake = alternatives(wrong) if wrong else ()
        return Sample(question, answers, placed.contexts, f"rgb-{kind}-{noise:g}", placed.gold, (), fake)

    return line.read(read)


def _rgb_answers(value: object) -> Parts:
    """RGB's own rule: of a list every entry must be in the answer, of a list within it one will do."""
    return tuple(alternatives(entry) for entry in value) if isinstance(value, list) else (alternatives(value),)


def _rgb_helping(value: Mapping[str, object], draw: random.Random) -> tuple[str, list[str]]:
    if "positive_wrong" in value:
        return "counterfactual", _listed(value["positive_wrong"])
    positive = value["positive"]
    if not isinstance(positive, list):
        raise ValueError("'positive' is no list")
    if not any(isinstance(group, list) for group in positive):
        return "noise", _listed(positive)
    groups = [draw.sample(_listed(group), len(group)) for group in positive]
    # One of every group before a second of any: each group holds one part of the answer.
    turns = chain.from_iterable(zip_longest(*groups))
    return "integration", [text for text in turns if text is not None]


def _most_parts(value: Mapping[str, object]) -> int:
    positive = value.get("positive")
    grouped = "positive_wrong" not in value and isinstance(positive, list) and isinstance(positive[0], list)
    return len(positive) if grouped and isinstance(positive, list) else 0


# LongBench --------------------------------------------------------------------------------------------------------


def longbench_samples(file: Path, drawing: Drawing, split: Splitter) -> list[Sample]:
    """The question over its whole context, in chunks; passages that the data set marks are kept apart.

    In triviaqa, where question and passage share a field and the context is made of solved examples, those come first
    and the passage last. Raises ConfigError.
    """
    lines = read_lines(file)
    task = f"longbench-{file.name.split('.')[0]}"
    return [lines[index].read(lambda value: _longbench(value, task, split)) for index in drawn(len(lines), drawing)]


def _longbench(value: Mapping[str, object], task: str, split: Splitter) -> Sample:
    question, context = str(value["input"]), str(value["context"])
    texts = [text.strip() for text in _PASSAGE.split(context) if text.strip()]
    chunks = [chunk for text in texts for chunk in split(text)]
    trivia = _TRIVIA.match(question)
    gold: tuple[int, ...] | None = None
    if trivia:
        own = split(trivia["passage"])
        gold = tuple(range(len(chunks), len(chunks) + len(own)))
        chunks, question = [*chunks, *own], trivia["question"]
    if not chunks:
        raise ValueError("'context' is empty")
    return Sample(question, (alternatives(value["answers"]),), tuple(chunks), task, gold)


# SQuAD ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _SquadQuestion:
    question: str
    answers: Parts
    paragraph: str


def squad_samples(file: Path, drawing: Drawing) -> list[Sample]:
    """Every question over its paragraph among other paragraphs of the file. Raises ConfigError."""
    document: Any = read_document(file)
    questions: list[_SquadQuestion] = []
    try:
        for article in document["data"]:
            for paragraph in article["paragraphs"]:
                questions += [_squad(entry, paragraph["context"]) for entry in paragraph["qas"]]
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(
            f"{file}, after {len(questions)} questions: {error} is missing or not what SQuAD puts there.",
            remedy="Give a file of SQuAD v1.1 or v2.0.",
        ) from error
    if not questions:
        raise ConfigError(f"{file} holds no questions.", remedy="Give a file of SQuAD v1.1 or v2.0.")
    distractors = Distractors([one.paragraph for one in questions], drawing)
    samples = []
    for index in drawn(len(questions), drawing):
        one = questions[index]
        placed = distractors.around([one.paragraph], one.question, [word for part in one.answers for word in part])
        gold = placed.gold if one.answers else ()
        samples.append(Sample(one.question, one.answers, placed.contexts, "squad", gold))
    return samples


def _squad(entry: Any, paragraph: str) -> _SquadQuestion:
    texts = [] if entry.get("is_impossible") else [str(answer["text"]) for answer in entry["answers"]]
    return _SquadQuestion(str(entry["question"]), (alternatives(texts),) if texts else (), str(paragraph))


def _listed(value: object) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise ValueError("'positive', 'negative' or 'positive_wrong' is no list of texts")
    return [one for one in value if one.strip()]
