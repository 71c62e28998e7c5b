"""Files attached to a mail are read as parts of it, and cited by the mail and their own place."""

from __future__ import annotations

import base64
import io
import mailbox
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from email.message import EmailMessage
from pathlib import Path

import docx
import openpyxl
import pytest

from desk_rag.config import IndexSettings
from desk_rag.documents import document, file_chunks
from desk_rag.documents.document import Document
from desk_rag.documents.formats import place_units
from desk_rag.documents.parsers.office import rich_text
from desk_rag.model.prompt import PromptFormat, load_prompt
from tests.documents.outlook_file import message_streams, outlook_message, winmail
from tests.documents.test_formats import read
from tests.documents.test_sensitive import pem
from tests.files.pdf_pages import pdf_of

__all__ = ["read"]
Read = Callable[[str, "str | bytes"], Document]
_SETTINGS = IndexSettings(parser_seconds=20)
_COMPRESSED = base64.b85decode(
    "r~m)}9{~UWOj<^D1Mh+f0{{vDa$|63F)}rRG6O?sbZu-g12BI90|EB}qyyv!69Rw&ktzmU4zdA|XErn-JlJqPeGzj2As_$%5_Lc@AXI2&AO_%JVF"
    "f^JWnp#)kpog7B5(+iAU7Zs0X91LG%zj_W(uMbR{`M>XL|v_5)dyEF%eG^UlU?NAq5a_XCQPFv14HY7EmW;IUs9gc`kDm-xlu|_I)1U'"[:-1]
)
"""RTF of a message that Outlook wrote in HTML, compressed by the library compressed_rtf 1.0.7."""


@pytest.fixture(scope="module")
def prompt(reader_dir: Path) -> PromptFormat:
    return load_prompt(reader_dir)


def word() -> bytes:
    letter = docx.Document()
    letter.add_heading("Terms", 1)
    letter.add_paragraph("The deposit for the boat house is 450 crowns.")
    out = io.BytesIO()
    letter.save(out)
    return out.getvalue()


def sheet() -> bytes:
    workbook = openpyxl.Workbook()
    hires = workbook.active
    assert hires is not None
    hires.title = "Hires"
    for row in (["Item", "Fee"], ["Canoe", 35], ["Raft", 60]):
        hires.append(row)
    out = io.BytesIO()
    workbook.save(out)
    return out.getvalue()


def message(**files: bytes) -> EmailMessage:
    mail = EmailMessage()
    mail["From"], mail["To"], mail["Subject"] = "Ana Novak <ana@example.org>", "bo@example.org", "Boat house"
    mail["Date"] = "Sun, 03 May 2026 09:12:00 +0200"
    mail.set_content("The papers are attached.\n\n> When will they come?\n")
    for name, content in files.items():
        mail.add_attachment(content, maintype="application", subtype="octet-stream", filename=name.replace("_", "."))
    return mail


def place_of(path: Path, prompt: PromptFormat, quote: str) -> str:
    """Return the place that a citation of a sentence names."""
    _, chunks = file_chunks.read(path, _SETTINGS, prompt, prompt.chunk_size, document.never)
    (chunk,) = (chunk for chunk in chunks if quote in chunk.text)
    start = chunk.text.index(quote)
    location = replace(chunk.location, units=place_units(path.name))
    return str(location.within(chunk.text, start, start + len(quote)))


def files_of_every_kind() -> EmailMessage:
    report = pdf_of([(60, 700, 11, "The hall was painted in June.")], [(60, 700, 11, "The roof leaks in the north.")])
    return message(
        terms_docx=word(), fees_xlsx=sheet(), report_pdf=report, photo_png=b"\x89PNG\r\n", old_zip=b"PK\x05\x06",
        key_txt=pem().encode(), notes_txt="The café opens at 9.\n".encode("cp1252"), torn_docx=word()[:900],
    )  # fmt: skip


def test_attached_files_are_read_and_cited_by_mail_and_place(tmp_path: Path, prompt: PromptFormat) -> None:
    path = tmp_path / "boat.eml"
    path.write_bytes(bytes(files_of_every_kind()))
    mail = "Ana Novak, 3 May 2026: Boat house"
    for quote, place in (
        ("The papers are attached.", mail),
        ("deposit for the boat house is 450 crowns.", f"{mail}, Attachment terms.docx, paragraph 2"),
        ("Item: Raft; Fee: 60", f"{mail}, Attachment fees.xlsx, Hires, row 3"),
        ("The roof leaks in the north.", f"{mail}, Attachment report.pdf, p. 2"),
        ("The café opens at 9.", f"{mail}, Attachment notes.txt, line 1"),
    ):
        assert place_of(path, prompt, quote) == place
    note = file_chunks.read(path, _SETTINGS, prompt, prompt.chunk_size, document.never)[0].note
    assert note.startswith("4 attachments are not read: ")
    for reason in ("images (1)", "archives (1)", "that may hold secrets (1)", "damaged, locked or without text (1)"):
        assert reason in note


