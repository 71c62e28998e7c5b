"""Distractors: alike, but without the answer."""

from __future__ import annotations

from pathlib import Path

from desk_rag.training.reader.data.neighbours import nearest
from desk_rag.training.reader.data.written import Pair, Passage, load_passages


def test_near_passages_are_alike_and_do_not_hold_the_answer(data: Path) -> None:
    passages = load_passages(data, "train")
    near = nearest(passages, keep=5)
    assert [len(each) for each in near] == [len(p.pairs) for p in passages]
    assert sum(bool(neighbours) for each in near for neighbours in each) > 20
    for own, (passage, each) in enumerate(zip(passages, near, strict=True)):
        for pair, neighbours in zip(passage.pairs, each, strict=True):
            assert own not in neighbours and len(neighbours) <= 5
            assert not any(pair.answer in passages[index].text for index in neighbours)


def test_most_alike_comes_first() -> None:
    texts = (
        "Who mends sails? Anna mends sails.",
        "Old sails and ropes.",
        "Ropes of hemp.",
        "Mends sails at noon.",
        "Bees.",
    )
    passages = [Passage("", text, True, ()) for text in texts]
    passages[0] = Passage("", texts[0], True, (Pair("Who mends sails?", "Anna"),))
    neighbours = nearest(passages * 1 + [Passage("", f"Filler number {n}.", True, ()) for n in range(9)])[0][0]
    assert neighbours[:2] == [3, 1] and 4 not in neighbours
