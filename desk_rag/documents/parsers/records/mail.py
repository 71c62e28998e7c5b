"""Parse mail: messages (.eml, .emlx, Maildir files, .msg), mailboxes (.mbox) and web archives (.mhtml).

One section per message, named "sender, date: subject", with the readable body below it. In a mailbox the page is the
number of the message. Lines quoted from an earlier message ('> …') come last, below a heading of their own, because
somebody else wrote them; what stands in the same mailbox already is left out. Attached files come behind that, each
below a heading with its name; those that are not read are counted.
"""

from __future__ import annotations

import contextlib
import email
import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from email.message import EmailMessage, Message
from email.policy import EmailPolicy, Policy
from email.utils import parseaddr
from typing import Any, cast

from desk_rag.documents.document import BlockKind
from desk_rag.documents.location import ATTACHMENT
from desk_rag.documents.parsers.building import Builder, Parsed
from desk_rag.documents.parsers.encoding import decode
from desk_rag.documents.parsers.markup.html import add_html
from desk_rag.documents.parsers.markup.prose import add_lines
from desk_rag.documents.parsers.records import tnef
from desk_rag.documents.parsers.records.calendar import add_invitation
from desk_rag.documents.parsers.records.enclosed import Enclosed, left_out
from desk_rag.documents.parsers.records.mail_text import html_lines, parted, parted_html, unwrapped
from desk_rag.documents.sentences import QUOTED_HEADING
from desk_rag.errors import BrokenDocument, UnsupportedDocument

_SEPARATOR = re.compile(rb"(?m)^From \S.*\r?$\n?")
_TIME = re.compile(rb"\d{2}:\d{2}")
_UNDATED = re.compile(rb"From (?:\S+|\S*@\S.*|- .*)\s*$")
_HEADER_BLOCK = re.compile(rb"(?:[!-9;-~]+:[^\n]*\n(?:[ \t][^\n]*\n)*){2,100}")
_OF_MESSAGE = (re.compile(rb"(?im)^From:"), re.compile(rb"(?im)^(?:Date|Subject):"))
"""Headers that follow a separator without a date, such as 'From ana@example.org'."""
_IN_HTML = re.compile(
    r"\bHTML\b|view (?:this|the) (?:e-?mail|message) in|im Browser|dans votre navigateur", re.IGNORECASE
)
_UNDISCLOSED = re.compile(r"undisclosed[- ]recipients\b", re.IGNORECASE)
_NAME_AND_ADDRESS = re.compile(r'"(?P<name>[^"<>]+)"\s*<[^<>\s]+>$')
_LONGEST_STAND_IN = 400
"""Characters of a plain text that may be there only to say that the message is in HTML."""
MOST_DEPTH = 8
"""Nested parts and forwarded messages that are read."""
_MOST_PARTS = 1000
_PACKED_KINDS = ("application/ms-tnef", "application/vnd.ms-tnef")
_PACKED_NAME = "winmail.dat"
_SIGNATURES = ("application/pgp-signature", "application/pkcs7-signature", "application/x-pkcs7-signature")
_MOST_HEADER_CHARS = 4000
"""Longer headers are cut: parsing one takes time that grows with the square of its length."""
_NOT_ASCII = re.compile(rb"[\x80-\xff]")
_HEADERS_END = re.compile(rb"\r?\n\r?\n")


class _Policy(EmailPolicy):
    """The standard policy with an upper bound on the length of headers."""

    def header_fetch_parse(self, name: str, value: str) -> Any:
        """Parse a header's value, or the beginning of a long one."""
        return super().header_fetch_parse(name, value[:_MOST_HEADER_CHARS])


_POLICY: Policy[EmailMessage] = cast("Policy[EmailMessage]", _Policy())


@dataclass(frozen=True, slots=True)
class MailContent:
    """The text of one message that is indexed."""

    sender: str
    recipients: str
    date: str
    subject: str
    texts: tuple[tuple[str, bool], ...]
    """The parts of the body in order, each with whether it is HTML."""
    attachments: tuple[tuple[str, bytes | None], ...]
    """Names and contents; None for an attachment that is no file."""
    invitations: tuple[str, ...] = ()


