"""Records of several things of one kind: a club's boats, the places of a walk, invoices.

Knows facts about one thing; a document holds several things with the same facts, mixed.
"""

from __future__ import annotations

from random import Random

from desk_rag.training.reader.synthetic import values as value
from desk_rag.training.reader.synthetic.templates import Fact, Query, Section, say, tell
from desk_rag.training.reader.synthetic.words import CITIES, LAST_NAMES, THINGS, phrases

_OWNED_NAMES = phrases("Bittern|Teal|Heron|Curlew|Osprey|Plover|Wagtail|Merlin|Dipper|Avocet|Siskin|Linnet")
_OWNED_KINDS = phrases("boat|rowing boat|barge|hut|locomotive|telescope|organ|bell|engine")
_OWNED_FACTS = (
    Fact(
        (
            "The {name} was built by {builder} in {year}.",
            "{builder} built the {name} in {year} in {city}.",
            "The {kind} {name}, built in {year}, is the work of {builder}.",
        ),
        (
            Query(
                ("Who built the {name}?", "Who made the {kind} {name}?", "By whom was the {name} built?"), "{builder}"
            ),
            Query(
                ("When was the {name} built?", "In which year was the {kind} {name} made?", "How old is the {name}?"),
                "{year}",
            ),
        ),
    ),
    Fact(
        (
            "The {name} was given to us by {giver}.",
            "{giver} gave the {name} to the club.",
            "The {name} is a gift of {giver}.",
        ),
        (Query(("Who gave the {name}?", "From whom did we get the {name}?", "Who donated the {name}?"), "{giver}"),),
    ),
    Fact(
        ("The {name} was bought for {price}.", "We paid {price} for the {name}."),
        (
            Query(
                (
                    "How much did the {name} cost?",
                    "What was paid for the {name}?",
                    "What was the price of the {kind} {name}?",
                ),
                "{price}",
            ),
        ),
    ),
)
_OWNED_TITLES = ("Our {kind}s", "Inventory", "History", "Handbook \u203a The {kind}s")


def possessions(rng: Random) -> list[Section]:
    """A club's boats or bells: who built them, who gave them, what they cost."""
    count = rng.randint(3, 6)
    names = rng.sample(_OWNED_NAMES, count)
    builders = value.people(rng, count)
    kind = rng.choice(_OWNED_KINDS)
    lines = []
    for name, builder in zip(names, builders, strict=True):
        drawn = {
            "name": name,
            "builder": builder,
            "kind": kind,
            "year": str(rng.randint(1850, 2024)),
            "city": rng.choice(CITIES),
            "price": value.money(rng, 300, 40000),
            "giver": value.person(rng),
        }
        sentences = [tell(rng, fact, drawn) for fact in _OWNED_FACTS]
        lines += rng.sample(sentences, rng.randint(1, 2))
    rng.shuffle(lines)
    return [Section(say(rng, _OWNED_TITLES, {"kind": kind}), tuple(lines))]


_PLACE_FACTS = (
    Fact(
        "{Place} lies at {height} metres.",
        (
            Query(
                (
                    "How high is {place}?",
                    "At what height does {place} lie?",
                    "What is the altitude of {place}?",
                ),
                "{height} metres",
            ),
        ),
    ),
    Fact(
        "The way to {place} is {distance} kilometres long.",
        (Query(("How far is it to {place}?", "How long is the way to {place}?"), "{distance} kilometres"),),
    ),
    Fact(
        "{Place} was opened in {year}.",
        (Query(("When was {place} opened?", "In which year was {place} opened?"), "{year}"),),
    ),
)
_CROSSED = Fact(
    "We cross {place} on the {day} day; it is {height} metres high.",
    (
        Query("How high is {place}?", "{height} metres"),
        Query("On which day do we cross {place}?", "the {day} day"),
    ),
)
_DAYS = ("second", "third", "fourth", "fifth", "last")
_WALK_TITLES = ("The walk", "Route", "Travel plan", "Guide")


def places(rng: Random) -> list[Section]:
    """One fact each about the places of a walk."""
    lines = []
    for _ in range(rng.randint(3, 6)):
        place = value.place(rng)
        drawn = {
            "place": place,
            "Place": value.capitalised(place),
            "height": f"{rng.randint(200, 3900):,}",
            "distance": str(rng.randint(2, 30)),
            "year": str(rng.randint(1790, 2010)),
        }
        sentences = [tell(rng, fact, drawn) for fact in _PLACE_FACTS]
        sentences.append(tell(rng, _CROSSED, drawn | {"day": rng.choice(_DAYS)}))
        lines.append(rng.choice(sentences))
    return [Section(rng.choice(_WALK_TITLES), tuple(lines))]


_TRADES = ("Heating", "Windows", "Roofing", "Glass", "Electric", "Plumbing")
_INVOICE_HEAD = (
    Fact("Invoice {number}", (Query("What is the invoice number of {sender}?", "{number}"),)),
    Fact("From: {sender}", (Query("Who sent invoice {number}?", "{sender}"),)),
)
_INVOICE_FACTS = (
    Fact(
        ("For work on the {thing}.", "Subject: {thing}"),
        (Query("What is invoice {number} for?", "{thing}"),),
    ),
    Fact(
        ("Total: {total}", "The total of this invoice is {total}.", "Amount due: {total}"),
        (
            Query(
                (
                    "What is the total of invoice {number}?",
                    "How much is invoice {number}?",
                    "How much is owed to {sender}?",
                    "What does {sender} charge in all?",
                ),
                "{total}",
            ),
        ),
    ),
    Fact(
        ("Net: {net}, tax: {tax}", "Of this, {tax} is tax."),
        (Query("How much tax is in invoice {number}?", "{tax}"),),
    ),
    Fact(
        ("Please pay by {due}.", "Payable until {due}."),
        (
            Query(
                ("When must invoice {number} be paid?", "By when is the invoice of {sender} to be paid?"),
                "{due}",
            ),
        ),
    ),
    Fact("Date: {date}", (Query("What is the date of invoice {number}?", "{date}"),)),
)


def invoices(rng: Random) -> list[Section]:
    """Two or three invoices."""
    return [_invoice(rng) for _ in range(rng.randint(2, 3))]


def _invoice(rng: Random) -> Section:
    by_year = rng.random() < 0.6
    number = f"{rng.randint(2019, 2027)}-{rng.randint(100, 9999)}" if by_year else value.code(rng)
    sender = f"{rng.choice(LAST_NAMES)} {rng.choice(_TRADES)}"
    drawn = {
        "number": number,
        "sender": sender,
        "total": value.money(rng),
        "tax": value.money(rng, 5, 200),
        "net": value.money(rng),
        "date": value.date(rng),
        "due": value.date(rng),
        "thing": rng.choice(THINGS),
    }
    head = [tell(rng, fact, drawn) for fact in _INVOICE_HEAD]
    rest = [tell(rng, fact, drawn) for fact in _INVOICE_FACTS]
    rng.shuffle(rest)
    title = f"Invoice {number} \u203a {sender}" if rng.random() < 0.6 else sender
    return Section(title, (*head, *rest[: rng.randint(2, 5)]))
