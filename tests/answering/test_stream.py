"""Evidence is judged before the answer's own words are told, and what was told is what the answer says."""

from __future__ import annotations

from pathlib import Path

import pytest

from desk_rag.answering.events import AnswerText, Evidence, Source
from desk_rag.answering.evidence.citations import ParsedAnswer
from desk_rag.answering.stream import AnswerStream
from desk_rag.documents.chunking import ChunkId, Location
from desk_rag.model.prompt import NO_ANSWER

SOURCE = Source(
    number=1,
    chunk_id=ChunkId("0" * 32),
    path=Path("/docs/bicycle.txt"),
    title="Bicycle",
    location=Location(line_start=1, line_end=2),
    text="The frame number of the blue bicycle is WTU-4471-B. The front light needs three batteries.",
    score=1.0,
    warm=True,
    stale=False,
)
QUOTE = '"The frame number of the blue bicycle is WTU-4471-B."\n'


def told(question: str, pieces: list[str]) -> tuple[list[Evidence | AnswerText], ParsedAnswer, AnswerStream]:
    stream = AnswerStream(question, [SOURCE], None)
    events = [event for piece in pieces for event in stream.feed(piece)]
    parsed, rest = stream.finish()
    return [*events, *rest], parsed, stream


@pytest.mark.parametrize("size", [1, 3, 7, 1000])
def test_supported_evidence_comes_first_and_then_the_words(size: int) -> None:
    text = QUOTE + "WTU-4471-B"
    pieces = [text[start : start + size] for start in range(0, len(text), size)]
    events, parsed, stream = told("What is the frame number of the blue bicycle?", pieces)
    assert not stream.refused
    assert isinstance(events[0], Evidence)
    assert "".join(event.text for event in events if isinstance(event, AnswerText)) == parsed.text == "WTU-4471-B"
    assert parsed.found
    assert parsed.citations == (events[0].citation,)


@pytest.mark.parametrize("size", [1, 5, 1000])
def test_evidence_that_speaks_of_something_else_is_never_shown(size: int) -> None:
    text = QUOTE + "WTU-4471-B"
    pieces = [text[start : start + size] for start in range(0, len(text), size)]
    events, parsed, stream = told("Who painted the ceiling of the opera house in Lyon?", pieces)
    assert stream.refused
    assert events == [AnswerText(NO_ANSWER)]
    assert not parsed.found
    assert parsed.text == NO_ANSWER
    assert parsed.citations == ()


def test_a_quote_without_words_of_its_own_is_judged_at_the_end() -> None:
    events, parsed, _ = told("What is the frame number of the blue bicycle?", [QUOTE])
    assert parsed.found
    assert "WTU-4471-B" in parsed.text
    assert isinstance(events[0], Evidence)
    refused, unfound, stream = told("Who painted the ceiling of the opera house in Lyon?", [QUOTE])
    assert stream.refused
    assert refused == [AnswerText(NO_ANSWER)]
    assert not unfound.found


def test_the_last_quote_is_shown_before_the_words_that_follow_it() -> None:
    stream = AnswerStream("What is the frame number of the blue bicycle?", [SOURCE], None)
    (shown,) = stream.feed(QUOTE, ends_quotes=True)
    assert isinstance(shown, Evidence)
    assert shown.support == stream.support is not None
    assert [type(event) for event in stream.feed("WTU-4471-B")] == [AnswerText]
    parsed, _ = stream.finish()
    assert parsed.text == "WTU-4471-B"
    stream = AnswerStream("Who painted the ceiling of the opera house in Lyon?", [SOURCE], None)
    assert list(stream.feed(QUOTE, ends_quotes=True)) == []
    assert stream.ended, "the short answer need not be written"


def test_the_models_own_refusal_passes() -> None:
    events, parsed, stream = told("What is the frame number?", [NO_ANSWER])
    assert not stream.refused
    assert not parsed.found
    assert "".join(event.text for event in events if isinstance(event, AnswerText)) == NO_ANSWER


def test_text_after_a_refusal_changes_nothing() -> None:
    stream = AnswerStream("Who painted the ceiling of the opera house in Lyon?", [SOURCE], None)
    assert list(stream.feed(QUOTE + "WTU")) == []
    assert stream.refused
    assert list(stream.feed("-4471-B and more")) == []
    parsed, rest = stream.finish()
    assert rest == (AnswerText(NO_ANSWER),)
    assert parsed.text == NO_ANSWER


def test_a_stop_is_no_verdict() -> None:
    fitting, other = "What is the frame number of the blue bicycle?", "Who painted the ceiling of the opera house?"
    for question, kept in ((fitting, 1), (other, 0)):
        stream = AnswerStream(question, [SOURCE], None)
        assert list(stream.feed(QUOTE)) == []
        parsed, rest = stream.finish(stopped=True)
        assert (parsed.text, len(parsed.citations), len(rest)) == ("", kept, kept), "evidence is judged all the same"
        assert parsed.found is bool(kept)
    stream = AnswerStream(fitting, [SOURCE], None)
    list(stream.feed('"The frame num'))
    assert stream.finish(stopped=True) == (ParsedAnswer("", False, (), (), ()), ())


def test_a_verdict_that_was_there_before_the_stop_stays() -> None:
    stream = AnswerStream("Who painted the ceiling of the opera house in Lyon?", [SOURCE], None)
    list(stream.feed(QUOTE + "WTU"))
    assert stream.refused
    parsed, rest = stream.finish(stopped=True)
    assert parsed.text == NO_ANSWER and rest == (AnswerText(NO_ANSWER),)
