"""Answers of another kind or about another thing, as they were given without doubt, each beside a question like it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from desk_rag.answering.engine import AnswerEngine
from tests.answering.whole_desk.test_questions import engine_over_texts, printed

FILES = {
    "people/contacts.vcf": (
        "BEGIN:VCARD\nVERSION:3.0\nFN:Rosa Lindqvist\nTEL;TYPE=CELL:+46 70 555 0143\nEMAIL:rosa@lindqvist.example\n"
        "ADR;TYPE=HOME:;;Storgatan 12;Uppsala;;75331;Sweden\nNOTE:aunt, nurse\nEND:VCARD\n"
        "BEGIN:VCARD\nVERSION:3.0\nFN:Winnie Achebe\nEMAIL:winnie@achebe.example\nEND:VCARD\n"
    ),
    "config/app.toml": '[server]\nport = 5120\nhost = "127.0.0.1"\n',
    "config/app.test.yaml": "server:\n  port: 6120\n",
    "config/sizes.py": '"""Sails."""\nSAILS = {"jib": (4.2, 1.8), "main": (7.5, 3.1), "spinnaker": (9.0, 5.5)}\n',
    "mail/berth.eml": (
        "From: Harbour Office <office@marina.example>\nTo: Ines Calder <ines@calder.example>\nSubject: Berth 14\n"
        "Date: Mon, 02 Feb 2026 09:00:00 +0000\n\nDear Ms Calder,\nthe fee for berth 14 is 840 euros.\n"
        "The crane cannot lift your boat before the slipway is repaired, which is not before 20 April.\nPetra Holm\n"
    ),
    "mail/hives.eml": (
        "From: Marcus Oyelowo <m@parish.example>\nTo: Ines Calder <ines@calder.example>\nSubject: Beehives\n"
        "Date: Thu, 12 Mar 2026 18:22:00 +0000\n\nDear Ines,\nYou have my consent to two beehives behind the vestry.\n"
        "Please put up a sign.\n"
    ),
    "mail/trailer.eml": (
        "From: Agnes Wroth <agnes@wroth.example>\nTo: Ines Calder <ines@calder.example>\n"
        "Subject: Deposit for the trailer\nDate: Fri, 20 Mar 2026 08:00:00 +0000\n\nHello Ines,\n"
        "thanks for bringing the trailer back. The tail light is cracked.\nAgnes\n"
    ),
    "lent.txt": (
        "Lent out\nThe canoe is with Winnie Achebe since 3 July 2026.\n"
        "The tent is with Rosa Lindqvist since 9 May 2026; she returned it on 2 June 2026.\n"
    ),
    "trips/ridge-walk.md": "# Lemdal to Hovde\n13 km, 520 m of ascent, four and a half hours. Park at the sawmill.\n",
    "trips/lake-walk.md": "# Round the Tinnvatn\n9 km, 130 m of ascent, two and a half hours. Park at the church.\n",
    "club/minutes-2026-03-05.md": (
        "# Committee meeting, 5 March 2026\nPresent: Beata Novak, Lionel Prat, Ines Calder, Emil Sandor\n"
        "- Members may not bring dogs into the boathouse.\n- Lionel Prat keeps the keys of the boathouse.\n"
    ),
    "club/piano.md": (
        "# The hall piano\nThe grand piano in the hall was repaired by Emil Sandor on 28 April 2026 for 310 euros.\n"
        "The projector was borrowed from the school. The office is closed on Wednesdays.\n"
    ),
    "rules.md": "# Rules of the boathouse\nThe boathouse is not open on Mondays. The gate is locked at 21:00.\n",
    "data/payments.csv": (
        "date,payee,amount,note\n2026-05-06,Emil Sandor,-310.00,piano\n2026-07-14,Parish of Hovde,48.00,hall refund\n"
    ),
}


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AnswerEngine]:
    opened = engine_over_texts(tmp_path_factory.mktemp("home"), FILES)
    yield opened
    opened.close()


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("What is Rosa Lindqvist's address?", "Storgatan 12, Uppsala, 75331, Sweden"),
        ("Where does Rosa Lindqvist live?", "Storgatan 12, Uppsala, 75331, Sweden"),
        ("What is the email address of Rosa Lindqvist?", "rosa@lindqvist.example"),
        ("What is the fee for berth 14?", "840 euros"),
        ("When can the crane lift my boat?", "which is not before 20 April"),
        ("When is the gate locked?", "21:00"),
        ("When is the boathouse not open?", "Mondays"),
        ("Who consented to the beehives?", "Marcus Oyelowo"),
        ("Which sail is 7.5 by 3.1?", "main"),
        ("What size is the spinnaker?", "9.0, 5.5"),
        ("How long is the ridge walk?", "13 km"),
        (
            "Which walk is longer, the ridge walk or the lake walk?",
            "The ridge walk (computed: 13 km is more than 9 km)",
        ),
        ("When was the hall refund paid?", "2026-07-14"),
        ("When did Emil Sandor repair the piano?", "28 April 2026"),
        ("On which day is the office closed?", "Wednesdays"),
        ("When did Rosa Lindqvist return the tent?", "2 June 2026"),
        ("Since when does Winnie Achebe have the canoe?", "3 July 2026"),
    ],
)
def test_the_answer_is_of_the_kind_and_sure(engine: AnswerEngine, question: str, answer: str) -> None:
    text = printed(engine, question)
    assert any(line.endswith(answer) and not line.startswith("[") for line in text.splitlines()), text
    assert "may not answer" not in text and "nothing about" not in text


@pytest.mark.parametrize(
    "question",
    [
        "What is Winnie Achebe's address?",
        "What is the deposit for the trailer?",
        "When did Winnie Achebe return the canoe?",
        "How long is the coast walk?",
        "Who borrowed the projector?",
        "Where does Lionel Prat work?",
        "When did Emil Sandor tune the piano?",
        "What did the dentist say about Lionel?",
        "Who has more keys, Lionel Prat or Beata Novak?",
    ],
)
def test_what_the_documents_do_not_say_is_refused_or_doubted(engine: AnswerEngine, question: str) -> None:
    text = printed(engine, question)
    assert any(words in text for words in ("could not find", "may not answer", "nothing about")), text


def test_a_negated_time_is_given_with_its_negation(engine: AnswerEngine) -> None:
    text = printed(engine, "When can the boathouse be used?")
    assert "\nnot open on Mondays" in text or "\nis not open on Mondays" in text or "may not answer" in text


def test_what_is_closed_is_not_said_to_be_open(engine: AnswerEngine) -> None:
    assert "closed on Wednesdays" in printed(engine, "When is the office open?").splitlines()[1]


def test_what_somebody_says_comes_from_a_passage_that_names_them(engine: AnswerEngine) -> None:
    assert "Members may not bring dogs" in printed(engine, "What do the minutes say about dogs?")


def test_a_project_is_told_by_its_folder(engine: AnswerEngine) -> None:
    text = printed(engine, "Tell me about the club project")
    assert "minutes-2026-03-05.md" in text and "piano.md" in text and "2 files" in text


def test_both_files_of_settings_are_quoted(engine: AnswerEngine) -> None:
    text = printed(engine, "What is the port of the server?")
    assert "server.port: 5120" in text and "server.port: 6120" in text and "says something else" in text
