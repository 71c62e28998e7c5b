"""Several questions at once on the GPU: one pass for all, and each has the words that it has alone."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from desk_rag.answering.engine import AnswerEngine
from desk_rag.answering.together.asking import Together
from tests.answer_world import BICYCLE, RENT, an_engine, make_world, streamed
from tests.answering.together.test_asking import answers, asking, finished, passes, words

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU")]
__all__ = ["passes"]
QUESTIONS = [RENT, BICYCLE, "When does the train leave?", "Who has the tickets?", "What did the bicycle cost?"]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AnswerEngine]:
    root: Path = tmp_path_factory.mktemp("world")
    world = make_world(root, "cuda")
    shutil.copytree(world.data, root / "copy")
    with an_engine(world, root / "copy", streamed) as engine:
        yield engine


@pytest.mark.parametrize("count", [2, 5])
def test_each_has_the_words_that_it_has_alone(engine: AnswerEngine, count: int, passes: list[tuple[int, int]]) -> None:
    asks = [asking(question, 1 + index % 3) for index, question in enumerate(QUESTIONS[:count])]
    alone = [finished(ask(engine)) for ask in asks]
    together = Together.of(engine, count)
    assert together is not None and together.most == count
    passes.clear()
    for empty in (engine.forget_loaded, lambda: None):
        empty()
        assert [words(answer) for answer in answers(together, asks)] == [words(answer) for answer in alone]
    assert passes[0][0] == count and passes[0][1] > 1
