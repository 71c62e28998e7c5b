"""Parse Outlook's own files: messages (.msg), and what it packs into a winmail.dat."""

from __future__ import annotations

import io
from typing import Any

from desk_rag.documents.parsers.building import Parsed
from desk_rag.documents.parsers.office import rich_text
from desk_rag.documents.parsers.records import tnef
from desk_rag.documents.parsers.records.enclosed import Enclosed
from desk_rag.documents.parsers.records.mail import MailContent, day, finished, people
from desk_rag.errors import BrokenDocument

_RICH_TEXT = 0x1009


def parse(data: bytes, enclosed: Enclosed | None = None) -> Parsed:
    """One message. Raises BrokenDocument for another kind of OLE file."""
    from oxmsg import Message

    if (packed := tnef.read(data)) is not None:
        return finished(_from_packed(packed), enclosed)
    try:
        message = _from_outlook(Message.load(io.BytesIO(data)))
    except Exception as error:  # python-oxmsg lets KeyError, struct and olefile errors through
        raise BrokenDocument("is not an Outlook message that can be opened (damaged?)") from error
    return finished(message, enclosed)


def _from_packed(packed: tnef.PackedMessage) -> MailContent:
    return MailContent(
        sender=people(packed.sender),
        recipients="",
        date="",
        subject=" ".join(packed.subject.split()),
        texts=(packed.text,),
        attachments=tuple((file.name, file.content) for file in packed.files),
    )


def _from_outlook(source: Any) -> MailContent:
    return MailContent(
        sender=people(source.sender or ""),
        recipients=", ".join(recipient.name or recipient.email_address for recipient in source.recipients),
        date=day(source.sent_date),
        subject=" ".join((source.subject or source.message_headers.get("Subject", "")).split()),
        texts=(_body(source),),
        attachments=tuple((file.file_name or "", file.file_bytes) for file in source.attachments),
    )


def _body(source: Any) -> tuple[str, bool]:
    """Return the text of a message, and whether it is HTML; what has no plain text is compressed RTF, or HTML."""
    if (source.body or "").strip():
        return source.body, False
    if (source.html_body or "").strip():
        return source.html_body, True
    compressed = source.properties.binary_prop_value(_RICH_TEXT)
    return rich_text.plain_text(rich_text.decompressed(compressed)) if compressed else "", False
