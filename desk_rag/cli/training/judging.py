"""Turn held-out samples into questions for the quality harness."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from typing import Any

from desk_rag.finetune.data import Sample
from desk_rag.finetune.distract import Distractors


def judged_questions(samples: Sequence[Sample], others: int, seed: int) -> list[dict[str, Any]]:
    """Return the first question of each sample, with answers and contexts, in the quality harness's terms."""
    pool = Distractors([chunk for sample in samples for chunk in sample.chunks])
    questions = []
    for number, sample in enumerate(samples):
        qa = sample.qas[0]
        rng = random.Random(f"{seed}/judged/{number}")
        drawn = pool.draw(sample.chunks, [qa.answer] if qa.answer else [], rng)
        contexts = [*sample.chunks, *itertools.islice(drawn, others)]
        rng.shuffle(contexts)
        questions.append({
            "question": qa.question,
            "answers": ((qa.answer,),) if qa.answer else (),
            "contexts": tuple(contexts),
            "gold": tuple(contexts.index(chunk) for chunk in sample.chunks) if qa.answer else None,
            "evidence": qa.quotes,
        })  # fmt: skip
    return questions
