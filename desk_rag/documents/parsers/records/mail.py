"""Mail: messages (.eml, .emlx, Maildir files, .msg), mailboxes (.mbox) and web archives (.mhtml).

One section per message, named "sender, date: subject", with the readable body below it. In a mailbox the page is the
number of the message. Attachments are named, not opened. Quoted text of an earlier message in the same mailbox is left
out, because it stands there already.
"""

from __future__ import annotations

import email
import email.policy
import io
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from email.message import EmailMessage
from email.utils import parseaddr

from desk_rag.documents.document import BlockKind
from desk_rag.documents.encoding import decode
from desk_rag.documents.parsers.building import Builder, Parsed
from desk_rag.documents.parsers.markup.html import add_html
from desk_rag.documents.parsers.markup.prose import add_lines
from desk_rag.errors import BrokenDocument

_SEPARATOR = re.compile(rb"(?m)^From \S.*\d{2}:\d{2}.*\r?$\n?")
_QUOTE_MARKS = re.compile(r"^(?:>\s?)+")
_REPLY_LINE = re.compile(
    r"^(?:On|Am|Le|El|Il|Op|Em) .{6,200}(?:wrote|schrieb|écrit|escribió|scritto|schreef|escreveu)\b.*:\s*$"
)
_SIGNATURE = re.compile(r"^-- ?$")
_MOST_MESSAGES = 100_000
_MOST_DEPTH = 8
"""Nested forwarded messages that are read."""


@dataclass(frozen=True, slots=True)
class _Message:
    """What is shown of one message."""

    sender: str
    recipients: str
    date: str
    subject: str
    text: str
    """Plain body; empty where only `html` is there."""
    html: str
    attachments: tuple[str, ...]


def parse(data: bytes) -> Parsed:
    """One message. Raises BrokenDocument for bytes that are no message."""
    builder = Builder()
    message = _from_mime(email.message_from_bytes(_without_emlx_length(data), policy=email.policy.default))
    builder.set_title(message.subject)
    _add_message(builder, message, None, set())
    return builder.done()


def parse_mailbox(data: bytes) -> Parsed:
    """All messages of an mbox file, in order; the page is the message's number."""
    builder = Builder()
    seen_lines: set[str] = set()
    note = ""
    for number, part in enumerate(_split_mailbox(data), start=1):
        if number > _MOST_MESSAGES:
            note = f"only the first {_MOST_MESSAGES:,} messages are read"
            break
        message = _from_mime(email.message_from_bytes(part, policy=email.policy.default))
        _add_message(builder, message, number, seen_lines)
    return builder.done(note)


def parse_outlook(data: bytes) -> Parsed:
    """An Outlook message (.msg). Raises BrokenDocument for another kind of OLE file."""
    from oxmsg import Message

    try:
        source = Message.load(io.BytesIO(data))
        headers = source.message_headers
        message = _Message(
            sender=source.sender or "",
            recipients=", ".join(recipient.name or recipient.email_address for recipient in source.recipients),
            date=_day(source.sent_date),
            subject=" ".join((source.subject or headers.get("Subject", "")).split()),
            text=source.body or "",
            html=source.html_body or "",
            attachments=tuple(attachment.file_name or "" for attachment in source.attachments),
        )
    except Exception as error:  # python-oxmsg lets KeyError, struct and olefile errors through
        raise BrokenDocument("is not an Outlook message that can be opened (damaged?)") from error
    builder = Builder()
    builder.set_title(message.subject)
    _add_message(builder, message, None, set())
    return builder.done()


def parse_web_archive(data: bytes) -> Parsed:
    """The first HTML page of a web archive (.mhtml)."""
    builder = Builder()
    for part in email.message_from_bytes(data, policy=email.policy.default).walk():
        if part.get_content_type() == "text/html":
            add_html(builder, _content(part))
            return builder.done()
    raise BrokenDocument("is a web archive without a page in it")


def _without_emlx_length(data: bytes) -> bytes:
    """Apple Mail writes the message's length before it and a property list behind it."""
    first, newline, rest = data.partition(b"\n")
    return rest[: int(first)] if newline and first.strip().isdigit() and len(first) < 12 else data


def _split_mailbox(data: bytes) -> Iterator[bytes]:
    """Yield messages: they begin at a 'From ' line that opens the file or follows an empty line (RFC 4155)."""
    starts = [
        (match.start(), match.end())
        for match in _SEPARATOR.finditer(data)
        if match.start() == 0 or data[max(0, match.start() - 2) : match.start()].replace(b"\r", b"").endswith(b"\n")
    ]
    for index, (_, begin) in enumerate(starts):
        end = starts[index + 1][0] if index + 1 < len(starts) else len(data)
        yield re.sub(rb"(?m)^>(>*From )", rb"\1", data[begin:end])