def parse(data: bytes, enclosed: Enclosed | None = None) -> Parsed:
    """One message. Raises BrokenDocument for bytes that are no message."""
    return finished(_from_bytes(_without_emlx_length(data)), enclosed)


def parse_mailbox(data: bytes, most_text: int, enclosed: Enclosed | None = None) -> Parsed:
    """Messages of an mbox file, in order, until more than `most_text` bytes are collected.

    The page is the message's number.
    """
    builder = Builder()
    seen_lines: set[str] = set()
    unread = 0
    for number, part in enumerate(_split_mailbox(data), start=1):
        unread += _add_message(builder, _from_bytes(part), number, seen_lines, enclosed)
        if builder.exceeds(most_text):
            break
    return builder.done(_unread_attachments(unread, enclosed), first_heading_is_title=False)


def finished(message: MailContent, enclosed: Enclosed | None) -> Parsed:
    """Return a single message as a document."""
    builder = Builder()
    builder.set_title(message.subject)
    unread = _add_message(builder, message, None, set(), enclosed)
    return builder.done(_unread_attachments(unread, enclosed))


def _unread_attachments(count: int, enclosed: Enclosed | None) -> str:
    if not count:
        return ""
    note = "1 attachment is not read" if count == 1 else f"{count} attachments are not read"
    return f"{note}: {enclosed.reasons()}" if enclosed is not None else note


def parse_web_archive(data: bytes) -> Parsed:
    """The first HTML page of a web archive (.mhtml)."""
    builder = Builder()
    for part in email.message_from_bytes(data, policy=_POLICY).walk():
        if part.get_content_type() == "text/html":
            add_html(builder, _content(part), is_page=True)
            return builder.done()
    raise BrokenDocument("is a web archive without a page in it")


def _without_emlx_length(data: bytes) -> bytes:
    """Apple Mail writes the message's length before it and a property list behind it."""
    first, newline, rest = data.partition(b"\n")
    return rest[: int(first)] if newline and first.strip().isdigit() and len(first) < 12 else data


def _split_mailbox(data: bytes) -> Iterator[bytes]:
    """Yield messages; without any separator, the whole is one."""
    starts = [match.span() for match in _SEPARATOR.finditer(data) if _begins_message(data, match)]
    if not starts:
        yield data
    for (_, begin), (end, _) in itertools.pairwise([*starts, (len(data), 0)]):
        yield re.sub(rb"(?m)^>(>*From )", rb"\1", data[begin:end])


def _begins_message(data: bytes, line: re.Match[bytes]) -> bool:
    """True for a 'From ' line with a date that opens the file or follows an empty line (RFC 4155).

    Some programs write no date; the line then counts if the headers of a message follow it.
    """
    start = line.start()
    if _TIME.search(line[0]):
        return start == 0 or data[max(0, start - 2) : start].replace(b"\r", b"").endswith(b"\n")
    block = _HEADER_BLOCK.match(data, line.end()) if _UNDATED.match(line[0]) else None
    return block is not None and all(header.search(block[0]) for header in _OF_MESSAGE)


def _from_bytes(data: bytes) -> MailContent:
    headers_end = _HEADERS_END.search(data)
    headers = data[: headers_end.start() if headers_end else len(data)]
    if _NOT_ASCII.search(headers):  # against the rules, but written; the email package replaces such letters
        with contextlib.suppress(UnsupportedDocument):
            data = decode(headers)[0].encode("utf-8", "replace") + data[len(headers) :]
    return _from_mime(email.message_from_bytes(data, policy=_POLICY))