def test_attachments_in_a_mailbox_are_cited_by_their_message(tmp_path: Path, prompt: PromptFormat) -> None:
    path = tmp_path / "archive.mbox"
    box = mailbox.mbox(path)
    box.add(message())
    box.add(files_of_every_kind())
    box.close()
    place = place_of(path, prompt, "The roof leaks in the north.")
    assert place == "Ana Novak, 3 May 2026: Boat house, Attachment report.pdf"
    assert place_of(path, prompt, "Item: Raft; Fee: 60").endswith(", Attachment fees.xlsx, Hires")


def test_a_mail_attached_to_a_mail_is_read_but_no_deeper(read: Read) -> None:
    mail = message(terms_docx=word())
    for number in range(3):
        mail = message(**{f"inner{number}_eml": bytes(mail)})
    document = read("outer.eml", bytes(mail))
    text = "\n".join(block.text for block in document.blocks)
    assert text.count("The papers are attached.") == 3 and "450 crowns" not in text
    inner = [block.heading for block in document.blocks if "Attachments: inner0" in block.text]
    assert [len(heading) for heading in inner] == [5]


def test_an_attachment_that_takes_too_much_time_does_not_cost_the_mail(tmp_path: Path) -> None:
    slow = b"{\\rtf1 " + b"{\\*\\x " * 700_000 + b"}"
    path = tmp_path / "slow.eml"
    path.write_bytes(bytes(message(**{f"slow{number}_rtf": slow for number in range(6)})))
    read = document.parse(path, IndexSettings(parser_seconds=4))
    assert "The papers are attached." in "\n".join(block.text for block in read.blocks)
    assert "not read" in read.note and ("for want of time" in read.note or "too much time" in read.note)


def test_a_text_is_read_once_from_an_invitation_and_never_from_a_signature(read: Read) -> None:
    invitation = b"BEGIN:VCALENDAR\nBEGIN:VEVENT\nSUMMARY:Launch\nDTSTART:20260603T100000Z\nEND:VEVENT\nEND:VCALENDAR\n"
    mail = message(invite_ics=invitation)
    mail.add_attachment(invitation, maintype="text", subtype="calendar")
    mail.add_attachment(b"-----BEGIN PGP", maintype="application", subtype="pgp-signature", filename="s.asc")
    document = read("invited.eml", bytes(mail))
    assert "\n".join(block.text for block in document.blocks).count("Launch") == 1
    assert document.note == ""


def test_rich_text_of_outlook_is_read_where_there_is_no_other(read: Read) -> None:
    people = {"sender": ("Ana Novak", "ana@example.org"), "to": ("Bo", "bo@example.org")}
    sent = datetime(2026, 5, 3, tzinfo=UTC)
    note = b"The key hangs behind the oars.\n"
    saved = outlook_message("Ferry", "", **people, sent=sent, rich_text=_COMPRESSED, files={"key.txt": note})
    for name, content in (("ferry.msg", saved), ("winmail.dat", winmail({"key.txt": note}, rich_text=_COMPRESSED))):
        document = read(name, content)
        texts = [block.text for block in document.blocks]
        assert "The boat leaves from pier 7 at 6:40." in " ".join(texts) and "Bring the café keys." in " ".join(texts)
        assert document.blocks[-1].heading[1] == "Attachment key.txt" and texts[-1] == note.decode().strip()
        assert "fromhtml" not in " ".join(texts) and document.note == ""


def test_messages_attached_to_one_of_outlook_are_read_with_their_files(read: Read) -> None:
    """Three of them, each attached to the other, the innermost with a file."""
    to, sent = ("Bo Lind", "bo@example.org"), datetime(2026, 5, 3, tzinfo=UTC)
    notes = {"notes.txt": b"The key hangs behind the oars.\n"}
    lamp = message_streams("Lamp", "The lamp burns 12 hours.", sender=("Ida Holm", "ida@x.org"), to=to, sent=sent,
                           files=notes)  # fmt: skip
    pier = message_streams("Pier", "Pier 7 was closed.", sender=("Ana Novak", "ana@x.org"), to=to, sent=sent,
                           attached=lamp)  # fmt: skip
    whole = outlook_message("News", "See below.", sender=("Per Dahl", "per@x.org"), to=to, sent=sent, attached=pier)
    document = read("news.msg", whole)
    texts = [block.text for block in document.blocks]
    for text in (
        "See below.",
        "Forwarded message: Ana Novak, 3 May 2026, Pier",
        "Pier 7 was closed.",
        "Forwarded message: Ida Holm, 3 May 2026, Lamp",
        "The lamp burns 12 hours.",
        "The key hangs behind the oars.",
    ):
        assert any(text in one for one in texts), text
    assert document.blocks[-1].heading[1] == "Attachment notes.txt" and document.note == ""


def test_compressed_rich_text_cut_or_changed_anywhere_is_no_danger() -> None:
    whole = rich_text.decompressed(_COMPRESSED)
    assert whole.startswith(b"{\\rtf1") and len(whole) == 287
    for end in range(len(_COMPRESSED)):
        assert whole.startswith(rich_text.decompressed(_COMPRESSED[:end]))
        changed = bytearray(_COMPRESSED)
        changed[end] ^= 0xFF
        assert len(rich_text.decompressed(bytes(changed))) <= 16 * 2**20
