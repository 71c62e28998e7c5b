"""A weaving shop's papers: contracts and what amends them, invoices, minutes and mails that overtake one another."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from desk_rag.answering.conversation import asking
from desk_rag.answering.conversation.turns import Request, turn_of
from desk_rag.answering.engine import AnswerEngine
from desk_rag.answering.events import Answer, Finished
from tests.answering.whole_desk.test_questions import engine_over_texts, printed

_FILES = {
    "cover/policy.txt": (
        "Tarn Mutual - Household policy KP-310-2021-05\n\nStart of cover: 1 May 2021.\n"
        "Insured sum for the furniture: 30,000 crowns. Excess: 200 crowns per claim.\n"
        "Claims telephone: 0555 190 100.\n"
    ),
    "cover/amendment.txt": (
        "Tarn Mutual - Amendment no. 2 to policy KP-310-2021-05\n\n"
        "Valid from 1 March 2025. The insured sum for the furniture is raised to 45,000 crowns.\n"
        "The excess is now 350 crowns per claim.\nNew claims telephone: 0555 190 177.\n"
    ),
    "rent/lease_2020.txt": (
        "LEASE of a mill room\n\nbetween Brook Estates Ltd (landlord) and the Tarn Weavers (tenant).\n\n"
        "§ 1 The upper room is let as a weaving shop.\n"
        "§ 2 The lease begins on 1 March 2020 and ends on 28 February 2027.\n"
        "§ 3 The monthly rent is 410 crowns, plus 60 crowns for heating.\n"
        "§ 4 Either side may give notice of three months.\nTarn, 3 February 2020\n"
        "Signed for the landlord: Amos Pell. Signed for the tenant: Ida Crane.\n"
    ),
    "rent/lease_addendum.txt": (
        "Second addendum to the lease of 3 February 2020\n\n"
        "To § 2: The lease is extended until 31 August 2032.\n"
        "To § 3: From 1 January 2026 the monthly rent is 455 crowns. The heating charge remains unchanged.\n"
        "All other clauses stay in force. Tarn, 9 October 2025. Signed: Rhea Lund (Mill Holdings), Ida Crane"
        " (Tarn Weavers).\n"
    ),
    "money/budget.csv": (
        "Item,Plan 2026,So far\nRent,-5460,-4095\nWool,-800,-312\nSales,7200,5110\n"
    ),
    "minutes/2025-10-20.md": (
        "# Committee, 20 October 2025\n\nThe addendum was signed on 9 October 2025.\n"
        "The workshop's stove was swept.\n"
    ),
    "bills/tools.txt": (
        "Harrow Ironmongers, Invoice HI-26\nDate: 14 February 2026\nTo: Tarn Weavers\n"
        "Loom bench LB-4 for two weavers   2   540.00\nShuttle                 30     4.20    126.00\n"
        "Total incl. VAT                   666.00 crowns\nDue date: 28 February 2026\n"
        "Please pay to IBAN GB71 4410 2233 0098 5512 07.\n"
    ),
    "bills/purchases.csv": (
        "Date;Thing;Supplier;Price;Invoice;Bought by\n"
        "2021-03-02;Warp mill;Ashby & Co;310,00;A-77;Mara Quill\n"
        "2023-05-09;Bobbin rack;Ashby & Co;84,50;A-93;Owen Tull\n"
        "2026-02-14;Loom bench LB-4;Harrow Ironmongers;540,00;HI-26;Mara Quill\n"
    ),
    "minutes/2026-01-10.md": (
        "# Meeting 10 January 2026\n\n"
        "1. Elections: Mara Quill is the new chair (21 votes); Piers Quilter becomes deputy chair.\n"
        "2. Owen Tull gets a spending limit of 90 crowns per month.\n"
        "3. The dyeing course is for children from 7 to 11 years.\n4. Of the 44 looms, all were oiled.\n"
    ),
    "minutes/2023-02-01.md": (
        "# Meeting 1 February 2023\n\n"
        "- Ida Crane steps down as treasurer at the end of March because she moves to Kells. Piers Quilter takes"
        " over on 1 April 2023.\n- The chair is Ida Crane's sister Ella Crane.\n"
    ),
    "mails/2021.eml": (
        "From: Owen Tull <owen@tarn.example>\nTo: Ida <ida@tarn.example>\n"
        "Date: Tue, 2 Mar 2021 09:10:00 +0100\nSubject: my number\n\nHello Ida,\n"
        "for the list: my mobile is 0777 100 200.\nOwen\n"
    ),
    "mails/2024.eml": (
        "From: Owen Tull <owen@tarn.example>\nTo: Mara <mara@tarn.example>\n"
        "Date: Tue, 5 Mar 2024 09:10:00 +0100\nSubject: New mobile\n\n"
        "Mara, my phone fell into the weir. New number: 0777 900 300. Please change the list.\nOwen\n"
    ),
    "tests/test.txt": (
        "Volt Brothers, Invoice 771\nDate: 3 June 2026\nTest of 28 looms with motors: 190.00 crowns\n"
        "Travel: 12.00 crowns\nTotal: 202.00 crowns\n"
        "Due date: 17 June 2026. 3 looms failed (numbers 4, 9, 11).\n"
    ),
    "grants/answer.txt": (
        "Tarn Council, 3 April 2026\n"
        "Your application of January: We grant 900 crowns. The money must be spent by 30 November 2026; proof of"
        " use by 31 January 2027.\n"
    ),
    "bills/bench.txt": (
        "Ashby & Co, Invoice A-120\nDate: 12 March 2026\nTo: Tarn Weavers\nFire-proof yarn chest for six"
        " bales   1   865.00\n"
        "Total                                 865.00 crowns\n"
    ),
    "out/school.txt": (
        "Invoice 2025-017\nTarn Weavers to Quayside School, Mr Toll. Date: 3 May 2025.\nSix small looms:"
        " 210.00 crowns\n"
        "Due date: 17 May 2025. Payment received on 15 May 2025.\n"
    ),
    "money/donations.csv": "Date,Donor,Amount,Purpose\n2023-04-02,Rotary Club,1500,kiln\n2023-05-02,Ms Ohm,50,glaze\n",
    "minutes/2026-03-14.md": (
        "# Meeting 14 March 2026\n\nNew opening hours from 1 April 2026: Wednesday and Friday 16:00 to 20:00,"
        " Saturday 10:00 to"
        " 13:00.\n\nTreasurer's report (Rhea Lund): income 19,412.50 crowns, spending 17,980.20 crowns.\n\n-"
        " The handcart"
        " \"Bruno\" was stolen on 2 February 2026.\n"
    ),
    "letters/2026-10-05.txt": "Tarn, 5 October 2026\n\nTo Tarn Mutual\n\nWe report a theft.\n\nRhea Lund, treasurer\n",
    "inventory/carts.csv": (
        "No,Name,Colour,Received on,Given by,Status\nC-1,handcart Bruno,grey,2021-09-10,City of Tarn,stolen\n"
        "C-2,handcart Fritz,red,2022-03-01,Ms Ohm,in use\n"
    ),
    "people/contacts.vcf": (
        "BEGIN:VCARD\nVERSION:3.0\nFN:Petra Hallmann\nN:Hallmann;Petra;;;\nTEL;TYPE=cell:0172 5550 840\nEND:VCARD\n"
        "BEGIN:VCARD\nVERSION:3.0\nFN:Peter Hallman\nN:Hallman;Peter;;;\nTEL;TYPE=cell:0172 5550 480\nEND:VCARD\n"
    ),
    "prices/list_2025.md": (
        "# Prices 2025\n| Service | Members | Guests |\n|---|---|---|\n| Loom hour | 4 crowns | 7 crowns |\n"
        "| Dye bath | 9 crowns | 15 crowns |\n| Carding | 3 crowns | 6 crowns |\n"
    ),
}


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AnswerEngine]:
    opened = engine_over_texts(tmp_path_factory.mktemp("weavers"), _FILES)
    yield opened
    opened.close()


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("What is the insured sum?", "45,000 crowns"),
        ("What is the claims telephone?", "0555 190 177"),
        ("When does the lease end?", "31 August 2032"),
        ("When does our lease run out?", "31 August 2032"),
        ("When does the lease begin and end?", "31 August 2032"),
        ("What is Owen's mobile number?", "0777 900 300"),
        ("Who is the chair now?", "Mara Quill"),
        ("Who is the deputy chair?", "Piers Quilter"),
        ("What does the fire-proof yarn chest cost?", "865.00"),
        ("When do we open on Wednesday?", "16:00"),
        ("When was Bruno stolen?", "2 February 2026"),
        ("Who bought the loom bench?", "Mara Quill"),
        ("From what age can children join the dyeing course?", "7"),
        ("By when must we prove how we used the council's money?", "31 January 2027"),
        ("By when must the money be spent?", "30 November 2026"),
        ("How many looms failed the test?", "3 looms"),
        ("What is the IBAN of Harrow Ironmongers?", "GB71 4410 2233 0098 5512 07"),
    ],
)
def test_the_value_is_that_which_is_asked_for(engine: AnswerEngine, question: str, answer: str) -> None:
    lines = printed(engine, question).splitlines()
    assert answer in lines, lines


@pytest.mark.parametrize("question", ["What is the rent?", "How high is the rent?", "How much is the rent?"])
def test_a_budget_is_no_rent(engine: AnswerEngine, question: str) -> None:
    lines = printed(engine, question).splitlines()
    assert "-5460" not in lines, lines


@pytest.mark.parametrize(
    ("question", "reason"),
    [
        ("How much do we pay Owen per hour?", "the quote says “per month”"),
        ("Who was treasurer in 2023?", "By the quote “Ida"),
        ("What did we pay for the kiln?", "the quote says what came in"),
        ("When does the rent contract of the second cellar begin?", "says nothing about “second cellar”"),
        ("What is the phone number of Petra Hallman?", "The quote is about “Petra Hallmann”"),
    ],
)
def test_a_value_of_something_else_is_doubted(engine: AnswerEngine, question: str, reason: str) -> None:
    assert reason in printed(engine, question)


@pytest.mark.parametrize("question", ["Who is the treasurer?", "When was Bruno stolen?"])
def test_what_says_the_same_or_is_of_another_event_is_no_disagreement(engine: AnswerEngine, question: str) -> None:
    assert "something else" not in printed(engine, question)


def test_when_an_invoice_was_paid_is_told_by_its_line(engine: AnswerEngine) -> None:
    assert "“Payment received on 15 May 2025.”" in printed(engine, "When was invoice 2025-017 paid?")


def test_a_policy_number_is_no_date_and_an_amendment_is_newer(engine: AnswerEngine) -> None:
    text = printed(engine, "What is the excess?")
    assert "The excess is now 350 crowns per claim" in text.splitlines()
    assert "policy.txt of 1 May 2021 says something else" in text
    assert "is older than amendment.txt of 1 March 2025" in text


def test_prices_below_members_are_no_members(engine: AnswerEngine) -> None:
    assert "computed" not in printed(engine, "How many members did we have in 2025?")


def test_the_name_of_a_file_is_no_word_that_is_missing(engine: AnswerEngine) -> None:
    assert "None of the passages" not in printed(engine, "What does @minutes/2026-01-10.md say about dogs?")
    assert "Service: Loom hour; Members: 4 crowns" in printed(engine, "What does list_2025.md say about the loom hour?")


@pytest.mark.parametrize(
    ("questions", "asked_as"),
    [
        (("Who was the chair in 2022?", "And who is it now?"), "Who is the chair now?"),
        (("What was the limit in 2022?", "And now?"), "What is the limit now?"),
        (("Who is the chair now?", "And before?"), "Who was the chair before Mara Quill?"),
        (("When was invoice 2025-017 paid?", "And how much was it?"), "How much was invoice 2025-017?"),
        (("Summarise the folder minutes", "Who leads the dyeing course?"), ""),
        (("Which looms are oiled?", "And which are for sale?"), "Which looms are for sale?"),
    ],
)
def test_a_follow_up_is_asked_as_meant(engine: AnswerEngine, questions: tuple[str, str], asked_as: str) -> None:
    first = _asked(engine, Request(questions[0]))
    assert _asked(engine, Request(questions[1], earlier=(turn_of(first),))).asked_as == asked_as


def _asked(engine: AnswerEngine, request: Request) -> Answer:
    *_, last = asking.ask(engine, request)
    assert isinstance(last, Finished)
    return last.answer
