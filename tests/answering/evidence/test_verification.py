"""Refusal of evidence that does not speak of the question, with the real embedder."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from desk_rag.answering.events import Citation, Source
from desk_rag.answering.evidence.span_scorer import load_span_scorer
from desk_rag.answering.evidence.subjects import missing_subjects
from desk_rag.answering.evidence.verification import verify_answer, verify_evidence
from desk_rag.answering.requirements.places import Place
from desk_rag.answering.requirements.stems import coverage
from desk_rag.config import ModelSettings
from desk_rag.documents.chunking import ChunkId, Location
from desk_rag.retrieval import embedding
from desk_rag.retrieval.embedding import Embedder

BOILER = "The plumber needs the key of the boiler room, which sits in box 14. Please leave the old valve in the yard."
RELEASE = "Fernhill Planner 4.3. Shared calendars can now be exported. PDF printing cut off the last row."


@pytest.fixture(scope="module")
def embedder() -> Iterator[Embedder]:
    yield embedding.load_embedder(ModelSettings(device="cpu"))


def source(number: int, text: str) -> Source:
    return Source(number, ChunkId("0" * 32), Path("/docs/a.txt"), "", Location(), text, 1.0, True, False)


def cite(number: int, quote: str) -> Citation:
    return Citation(number, Path("/docs/a.txt"), Location(), quote)


SOURCES = (source(1, BOILER), source(2, RELEASE))
KEY = cite(1, "The plumber needs the key of the boiler room, which sits in box 14.")
PRINTING = cite(2, "PDF printing cut off the last row.")


def test_evidence_for_the_question_is_let_through(embedder: Embedder) -> None:
    support = verify_answer("Which box holds the key that the plumber needs?", [KEY], [], SOURCES, embedder)
    assert support.supported and support.probability > 0.9
    assert verify_answer("What was wrong with PDF printing?", [PRINTING], [], SOURCES, embedder).supported


@pytest.mark.parametrize(
    "question", ["How much does Northbay Storage charge?", "Who won the chess match in Lisbon?", "Is there a lift?"]
)
def test_evidence_for_something_else_is_refused(embedder: Embedder, question: str) -> None:
    for citation in (KEY, PRINTING):
        support = verify_answer(question, [citation], [], SOURCES, embedder)
        assert not support.supported and support.probability < 0.35


def test_what_the_pointer_says_of_the_quote_counts(embedder: Embedder) -> None:
    """The scorer decides about a single quote; two are for
    questions that neither answers alone. The model's own doubt then says nothing."""
    pointer = load_span_scorer(embedder)
    right, wrong = "Which box holds the key that the plumber needs?", "What does the plumber's key cost?"
    by_pointer = {
        question: verify_answer(question, [KEY], [], SOURCES, embedder, 0.01, pointer) for question in (right, wrong)
    }
    assert by_pointer[right].supported and not by_pointer[wrong].supported
    assert verify_answer(wrong, [KEY], [], SOURCES, embedder, 0.01).supported
    assert verify_answer(right, [KEY], [], SOURCES, embedder, 0.9, pointer) == by_pointer[right]
    twice = [[KEY, cite(1, "Please leave the old valve in the yard.")], [], SOURCES, embedder, 0.01]
    assert verify_answer(right, *twice, pointer) == verify_answer(right, *twice)  # type: ignore[arg-type]
    assert verify_answer(right, [KEY], [], SOURCES, None, 0.01, pointer) == verify_answer(
        right, [KEY], [], SOURCES, None, 0.01
    )


TENT = "The tent leaked, and only eleven people came to see us."
FAIR = (
    f"Fair in Holm, 3 June. {TENT} "
    "Supper was at the inn at half past ten, when the music had to stop."
)


@pytest.mark.parametrize(
    ("question", "quote", "shown"),
    [
        ("How many people came to see us in Holm?", TENT, True),
        ("How many people came to see us in Vardal?", TENT, True),
        ("How many people came to the tent of Vardal?", TENT, False),
        ("What had to stop at 22:30?", "Supper was at the inn at half past ten, when the music had to stop.", True),
    ],
)
def test_an_answer_about_another_name_needs_more_support_than_one_in_other_words(
    embedder: Embedder, question: str, quote: str, shown: bool
) -> None:
    """A time of day is no such name: 22:30 is half past ten."""
    verdict = verify_answer(
        question, [cite(1, quote)], [], (source(1, FAIR),), embedder, span_scorer=load_span_scorer(embedder)
    )
    assert verdict.supported is shown
    assert bool(verdict.unmet) is ("Holm" not in question)