def _from_mime(message: EmailMessage) -> MailContent:
    texts: list[tuple[str, bool]] = []
    attachments: list[tuple[str, bytes | None]] = []
    invitations: list[str] = []
    for part in itertools.islice(_readable_parts(message, 0), _MOST_PARTS):
        kind = _content_type(part)
        name = _file_name(part)
        if (packed := _packed(part, kind, name)) is not None:
            attachments += [(file.name, file.content) for file in packed.files]
            texts += [packed.text] * (not any(text.strip() for text, _ in texts))
        elif kind == "message/rfc822":
            texts.append((_forwarded(part), False))
        elif kind == "text/calendar" or name.lower().endswith(".ics"):
            invitations.append(_content(part))
        elif name and kind.startswith("image/") and part.get("Content-ID"):
            continue  # a picture in the text
        elif kind in _SIGNATURES:
            continue
        elif name or _header(part, "Content-Disposition").lower().startswith("attachment"):
            attachments.append((name or kind, _attached(part, kind)))
        elif kind in ("text/plain", "text/html"):
            texts.append((_content(part), kind == "text/html"))
        elif kind.startswith("multipart/") and isinstance(part.get_payload(), str):
            texts.append((_content(part), False))  # its boundary is missing
    return MailContent(
        sender=people(_header(message, "From")),
        recipients="" if _UNDISCLOSED.match(_header(message, "To")) else people(_header(message, "To")),
        date=_date_header(message),
        subject=_header(message, "Subject"),
        texts=tuple(texts),
        attachments=tuple(attachments),
        invitations=tuple(dict.fromkeys(invitations)),
    )


def _attached(part: EmailMessage, kind: str) -> bytes | None:
    """Return the content of an attachment; of plain text as it was declared to be encoded."""
    if kind == "text/plain" and (text := _content(part)).strip():
        return text.encode("utf-8")
    payload = part.get_payload(decode=True)
    return payload if isinstance(payload, bytes) else None


def _packed(part: EmailMessage, kind: str, name: str) -> tnef.PackedMessage | None:
    """Return what Outlook packed into a part instead of attaching it."""
    if kind not in _PACKED_KINDS and name.lower() != _PACKED_NAME:
        return None
    payload = part.get_payload(decode=True)
    return tnef.read(payload) if isinstance(payload, bytes) else None


def _readable_parts(message: EmailMessage, depth: int) -> Iterator[EmailMessage]:
    """Yield the leaves of a message; of alternatives only the plain one unless it is blank.

    A forwarded message comes before its parts.
    """
    if not message.is_multipart() or depth >= MOST_DEPTH:
        yield message
        return
    kind = _content_type(message)
    if kind == "message/rfc822":
        yield message
    parts = [part for part in message.iter_parts() if isinstance(part, EmailMessage)]
    if kind == "multipart/alternative":
        parts = [*_best_alternative(parts), *(part for part in parts if _content_type(part) == "text/calendar")]
    for part in parts:
        yield from _readable_parts(part, depth + 1)


def _best_alternative(parts: list[EmailMessage]) -> list[EmailMessage]:
    """Return the plain text, unless it is blank or only says that the message is in HTML."""
    parts = [part for part in parts if _content_type(part) != "text/calendar"]
    plain = next((part for part in parts if _content_type(part) == "text/plain" and _content(part).strip()), None)
    if plain is None or (
        len(parts) > 1 and len(_content(plain)) < _LONGEST_STAND_IN and _IN_HTML.search(_content(plain))
    ):
        return parts[-1:]
    return [plain]


def _content_type(part: EmailMessage) -> str:
    try:
        return part.get_content_type()
    except Exception:  # the stdlib's header parser raises many kinds of errors on malformed headers
        return "text/plain"


def _file_name(part: EmailMessage) -> str:
    try:
        return part.get_filename() or ""
    except Exception:
        return ""


def _forwarded(part: EmailMessage) -> str:
    """Return the line that introduces a forwarded message."""
    message = next(part.iter_parts(), None)
    if not isinstance(message, EmailMessage):
        return ""
    return forwarded(people(_header(message, "From")), _date_header(message), _header(message, "Subject"))


def forwarded(sender: str, date: str, subject: str) -> str:
    """Return the line that introduces a forwarded message; '' if nothing is known of it."""
    about = ", ".join(filter(None, (sender, date, subject)))
    return f"Forwarded message: {about}" if about else ""


