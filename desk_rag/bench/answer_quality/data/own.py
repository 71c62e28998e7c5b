"""The project's own data forms become samples: written questions, questions over several texts, unanswerable ones.

The fields of a file say which form it has:
  contexts, question, answers                      a sample as it is
  passage, title, question, answer[, answers]      one question about one passage
  passage, title, question                         the same, which the passage does not answer
  texts, qas[, evidence]                           several questions, each of which needs more than one of the texts
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeGuard

from desk_rag.bench.answer_quality.data.distractors import Distractors, Drawing, TokenCount, drawn
from desk_rag.bench.answer_quality.data.files import Line, read_lines
from desk_rag.bench.answer_quality.data.sample import Parts, Sample, alternatives


@dataclass(frozen=True, slots=True)
class _Asked:
    """A question before distractors are drawn."""

    question: str
    answers: Parts
    own: tuple[str, ...]
    evidence: tuple[str, ...] = ()


def own_samples(file: Path, drawing: Drawing, count: TokenCount) -> list[Sample]:
    """All (or the drawn) questions of a file in one of the own forms. Raises ConfigError."""
    lines = read_lines(file)
    task = file.name.split(".")[0]
    if "contexts" in lines[0].value:
        chosen = drawn(len(lines), drawing)
        return [lines[index].read(lambda value: Sample.from_json(value, task)) for index in chosen]
    if "qas" in lines[0].value:
        questions = [one for line in lines for one in _several(line)]
    else:
        questions = [line.read(_written) for line in lines]
    if drawing.longest:
        questions = [one for one in questions if all(count(text) <= drawing.longest for text in one.own)]
    pool = [text for one in questions for text in one.own]
    distractors = Distractors(pool, drawing)
    return [_sample(questions[index], distractors, task) for index in drawn(len(questions), drawing)]


def _sample(one: _Asked, distractors: Distractors, task: str) -> Sample:
    placed = distractors.around(one.own, one.question, [word for part in one.answers for word in part])
    gold = placed.gold if one.answers else ()
    if one.evidence:
        holding = [i for i in gold if any(line in placed.contexts[i] for line in one.evidence)]
        gold = tuple(holding) or gold
    return Sample(one.question, one.answers, placed.contexts, task, gold, one.evidence)


def _written(value: Mapping[str, object]) -> _Asked:
    passage, title, question = str(value["passage"]), value.get("title"), str(value["question"])
    text = f"{title}\n{passage}" if title else passage
    answer, others = value.get("answer"), value.get("answers", [])
    if answer is None and not others:
        return _Asked(question, (), (text,))
    if not isinstance(others, list):
        raise ValueError("'answers' is no list")
    listed = [*others] if answer is None else [answer, *others]
    return _Asked(question, (alternatives(listed),), (text,))


def _several(line: Line) -> list[_Asked]:
    def read(value: Mapping[str, object]) -> list[_Asked]:
        texts, pairs, evidence = value["texts"], value["qas"], value.get("evidence")
        if not _is_texts(texts) or not isinstance(pairs, list) or not pairs:
            raise ValueError("'texts' or 'qas' is no list")
        if evidence is not None and (not isinstance(evidence, list) or len(evidence) != len(pairs)):
            raise ValueError("'evidence' has not one entry for each of 'qas'")
        questions = []
        for index, pair in enumerate(pairs):
            if not isinstance(pair, list) or len(pair) < 2:
                raise ValueError("'qas' holds something that is no [question, answer]")
            proof = evidence[index] if evidence else []
            proof = [proof] if isinstance(proof, str) else proof
            if not _is_texts(proof):
                raise ValueError("'evidence' is no list of texts")
            questions.append(_Asked(str(pair[0]), (alternatives(pair[1]),), tuple(texts), tuple(proof)))
        return questions

    return line.read(read)


def _is_texts(value: object) -> TypeGuard[list[str]]:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)