def test_a_quote_is_judged_where_it_is_worth_most(embedder: Embedder) -> None:
    """It stands within a longer line first, and under another heading."""
    pointer = load_span_scorer(embedder)
    question, line = "How long is the pause of the pump in hours?", "pause_hours = 6"
    text = f"[valve]\nlongest_{line}0\n[pump]\n{line}"
    line_start = text.rindex(line)
    (field,) = pointer.read(question, [text])
    assert field.log_odds(line_start, line_start + len(line)) > field.log_odds(
        text.index(line), text.index(line) + len(line)
    )
    support = verify_answer(question, [cite(1, line)], [], [source(1, text)], embedder, 0.01, pointer)
    similarity = float(embedder.embed_question(question) @ embedder.embed_chunks([line])[0])
    assert support == verify_evidence(
        question,
        line,
        text,
        similarity=similarity,
        refusal=0.01,
        span_score=field.log_odds(line_start, line_start + len(line)),
    )


def test_the_models_own_doubt_counts(embedder: Embedder) -> None:
    """Evidence in the question's words is let through, unless the model itself was near to refusing."""
    question = "Does the plumber of the stone house accept cheques?"
    sure, unsure = (verify_answer(question, [KEY], [], SOURCES, embedder, refusal=p) for p in (1e-4, 0.45))
    assert sure.supported and not unsure.supported and sure.probability > unsure.probability + 0.3
    by_words = [verify_answer(question, [KEY], [], SOURCES, None, refusal=p).probability for p in (0.0, 0.01, 0.3, 1.0)]
    assert by_words == sorted(by_words, reverse=True) and by_words[0] < 1 and by_words[-1] > 0


def test_words_that_stand_nowhere_need_more_than_a_model_that_is_sure(embedder: Embedder) -> None:
    for refusal in (1e-9, 1e-3):
        assert not verify_answer(
            "When was the piano tuned?", [], ["Invented words."], SOURCES, embedder, refusal
        ).supported
        assert not verify_answer("When was the piano tuned?", [KEY], [], SOURCES, embedder, refusal).supported
        assert not verify_answer("When was the piano tuned?", [KEY], [], SOURCES, None, refusal).supported


def test_another_embedder_leaves_the_decision_to_the_words(embedder: Embedder) -> None:
    for other in (None, Embedder("another", embedder._module, is_embedded=False, fingerprint="f" * 32)):
        assert verify_answer("Which box holds the key that the plumber needs?", [KEY], [], SOURCES, other).supported
        assert not verify_answer("How much does Northbay Storage charge?", [KEY], [], SOURCES, other).supported
        assert verify_answer("Which box has the key?", [KEY], [], SOURCES, other) == verify_evidence(
            "Which box has the key?", KEY.quote, BOILER, similarity=None
        )


def test_the_chunk_of_the_evidence_counts_not_the_others(embedder: Embedder) -> None:
    question = "What does Fernhill Planner export?"
    right = verify_answer(question, [PRINTING], [], SOURCES, embedder)
    elsewhere = verify_answer(question, [replace(PRINTING, source_number=1)], [], SOURCES, embedder)
    assert right.probability > elsewhere.probability + 0.05


def test_dropped_quotes_are_judged_where_nothing_was_found(embedder: Embedder) -> None:
    question = "How much does Northbay Storage charge?"
    assert not verify_answer(question, [], ["The Sunday train leaves at nine."], SOURCES, embedder).supported


REPAIRS = "Repairs of the house › Boiler room\n" + BOILER


