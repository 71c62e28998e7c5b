"""The knob, the cost model, and what speaks for recomputing."""

from __future__ import annotations

import subprocess
import sys

import pytest

from desk_rag.errors import ConfigError
from desk_rag.kv.positions import StitchPlan, plan
from desk_rag.kv.recompute.policy import PassCosts, PassTiming, RecomputeChoice, SelectorName, choose, cues

PLUMBER = "Hi Oskar, the plumber coming on Thursday is Denny Quarles, not Piet. He needs the key, which sits in box 14."
CONTACTS = "Contractor contacts\nPiet Vandamme, heating, 0441 220 118\nDenny Quarles, plumbing, 0441 229 507"
TEXTS = [PLUMBER, CONTACTS]


def test_words_become_a_choice() -> None:
    assert RecomputeChoice.parse("0.2", "first-k") == RecomputeChoice(0.2, SelectorName.FIRST_K)
    assert RecomputeChoice.parse("auto").ratio == "auto"
    for ratio, selector in [("1.2", "aux"), ("-0.1", "aux"), ("nan", "aux"), ("much", "aux"), ("0.2", "best")]:
        with pytest.raises(ConfigError, match=ratio if selector == "aux" else selector):
            RecomputeChoice.parse(ratio, selector)


def test_naming_the_choices_loads_no_torch() -> None:
    code = "import sys, desk_rag.kv.recompute.policy; print('torch' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "False"


def test_costs_are_found_again_from_timings() -> None:
    true = PassCosts(fixed=0.01, per_row=2e-5, per_pair=3e-9)
    sizes = [(16, 500), (16, 4000), (800, 1000), (800, 4000), (4000, 4000)]
    found = PassCosts.fit([PassTiming(rows, keys, true.seconds(rows, keys)) for rows, keys in sizes])
    for rows, keys in [(100, 2000), (8000, 8000)]:
        assert found.seconds(rows, keys) == pytest.approx(true.seconds(rows, keys), rel=1e-6)


def test_no_part_of_the_cost_is_negative() -> None:
    measured = [(10, 100, 0.010), (100, 100, 0.1), (1000, 1000, 0.9), (2000, 2000, 1.7)]
    found = PassCosts.fit([PassTiming(*timing) for timing in measured])
    assert min(found.fixed, found.per_row, found.per_pair) >= 0
    assert found.seconds(1000, 1000) == pytest.approx(0.9, rel=0.2)


@pytest.mark.parametrize(
    ("question", "least"),
    [
        ("Who was going to come before Denny Quarles, and what is his number?", 2),
        ("What is the phone number of Piet Vandamme, and which box holds the key?", 1),
        ("Which of the two, Oskar or Vandamme, works in heating?", 1),
    ],
)
def test_questions_over_several_chunks_show_it(question: str, least: int) -> None:
    assert cues(question, TEXTS) >= least


@pytest.mark.parametrize(
    "question", ["Which box holds the key?", "What is the number of Denny Quarles?", "wo liegt der key in box 14"]
)
def test_questions_over_one_chunk_do_not(question: str) -> None:
    assert cues(question, TEXTS) == 0


def test_words_of_one_chunk_are_not_scattered_by_others_that_repeat_some() -> None:
    both = PLUMBER + "\n" + CONTACTS
    assert cues("Where does Denny Quarles find the key of Oskar", [both, CONTACTS]) == 0
    assert cues("Where does Denny Quarles find the key of Oskar Vandamme", TEXTS) >= 1


def a_plan(tokens: int, chunks: int = 2) -> StitchPlan:
    return plan(20, [tokens // chunks] * chunks)


SLOW = PassCosts(fixed=0.02, per_row=1e-3, per_pair=0.0)
FAST = PassCosts(fixed=0.02, per_row=1e-5, per_pair=0.0)
HOP = "Who was going to come before Denny Quarles, and what is his number?"


def test_no_cue_no_recompute() -> None:
    assert choose("Which box holds the key?", TEXTS, FAST, a_plan(1000)) == 0.0
    assert choose(HOP, TEXTS[:1], FAST, a_plan(1000, 1)) == 0.0


def test_a_question_with_cues_gets_what_the_machine_can_afford() -> None:
    assert choose(HOP, TEXTS, SLOW, a_plan(4000)) == 0.2
    # Where everything can be recomputed unnoticed it is, and the answer is that of full prefill.
    assert choose(HOP, TEXTS, FAST, a_plan(4000)) == 1.0
    # Where a pass costs much by itself there is nothing to save, and a little recompute would cost the advantage.
    stuck = PassCosts(fixed=1.0, per_row=5e-4, per_pair=0.0)
    assert choose(HOP, TEXTS, stuck, a_plan(4000)) in (0.0, 0.05)
    assert stuck.seconds(32 + 200, 4052) - stuck.seconds(32, 4052) < 0.12


def test_the_ratio_never_exceeds_what_was_wanted_where_it_is_felt() -> None:
    for tokens in (500, 2000, 8000):
        ratio = choose(HOP, TEXTS, SLOW, a_plan(tokens))
        where = a_plan(tokens)
        chunk_tokens, keys = where.num_slots - where.prefix_tokens, where.num_slots + 32
        extra = SLOW.seconds(32 + round(ratio * chunk_tokens), keys) - SLOW.seconds(32, keys)
        assert ratio <= 0.2 or extra <= 0.12
