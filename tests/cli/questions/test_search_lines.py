"""The line that `search` prints for a passage."""

from __future__ import annotations

from desk_rag.cli.questions.search import _excerpt

MAIL = (
    "Re: Quote - correction › Jonas Brandt, 5 March 2026: Re: Quote - correction\n"
    "From: Jonas Brandt; To: Vera Holm; Date: 5 March 2026; Subject: Re: Quote - correction\n"
    "Dear Mrs Holm,\nI am sorry, I used last year's list. The price is 19,650 euros."
)


def test_of_a_mail_words_of_its_text_are_shown_and_not_its_subject_again() -> None:
    assert _excerpt(MAIL, {"heat"}).startswith("Dear Mrs Holm, I am sorry")
    assert "19,650" in _excerpt(MAIL.replace("Mrs Holm", "Mrs Holm " + "and all " * 40), {"price"})
    assert _excerpt("From: here to there\nA walk.", {"walk"}) == "From: here to there A walk."
