"""A line loses where another of its document says more of the question."""

from __future__ import annotations

from desk_rag.answering.evidence.siblings import siblings_of
from desk_rag.answering.requirements.places import Place

BINS = Place("- Grey bin: every other Tuesday\n- Green bin: every other Tuesday, April to November", "home\nbins", 0)
MINUTES = Place("Treasurer Fay Munro reported a balance.\nHens are not allowed.", "club\nminutes 2025", 0)
ELECTIONS = Place("Fay Munro steps down; the new treasurer is Idris Vaughan.", "club\nminutes 2025", 0)


def _lost(question: str, sentence: str, *places: Place) -> float:
    return siblings_of(question, places)[places[0]].penalty(sentence)


def test_the_line_of_another_thing_loses() -> None:
    grey, green = BINS.text.split("\n")
    assert _lost("When is the grey bin collected?", green, BINS) > 0
    assert _lost("When is the grey bin collected?", grey, BINS) == 0
    assert _lost("When is the bin collected?", green, BINS) == 0


def test_another_passage_of_the_same_document_counts() -> None:
    question, reported = "Who is the new treasurer?", "Treasurer Fay Munro reported a balance."
    assert _lost(question, reported, MINUTES, ELECTIONS) > 0
    assert _lost(question, reported, MINUTES) == 0
    assert _lost(question, reported, MINUTES, Place(ELECTIONS.text, "club\nminutes 2024", 0)) == 0


def test_lines_of_a_program_are_not_compared() -> None:
    code = "# how many guests sit on one bench, at least 2\nBENCH_SEATS = 7"
    question, line = "How many guests fit on one bench?", "BENCH_SEATS = 7"
    assert _lost(question, line, Place(code, "code\nseats", 0, is_code=True)) == 0
    assert _lost(question, line, Place(code, "code\nseats", 0)) > 0
