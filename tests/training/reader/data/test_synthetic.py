"""Rule-made texts: answers stand where they are quoted, what is refused does not, a seed means what it always meant."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from random import Random

import pytest

from desk_rag.model.trained_frame import NO_ANSWER
from desk_rag.training.reader.synthetic.desk import DeskScene, desk_scene
from desk_rag.training.reader.synthetic.facts import joined_facts
from desk_rag.training.reader.synthetic.leases import leases
from desk_rag.training.reader.synthetic.letters import letter, minutes
from desk_rag.training.reader.synthetic.lists import duties, faults, log, prices, schedule, settings
from desk_rag.training.reader.synthetic.members import members
from desk_rag.training.reader.synthetic.needles import needles
from desk_rag.training.reader.synthetic.prose import make_question, noisy_question, synonym
from desk_rag.training.reader.synthetic.records import invoices, places, possessions
from desk_rag.training.reader.synthetic.templates import Section
from desk_rag.training.reader.synthetic.values import capitalised
from tests.training.reader.invented import sentence

FILLERS = ("The weather was fine.", "Nobody knew the way back in the dark.")
SYNONYMS = {
    "harbour": (["port"], "a place where ships are safe"),
    "store": (["hoard", "put by"], ""),
    "carry": (["bear"], "to take"),
    "sleep": (["doze"], "rest of the night"),
}
MAKERS = (
    members, leases, faults, minutes, prices, duties, possessions, places, invoices, schedule, settings, log, letter,
)  # fmt: skip


def filler(rng: Random) -> str:
    return rng.choice(FILLERS)


def scene(seed: int) -> DeskScene:
    return desk_scene(Random(seed), filler)


def parts(told: str) -> tuple[list[str], str]:
    """The quotes of a trained answer, and its short answer ('' where a quote is all)."""
    lines = told.split("\n")
    quotes = [line[1:-1] for line in lines if line.startswith('"')]
    return quotes, "" if len(quotes) == len(lines) else lines[-1]


@pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.__name__)
def test_every_question_is_answered_by_its_own_line(make: Callable[[Random], list[Section]]) -> None:
    count = 0
    for seed in range(40):
        for section in make(Random(seed)):
            assert section.title and section.lines
            for line in section.lines:
                assert not re.search(r"[{}]", line.text + section.title)
                for question, answer in line.asked:
                    count += 1
                    # An event that begins its line has a capital there and none in the answer.
                    assert answer in line.text or capitalised(answer) in line.text
                    assert answer and question and not re.search(r"[{}]", question)
    assert count > 80


def test_desk_quotes_and_answers_stand_in_a_chunk() -> None:
    count = 0
    for seed in range(200):
        drawn = scene(seed)
        bodies = [text for _, text in drawn.chunks]
        for _, expected in drawn.asked:
            quotes, answer = parts(expected)
            assert len(quotes) == 1 and sum(body.count(quotes[0]) for body in bodies) == 1
            assert answer in quotes[0] or capitalised(answer) in quotes[0]
            count += 1
        assert len({question for question, _ in drawn.asked}) == len(drawn.asked)
    assert count > 1500


def test_a_fact_that_was_left_out_is_nowhere() -> None:
    absent = [
        (drawn_scene.absent, drawn_scene) for drawn_scene in map(scene, range(400)) if drawn_scene.absent is not None
    ]
    assert len(absent) > 20
    for (question, answer), drawn_scene in absent:
        assert not any(answer in text for _, text in drawn_scene.chunks)
        assert question not in {asked for asked, _ in drawn_scene.asked}


def test_chunks_are_cut_and_filled() -> None:
    drawn = [scene(seed) for seed in range(60)]
    assert {len(one.chunks) for one in drawn} >= {1, 2, 3}
    assert any(text in body for one in drawn for _, body in one.chunks for text in FILLERS)
    assert all(body for one in drawn for _, body in one.chunks)


def test_joined_facts_quote_every_line_that_is_needed() -> None:
    several = 0
    for seed in range(200):
        lines, questions = joined_facts(Random(seed))
        for question, expected in questions:
            quotes, answer = parts(expected)
            assert quotes == lines or quotes in ([line] for line in lines)
            several += len(quotes) > 1
            # A list of people is put together from the lines; all else is said in one of them.
            assert all(any(name in line for line in lines) for name in re.split(", | and ", answer))
            if question.startswith(("Which office", "In which city", "Who joined", "What is the phone")):
                assert quotes == lines
    assert several > 100


def test_the_cheaper_plan_is_the_cheaper_one() -> None:
    compared = 0
    for seed in range(200):
        lines, questions = joined_facts(Random(seed))
        if "cheaper" not in questions[0][0]:
            continue
        prices = {line.split()[1]: int(re.findall(r"\$(\d+)", line)[0]) for line in lines}
        assert parts(questions[0][1])[1] == min(prices, key=lambda name: prices[name])
        assert parts(questions[1][1])[1] == max(prices, key=lambda name: prices[name])
        compared += 1
    assert compared > 15


def test_questions_over_prose_quote_their_sentence() -> None:
    kinds = set()
    for seed in range(600):
        rng = Random(seed)
        text = sentence(rng)
        question = make_question(SYNONYMS, rng, text)
        if question is None:
            continue
        quotes, answer = parts(question[1])
        assert quotes == [text] and answer in text
        kinds.add(question[0].split()[0])
    assert {"Complete", "Fill", "How", "Who", "When", "Tell", "Explain"} <= kinds
    assert make_question(SYNONYMS, Random(0), "Too short.") is None


def test_a_meaning_is_asked_for() -> None:
    text = "Every harbour of the old coast has its own watchman."
    questions = [make_question(SYNONYMS, Random(seed), text) for seed in range(200)]
    about = [one for one in questions if one and SYNONYMS["harbour"][1] in one[0]]
    assert about and all(answer == f'"{text}"\nharbour' for _, answer in about)


@pytest.mark.parametrize(
    ("word", "other"),
    [("harbours", "ports"), ("carries", "bears"), ("sleeping", "dozing"), ("harbour", "port"), ("quay", None)],
)
def test_synonyms_keep_regular_endings(word: str, other: str | None) -> None:
    assert synonym(SYNONYMS, Random(0), word) == other


def test_questions_as_people_type_them() -> None:
    question = "Which Harbour does the watchman of the old town guard?"
    typed = [noisy_question(SYNONYMS, Random(seed), question) for seed in range(300)]
    assert question in typed and question.lower() in typed and question.rstrip("?") in typed
    shorter = [t for t in typed if len(t.split()) == len(question.split()) - 1]
    assert 10 < len(shorter) < 80
    assert all(set(t.lower().rstrip("?").split()) <= set(question.lower().rstrip("?").split()) for t in typed)


DIGESTS = {
    "desk_scene": "0534e88b3d3e239b",
    "joined_facts": "b424e6e556b3a3a8",
    "make_question": "6f59cff818b53d1c",
    "noisy_question": "e3b2971bf0eeadea",
}


@pytest.mark.parametrize("name", DIGESTS)
def test_a_seed_means_what_it_always_meant(name: str) -> None:
    """Texts of a seed are part of the recipe: whoever changes them, changes the reader that it makes."""

    def drawn(seed: int) -> object:
        rng = Random(seed)
        text = sentence(Random(seed + 1000))
        generators: dict[str, Callable[[], object]] = {
            "desk_scene": lambda: desk_scene(rng, filler),
            "joined_facts": lambda: joined_facts(rng),
            "make_question": lambda: make_question(SYNONYMS, rng, text),
            "noisy_question": lambda: noisy_question(SYNONYMS, rng, text),
        }
        return [generators[name](), rng.random()]

    assert hashlib.sha256(json.dumps([drawn(seed) for seed in range(200)]).encode()).hexdigest()[:16] == DIGESTS[name]


def test_needles_are_quoted_to_the_letter_and_strangers_are_not_found() -> None:
    seen = set()
    for seed in range(300):
        haystack = needles(Random(seed), 12)
        assert haystack == needles(Random(seed), 12), "the same seed, the same lines"
        assert haystack.lines and len(set(haystack.lines)) == len(haystack.lines)
        for question, answer in haystack.asked:
            if answer == NO_ANSWER:
                seen.add("none")
                continue
            *quotes, short = answer.split("\n")
            assert quotes and all(quote.strip('"') in haystack.lines for quote in quotes)
            values = short.replace(" and ", ", ").split(", ")
            assert len(values) == len(quotes), question
            assert all(value in quote for value, quote in zip(values, quotes, strict=True))
            seen.add("one" if len(quotes) == 1 else "several")
    assert seen == {"none", "one", "several"}