def _from_mime(message: EmailMessage) -> _Message:
    text: list[str] = []
    html: list[str] = []
    attachments: list[str] = []
    for part in _readable_parts(message, 0):
        name = part.get_filename()
        if name or part.get_content_disposition() == "attachment":
            attachments.append(name or part.get_content_type())
        elif part.get_content_type() == "text/plain":
            text.append(_content(part))
        elif part.get_content_type() == "text/html":
            html.append(_content(part))
    plain = "\n".join(text)
    return _Message(
        sender=_people(_header(message, "From")),
        recipients=_people(_header(message, "To")),
        date=_date_header(message),
        subject=_header(message, "Subject"),
        text=plain,
        html="" if plain.strip() else "\n".join(html),
        attachments=tuple(attachments),
    )


def _readable_parts(message: EmailMessage, depth: int) -> Iterator[EmailMessage]:
    """Leaves of the message; of alternatives only the plain one where there is one."""
    if not message.is_multipart() or depth >= _MOST_DEPTH:
        yield message
        return
    parts = [part for part in message.iter_parts() if isinstance(part, EmailMessage)]
    if message.get_content_type() == "multipart/alternative":
        plain = [part for part in parts if part.get_content_type() == "text/plain"]
        parts = plain[:1] or parts[-1:]
    for part in parts:
        yield from _readable_parts(part, depth + 1)


def _content(part: EmailMessage) -> str:
    """The part's text in its declared encoding, else in the one that its bytes look like."""
    payload = part.get_payload(decode=True)
    if not isinstance(payload, bytes):
        return ""
    try:
        return payload.decode(part.get_content_charset("utf-8")).replace("\r\n", "\n")
    except (UnicodeDecodeError, LookupError):
        return decode(payload)[0]


def _header(message: EmailMessage, name: str) -> str:
    try:
        return " ".join(str(message.get(name, "")).split())
    except Exception:  # the stdlib's header parser raises many kinds of errors on malformed headers
        return ""


def _people(header: str) -> str:
    """'Ana Novak' of 'Ana Novak <ana@example.org>'; the address where there is no name."""
    name, address = parseaddr(header)
    return header if header.count("@") > 1 or not (name or address) else name or address


def _date_header(message: EmailMessage) -> str:
    try:
        return _day(getattr(message.get("Date"), "datetime", None))
    except Exception:
        return ""


def _day(moment: datetime | None) -> str:
    return f"{moment.day} {moment:%B %Y}" if moment is not None else ""


def _add_message(builder: Builder, message: _Message, number: int | None, seen_lines: set[str]) -> None:
    """Append one message; `seen_lines` holds the lines of earlier messages of the same mailbox and grows."""
    who = ", ".join(part for part in (message.sender, message.date) if part)
    builder.heading(1, ": ".join(part for part in (who, message.subject) if part) or "(no subject)", page=number)
    headers = {"From": message.sender, "To": message.recipients, "Date": message.date, "Subject": message.subject}
    builder.add(
        "; ".join(f"{name}: {value}" for name, value in headers.items() if value), BlockKind.PARAGRAPH, page=number
    )
    if message.html:
        add_html(builder, message.html, page=number)
    else:
        _add_text(builder, message.text, number, seen_lines)
    if any(message.attachments):
        names = ", ".join(name for name in message.attachments if name)
        builder.add(f"Attachments: {names}", BlockKind.PARAGRAPH, page=number)


def _add_text(builder: Builder, text: str, number: int | None, seen_lines: set[str]) -> None:
    lines = list(_own_lines(text.split("\n"), seen_lines))
    seen_lines.update(line.strip() for line in lines if line.strip())
    run: list[str] = []
    for line in [*lines, ""]:
        if line.strip():
            run.append(line)
        elif run:
            add_lines(builder, run, None, page=number)
            run = []


def _own_lines(lines: Iterable[str], seen_lines: set[str]) -> Iterator[str]:
    """The lines without quotes that were seen before, reply lines in front of them, and the signature."""
    for line in lines:
        if _SIGNATURE.match(line):
            return
        quoted = _QUOTE_MARKS.match(line)
        bare = line[quoted.end() :] if quoted else line
        if (quoted and bare.strip() in seen_lines) or (seen_lines and _REPLY_LINE.match(line)):
            continue
        yield bare
