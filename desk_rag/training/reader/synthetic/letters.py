"""Minutes of meetings and private letters: people who did or will do something.

Knows sentences about people; two people of one document do like things.
"""

from __future__ import annotations

from random import Random

from desk_rag.training.reader.synthetic import values as value
from desk_rag.training.reader.synthetic.templates import Fact, Line, Query, Section, tell
from desk_rag.training.reader.synthetic.words import CITIES, LAST_NAMES, PROJECTS, THINGS, phrases

_TASKS = phrases(
    "repair the {thing}|order the {thing}|paint the {thing}|write to the council|collect the keys|book the hall|"
    "bring the cake|talk to the insurer|clean the {thing}|ask for three offers|print the posters|"
    "look after the seed bank|call the plumber|update the list|watch over the work on the {thing}|fetch the tools|"
    "check the accounts|measure the {thing}"
)
_PROMISE = Fact(
    (
        "{person} will {task} by {day}.",
        "{person} agreed to {task} before {day}.",
        "{person} offered to {task} until {day}.",
    ),
    (
        Query(("Who will {task}?", "Who agreed to {task}?", "Who is going to {task}?"), "{person}"),
        Query("By when will {person} {task}?", "{day}"),
    ),
)
_FIRM_KINDS = ("& Sons", "Brothers", "Ltd", "Builders", "Works", "Joinery")
_OFFERS = Fact(
    "Offers for the {thing} came from {firm_0} ({sum_0}), {firm_1} ({sum_1}) and {firm_2} ({sum_2}).",
    (
        Query("How much did {firm_1} ask for the {thing}?", "{sum_1}"),
        Query("What was the offer of {firm_0} for the {thing}?", "{sum_0}"),
    ),
)
_CHOICE = Fact(
    (
        "The committee chose {chosen} for the {thing}.",
        "The job goes to {chosen} for {chosen_sum}.",
        "It was decided to give the work on the {thing} to {chosen}.",
    ),
    (
        Query(
            (
                "Which firm did the committee choose for the {thing}?",
                "Which company was chosen for the repair of the {thing}?",
                "Who got the job of the {thing}?",
            ),
            "{chosen}",
        ),
    ),
)
_VOTE = Fact(
    "The motion was carried with {votes} votes to {against}.",
    (
        Query("How many voted for the motion?", "{votes}"),
        Query("What was the result of the vote?", "{votes} votes to {against}"),
    ),
)
_ROOMS = ("library", "boathouse", "school hall", "club room", "town hall")


def minutes(rng: Random) -> list[Section]:
    """Minutes of a meeting: promises, offers, a choice, a vote, the next meeting."""
    count = rng.randint(3, 6)
    lines = [_promise(rng, person) for person in value.people(rng, count)]
    lines += _offers(rng)
    lines.append(tell(rng, _VOTE, {"votes": str(rng.randint(3, 30)), "against": str(rng.randint(0, 9))}))
    lines.append(_next_meeting(rng))
    rng.shuffle(lines)
    title = rng.choice(
        [
            f"Minutes of the meeting on {value.date(rng)}",
            f"Committee meeting, {value.date(rng)}",
            f"Minutes, {rng.choice(PROJECTS)} club",
        ]
    )
    return [Section(title, tuple(lines[: rng.randint(4, 8)]))]


def _promise(rng: Random, person: str) -> Line:
    thing = rng.choice(THINGS)
    task = rng.choice(_TASKS).format(thing=thing)
    return tell(rng, _PROMISE, {"person": person, "task": task, "day": value.date(rng)})


def _offers(rng: Random) -> list[Line]:
    thing = rng.choice(THINGS)
    firms = [f"{rng.choice(LAST_NAMES)} {rng.choice(_FIRM_KINDS)}" for _ in range(3)]
    sums = [value.money(rng, 200, 9000) for _ in range(3)]
    drawn = {"thing": thing}
    for index, (firm, asked) in enumerate(zip(firms, sums, strict=True)):
        drawn |= {f"firm_{index}": firm, f"sum_{index}": asked}
    offers = tell(rng, _OFFERS, drawn)
    chosen = rng.randrange(3)
    choice = tell(rng, _CHOICE, {"thing": thing, "chosen": firms[chosen], "chosen_sum": sums[chosen]})
    return [offers, choice]


def _next_meeting(rng: Random) -> Line:
    day, hour, room = value.date(rng), value.hour(rng), rng.choice(_ROOMS)
    return Line(
        f"The next meeting is on {day} at {hour} in the {room}.",
        (
            ("When is the next meeting?", day if rng.random() < 0.5 else f"{day} at {hour}"),
            ("Where is the next meeting?", f"the {room}"),
            ("At what time does the next meeting begin?", hour),
        ),
    )


_RELATIONS = phrases("brother|sister|aunt|neighbour|dentist|landlord|teacher|plumber|cousin|trainer|editor|doctor")
_BEDROOMS = ("the small room", "the attic", "the blue room", "the caravan", "the study", "the guest room")
_PRESENTS = ("a coat", "the recipe", "two jars of honey", "a photograph", "the old map", "a cake")
_NEWS = (
    Fact(
        "{first} will sleep in {room}.",
        (
            Query(
                ("Where will {first} sleep?", "Which room does {first} get?", "Where should {first} sleep?"), "{room}"
            ),
        ),
    ),
    Fact(
        "My {relation} {person} moved to {city}.",
        (
            Query("Where did {person} move?", "{city}"),
            Query(("Where does my {relation} live now?", "To which city did the {relation} move?"), "{city}"),
            Query("What is the name of the {relation}?", "{person}"),
        ),
    ),
    Fact(
        "{first} sent us {present}.",
        (
            Query(("What did {first} send?", "What did we get from {first}?"), "{present}"),
            Query("Who sent {present}?", "{first}"),
        ),
    ),
    Fact(
        "The {relation} is called {person}.",
        (
            Query(
                (
                    "What is the name of the {relation}?",
                    "Who is the {relation}?",
                    "What is the {relation} called?",
                ),
                "{person}",
            ),
        ),
    ),
)


def letter(rng: Random) -> list[Section]:
    """One piece of news about each of three to five people."""
    count = rng.randint(3, 5)
    people = value.people(rng, count)
    lines = []
    for person, relation in zip(people, rng.sample(_RELATIONS, count), strict=True):
        drawn = {
            "person": person,
            "first": person.split()[0],
            "relation": relation,
            "room": rng.choice(_BEDROOMS),
            "present": rng.choice(_PRESENTS),
            "city": rng.choice(CITIES),
        }
        lines.append(rng.choice([tell(rng, news, drawn) for news in _NEWS]))
    return [Section(rng.choice(["Letter", f"Letter from {value.person(rng)}", "Dear all"]), tuple(lines))]