@pytest.mark.parametrize(
    ("title", "heading", "quote", "counts"),
    [
        ("Repairs of the house", "Boiler room", "Repairs of the house › Boiler room", False),
        ("Repairs of the house", "Boiler room › Keys", "Repairs of the house", False),  # the chunk is under both levels
        ("Repairs of the house", "Boiler room", "The plumber needs the key of the boiler room", True),
        ("Repairs of the house", "", "Repairs of the house › Boiler room", True),  # then its second half is text
        ("", "", "Repairs of the house › Boiler room", True),
    ],
)
def test_a_title_is_hardly_evidence(title: str, heading: str, quote: str, counts: bool) -> None:
    titled = replace(source(1, REPAIRS), title=title, location=Location(heading))
    question = "Who made repairs of the house?"
    probability = verify_answer(question, [cite(1, quote)], [], [titled], None, 0.01).probability
    plain = verify_evidence(question, quote, REPAIRS, similarity=None, refusal=0.01).probability
    assert probability == plain if counts else probability < plain - 0.2


def test_a_title_counts_beside_a_sentence_and_where_it_is_one() -> None:
    """Code is titled by its docstring's first sentence, which may well be the answer."""
    question = "What do the repairs of the house say of the key?"
    titled = replace(source(1, REPAIRS), title="Repairs of the house", location=Location("Boiler room"))
    beside = verify_answer(question, [cite(1, "Repairs of the house › Boiler room"), KEY], [], [titled], None, 0.01)
    both = f"Repairs of the house › Boiler room {KEY.quote}"
    assert beside == verify_evidence(question, both, REPAIRS, similarity=None, refusal=0.01)
    code = replace(source(1, "Says who has the key.\ndef key(): ..."), title="Says who has the key.")
    said = verify_answer("Who has the key?", [cite(1, "Says who has the key.")], [], [code], None, 0.01)
    assert said == verify_evidence(
        "Who has the key?", "Says who has the key.", code.text, similarity=None, refusal=0.01
    )


def test_answers_without_quotes_are_let_through(embedder: Embedder) -> None:
    assert verify_answer("How much is it?", [], [], SOURCES, embedder).supported
    assert verify_answer("How much is it?", [], ["Nine euro."], (), embedder).supported


@pytest.mark.parametrize("signal", ["similarity", "evidence", "chunk"])
def test_each_signal_raises_the_probability(signal: str) -> None:
    question, near, far = "Which box holds the boiler key?", "the boiler key is in box 14", "roses in winter"
    low = {"evidence": far, "chunk": far, "similarity": 0.2}
    high = low | {signal: {"similarity": 0.6}.get(signal, near)}
    first = verify_evidence(question, str(low["evidence"]), str(low["chunk"]), similarity=0.2)
    second = verify_evidence(
        question, str(high["evidence"]), str(high["chunk"]), similarity=0.6 if signal == "similarity" else 0.2
    )
    assert first.probability < second.probability


@pytest.mark.parametrize(
    ("question", "text", "share"),
    [
        ("Why was the field trial postponed?", "We agreed to postpone the field trials.", 1.0),
        ("Why was the field trial postponed?", "The postponement of the field day", 2 / 3),
        ("What was it?", "anything", 1.0),
        ("INV-2024 total", "", 0.0),
        ("Caf\u00e9 hours?", "the caf\u00e9 is open", 0.5),
    ],
)
def test_coverage(question: str, text: str, share: float) -> None:
    assert coverage(question, text) == pytest.approx(share)


@pytest.mark.parametrize(
    "text",
    [
        "Wifi of the guests: lantern-22",  # a file of one line is its title
        # said again, as code does with its docstring
        "Wifi of the guests: lantern-22\nWifi of the guests: lantern-22\nIt is changed in May.",
    ],
)
def test_a_title_that_is_the_text_is_evidence(text: str) -> None:
    quote = text.partition("\n")[0]
    titled = replace(source(1, text), title=quote, location=Location(""))
    verdict = verify_answer("What is the wifi of the guests?", [cite(1, quote)], [], [titled], None, 0.01)
    assert verdict == verify_evidence("What is the wifi of the guests?", quote, text, similarity=None, refusal=0.01)


