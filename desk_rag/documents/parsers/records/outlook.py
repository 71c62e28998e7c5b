"""Parse Outlook's own files: messages (.msg), and what it packs into a winmail.dat."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from desk_rag.documents.parsers.building import Parsed
from desk_rag.documents.parsers.office import rich_text
from desk_rag.documents.parsers.records import tnef
from desk_rag.documents.parsers.records.enclosed import Enclosed
from desk_rag.documents.parsers.records.mail import MOST_DEPTH, MailContent, day, finished, forwarded, people
from desk_rag.errors import BrokenDocument

_RICH_TEXT = 0x1009
_ATTACHMENT_NAMES = (0x3707, 0x3704, 0x3001)
"""The long name, that of old systems, and the one that Outlook shows."""
_EMBEDDED = "__substg1.0_3701000D"
"""Name of the storage in an attachment that is a message itself."""
_PROPERTIES, _EMBEDDED_HEADER_BYTES = "__properties_version1.0", 24
"""Stream of properties, and the length of its header in such a message; that of the whole file has 32 bytes."""


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


def _from_outlook(source: Any, depth: int = 0) -> MailContent:
    """Return a message with the messages attached to it, which are read as forwarded ones are."""
    texts, attachments = [_body(source)], list[tuple[str, bytes | None]]()
    for file in source.attachments:
        embedded = list(_embedded(file)) if depth < MOST_DEPTH else []
        for inner in embedded:
            message = _from_outlook(inner, depth + 1)
            texts += [(forwarded(message.sender, message.date, message.subject), False), *message.texts]
            attachments += message.attachments
        if not embedded:
            names = (file.properties.str_prop_value(number) for number in _ATTACHMENT_NAMES)
            attachments.append((next(filter(None, names), ""), file.file_bytes))
    return MailContent(
        sender=people(source.sender or ""),
        recipients=", ".join(recipient.name or recipient.email_address for recipient in source.recipients),
        date=day(source.sent_date),
        subject=" ".join((source.subject or source.message_headers.get("Subject", "")).split()),
        texts=tuple(texts),
        attachments=tuple(attachments),
    )


def _embedded(attachment: Any) -> Iterator[Any]:
    """Yield the message that an attachment is, if it is one."""
    from oxmsg import Message

    for storage in attachment._storage.storages:
        if storage.name == _EMBEDDED:
            streams = tuple(map(_with_whole_header, storage.streams))
            yield Message(replace(storage, streams=streams))


def _with_whole_header(stream: Any) -> Any:
    """Put what python-oxmsg expects behind the header of properties."""
    if stream.name != _PROPERTIES:
        return stream
    header, properties = stream.bytes_[:_EMBEDDED_HEADER_BYTES], stream.bytes_[_EMBEDDED_HEADER_BYTES:]
    return replace(stream, bytes_=header + bytes(8) + properties)


def _body(source: Any) -> tuple[str, bool]:
    """Return the text of a message, and whether it is HTML; what has no plain text is compressed RTF, or HTML."""
    if (source.body or "").strip():
        return source.body, False
    if (source.html_body or "").strip():
        return source.html_body, True
    compressed = source.properties.binary_prop_value(_RICH_TEXT)
    return rich_text.plain_text(rich_text.decompressed(compressed)) if compressed else "", False
