"""Questions that take several steps, over the real reader, embedder and store."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from desk_rag.answering.engine import AnswerEngine
from desk_rag.answering.events import Answer, AnswerEvent, AnswerText, Evidence, Finished, FirstToken, Retrieved
from desk_rag.answering.evidence.span_scorer import SpanScores
from desk_rag.answering.opening import open_engine
from desk_rag.answering.questions.second_look import SecondLook
from desk_rag.answering.requirements.places import Place
from desk_rag.answering.writing.remarks import searched_only
from desk_rag.bench.answers import desks
from desk_rag.bench.harness import corpus
from desk_rag.config import Settings
from desk_rag.documents import ocr

FILES = (
    "notes/turbine.md",
    "people/contacts.vcf",
    "mail/2025-08-03-re-complaint.eml",
    "letters/council-weir-permit.txt",
    "mail/2025-05-06-flour-order.eml",
    "mail/2025-05-19-tasting.eml",
    "recipes/miller-loaf.md",
)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AnswerEngine]:
    root = tmp_path_factory.mktemp("asking")
    for name in FILES:
        (root / "docs" / name).parent.mkdir(parents=True, exist_ok=True)
        (root / "docs" / name).write_text(desks.files("mill")[name])
    opened = open_engine(Settings(data_dir=root / "data"), writer=True)
    shutil.copy(corpus.sample_folder() / "home/invoice-2025-1187-boiler.pdf", root / "docs")
    (root / "docs/notes/plan.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(64))
    corpus.index(opened, root / "docs")
    yield opened
    opened.close()


def events_of(engine: AnswerEngine, question: str) -> list[AnswerEvent]:
    return list(engine.ask(question))


def answer_of(events: list[AnswerEvent]) -> Answer:
    assert isinstance(events[-1], Finished)
    assert sum(isinstance(event, Finished) for event in events) == 1
    assert sum(isinstance(event, FirstToken) for event in events) == 1
    answer = events[-1].answer
    assert "".join(event.text for event in events if isinstance(event, AnswerText)) == answer.text
    quoted = [event.citation for event in events if isinstance(event, Evidence)]
    assert not answer.found or quoted == ([] if answer.is_list else list(answer.citations))
    last_sources = [event.sources for event in events if isinstance(event, Retrieved)][-1]
    # Which of them were loaded is known only after they were read.
    unread = [tuple(replace(source, warm=False) for source in sources) for sources in (last_sources, answer.sources)]
    assert unread[0] == unread[1]
    by_number = {source.number: source for source in answer.sources}
    assert all(citation.path == by_number[citation.source_number].path for citation in answer.citations)
    return answer


def test_two_questions_get_two_quotes(engine: AnswerEngine) -> None:
    answer = answer_of(events_of(engine, "When was the boiler bought, and who changed the turbine belt in 2019?"))
    assert answer.text.split("\n") == ["in 2016", "Rasmus Feld"] or answer.text.split("\n") == ["2016", "Rasmus Feld"]
    assert [citation.path.name for citation in answer.citations] == ["2025-08-03-re-complaint.eml", "turbine.md"]


def test_a_quote_of_the_second_part_begins_a_line_and_a_passage_has_one_number(engine: AnswerEngine) -> None:
    events = events_of(engine, "Who changed the turbine belt in 2019, and who changed the turbine belt in 2024?")
    answer = answer_of(events)
    shown = "".join(
        event.text if isinstance(event, AnswerText) else f"[{event.citation.source_number}]\n"
        for event in events
        if isinstance(event, AnswerText | Evidence)
    )
    assert all(line.endswith("]") == line.startswith("[") for line in shown.split("\n"))
    places = [(source.path, source.chunk_id) for source in answer.sources]
    assert len(set(places)) == len(places)


def test_a_part_without_an_answer_says_so(engine: AnswerEngine) -> None:
    answer = answer_of(events_of(engine, "Who changed the turbine belt in 2019, and who invented the telephone?"))
    first, second = answer.text.split("\n")
    assert first == "Rasmus Feld"
    assert second.startswith("Who invented the telephone? I could not find")
    assert answer.unanswered == ("Who invented the telephone?",)


def test_what_a_mail_quotes_is_cited_from_the_mail_that_said_it_or_as_a_quotation(tmp_path: Path) -> None:
    head = "From: {0}\nTo: {1}\nDate: Sat, 14 Mar 2026 08:05:00 +0100\nSubject: Paper\n\n"
    said = "The price is 4.20 euros per sheet."
    mails = {
        "reply.eml": head.format("Ilse", "Saskia") + f"Dear Saskia,\n\nplease send 80 sheets of kozo.\n\n> {said}\n",
        "paper.eml": head.format("Saskia", "Ilse") + f"Dear Ilse,\n\nhere is the offer of kozo paper. {said}\n",
    }
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/reply.eml").write_text(mails["reply.eml"])
    opened = open_engine(Settings(data_dir=tmp_path / "data"), writer=True)
    try:
        corpus.index(opened, tmp_path / "docs")
        alone = answer_of(events_of(opened, "What is the price per sheet of paper?"))
        assert all(one.location.heading.startswith("quoted in Ilse") for one in alone.citations if one.quote in said)
        (tmp_path / "docs/paper.eml").write_text(mails["paper.eml"])
        corpus.index(opened, tmp_path / "docs")
        both = answer_of(events_of(opened, "What is the price per sheet of paper?"))
    finally:
        opened.close()
    assert [(one.path.name, one.quote) for one in both.citations] == [("paper.eml", said)]


def test_a_second_search_with_what_the_first_found(engine: AnswerEngine) -> None:
    answer = answer_of(events_of(engine, "What is the phone number of the man who changed the belt in 2024?"))
    assert answer.text == "+46 555 0172"
    assert [citation.path.name for citation in answer.citations] == ["turbine.md", "contacts.vcf"]


def test_a_doubtful_name_is_gone_by_where_nothing_else_answers(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/roof.md").write_text(
        "# Slates\n\nTwo roofers have looked at the slates. Ketil would do it for 4,100 crowns, the firm from Tarn for"
        " 5,250. We gave it to Ketil.\n"
    )
    (tmp_path / "docs/people.vcf").write_text(
        "BEGIN:VCARD\nVERSION:3.0\nFN:Ketil Brandvold\nTEL:+47 555 0231\nEND:VCARD\n"
        "BEGIN:VCARD\nVERSION:3.0\nFN:Borghild Aune\nTEL:+47 555 0890\nEND:VCARD\n"
    )
    opened = open_engine(Settings(data_dir=tmp_path / "data"), writer=True)
    try:
        corpus.index(opened, tmp_path / "docs", warm=False)
        named = answer_of(events_of(opened, "Who got the work on the slates?"))
        answer = answer_of(events_of(opened, "What is the phone number of the man who got the work on the slates?"))
    finally:
        opened.close()
    assert named.text == "Ketil" and named.doubtful
    assert answer.text == "+47 555 0231" and answer.doubtful
    assert [citation.path.name for citation in answer.citations] == ["roof.md", "people.vcf"]


def test_every_answer_says_what_it_was_made_from(engine: AnswerEngine) -> None:
    answer = answer_of(events_of(engine, "At full flow, how many kilowatts does the turbine make?"))
    assert answer.found
    assert answer.basis is not None
    assert (answer.basis.passages, answer.basis.files) == (
        len(answer.sources), len({source.path for source in answer.sources}))  # fmt: skip
    assert answer.basis.of_passages >= answer.basis.passages
    assert answer.support is not None
    assert not any(source.closely for source in answer.sources)  # convincing at first


def test_a_refusal_comes_after_a_second_look(engine: AnswerEngine) -> None:
    answer = answer_of(events_of(engine, "Who composed the opera about the moon?"))
    assert not answer.found
    assert [stage.name for stage in answer.timings.stages].count("first look") == 1
    assert answer.sources and all(source.closely for source in answer.sources)  # read by both pointers


def test_of_all_that_a_second_look_sees_the_best_eight_are_read_by_both(engine: AnswerEngine) -> None:
    pointers, read = engine._decoding.span_scorer, []
    assert pointers is not None

    class Noting:
        fingerprint = pointers.fingerprint

        def read(self, question: str, chunks: Sequence[str | Place]) -> list[SpanScores]:
            read.append([isinstance(chunk, Place) and chunk.closely for chunk in chunks])
            return pointers.read(question, chunks)

    chosen = SecondLook(engine.store, Noting(), 5)(engine.embedder, "Who changed the belt of the turbine?")
    assert len(read) == 2 and len(read[0]) > 8 and not any(read[0]) and read[1] == [True] * 8
    assert len(chosen) == 5 and all(chunk.closely for chunk in chosen)
    assert chosen[0].passage.path.name == "turbine.md"


def test_mails_of_a_person_and_month_are_searched_alone(engine: AnswerEngine) -> None:
    answer = answer_of(events_of(engine, "In the mails from Ana in May, how much rye do they want a week?"))
    assert {source.path.suffix for source in answer.sources} == {".eml"}
    assert answer.narrowed_to == 2 and not answer.notices
    assert searched_only(answer, ()) == "searched only the 2 mails of that person and date"


def test_a_summary_quotes_the_file_in_order(engine: AnswerEngine, tmp_path: Path) -> None:
    answer = answer_of(events_of(engine, "Summarise council-weir-permit.txt"))
    lines = [citation.location.line_start or 0 for citation in answer.citations]
    assert len(lines) >= 3
    assert lines == sorted(lines)
    assert {citation.path.name for citation in answer.citations} == {"council-weir-permit.txt"}


def test_a_summary_ends_when_the_user_stops_it(engine: AnswerEngine) -> None:
    events: list[AnswerEvent] = []
    for event in engine.ask("Summarise everything", stop=lambda: bool(events)):
        events.append(event)
    answer = answer_of(events)
    assert answer.stopped and not answer.text and not answer.citations
    assert not answer_of(events_of(engine, "Summarise everything")).stopped


@pytest.mark.parametrize(
    ("question", "said"),
    [
        ("What does plan.png show?", f"plan.png was not read: an image; {ocr.PICTURE_REMEDY}"),
        ("Summarise plan.png", f"plan.png was not read: an image; {ocr.PICTURE_REMEDY}"),
        ("Open turbin.md", "No file called turbin.md is among those that were searched; did you mean turbine.md?"),
    ],
)
def test_a_named_file_that_cannot_be_searched_is_said(engine: AnswerEngine, question: str, said: str) -> None:
    answer = answer_of(events_of(engine, question))
    assert (answer.found, answer.text, answer.citations) == (False, said, ())


def test_a_named_file_is_searched_alone(engine: AnswerEngine) -> None:
    answer = answer_of(events_of(engine, "How often are the bearings greased according to turbine.md?"))
    assert {source.path.name for source in answer.sources} == {"turbine.md"}
    assert "400 hours" in answer.text


def test_mails_are_listed_by_sender_and_month(engine: AnswerEngine) -> None:
    answer = answer_of(events_of(engine, "Show me the mails from Ana in May"))
    assert answer.text.startswith("2 mails from Ana in May; there are 3 in all:")
    assert [citation.path.name for citation in answer.citations] == [
        "2025-05-06-flour-order.eml", "2025-05-19-tasting.eml"]  # fmt: skip
    assert answer.is_list and answer.text.count("\n[") == 2


def test_what_one_wrote_to_another_is_not_what_the_other_wrote(engine: AnswerEngine) -> None:
    answer = answer_of(events_of(engine, "What did Hanne write to Priya?"))
    assert {citation.path.name for citation in answer.citations} == {"2025-08-03-re-complaint.eml"}
    backwards = answer_of(events_of(engine, "What did Priya write to Hanne?"))
    assert not backwards.found or backwards.doubtful


def test_who_sent_a_mail_is_answered_from_its_heading(engine: AnswerEngine) -> None:
    answer = answer_of(events_of(engine, "Who wrote that about thirty people are expected at the tasting?"))
    assert answer.text == "Ana Pereira"
    assert answer.citations[-1].quote.startswith("From: Ana Pereira; To: Hanne Brock")


def test_what_is_said_about_a_topic_is_quoted(engine: AnswerEngine) -> None:
    answer = answer_of(events_of(engine, "What does turbine.md say about the trash rack?"))
    assert [citation.path.name for citation in answer.citations][:1] == ["turbine.md"]
    assert "trash rack" in answer.citations[0].quote


def test_a_folder_is_summarised_file_by_file(engine: AnswerEngine) -> None:
    answer = answer_of(events_of(engine, "Summarise the mail folder"))
    assert answer.text.startswith("3 files (3 .eml), dated 6 May 2025 to 3 August 2025; named most: Hanne Brock (3")
    assert len({citation.path for citation in answer.citations}) == 3


def test_a_refusal_says_what_no_passage_has(engine: AnswerEngine) -> None:
    answer = answer_of(events_of(engine, "What is on shelf 7?"))
    assert not answer.found
    assert "None of the passages nearest to the question has “shelf 7”" in answer.notices


def test_the_name_of_the_file_that_is_searched_is_no_word_of_the_question(engine: AnswerEngine) -> None:
    (mail,) = (row.path for row in engine.store.documents() if row.path.name == "2025-05-19-tasting.eml")
    events = list(engine.ask("What does mail/2025-05-19-tasting.eml say about the price of camels?", under=[mail]))
    answer = answer_of(events)
    assert not answer.found and not [notice for notice in answer.notices if "2025" in notice]


def test_an_answer_about_another_year_is_doubtful(engine: AnswerEngine) -> None:
    answer = answer_of(events_of(engine, "Who changed the turbine belt in 2021?"))
    assert not answer.found or (answer.doubtful and "“2021”" in answer.doubt)


def test_a_slip_is_corrected_and_said(engine: AnswerEngine) -> None:
    answer = answer_of(events_of(engine, "Who changed the turbne belt in 2019?"))
    assert answer.text == "Rasmus Feld" and not answer.doubtful
    assert answer.question == "Who changed the turbne belt in 2019?"
    assert "“turbne” was read as “turbine”; no document has it as typed" in answer.notices


def test_an_answer_about_a_name_that_is_only_spelled_alike_is_doubtful(engine: AnswerEngine) -> None:
    answer = answer_of(events_of(engine, "What is the phone number of Otto Winkle?"))
    assert answer.text == "+46 555 0172"
    assert answer.doubtful and answer.unmet == ("Winkle",)


def test_a_date_by_which_something_has_to_be_done_does_not_say_when_it_was_done(engine: AnswerEngine) -> None:
    answer = answer_of(events_of(engine, "When was the fish ladder in working order?"))
    assert [citation.quote for citation in answer.citations] == [
        "A fish ladder has to be in working order by 30 April 2026."
    ]
    assert answer.doubtful


def test_an_invoice_without_a_labelled_total_is_read(engine: AnswerEngine) -> None:
    answer = answer_of(events_of(engine, "What is the total of invoice 2025-1187?"))
    assert answer.text == "546.00 crowns"
