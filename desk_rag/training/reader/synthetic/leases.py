"""Rental agreements: the same clauses for two or three things, with other sums and dates.

Knows clauses; the things of one document are told apart by name alone, as on a real desk.
"""

from __future__ import annotations

from random import Random

from desk_rag.training.reader.synthetic import values as value
from desk_rag.training.reader.synthetic.templates import Fact, Query, Section, tell
from desk_rag.training.reader.synthetic.words import phrases

_LET = phrases("garage|flat|cottage|shop|boat|storage unit|studio|allotment|workshop|office|parking space|cellar room")
_NOTICES = ("four weeks", "one month", "three months", "six weeks", "14 days", "two months")
_PAYDAYS = ("the first day", "the third working day", "the fifth", "the last day", "the fifteenth")
_TENANTS = ("tenant", "lessee", "hirer")
_TITLES = ("Rental agreement", "Lease", "Contract", "Tenancy agreement", "Agreement")
_CLAUSES = (
    Fact(
        (
            "The rent for the {thing} is {rent} a month.",
            "The {tenant} pays {rent} a month for the {thing}.",
            "The monthly rent is {rent}, electricity included.",
        ),
        (
            Query(
                (
                    "How much is the rent for the {thing}?",
                    "What does the {thing} cost a month?",
                    "What is the monthly rent of the {thing}?",
                ),
                "{rent}",
            ),
        ),
    ),
    Fact(
        (
            "The deposit is {deposit} and is paid before the keys are handed over.",
            "A deposit of {deposit} is due at the start.",
            "The {tenant} pays a deposit of {deposit}, which is returned without interest.",
        ),
        (
            Query(
                (
                    "How high is the deposit for the {thing}?",
                    "How much is the deposit for the {thing}?",
                    "What deposit has to be paid for the {thing}?",
                    "What security is paid for the {thing}?",
                ),
                "{deposit}",
            ),
        ),
    ),
    Fact(
        (
            "Either side may end the agreement with {notice_given}.",
            "The notice period is {notice}.",
            "The contract can be cancelled {notice} before the end of a quarter.",
        ),
        (
            Query(
                (
                    "What is the notice period for the {thing}?",
                    "How long before must one give notice for the {thing}?",
                    "How much notice is needed to end the contract for the {thing}?",
                ),
                "{notice}",
            ),
        ),
    ),
    Fact(
        (
            "The lease begins on {begin}.",
            "It runs from {begin} for an indefinite time.",
            "The {thing} is let from {begin}.",
        ),
        (
            Query(
                (
                    "When does the lease of the {thing} begin?",
                    "From when is the {thing} rented?",
                    "When does the contract for the {thing} start?",
                ),
                "{begin}",
            ),
        ),
    ),
    Fact(
        ("The rent is due on {payday} of each month.", "Rent is to be paid by {payday} of every month."),
        (
            Query(
                ("When is the rent for the {thing} due?", "By which day must the rent for the {thing} be paid?"),
                "{payday}",
            ),
        ),
    ),
    Fact(
        ("The landlord is {landlord}, the {tenant} is {renter}.", "{landlord} lets the {thing} to {renter}."),
        (
            Query(
                ("Who is the landlord of the {thing}?", "Who lets the {thing}?", "Who owns the {thing}?"), "{landlord}"
            ),
            Query(("Who rents the {thing}?", "Who is the tenant of the {thing}?"), "{renter}"),
        ),
    ),
    Fact(
        ("{keys} keys were handed over.", "The {tenant} received {keys} keys."),
        (Query("How many keys were handed over for the {thing}?", "{keys}"),),
    ),
    Fact(
        ("A late payment costs {late}.", "For every reminder {late} is charged."),
        (Query("What does a late payment for the {thing} cost?", "{late}"),),
    ),
)


def leases(rng: Random) -> list[Section]:
    """Agreements for two or three things, four to eight clauses each."""
    return [_lease(rng, thing) for thing in rng.sample(_LET, rng.randint(2, 3))]


def _lease(rng: Random, thing: str) -> Section:
    landlord, renter = value.people(rng, 2)
    drawn = {
        "thing": thing,
        "landlord": landlord,
        "renter": renter,
        "rent": value.money(rng),
        "deposit": value.money(rng),
        "late": value.money(rng, 2, 90),
        "begin": value.date(rng),
        "notice": (notice := rng.choice(_NOTICES)),
        "notice_given": f"{notice}' notice" if notice.endswith("s") else f"{notice} of notice",
        "payday": rng.choice(_PAYDAYS),
        "keys": str(rng.randint(1, 6)),
        "tenant": rng.choice(_TENANTS),
    }
    lines = [tell(rng, clause, drawn) for clause in _CLAUSES]
    rng.shuffle(lines)
    return Section(f"{rng.choice(_TITLES)} for the {thing}", tuple(lines[: rng.randint(4, 8)]))
