"""Parse calendars (.ics) and address books (.vcf): one section per event, task or contact.

Entries are cut out of the file and read one by one, so that a damaged one costs only itself.
"""

from __future__ import annotations

import calendar
import contextlib
import itertools
import re
from collections.abc import Callable, Iterator
from datetime import date, datetime, timedelta
from typing import Any

from desk_rag.documents.document import BlockKind
from desk_rag.documents.parsers.building import Builder, Parsed
from desk_rag.errors import BrokenDocument

_EVENT_KINDS = ("VEVENT", "VTODO", "VJOURNAL")
_EVENT_FIELDS = (("LOCATION", "Place"), ("DESCRIPTION", "Notes"), ("STATUS", "Status"), ("URL", "Link"))
_CONTACT_FIELDS = {
    "org": "Organisation", "title": "Position", "tel": "Phone", "email": "Email", "adr": "Address",
    "bday": "Birthday", "url": "Website", "note": "Notes", "nickname": "Nickname",
}  # fmt: skip
_UNITS = {
    "SECONDLY": "second", "MINUTELY": "minute", "HOURLY": "hour",
    "DAILY": "day", "WEEKLY": "week", "MONTHLY": "month", "YEARLY": "year",
}  # fmt: skip
_MOST_INVITED = 20
_BIRTHDAY = re.compile(r"(?P<year>\d{4}|--)-?(?P<month>\d{2})-?(?P<day>\d{2})(?:T.*)?$")
_SILENT_KINDS = ("pref", "internet", "voice")
_CALENDAR_NAME = re.compile(r"(?im)^X-WR-CALNAME[^:\n]*:(?P<name>.*)$")
_PROPERTY = re.compile(r"[\w.-]+[;:]")
_LINE_END = re.compile(r"[ ,]*\n[ ,]*|,  +")
_NOTE = re.compile(r"(?im)^NOTE\b[^\n]*(?:\n[ \t][^\n]*)*")
_BARE_COMMA = re.compile(r"(?<!\\),")
"""A comma that many programs leave so in notes, although the format ends the first value there."""
_ATTACHED = re.compile(r"(?:[\w-]+\.)?(?:PHOTO|LOGO|SOUND|KEY|ATTACH)[;:]", re.IGNORECASE)


def parse(text: str, note: str, most_text: int) -> Parsed:
    """Return events with their time, place, people and notes; a recurring one once, with its rule.

    Stops once more than `most_text` bytes are collected. Raises BrokenDocument.
    """
    import icalendar

    builder = Builder()
    if name := _CALENDAR_NAME.search(text):
        builder.set_title(name["name"])

    def add(entry: str, number: int) -> None:
        _add_event(builder, icalendar.Component.from_ical(entry), number)

    damaged = _add_entries(builder, _entries(text, _EVENT_KINDS), add, most_text)
    return _finish(builder, damaged, note, "is not a calendar that can be read (damaged?)", "BEGIN:VCALENDAR" in text)


def parse_contacts(text: str, note: str, most_text: int) -> Parsed:
    """Return contacts with every number and address they name.

    Stops once more than `most_text` bytes are collected. Raises BrokenDocument.
    """
    import vobject

    builder = Builder()

    def add(entry: str, number: int) -> None:
        whole = _NOTE.sub(lambda note: _BARE_COMMA.sub(r"\,", note.group()), entry)
        _add_contact(builder, vobject.readOne(whole, ignoreUnreadable=True, allowQP=True), number)

    damaged = _add_entries(builder, _entries(text, ("VCARD",)), add, most_text)
    return _finish(builder, damaged, note, "is not an address book that can be read (damaged?)", False)


def _entries(text: str, kinds: tuple[str, ...]) -> Iterator[str]:
    """Yield each entry of these kinds; one that is not ended when the next begins is ended there."""
    kind, lines, attached = "", list[str](), False
    for line in text.split("\n"):
        mark, _, name = line.strip().upper().partition(":")
        if mark == "BEGIN" and name in kinds:
            if kind:
                yield _ended(lines, kind)
            kind, lines, attached = name, [line.strip()], False
        elif kind and mark == "END" and name == kind:
            yield _ended(lines, kind)
            kind = ""
        elif kind:
            # Pictures take most of an address book, and some programs write them in lines that no parser accepts.
            attached = bool(_ATTACHED.match(line)) or (attached and not _PROPERTY.match(line))
            if not attached:
                lines.append(line)
    if kind:
        yield _ended(lines, kind)


def _ended(lines: list[str], kind: str) -> str:
    return "\r\n".join([*lines, f"END:{kind}", ""])


def _add_entries(builder: Builder, entries: Iterator[str], add: Callable[[str, int], None], most_text: int) -> int:
    """Add entries until there is enough text; returns how many of them are damaged."""
    damaged = 0
    for number, entry in enumerate(entries, start=1):
        try:
            add(entry, number)
        except Exception:  # icalendar and vobject raise errors of their own, ValueError, binascii.Error and others
            damaged += 1
        if builder.exceeds(most_text):
            break
    return damaged


