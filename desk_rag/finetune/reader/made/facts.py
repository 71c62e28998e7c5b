"""Invented facts about people, firms and things, in one line or in several that must be read together.

Knows rules and word lists; knows no tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from desk_rag.finetune.reader.frame import answer_text, evidence
from desk_rag.finetune.reader.made.prose import overlap
from desk_rag.finetune.reader.made.templates import Asked, Fact, Query, Wording, say, tell
from desk_rag.finetune.reader.made.values import letters, people, person
from desk_rag.finetune.reader.made.words import CITIES, FIRMS, MONTHS, PROJECTS, phrases

_FIRM_KINDS = phrases("Labs|Ltd|Systems|Group|Works|Partners|Bank|Clinic|School|Studio")
_GADGETS = phrases(
    "server|router|printer|laptop|car|bicycle|camera|boiler|heat pump|dishwasher|telescope|piano|drone|tent"
)
_ROLES = phrases(
    "senior engineer|accountant|project manager|head of sales|designer|legal adviser|research lead|nurse|teacher"
)
_RECORDS = (
    Fact(
        "{person} was born on {birthday} in {city}.",
        (
            Query("When was {person} born?", "{birthday}"),
            Query("Where was {person} born?", "{city}"),
            Query("Who was born in {city}?", "{person}"),
        ),
    ),
    Fact(
        "{person} joined {firm} as {article} {role} on {day}.",
        (
            Query("What is {person}'s role at {firm}?", "{role}"),
            Query("When did {person} join {firm}?", "{day}"),
            Query("Who joined {firm} on {day}?", "{person}"),
            Query("Which company did {person} join?", "{firm}"),
        ),
    ),
    Fact(
        "The invoice number for {firm} is {code} and the amount due is {sum}, payable by {day}.",
        (
            Query("What is the invoice number for {firm}?", "{code}"),
            Query("How much is due to {firm}?", "{sum}"),
            Query("When is the {firm} invoice due?", "{day}"),
            Query("amount due {firm}", "{sum}"),
        ),
    ),
    Fact(
        "{firm} service\nhost: {host}.local\nport: {port}\nversion: {version}\ncontact: {mail}",
        (
            Query("Which port does the {firm} service use?", "{port}"),
            Query("What version is the {firm} service?", "{version}"),
            Query("Who is the contact for the {firm} service?", "{mail}"),
            Query("{firm} port", "{port}"),
        ),
    ),
    Fact(
        "The {gadget} was bought in {city} for {sum} and its warranty ends on {day}. The serial number is {code}.",
        (
            Query("When does the warranty of the {gadget} end?", "{day}"),
            Query("What is the serial number of the {gadget}?", "{code}"),
            Query("How much did the {gadget} cost?", "{sum}"),
            Query("Where was the {gadget} bought?", "{city}"),
        ),
    ),
    Fact(
        "Meeting with {person}: {day} at {hour}, room {number}.",
        (
            Query("When is the meeting with {person}?", "{day} at {hour}"),
            Query("In which room is the meeting with {person}?", "room {number}"),
            Query("What time is the meeting with {person}?", "{hour}"),
        ),
    ),
    Fact(
        "To reach {person}, call {phone} or write to {mail}.",
        (
            Query("What is {person}'s phone number?", "{phone}"),
            Query("What is {person}'s email address?", "{mail}"),
            Query("How can I reach {person}?", "call {phone} or write to {mail}"),
        ),
    ),
    Fact(
        "The access code for the {city} office is {number}.",
        (
            Query("What is the access code for the {city} office?", "{number}"),
            Query("{city} office code?", "{number}"),
        ),
    ),
    Fact(
        "{firm} is based in {city} and employs {number} people. It was founded by {person} in {birth_year}.",
        (
            Query("Where is {firm} based?", "{city}"),
            Query("How many people does {firm} employ?", "{number}"),
            Query("Who founded {firm}?", "{person}"),
            Query("When was {firm} founded?", "{birth_year}"),
        ),
    ),
)


def record(rng: Random) -> tuple[str, list[Asked]]:
    """A record as text, and questions about it with answers in the trained form."""
    drawn = _record_values(rng)
    line = tell(rng, rng.choice(_RECORDS), drawn)
    asked = []
    for question, answer in line.asked:
        quote = evidence(line.text, question, answer)
        asked.append((question, answer_text([quote] if quote else [], answer)))
    return line.text, asked


def _record_values(rng: Random) -> dict[str, str]:
    someone = person(rng)
    firm = f"{rng.choice(FIRMS)} {rng.choice(_FIRM_KINDS)}"
    host = firm.split()[0].lower()
    drawn = {"person": someone, "firm": firm, "host": host, "city": rng.choice(CITIES)}
    birthday = f"{rng.randint(1, 28)} {rng.choice(MONTHS)} {rng.randint(1950, 2026)}"
    drawn |= {"birthday": birthday, "birth_year": birthday.split()[-1]}
    drawn["day"] = f"{rng.choice(MONTHS)} {rng.randint(1, 28)}, {rng.randint(2015, 2027)}"
    drawn["number"] = str(rng.randint(100, 99999))
    drawn["sum"] = f"${rng.randint(1, 999)},{rng.randint(100, 999)}"
    drawn["port"] = str(rng.randint(1000, 9999))
    drawn["version"] = f"{rng.randint(0, 12)}.{rng.randint(0, 30)}.{rng.randint(0, 9)}"
    drawn["code"] = f"{letters(rng, 2, 4)}-{rng.randint(10, 99999)}"
    drawn["mail"] = f"{someone.split()[0].lower()}@{host}.{rng.choice(['com', 'org', 'io', 'net'])}"
    drawn["phone"] = _phone(rng)
    drawn["gadget"] = rng.choice(_GADGETS)
    drawn["hour"] = f"{rng.randint(6, 11)}:{rng.choice(['00', '15', '30', '45'])} {rng.choice(['a.m.', 'p.m.'])}"
    drawn["article"] = rng.choice(["a", "the"])
    drawn["role"] = rng.choice(_ROLES)
    return drawn


def _phone(rng: Random) -> str:
    return f"{rng.randint(200, 999)}-{rng.randint(100, 999)}-{rng.randint(1000, 9999)}"


@dataclass(frozen=True, slots=True)
class Joined:
    """Lines for as many chunks, and questions most of which need them all."""

    lines: tuple[Wording, ...]
    queries: tuple[tuple[str, str], ...]


_LEADER = Joined(
    (
        ("The {project} project is led by {person}.", "{person} leads the {project} project."),
        ("{person} works from the {city} office.", "{person} is based in the {city} office."),
    ),
    (
        ("Which office does the leader of the {project} project work from?", "{city}"),
        ("Where is the person who leads {project} based?", "{city}"),
        ("Who leads the {project} project?", "{person}"),
    ),
)
_OWNER = Joined(
    (
        ("{firm} is owned by {owner}.", "{owner} bought {firm} and still owns it."),
        "{owner} has its head office in {city} and was founded in {year}.",
    ),
    (
        ("In which city is the owner of {firm} based?", "{city}"),
        ("When was the owner of {firm} founded?", "{year}"),
        ("Who owns {firm}?", "{owner}"),
    ),
)
_REPAIR = Joined(
    ("The {repaired} was repaired by {firm} on {day}.", "{firm} can be reached at {phone} or {mail}."),
    (
        ("What is the phone number of the company that repaired the {repaired}?", "{phone}"),
        ("Which email address belongs to the firm that fixed the {repaired}?", "{mail}"),
        ("Who repaired the {repaired}?", "{firm}"),
    ),
)
_PLANS = Joined(
    ("The {project} plan costs ${price} per month.", "The {other_project} plan costs ${other_price} per month."),
    (
        ("Which plan is cheaper, {project} or {other_project}?", "{cheaper}"),
        ("Which plan costs more, {other_project} or {project}?", "{dearer}"),
        ("How much is the {project} plan?", "${price}"),
    ),
)
_TEAM = Joined(
    (
        "{person} joined the {project} team.",
        "{second} joined the {project} team.",
        "{third} joined the {project} team.",
    ),
    (
        ("Who joined the {project} team?", "{person}, {second} and {third}"),
        ("List everyone on the {project} team.", "{person}, {second} and {third}"),
    ),
)
_WORKSHOP = Joined(
    (
        "The workshop on {subject} moved to {room}.",
        "Whoever runs {room} must book it with {person}.",
        "Bookings with {person} need {notice} days notice.",
    ),
    (
        ("Who handles the booking of the room of the {subject} workshop?", "{person}"),
        ("Where is the {subject} workshop?", "{room}"),
    ),
)
_JOINED = ((0.17, _LEADER), (0.34, _OWNER), (0.5, _REPAIR), (0.66, _PLANS), (0.83, _TEAM), (1.0, _WORKSHOP))
_REPAIRED = ("boiler", "roof", "printer", "car", "lift", "fence", "server", "piano")
_IN_ONE_LINE = ("Who leads", "Who owns", "Who repaired", "How much is", "Where is the")
"""How questions begin that one line answers."""


def joined_facts(rng: Random) -> tuple[list[str], list[Asked]]:
    """Lines for two or three chunks, and questions with answers in the trained form that quote the lines they need."""
    drawn = _joined_values(rng)
    draw = rng.random()
    joined = next(one for bound, one in _JOINED if draw < bound)
    if joined is _REPAIR:
        drawn["repaired"] = rng.choice(_REPAIRED)
    if joined is _WORKSHOP:
        drawn["notice"] = str(rng.randint(2, 30))
    lines = [say(rng, wording, drawn) for wording in joined.lines]
    pairs = [(question.format_map(drawn), answer.format_map(drawn)) for question, answer in joined.queries]
    return lines, [(question, answer_text(_needed(lines, question, answer), answer)) for question, answer in pairs]


def _joined_values(rng: Random) -> dict[str, str]:
    someone, second, third = people(rng, 3)
    project, other_project = rng.sample(PROJECTS, 2)
    city, _ = rng.sample(CITIES, 2)
    firm, owner = [f"{name} {rng.choice(_FIRM_KINDS[:6])}" for name in rng.sample(FIRMS, 2)]
    phone = _phone(rng)
    price, other_price = rng.randint(20, 980), rng.randint(20, 980)
    other_price += price == other_price
    return {
        "person": someone,
        "second": second,
        "third": third,
        "project": project,
        "other_project": other_project,
        "subject": project.lower(),
        "city": city,
        "firm": firm,
        "owner": owner,
        "phone": phone,
        "mail": f"{'.'.join(someone.lower().split())}@{firm.split()[0].lower()}.com",
        "price": str(price),
        "other_price": str(other_price),
        "cheaper": project if price < other_price else other_project,
        "dearer": project if price > other_price else other_project,
        "day": f"{rng.randint(1, 28)} {rng.choice(MONTHS)} {rng.randint(2015, 2027)}",
        "year": str(rng.randint(1900, 2020)),
        "room": f"room {rng.randint(100, 999)}",
    }


def _needed(lines: list[str], question: str, answer: str) -> list[str]:
    """The line that answers alone, else all of them."""
    alone = [line for line in lines if answer in line and overlap(line, question) >= 2]
    # 'Where is the person who ...' begins like a question for one line and needs two.
    needs_two = question.startswith("Where is") and "workshop" not in question
    return alone[:1] if alone and question.startswith(_IN_ONE_LINE) and not needs_two else lines
