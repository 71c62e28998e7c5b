"""Lists of like entries: fault codes, prices, duties, timetables, settings, logs.

Knows one list at a time; what makes them hard is that every entry looks like the next.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random

from desk_rag.training.reader.synthetic import values as value
from desk_rag.training.reader.synthetic.templates import Fact, Line, Query, Section, Wording, say, tell
from desk_rag.training.reader.synthetic.words import FIRMS, THINGS, phrases

_CODE_MARKS = ("F", "E", "Err ", "A", "")
_MEANINGS = phrases(
    "the water pressure is too low|the flame went out|the fan does not turn|the sensor is broken|the filter is blocked|"
    "the door is open|the battery is empty|the motor is too hot|no signal is received|"
    "the unit is locked after five failed starts|the drain is clogged|the tank is full|the fuse has blown|"
    "the drum is overloaded|the paper has jammed|the ink is nearly used up|the cable is loose|"
    "the frost guard is active|the pump runs dry|the gas valve is stuck|the display has lost its link|"
    "the clock has not been set"
)
_ADVICE = (
    "",
    " Call the service.",
    " Wait ten minutes and restart.",
    " Clean it and try again.",
    " Close the tap first.",
)
_FAULT_FORMS = (
    (0.4, "{code}: {Meaning}.{advice}"),
    (0.7, "Code {code} means that {meaning}.{advice}"),
    (0.85, "{code} - {meaning}"),
    (1.0, "If {code} shows, {meaning}.{advice}"),
)
_FAULT_QUESTIONS = (
    "What does fault code {code} mean?",
    "What does {code} mean?",
    "What is wrong when the {thing} shows {code}?",
    "The {thing} shows {code}, what does that mean?",
    "Meaning of code {code} of the {thing}?",
)
_CODE_QUESTIONS = ("Which code means that {meaning}?", "Which code is shown when {meaning}?")
_FAULT_TITLES = ("Manual of the {thing} \u203a Fault codes", "{Thing} error messages", "{Thing} \u203a Troubleshooting")


def faults(rng: Random) -> list[Section]:
    """The fault codes of a thing."""
    thing = rng.choice(THINGS)
    count = rng.randint(4, 10)
    mark = rng.choice(_CODE_MARKS)
    numbers = rng.sample(range(1, 99), count)
    meanings = rng.sample(_MEANINGS, count)
    draw = rng.random()
    form = _form(draw, _FAULT_FORMS)
    answer = "{Meaning}" if form.startswith("{code}: ") else "{meaning}"
    fact = Fact(form, (Query(_FAULT_QUESTIONS, answer), Query(_CODE_QUESTIONS, "{code}")))
    about = {"thing": thing, "Thing": value.capitalised(thing)}
    lines = []
    for number, meaning in zip(numbers, meanings, strict=True):
        drawn = about | {
            "code": f"{mark}{number:02d}" if mark else str(number),
            "meaning": meaning,
            "Meaning": value.capitalised(meaning),
        }
        if "{advice}" in form:
            drawn["advice"] = rng.choice(_ADVICE)
        lines.append(tell(rng, fact, drawn))
    return [Section(say(rng, _FAULT_TITLES, about), tuple(lines))]


def _form(draw: float, forms: tuple[tuple[float, str], ...]) -> str:
    """The first form whose bound is above `draw`."""
    return next(form for bound, form in forms if draw < bound)


_SOLD = phrases(
    "yearly service|call-out|hour of work|spare key|new filter|breakfast|bed linen|parking space|guided tour|"
    "child's ticket|day ticket|cabin|towel set|bicycle hire|late arrival|dog|second cleaning|delivery|licence|"
    "membership|mooring|lesson|replacement part|inspection|subscription"
)
_PRICE_SENTENCES = (
    "The {item} costs {price}.",
    "For the {item} {price} is charged.",
    "{Item} at {price}.",
    "We charge {price} for the {item}.",
)
_PRICE_FORMS: tuple[tuple[float, Wording], ...] = (
    (0.5, _PRICE_SENTENCES),
    (0.8, "{Item}: {price}"),
    (1.0, "Item: {item}; Price: {price}"),
)
_PRICE_QUERY = Query(
    (
        "How much does the {item} cost?",
        "What is the price of the {item}?",
        "What do I pay for the {item}?",
        "How much is the {item}?",
    ),
    "{price}",
)
_PRICE_TITLES = ("Price list for the {thing}", "{Thing} \u203a Costs", "Prices", "Fees", "What the {thing} costs")


def prices(rng: Random) -> list[Section]:
    """A price list."""
    thing = rng.choice(THINGS)
    count = rng.randint(4, 9)
    draw = rng.random()
    fact = Fact(next(form for bound, form in _PRICE_FORMS if draw < bound), (_PRICE_QUERY,))
    lines = []
    for item in rng.sample(_SOLD, count):
        drawn = {"item": item, "Item": value.capitalised(item), "price": value.money(rng, 2, 700)}
        lines.append(tell(rng, fact, drawn))
    title = say(rng, _PRICE_TITLES, {"thing": thing, "Thing": value.capitalised(thing)})
    return [Section(title, tuple(lines))]


_DUTIES = phrases(
    "handles the claims|looks after the garden|is responsible for the accounts|keeps the keys|"
    "is in charge of the boats|takes the bookings|runs the kitchen|answers questions about the policy|"
    "trains the juniors|writes the newsletter|signs the contracts|feeds the cat|mends the sails|does the tax return"
)
_OTHER_WORDS: Mapping[str, tuple[str, ...]] = {
    "handles the claims": ("Who deals with claims?", "Whom do I ask about a claim?"),
    "looks after the garden": ("Who takes care of the garden?",),
    "is responsible for the accounts": ("Who does the accounts?", "Who is the treasurer?"),
    "keeps the keys": ("Who has the keys?",),
    "is in charge of the boats": ("Who is responsible for the boats?",),
    "takes the bookings": ("With whom can I book?", "Who accepts bookings?"),
    "runs the kitchen": ("Who is in charge of the kitchen?",),
    "trains the juniors": ("Who coaches the young ones?",),
    "writes the newsletter": ("Who is the author of the newsletter?",),
    "does the tax return": ("Who prepares the tax return?",),
}
_FORMS_OF_ADDRESS = ("", "Mr ", "Mrs ", "Dr ")
_DUTY_TITLES = ("Who does what", "Contacts", "Responsibilities", "Team")


def duties(rng: Random) -> list[Section]:
    """Duties of people, sometimes with a number."""
    chosen = rng.sample(_DUTIES, rng.randint(3, 7))
    people = value.people(rng, len(chosen))
    lines = []
    for duty, person in zip(chosen, people, strict=True):
        number = value.phone(rng)
        called = rng.choice(_FORMS_OF_ADDRESS) + person
        with_number = rng.random() < 0.4
        plain = f"Who {duty}?"
        pairs = [
            (rng.choice((plain, *_OTHER_WORDS.get(duty, (plain,)))), called),
            (f"What does {called} do?", duty),
        ]
        if with_number:
            pairs.append((f"What is the number of the person who {duty}?", number))
        text = f"{called} {duty}; the number is {number}." if with_number else f"{called} {duty}."
        lines.append(Line(text, tuple(pairs)))
    return [Section(rng.choice(_DUTY_TITLES), tuple(lines))]


_EVENTS = phrases(
    "doors open|the band plays|the first race starts|supper is served|the prizes are given|the bus leaves|"
    "the guests arrive|the boats are launched|the fireworks begin|the market opens|the children's race starts|"
    "the mayor speaks|registration closes|the hall is locked|the ferry sails|breakfast ends"
)
_EVENT_FORMS = ((0.5, "{hour} {event}"), (0.8, "At {hour} {event}."), (1.0, "{Event} at {hour}."))
_HOUR_QUESTIONS = ("When does it happen that {event}?", "At what time {is_it}{event}?", "When: {event}?")
_SEATS = Fact(
    (
        "There are {seats} seats on the terrace.",
        "The terrace has {seats} seats.",
        "{seats} seats stand on the terrace.",
    ),
    (Query(("How many seats are on the terrace?", "How many people can sit on the terrace?"), "{seats}"),),
)
_SCHEDULE_TITLES = ("Programme for {day}", "Timetable", "Wedding plan", "The day, {day}")


def schedule(rng: Random) -> list[Section]:
    """Programme of one day."""
    count = rng.randint(4, 9)
    form = _form(rng.random(), _EVENT_FORMS)
    day = value.date(rng)
    fact = Fact(form, (Query(_HOUR_QUESTIONS, "{hour}"), Query("What happens at {hour}?", "{event}")))
    lines = []
    for event in rng.sample(_EVENTS, count):
        drawn = {"event": event, "Event": value.capitalised(event), "hour": value.hour(rng)}
        drawn["is_it"] = rng.choice(("is it that ", ""))
        lines.append(tell(rng, fact, drawn))
    lines.append(tell(rng, _SEATS, {"seats": str(rng.randint(20, 600))}))
    return [Section(say(rng, _SCHEDULE_TITLES, {"day": day}), tuple(lines))]


_SETTINGS: Mapping[str, Callable[[Random, str], str]] = {
    "backup_days": lambda rng, _: str(rng.randint(1, 90)),
    "data_dir": lambda rng, program: f"/var/lib/{program}{rng.randint(1, 9)}",
    "host": lambda rng, _: f"{rng.choice(FIRMS).lower()}.example.org",
    "log_level": lambda rng, _: rng.choice(("info", "debug", "warn")),
    "max_retries": lambda rng, _: str(rng.randint(1, 30)),
    "poll_minutes": lambda rng, _: str(rng.randint(1, 60)),
    "port": lambda rng, _: str(rng.randint(1000, 65000)),
    "threshold_litres": lambda rng, _: str(rng.randint(10, 900)),
    "timeout": lambda rng, _: str(rng.randint(1, 900)),
    "workers": lambda rng, _: str(rng.randint(1, 64)),
}
_SETTING = Fact(
    (
        "{key} = {value}",
        "{key}: {value}",
        "{KEY}={value}",
        "`{key}` is {value} by default.",
        "The default of {key} is {value}.",
    ),
    (
        Query(
            (
                "What is the {words}?",
                "What is {key} set to?",
                "What is the default {words} of {program}?",
                "Which value has {key}?",
            ),
            "{value}",
        ),
    ),
)
_SETTING_TITLES = ("{program}.conf", "{program} \u203a Settings", "README \u203a Configuration")


def settings(rng: Random) -> list[Section]:
    """A program's settings."""
    program = f"{rng.choice(FIRMS).lower()}d"
    lines = []
    for key in rng.sample(sorted(_SETTINGS), rng.randint(3, 7)):
        drawn = {
            "key": key,
            "KEY": key.upper(),
            "words": key.replace("_", " "),
            "program": program,
            "value": _SETTINGS[key](rng, program),
        }
        lines.append(tell(rng, _SETTING, drawn))
    return [Section(say(rng, _SETTING_TITLES, {"program": program}), tuple(lines))]