def _finish(builder: Builder, damaged: int, note: str, message: str, known: bool) -> Parsed:
    if builder.empty and (damaged or not known):
        raise BrokenDocument(message)
    left_out = f"{damaged} damaged {'entry' if damaged == 1 else 'entries'} not read" if damaged else ""
    return builder.done("; ".join(filter(None, [note, left_out])), first_heading_is_title=False)


def add_invitation(builder: Builder, text: str, page: int | None) -> None:
    """Append the events that a mail invites to, as rows."""
    import icalendar

    for entry in itertools.islice(_entries(text, _EVENT_KINDS), _MOST_INVITED):
        with contextlib.suppress(Exception):  # icalendar raises errors of its own, ValueError and others
            event = icalendar.Component.from_ical(entry)
            builder.add("; ".join(_facts(event)), BlockKind.TABLE, page=page)


def _add_event(builder: Builder, event: Any, number: int) -> None:
    start = _moment(event, "DTSTART") or _moment(event, "DUE")
    summary = _words(event.get("SUMMARY")) or "(no title)"
    builder.heading(1, f"{summary}, {start}" if start else summary, page=number)
    # One row, so that a quote of the place also names the event.
    builder.add("; ".join(_facts(event)), BlockKind.TABLE, page=number)


def _facts(event: Any) -> list[str]:
    """Return what a person wants to know of an event, its title and time first."""
    start, due = _moment(event, "DTSTART"), _moment(event, "DUE")
    end = _moment(event, "DTEND", exclusive=True) or _end_after(event)
    summary = _words(event.get("SUMMARY")) or "(no title)"
    facts = [f"{summary}: {_period(start, end)}" if start else summary]
    if moved := _moment(event, "RECURRENCE-ID"):
        facts.append(f"Instead of: {moved}")
    if due:
        facts.append(f"Due: {due}")
    facts += [f"{label}: {words}" for name, label in _EVENT_FIELDS if (words := _words(event.get(name)))]
    organisers, guests = _people(event.get("ORGANIZER")), _people(event.get("ATTENDEE"))
    if organisers:
        facts.append(f"Organiser: {', '.join(organisers)}")
    if guests:
        facts.append(f"With: {', '.join(guests)}")
    for rule in _values(event.get("RRULE")):
        with contextlib.suppress(Exception):  # a rule may hold anything
            facts.append(f"How often: {_repetition(rule)}")
        facts.append(f"Repeats: {rule.to_ical().decode('utf-8', 'replace').lower().replace(';', ', ')}")
    left_out = [_shown_moment(day.dt) for days in _values(event.get("EXDATE")) for day in getattr(days, "dts", ())]
    if left_out:
        facts.append(f"Not on: {', '.join(left_out)}")
    if ":" in start and (zone := _zone(event)):
        facts.append(f"Time zone: {zone}")
    return facts


def _repetition(rule: Any) -> str:
    """'every 2 weeks on Monday, until 30 June 2026' of a rule; parts without words of their own as they stand."""
    parts = {str(name).upper(): list(values) for name, values in rule.items()}
    (frequency,), (interval,) = parts.pop("FREQ", [""])[:1], parts.pop("INTERVAL", [1])[:1]
    unit = _UNITS.get(str(frequency).upper(), str(frequency).lower())
    words = f"every {unit}" if int(interval) == 1 else f"every {interval} {unit}s"
    months = [calendar.month_name[int(month)] for month in parts.pop("BYMONTH", []) if str(month).isdecimal()]
    days = [_weekday(str(day)) for day in parts.pop("BYDAY", [])]
    days += [f"day {day}" for day in parts.pop("BYMONTHDAY", [])]
    words += f" in {_listed(months)}" if months else ""
    words += f" on {_listed(days)}" if days else ""
    parts.pop("WKST", None)
    for count in parts.pop("COUNT", []):
        words += f", {count} times"
    for until in parts.pop("UNTIL", []):
        words += f", until {until.day} {until:%B %Y}"
    return words + "".join(f", {name.lower()}: {_listed(list(map(str, values)))}" for name, values in parts.items())


def _weekday(day: str) -> str:
    """'Monday' of 'MO', 'the last Sunday' of '-1SU'."""
    name = next((name for name in calendar.day_name if name[:2].upper() == day[-2:].upper()), day)
    order = {"": "", "1": "the first ", "2": "the second ", "3": "the third ", "4": "the fourth ", "-1": "the last "}
    return order[day[:-2].lstrip("+")] + name if day[:-2].lstrip("+") in order else day


def _listed(words: list[str]) -> str:
    return " and ".join(filter(None, (", ".join(words[:-1]), *words[-1:])))