def test_yes_or_no_is_doubtful_where_another_passage_speaks_of_what_is_asked(embedder: Embedder) -> None:
    quote = cite(1, "Passengers with bicycles pay three crowns more on the ferry.")
    ferry, pass_road = source(1, quote.quote), source(2, "The pass is closed in snow, and the bus waits below.")
    question = "May passengers take bicycles on the ferry in snow?"
    alone = verify_answer(question, [quote], [], [ferry], embedder)
    beside = verify_answer(question, [quote], [], [ferry, pass_road], embedder)
    assert beside.probability <= 0.3 < alone.probability
    other = question.replace("May passengers", "Which passengers may")
    assert verify_answer(other, [quote], [], [ferry, pass_road], embedder).probability > 0.3


def test_a_quote_with_all_words_of_the_question_and_a_value_of_its_kind_is_not_doubtful(embedder: Embedder) -> None:
    pointer, quote = load_span_scorer(embedder), cite(1, "One correction: the bench costs 310 crowns, as Gus says.")
    sources = [source(1, quote.quote)]
    by_question = {
        question: verify_answer(question, [quote], [], sources, embedder, None, pointer).probability
        for question in ("How much does the bench cost?", "How much does the oak bench cost?")
    }
    assert by_question["How much does the bench cost?"] >= 0.5 > by_question["How much does the oak bench cost?"]


TUNED = "The upright piano was tuned by Mr Okafor in June."
PIANO = f"Piano\n{TUNED}"
TRAVEL = "Wayfarer Travel Cover\nThe annual premium is 94 pounds."
LEASE = "The tenancy runs for twelve months. The rent may be raised with seven weeks notice."
SCHOOL = "School\nThe head is Ada Garraway."
GOODS = "item: washer W7; price: 515; serial: BW7-44120"
HALL = "The hall was built in 1921. It is 14 m long."


@pytest.mark.parametrize(
    ("question", "text", "quote", "labels", "missing"),
    [
        ("Who tuned the harpsichord?", PIANO, TUNED, "", ("harpsichord",)),
        ("Who tuned the piano?", PIANO, TUNED, "", ()),
        ("Who tuned the old piano?", PIANO, TUNED, "", ("old piano",)),
        ("Was the harpsichord tuned?", PIANO, TUNED, "", ()),
        (
            "What is the premium of our life insurance?",
            TRAVEL,
            "The annual premium is 94 pounds.",
            "insurance",
            ("life insurance",),
        ),
        ("What is the premium of our travel insurance?", TRAVEL, "The annual premium is 94 pounds.", "insurance", ()),
        ("What is the price of the travel cover?", TRAVEL, "The annual premium is 94 pounds.", "", ()),
        ("How long is the notice period?", LEASE, "The tenancy runs for twelve months.", "lease", ("notice period",)),
        ("What does the owner get?", LEASE, "The rent may be raised with seven weeks notice.", "lease", ()),
        ("When does the rent review begin?", LEASE, "The rent may be raised with seven weeks notice.", "lease", ()),
        ("By when is the rent paid up?", LEASE, "The rent may be raised with seven weeks notice.", "lease", ()),
        ("In which months is the rent payable?", LEASE, "The rent may be raised with seven weeks notice.", "lease", ()),
        ("How long is the tenancy?", LEASE, "The tenancy runs for twelve months.", "lease", ()),
        ("How long is the hall?", HALL, "It is 14 m long.", "", ()),
        ("Who is the bursar of the school?", SCHOOL, "The head is Ada Garraway.", "School", ("bursar",)),
        ("Who is the leader of the school?", "It is led by Ada.\n", "It is led by Ada.", "School", ()),
        ("Who is the leader of the choir?", "It is led by Ada.\n", "It is led by Ada.", "School", ("choir",)),
        ("Who is the head of the school?", SCHOOL, "The head is Ada Garraway.", "School", ()),
        ("When is the rent due in the month?", LEASE, "The rent may be raised with seven weeks notice.", "lease", ()),
        ("What is the price of the washer?", GOODS, GOODS, "inventory", ()),
    ],
)
def test_what_a_question_is_about_must_stand_in_the_passage(
    question: str, text: str, quote: str, labels: str, missing: tuple[str, ...]
) -> None:
    assert missing_subjects(question, quote, Place(text, labels, 0)) == missing
