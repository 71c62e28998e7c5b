"""Invented facts about people, firms and things, in lines that must be read together."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from desk_rag.training.reader.data.frame import answer_text
from desk_rag.training.reader.synthetic.prose import overlap
from desk_rag.training.reader.synthetic.templates import Asked, Wording, say
from desk_rag.training.reader.synthetic.values import people
from desk_rag.training.reader.synthetic.words import CITIES, FIRMS, MONTHS, PROJECTS, phrases

_FIRM_KINDS = phrases("Labs|Ltd|Systems|Group|Works|Partners|Bank|Clinic|School|Studio")


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
"""Beginnings of questions that one line answers."""


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
