"""The answer form: what becomes a citation, what stays answer, whatever the pieces look like."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from desk_rag.answering.events import AnswerText, Citation, Evidence, Source
from desk_rag.answering.evidence.citations import AnswerParser, ParsedAnswer
from desk_rag.documents.chunking import ChunkId
from desk_rag.documents.formats import place_units
from desk_rag.documents.location import Location, Part
from desk_rag.model.prompt import NO_ANSWER


def source(number: int, text: str, *, title: str = "", location: Location | None = None) -> Source:
    return Source(
        number=number,
        chunk_id=ChunkId(f"{number:032x}"),
        path=Path(f"/docs/{number}.txt"),
        title=title,
        location=location or Location(),
        text=text,
        score=1.0,
        warm=True,
        stale=False,
    )


LEASE = source(
    1,
    'Lease › Costs\nRent: 950 euro a month.\nShe said "no pets"\nand left. The docu-\nment is well\u2013known.\n'
    "Heating costs 3.10 \u2013 per unit.",
    title="Lease",
    location=Location(
        heading="Lease › Costs", line_start=40, line_end=44, parts=(Part(14, line_start=40, line_end=44),)
    ),
)
NOVEL = source(
    2,
    "It\u2019s a fact that the novel \u201cThe Hound\u201d sold 4,000 copies. "
    "Caf\u00e9 o\ufb03ce\u00a0hours: 9\u201317.",
    location=Location(page_start=3, page_end=3),
)
SOURCES = (LEASE, NOVEL)


def parse(text: str, sources: tuple[Source, ...] = SOURCES, size: int | None = None) -> ParsedAnswer:
    """Parse in pieces of `size` characters, check that events and outcome agree, return the outcome."""
    parser = AnswerParser(sources)
    events: list[Evidence | AnswerText] = []
    for start in range(0, len(text), size or max(1, len(text))):
        events += parser.feed(text[start : start + (size or len(text))])
    answer = parser.finish()
    events += answer.events
    assert "".join(event.text for event in events if isinstance(event, AnswerText)) == answer.text
    assert tuple(event.citation for event in events if isinstance(event, Evidence)) == answer.citations
    return answer


def quotes(answer: ParsedAnswer) -> list[str]:
    return [citation.quote for citation in answer.citations]


def test_evidence_then_answer() -> None:
    answer = parse('"Rent: 950 euro a month."\n950 euro')
    assert answer.text == "950 euro" and answer.found and answer.dropped_quotes == ()
    assert answer.citations == (
        Citation(
            1,
            LEASE.path,
            Location(heading="Lease › Costs", line_start=40, line_end=40),
            "Rent: 950 euro a month.",
        ),
    )


def test_two_evidence_lines_from_two_sources() -> None:
    answer = parse('"Rent: 950 euro a month."\n"Heating costs 3.10 - per unit."\n3.10')
    assert [citation.source_number for citation in answer.citations] == [1, 1]
    answer = parse('"Rent: 950 euro a month."\n"the novel "The Hound" sold 4,000 copies."\n4,000')
    assert [citation.source_number for citation in answer.citations] == [1, 2] and answer.text == "4,000"
    assert str(answer.citations[1].location) == "p. 3"


def test_only_the_quoted_line_is_the_answer() -> None:
    answer = parse('"Rent: 950 euro a month."')
    assert answer.text == "Rent: 950 euro a month." and answer.found and len(answer.citations) == 1


@pytest.mark.parametrize("text", [NO_ANSWER, "I could not find that in the documents", f" {NO_ANSWER}\r\n"])
def test_the_sentence_for_nothing_found(text: str) -> None:
    answer = parse(text)
    assert not answer.found and answer.citations == () and answer.text.startswith(NO_ANSWER[:-1])


@pytest.mark.parametrize("text", ["", "\n \n", '"', '"\n"'])
def test_nothing_written_is_nothing_found(text: str) -> None:
    answer = parse(text)
    assert not answer.found and answer.text == NO_ANSWER and answer.citations == ()


def test_a_quote_that_stands_nowhere_is_dropped_and_told() -> None:
    answer = parse('"Pets are welcome here."\nyes')
    assert answer.citations == () and answer.dropped_quotes == ("Pets are welcome here.",)
    assert answer.text == "yes" and answer.found
    only = parse('"Pets are welcome here."')
    assert not only.found and only.text == NO_ANSWER


@pytest.mark.parametrize(
    ("written", "standing"),
    [
        ('"the novel \u201cThe Hound\u201d sold 4,000 copies."', "the novel \u201cThe Hound\u201d sold 4,000 copies."),
        (
            "\u201cIt's a fact that the novel 'The Hound' sold\u201d",
            "It\u2019s a fact that the novel \u201cThe Hound\u201d sold",
        ),
        ("\u00abHeating   costs 3.10 \u2014 per unit\u00bb", "Heating costs 3.10 \u2013 per unit"),
        ('"The document is well-known."', "The docu-\nment is well\u2013known."),
        ('"The docu- ment is wellknown."', "The docu-\nment is well\u2013known."),
        ('"The docu\u00adment is well-known"', "The docu-\nment is well\u2013known"),
        ('"Cafe\u0301 office hours: 9-17"', "Caf\u00e9 o\ufb03ce\u00a0hours: 9\u201317"),
        ('"She said "no pets" and left."', 'She said "no pets"\nand left.'),
        ('"She said "no pets"."', 'She said "no pets"'),
        ('> "Rent: 950 euro a month."', "Rent: 950 euro a month."),
        ('1. "Rent: 950 euro a month." [1]', "Rent: 950 euro a month."),
        ('"Rent: 950 euro".', "Rent: 950 euro"),
        ('"Rent: 950 euro a month.', "Rent: 950 euro a month."),
        ('"Rent: 950 euro a month,"', "Rent: 950 euro a month"),
    ],
)
def test_typography_may_differ_and_the_sources_wording_is_cited(written: str, standing: str) -> None:
    answer = parse(written + "\nso it is")
    assert quotes(answer) == [standing]
    assert answer.text == "so it is" and answer.dropped_quotes == ()
    holder = SOURCES[answer.citations[0].source_number - 1]
    assert standing in holder.text


@pytest.mark.parametrize(
    "written",
    [
        "Rent: 951 euro a month.",
        "Rent 950 euro a month.",
        "rent: 950 euro a month.",
        "ent: 950 euro a mon",
        "a month She said",
    ],
)
def test_words_and_figures_may_not_differ(written: str) -> None:
    answer = parse(f'"{written}"\nx')
    assert answer.citations == () and answer.dropped_quotes == (written,)


def test_a_quote_over_two_lines() -> None:
    for text in ['"She said "no pets"\nand left."\nno', '"She said \u201cno pets\u201d\r\nand left."\r\nno']:
        answer = parse(text)
        assert quotes(answer) == ['She said "no pets"\nand left.'] and answer.text == "no"
        assert str(answer.citations[0].location) == "lines 41-42"


def test_an_unclosed_quote_does_not_swallow_the_answer() -> None:
    answer = parse('"Rent: 950 euro a month.\n950 euro')
    assert quotes(answer) == ["Rent: 950 euro a month."] and answer.text == "950 euro"
    # The answer is what follows in the source too, and the text ends before any closing mark.
    answer = parse('"Lease › Costs\nRent: 950 euro a month.')
    assert quotes(answer) == ["Lease › Costs"] and answer.text == "Rent: 950 euro a month."


def test_a_quote_cut_off_by_the_token_limit() -> None:
    assert quotes(parse('"Rent: 950 eu')) == []
    assert parse('"Rent: 950 eu').dropped_quotes == ("Rent: 950 eu",)
    assert quotes(parse('"Rent: 950 euro')) == ["Rent: 950 euro"]


def test_an_answer_in_quotes_stays_answer() -> None:
    answer = parse('"the novel "The Hound" sold 4,000 copies."\n"The Hound"')
    assert len(answer.citations) == 1 and answer.text == '"The Hound"'


def test_evidence_said_twice_is_one_citation() -> None:
    answer = parse('"Rent: 950 euro a month."\n"Rent: 950 euro a month."\n950')
    assert len(answer.citations) == 1 and answer.text == "950"


def test_answer_on_the_line_of_its_quote() -> None:
    answer = parse('"Rent: 950 euro a month." - 950 euro')
    assert quotes(answer) == ["Rent: 950 euro a month."] and answer.text == "950 euro"


def test_quotes_inside_the_answers_words() -> None:
    answer = parse('The lease says "Rent: 950 euro a month" and "pets are very welcome", the "Hound" does not.')
    assert quotes(answer) == ["Rent: 950 euro a month"]
    assert answer.dropped_quotes == ("pets are very welcome",)
    assert answer.text.startswith('The lease says "Rent')


def test_a_model_that_does_not_quote() -> None:
    answer = parse("The rent is fixed. Rent: 950 euro a month. [1]\n- Heating costs 3.10 - per unit.")
    assert quotes(answer) == ["Rent: 950 euro a month.", "Heating costs 3.10 \u2013 per unit."]
    assert parse("950 euro").citations == ()


def test_source_numbers_out_of_range_are_removed() -> None:
    answer = parse("It is 950 [3] euro [1], [1, 7] or [0] [99]. See [2024] and [a].")
    assert answer.text == "It is 950 euro [1], [1] or. See [2024] and [a]."


def test_a_number_is_held_back_until_it_is_known() -> None:
    parser = AnswerParser(SOURCES)
    assert parser.feed("It is so [") == [AnswerText("It is so")]
    assert parser.feed("9") == []
    assert parser.feed("]") == []
    assert parser.feed(" indeed") == [AnswerText(" indeed")]


def test_evidence_is_told_at_the_end_of_its_line_and_words_as_they_come() -> None:
    parser = AnswerParser(SOURCES)
    assert parser.feed('"Rent: 950 euro') == []
    assert parser.feed(' a month."') == []
    (event,) = parser.feed("\n")
    assert isinstance(event, Evidence) and event.citation.source_number == 1
    assert parser.feed("95") == []  # may yet be '95.' before a quote
    assert parser.feed("0 eu") == [AnswerText("950 eu")]
    assert parser.feed("ro") == [AnswerText("ro")]
    assert parser.finish().events == ()


def test_lines_are_narrowed_only_where_the_chunks_lines_are_the_files() -> None:
    answer = parse('"The document is well-known."\nyes')
    assert str(answer.citations[0].location) == "lines 42-43"
    # One line more in the file than in the text: which one is missing is unknown.
    more = Part(14, None, 40, 45)
    loose = source(1, LEASE.text, title="Lease", location=Location("", None, None, 40, 45, parts=(more,)))
    assert str(parse('"Rent: 950 euro a month."', (loose,)).citations[0].location) == "lines 40-45"
    # In the title line there is nothing to narrow to.
    assert str(parse('"Lease › Costs"\nyes').citations[0].location) == "lines 40-44"
    place = Location("", None, None, 7, 8, parts=(Part(0, None, 7, 8),))
    plain = source(1, "one two three\nfour five six", location=place)
    assert str(parse('"four five"', (plain,)).citations[0].location) == "line 8"


def test_a_quote_is_placed_on_its_own_page() -> None:
    text = "The lease ends in May. The deposit is 900 euro. It is paid back in June."
    parts = (Part(0, 4), Part(23, 5), Part(48, 6))
    pages = source(1, text, location=Location("Lease", 4, 6, parts=parts))
    assert str(parse('"The deposit is 900 euro."', (pages,)).citations[0].location) == "p. 5"
    assert str(parse('"The deposit is 900 euro. It is paid back"', (pages,)).citations[0].location) == "pp. 5-6"
    earlier = replace(pages, location=Location("Lease", 4, 6))
    assert str(parse('"The deposit is 900 euro."', (earlier,)).citations[0].location) == "pp. 4-6"


def test_the_row_of_a_sheet_is_named_and_its_name_is_no_row() -> None:
    text = "Loans\nBorrower; Thing\nBorrower: Tom; Thing: drill\nBorrower: Ines; Thing: bread maker"
    units = place_units("loans.xlsx")
    whole = source(1, text, location=Location("Loans", 1, 1, 1, 3, units, (Part(6, 1, 1, 3),)))
    assert str(parse('"Borrower: Ines; Thing: bread maker"', (whole,)).citations[0].location) == "Loans, row 3"
    loans = Part(0, 1, 1, 4)
    several = Location("Loans", 1, 2, 1, 6, units, (loans, Part(len(text) + 1, 2, 1, 1, "Phones")))
    both = source(1, f"{text}\nPhone: 555", location=several)
    assert str(parse('"Phone: 555"', (both,)).citations[0].location) == "Phones, row 1"


def test_the_best_source_is_cited_when_two_hold_the_quote() -> None:
    twice = (source(1, "The gate opens at six."), source(2, "The gate opens at six."))
    assert [c.source_number for c in parse('"The gate opens at six."\nsix', twice).citations] == [1]


def test_text_of_documents_is_data() -> None:
    hostile = source(1, "Run \\d+ (.*) [1] {x} \x1b[2J now")
    answer = parse('"Run \\d+ (.*) [1] {x}"\n.* \\1', (hostile,))
    assert quotes(answer) == ["Run \\d+ (.*) [1] {x}"] and answer.text == ".* \\1"


WRITTEN = st.lists(
    st.sampled_from(
        [
            '"Rent: 950 euro a month."',
            '"She said "no pets"',
            'and left."',
            "and left. The docu-",
            "\n",
            "\r\n",
            "\n\n",
            '"',
            "\u201c",
            "\u201d",
            " ",
            "[1]",
            "[",
            " [9, 1",
            "]",
            "1.",
            "- ",
            "> ",
            "950",
            "the novel \u201cThe Hound\u201d sold",
            '"The Hound"',
            "nothing of the kind anywhere",
            NO_ANSWER,
            ".",
        ]
    ),
    max_size=14,
).map("".join)


@given(WRITTEN | st.text(max_size=60), st.lists(st.integers(1, 9), max_size=60))
@example('"She said "no pets"\r\nand left."\r\nno [9]', [1] * 40)
def test_pieces_do_not_matter(text: str, sizes: list[int]) -> None:
    whole = parse(text)
    parser = AnswerParser(SOURCES)
    events: list[Evidence | AnswerText] = []
    start = 0
    for size in [*sizes, len(text)]:
        events += parser.feed(text[start : start + size])
        start += size
    answer = parser.finish()
    events += answer.events
    assert (answer.text, answer.found, answer.citations, answer.dropped_quotes) == (
        whole.text,
        whole.found,
        whole.citations,
        whole.dropped_quotes,
    )
    assert "".join(event.text for event in events if isinstance(event, AnswerText)) == answer.text
    assert tuple(event.citation for event in events if isinstance(event, Evidence)) == answer.citations
    for citation in answer.citations:
        assert citation.quote in SOURCES[citation.source_number - 1].text


@given(st.integers(0, len(LEASE.text) - 1), st.integers(1, 80))
def test_any_run_of_whole_words_is_found_where_it_stands(start: int, length: int) -> None:
    text = LEASE.text
    while start and text[start - 1].isalnum():
        start -= 1
    end = min(len(text), start + length)
    while end < len(text) and text[end].isalnum():
        end += 1
    quote = text[start:end].strip(' \n"-\u2013›:.,')
    answer = parse(f'"{" ".join(quote.split())}"\nx y z')
    if len(quote.split()) > 1 and sum(letter.isalnum() for letter in quote) >= 3 and quote.count('"') % 2 == 0:
        assert [" ".join(found.split()) for found in quotes(answer)] == [" ".join(quote.split())]


STOPPED = ['"Grill:', '"Rent: 950 eu', '"Rent: 950 euro\n', '"Rent:\nCosts and', "1.", "- ", "", '"nowhere at all']


@pytest.mark.parametrize("text", STOPPED)
def test_what_had_only_begun_when_the_user_stopped_is_left_out(text: str) -> None:
    for lead in ("", "950 euro\n"):
        answer = stopped(lead + text)
        assert answer.text == lead.strip(), "neither a half quote nor that there is no answer"
        assert answer.dropped_quotes == () and answer.citations == ()
        assert answer.found is bool(lead)


def test_what_was_complete_when_the_user_stopped_is_kept() -> None:
    answer = stopped('"Rent: 950 euro a month."\n')
    assert (answer.text, answer.found, quotes(answer)) == ("", True, ["Rent: 950 euro a month."])
    assert quotes(stopped('"Rent: 950 euro a month."')) == ["Rent: 950 euro a month."]
    answer = stopped('"Nothing of the kind stands anywhere."\nIt is 950 euro a mo')
    assert answer.text == "It is 950 euro a mo" and answer.found
    assert answer.dropped_quotes == ("Nothing of the kind stands anywhere.",)
    assert stopped("It says Rent: 950 euro a month").citations == (), "half an answer proves nothing"
    assert stopped("950 euro [1").text == "950 euro"
    for length in (1, 20, len(NO_ANSWER)):
        refusing = stopped(NO_ANSWER[:length])
        assert (refusing.text, refusing.found) == (NO_ANSWER[:length].strip(), False), "the model was saying so itself"


@pytest.mark.parametrize("rest", ["", "and le"])
def test_a_closed_quote_with_odd_marks_is_kept_when_the_user_stopped(rest: str) -> None:
    answer = stopped(f'"She said "no pets"\n{rest}')
    assert (answer.text, answer.found, quotes(answer)) == ("", True, ['She said "no pets"'])


def stopped(text: str) -> ParsedAnswer:
    parser = AnswerParser(SOURCES)
    events = parser.feed(text)
    answer = parser.finish(stopped=True)
    events += answer.events
    assert "".join(event.text for event in events if isinstance(event, AnswerText)) == answer.text
    assert tuple(event.citation for event in events if isinstance(event, Evidence)) == answer.citations
    return answer
