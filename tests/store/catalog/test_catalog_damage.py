"""Random damage of a real catalog, by seed; `python -m tests.store.catalog.catalog_damage SEED ROUNDS` runs any number
of rounds."""

from __future__ import annotations

import os

import pytest

from tests.loaded_once import loaded_once
from tests.store.catalog.catalog_damage import WRONG, attack

SEED = int(os.environ.get("DESK_RAG_ATTACK_SEED", "1"))


def _check(rounds: int) -> None:
    with loaded_once():
        counts = attack(SEED, rounds)
    assert not {wrong: counts[wrong] for wrong in WRONG if counts[wrong]}
    assert counts["way back"] == rounds


def test_a_damaged_catalog_gives_no_other_answer_without_a_word() -> None:
    _check(6)


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_five_hundred_damaged_catalogs() -> None:
    _check(int(os.environ.get("DESK_RAG_ATTACK_ROUNDS", "500")))