def _end_after(event: Any) -> str:
    """Return the end of an event that says how long it takes; empty for whole days and where it does not."""
    begins = [getattr(value, "dt", None) for value in _values(event.get("DTSTART"))]
    lengths = [getattr(value, "dt", None) for value in _values(event.get("DURATION"))]
    if begins and lengths and isinstance(begins[0], datetime) and isinstance(lengths[0], timedelta):
        return _shown_moment(begins[0] + lengths[0])
    return ""


def _zone(event: Any) -> str:
    """Return the time zone of an event, as the file names it: 'Europe/Berlin'."""
    zones = [value.params.get("TZID") for value in _values(event.get("DTSTART")) if hasattr(value, "params")]
    return str(zones[0]) if zones and zones[0] else ""


def _values(values: Any) -> list[Any]:
    """The values of a property that may stand several times, without those that are malformed."""
    listed = values if isinstance(values, list) else [] if values is None else [values]
    return [value for value in listed if type(value).__name__ != "vBroken"]


def _words(values: Any) -> str:
    return " ".join(" ".join(str(value) for value in _values(values)).split())


def _moment(event: Any, name: str, *, exclusive: bool = False) -> str:
    """'4 June 2026 10:00', or the day alone for an all-day event; empty where there is none or it is malformed.

    An `exclusive` day is the one after the last.
    """
    moments = [getattr(value, "dt", None) for value in _values(event.get(name))]
    if not moments or moments[0] is None:
        return ""
    if exclusive and not isinstance(moments[0], datetime):
        moments[0] -= timedelta(days=1)
    return _shown_moment(moments[0])


def _shown_moment(moment: date) -> str:
    day = f"{moment.day} {moment:%B %Y}"
    return f"{day} {moment:%H:%M}" if isinstance(moment, datetime) else day


def _period(start: str, end: str) -> str:
    """'22 April 2026 14:15 to 15:00'; an end on another day is named with its day, no end not at all."""
    start_day, start_time = _parted(start)
    end_day, end_time = _parted(end)
    begin = f"{start_day} {start_time}" if start_time else start_day
    if end_day == start_day:
        return f"{begin} to {end_time}" if start_time and end_time and end_time != start_time else begin
    return f"{begin} to {end_day}{f' {end_time}' if end_time else ''}" if end else begin


def _parted(moment: str) -> tuple[str, str]:
    """Day and time of a moment; the time is '' for a whole day."""
    day, _, clock = moment.rpartition(" ")
    return (day, clock) if ":" in clock else (moment, "")


def _people(addresses: Any) -> list[str]:
    """Names, or addresses where there is no name."""
    people = [(getattr(address, "params", {}).get("CN"), str(address)) for address in _values(addresses)]
    return [str(name or re.sub(r"(?i)^mailto:", "", address)) for name, address in people]


def _add_contact(builder: Builder, card: Any, number: int) -> None:
    fields = {name: [(_shown(entry.value), entry) for entry in entries] for name, entries in card.contents.items()}
    names = [shown for field in ("fn", "n", "nickname", "org", "email") for shown, _ in fields.get(field, [])]
    name = next(filter(None, names), "(no name)")
    builder.heading(1, name, page=number)
    for field, label in _CONTACT_FIELDS.items():
        for shown, entry in fields.get(field, []):
            listed = [*entry.params.get("TYPE", []), *entry.singletonparams]
            kinds = [kind for part in listed for kind in part.lower().split(",") if kind not in _SILENT_KINDS]
            shown = re.sub(r"(?i)^(?:tel|mailto):", "", shown)
            shown = _birthday(shown) if field == "bday" else shown
            shown = _LINE_END.sub(", ", str(entry.value).strip(" ,\n")) if field == "adr" else shown
            if shown and not (field == "nickname" and shown == name):
                described = f"{label} ({', '.join(kinds)})" if kinds else label
                builder.add(f"{name}, {described}: {shown}", BlockKind.LIST, page=number)


def _shown(value: object) -> str:
    parts = value if isinstance(value, list) else [value]
    texts = (part.decode("utf-8", "replace") if isinstance(part, bytes) else str(part) for part in parts)
    mark = ", " if isinstance(value, list) else " "  # the parts of an organisation
    return " ".join(mark.join(text for text in texts if text.strip()).split())


def _birthday(shown: str) -> str:
    """'12 April 1970' of '19700412', and '12 April' where the year is not told."""
    parts = _BIRTHDAY.match(shown)
    if parts is None:
        return shown
    with contextlib.suppress(ValueError):
        known = parts["year"].isdecimal()
        day = date(int(parts["year"]) if known else 2000, int(parts["month"]), int(parts["day"]))
        return f"{day.day} {day:%B %Y}" if known else f"{day.day} {day:%B}"
    return shown