_LOGGED = (
    "Biscuit",
    "Luna",
    "the car",
    "the hive",
    "the pump",
    "Grandfather",
    "the sourdough",
    "the greenhouse",
)
_ACTS = phrases(
    "was given a vaccine|had the oil changed|was weighed|was cleaned|got new tyres|was treated for ticks|was checked|"
    "was fed|had a tooth pulled|was moved indoors|was oiled|got a new valve|was watered|had an operation"
)
_LOG_FORMS = ((0.5, "{day}: {who} {act}, {cost}."), (1.0, "On {day} {who} {act}; it cost {cost}."))
_LOG_TITLES = ("Log of {who}", "Record", "Diary", "Notes")


def log(rng: Random) -> list[Section]:
    """Work done, for whom, and its cost."""
    who = rng.choice(_LOGGED)
    lines = []
    for act in rng.sample(_ACTS, rng.randint(3, 6)):
        drawn = {"who": who, "act": act, "done": act.removeprefix("was ")}
        drawn |= {"day": value.date(rng), "cost": value.money(rng, 5, 600)}
        asked_when = "When was {who} {done}?" if act.startswith("was ") else "When was it that {who} {act}?"
        queries = (
            Query(asked_when, "{day}"),
            Query("How much did it cost when {who} {act}?", "{cost}"),
            Query("What happened on {day}?", "{who} {act}"),
        )
        lines.append(tell(rng, Fact(_form(rng.random(), _LOG_FORMS), queries), drawn))
    return [Section(say(rng, _LOG_TITLES, {"who": who}), tuple(lines))]