def _content(part: Message[str, str]) -> str:
    """Return a part's text in its declared encoding, or else in the one its bytes look like; '' if it is binary."""
    payload = part.get_payload(decode=True)
    if not isinstance(payload, bytes):
        return ""
    try:
        text = payload.decode(part.get_content_charset("utf-8")).replace("\r\n", "\n")
    except (UnicodeDecodeError, LookupError):
        text = ""
        with contextlib.suppress(UnsupportedDocument):
            text = decode(payload)[0]
    return unwrapped(text, part) if part.get_content_type() == "text/plain" else text


def _header(message: EmailMessage, name: str) -> str:
    try:
        return " ".join(str(message.get(name, "")).split())
    except Exception:  # the stdlib's header parser raises many kinds of errors on malformed headers
        return ""


def people(header: str) -> str:
    """'Ana Novak' of 'Ana Novak <ana@example.org>'; the address where there is no name."""
    name, address = parseaddr(header)
    if whole := _NAME_AND_ADDRESS.match(name or address):  # some programs encode the address with the name
        return whole["name"]
    return header if header.count("@") > 1 or not (name or address) else name or address


def _date_header(message: EmailMessage) -> str:
    try:
        return day(getattr(message.get("Date"), "datetime", None))
    except Exception:
        return ""


def day(moment: datetime | None) -> str:
    return f"{moment.day} {moment:%B %Y}" if moment is not None else ""


def _add_message(
    builder: Builder, message: MailContent, number: int | None, seen_lines: set[str], enclosed: Enclosed | None
) -> int:
    """Append one message, and return how many of its attachments are not read.

    `seen_lines` holds the lines of earlier messages of the same mailbox and grows.
    """
    who = ", ".join(part for part in (message.sender, message.date) if part)
    builder.heading(
        1,
        ": ".join(part for part in (who, message.subject) if part) or "(no subject)",
        page=number,
        opens_chunk=number is not None,
    )
    headers = {"From": message.sender, "To": message.recipients, "Date": message.date, "Subject": message.subject}
    builder.add(
        "; ".join(f"{name}: {value}" for name, value in headers.items() if value), BlockKind.PARAGRAPH, page=number
    )
    quoted: list[str] = []
    for text, is_html in message.texts:
        if is_html:
            own_html, quoted_html = parted_html(text)
            add_html(builder, own_html, page=number)
            if number is not None or quoted_html:
                own, of_others = (html_lines(html) for html in (own_html, quoted_html))
                quoted += [line for line in of_others if not line or line not in seen_lines]
                seen_lines.update(line for line in (*own, *of_others) if line)
        else:
            own, of_others = parted(text.split("\n"), seen_lines)
            seen_lines.update(line.strip() for line in (*own, *of_others) if line.strip())
            quoted += of_others
            _add_text(builder, own, number)
    for invitation in message.invitations:
        add_invitation(builder, invitation, number)
    if any(name for name, _ in message.attachments):
        names = ", ".join(name for name, _ in message.attachments if name)
        builder.add(f"Attachments: {names}", BlockKind.PARAGRAPH, page=number)
    if any(line.strip() for line in quoted):
        builder.heading(2, QUOTED_HEADING, page=number)
        _add_text(builder, quoted, number)
    if enclosed is None:
        return len(message.attachments)
    return sum(not _add_attachment(builder, *attachment, number, enclosed) for attachment in message.attachments)


def _add_attachment(builder: Builder, name: str, content: bytes | None, number: int | None, enclosed: Enclosed) -> bool:
    """Append the text of an attached file, and return whether it is read."""
    why = left_out(name.replace("/", "_")) or ("not a file" if content is None else "" if content.strip() else "empty")
    if why or content is None:
        enclosed.unread[why] += 1
        return False
    blocks = enclosed.blocks(name, content)
    if blocks:
        builder.heading(2, ATTACHMENT + (name or "without a name"), page=number, opens_chunk=True)
        builder.append_below(blocks, number)
    return bool(blocks)


def _add_text(builder: Builder, lines: Sequence[str], number: int | None) -> None:
    run: list[str] = []
    for line in [*lines, ""]:
        if line.strip():
            run.append(line)
        elif run:
            add_lines(builder, run, None, page=number)
            run = []
