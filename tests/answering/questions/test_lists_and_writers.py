"""Lists of documents by their names, who was at which, and who wrote about something, over real small files."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from desk_rag.store.store import Store
from tests.answering.questions.test_payments import _asked, _index

_MAIL = "From: {0} <a@b.example>\nTo: Ines Calder <ines@c.example>\nSubject: {1}\nDate: {2} 08:00:00 +0000\n\n{3}\n"
_FILES = {
    "crew evening 1.txt": "Crew evening 1\nDate: 4 March 2025\nPresent: Ines Calder, Noel Prat\n\nThe mast is up.\n",
    "crew evening 2.txt": "Crew evening 2\nDate: 1 April 2025\nPresent: Ines Calder\n\nNoel Prat will buy paint.\n",
    "crew evening 3.txt": "Crew evening 3\nDate: 6 May 2025\nPresent: Noel Prat, Bea Holm\n\nThe paint is dry.\n",
    "rooms 2024.csv": "room,price,bed\nBlue,40,2\nRed,55,1\n",
    "rooms 2025.csv": "room,price,bed\nBlue,45,2\nRed,60,1\n",
    "offers/offer sail Varley.txt": "Varley\nOffer for a sail\nDate: 3 May 2025\nTotal: 900.00 euros\nValid a month.\n",
    "offers/offer sail Olm.txt": "Olm\nOffer for a sail\nDate: 9 May 2025\nTotal: 870.00 euros\nValid a year.\n",
    "offers/offer stove Krantz.txt": "Krantz\nOffer for a stove\nDate: 9 May 2025\nTotal: 310.00 euros\n",
    "smoke.txt": (
        "Henrik Dahl\n3 Quay Street\n\n21 August 2025\n\nDear Sirs,\n\nWe have to complain about the smoke from you."
        "\nIt gets into the bedroom.\n\nYours faithfully,\nHenrik Dahl\n"
    ),
    "one.eml": _MAIL.format("Agnes Wroth", "Key is lost", "Wed, 04 Mar 2026", "Hello,\nthe key of the shed is lost."),
    "two.eml": _MAIL.format("Ines Calder", "Re: Key is lost", "Thu, 05 Mar 2026", "Look under the mat."),
    "three.eml": _MAIL.format("Tobias Ferrer", "Paint", "Tue, 16 Jun 2026", "The key to good paint is patience."),
}


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    store = _index(tmp_path_factory.mktemp("desk"), _FILES)
    yield store
    store.close()


@pytest.mark.parametrize(
    ("question", "head", "files"),
    [
        ("List all crew evenings", "3 files called “crew evening”:", "123"),
        ("Which crew evenings were there in April 2025?", "1 file called “crew evening” in April 2025, of 3:", "2"),
        ("At which crew evenings was Noel Prat present?", "2 files called “crew evening” with “Noel Prat”, of", "13"),
        ("Which crew evenings did Ines attend?", "2 files called “crew evening” with “Ines”, of 3:", "12"),
        ("At which evenings was the paint discussed?", "2 files called “evening” with “paint”, of 3:", "23"),
    ],
)  # fmt: skip
def test_documents_called_so_are_listed(desk: Store, question: str, head: str, files: str) -> None:
    done = _asked(desk, question)
    assert done is not None and done.text.startswith(head) and done.is_list
    assert [number for number in "123" if f"crew evening {number}.txt" in done.text] == list(files)


def test_what_is_a_column_of_a_table_is_listed_by_its_values(desk: Store) -> None:
    done = _asked(desk, "List all rooms")
    assert done is not None and done.text.startswith("Blue; Red\n")


@pytest.mark.parametrize("question", ["List all captains", "At which crew evenings was Mr Winter present?"])
def test_what_no_two_files_are_called_is_left_to_the_reader(desk: Store, question: str) -> None:
    assert _asked(desk, question) is None


@pytest.mark.parametrize(
    ("question", "writer"),
    [
        ("Who sent the mail about the key?", "Agnes Wroth"),
        ("Who wrote the letter about the smoke?", "Henrik Dahl"),
        ("Who wrote the complaint about the smoke?", "Henrik Dahl"),
        ("Who complained to us about the smoke?", "Henrik Dahl"),
    ],
)
def test_the_writer_of_what_is_about_something_is_named(desk: Store, question: str, writer: str) -> None:
    done = _asked(desk, question)
    assert done is not None and done.text == writer and len(done.citations) == 1 and not done.doubtful


@pytest.mark.parametrize("question", ["Who sent the mail about the harbour?", "Who complained about the paint?"])
def test_nobody_is_named_who_did_not_write_about_it(desk: Store, question: str) -> None:
    assert _asked(desk, question) is None


def test_a_list_of_mails_has_each_subject_once(desk: Store) -> None:
    done = _asked(desk, "Which mails are about the shed?")
    assert done is not None and done.text.count("Key is lost") == 1 and "the key of the shed is lost" in done.text


def test_of_three_offers_the_two_of_the_thing_are_compared(desk: Store) -> None:
    done = _asked(desk, "Compare the two sail offers")
    assert done is not None and "870.00 euros | 900.00 euros" in done.text and "Krantz" not in done.text
