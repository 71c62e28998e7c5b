"""Calendars (.ics) and address books (.vcf): one section per event, task or contact."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from desk_rag.documents.document import BlockKind
from desk_rag.documents.parsers.building import Builder, Parsed
from desk_rag.errors import BrokenDocument

_KINDS = ("VEVENT", "VTODO", "VJOURNAL")
_SHOWN = (("LOCATION", "Place"), ("DESCRIPTION", "Notes"), ("STATUS", "Status"), ("URL", "Link"))
_CONTACT_FIELDS = {
    "org": "Organisation", "title": "Position", "tel": "Phone", "email": "Email", "adr": "Address",
    "bday": "Birthday", "url": "Website", "note": "Notes", "nickname": "Nickname",
}  # fmt: skip


def parse(text: str, note: str = "") -> Parsed:
    """Events with their time, place, people and notes; recurring ones once, with their rule. Raises BrokenDocument."""
    import icalendar

    try:
        calendars = icalendar.Calendar.from_ical(text, multiple=True)
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise BrokenDocument("is not a calendar that can be read (damaged?)") from error
    builder = Builder()
    entries = 0
    for calendar in calendars:
        builder.set_title(str(calendar.get("X-WR-CALNAME", "")))
        for component in calendar.walk():
            if component.name in _KINDS:
                entries += 1
                _add_event(builder, component, entries)
    return builder.done(note)


def parse_contacts(text: str, note: str = "") -> Parsed:
    """Contacts with every number and address they name. Raises BrokenDocument."""
    import vobject

    builder = Builder()
    try:
        for number, card in enumerate(vobject.readComponents(text, ignoreUnreadable=True, allowQP=True), start=1):
            _add_contact(builder, card, number)
    except Exception as error:  # vobject raises its own errors, ValueError, binascii.Error and others
        if builder.empty:
            raise BrokenDocument("is not an address book that can be read (damaged?)") from error
        note = "read up to an entry that is damaged"
    return builder.done(note)


def _add_event(builder: Builder, event: Any, number: int) -> None:
    start, end = _moment(event, "DTSTART"), _moment(event, "DTEND") or _moment(event, "DUE")
    summary = str(event.get("SUMMARY", "")) or "(no title)"
    builder.heading(1, f"{summary}, {start}" if start else summary, page=number)
    facts = [f"{summary}: {start}" + (f" to {end}" if end and end != start else "")] if start else [summary]
    facts += [f"{label}: {' '.join(str(event[name]).split())}" for name, label in _SHOWN if event.get(name)]
    people = event.get("ATTENDEE", [])
    names = [_person(person) for person in (people if isinstance(people, list) else [people])]
    if event.get("ORGANIZER"):
        facts.append(f"Organiser: {_person(event['ORGANIZER'])}")
    if names:
        facts.append(f"With: {', '.join(names)}")
    if event.get("RRULE"):
        facts.append(f"Repeats: {event['RRULE'].to_ical().decode('utf-8', 'replace').lower().replace(';', ', ')}")
    for fact in facts:
        builder.add(fact, BlockKind.LIST, page=number)


def _moment(event: Any, name: str) -> str:
    """'4 June 2026 10:00', or the day alone for an all-day event; empty where there is none or it is malformed."""
    moment = getattr(event.get(name), "dt", None)
    if moment is None:
        return ""
    day = f"{moment.day} {moment:%B %Y}"
    return f"{day} {moment:%H:%M}" if isinstance(moment, datetime) else day


def _person(address: Any) -> str:
    name = address.params.get("CN") if hasattr(address, "params") else None
    return str(name or address).removeprefix("mailto:").removeprefix("MAILTO:")


def _add_contact(builder: Builder, card: Any, number: int) -> None:
    contents = card.contents
    name = str(contents["fn"][0].value) if "fn" in contents else "(no name)"
    builder.heading(1, name, page=number)
    for field, label in _CONTACT_FIELDS.items():
        for entry in contents.get(field, []):
            kinds = ", ".join(
                kind.lower() for kind in entry.params.get("TYPE", []) if kind.lower() not in ("pref", "internet")
            )
            value = " ".join(" ".join(entry.value) if isinstance(entry.value, list) else str(entry.value).split())
            value = " ".join(value.split())
            if value:
                builder.add(f"{name}, {label}{f' ({kinds})' if kinds else ''}: {value}", BlockKind.LIST, page=number)
