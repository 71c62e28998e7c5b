"""Decides which bed is watered next, from the level of the barrel and the moisture of the soil.

The rules are those of the design notes: the driest bed first, never twice within six hours, only the tomatoes when
water is short, nothing at all in frost or in the hot hours of the day.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

SHORT_OF_WATER_LITRES = 60
FAVOURITE_BED = "tomatoes"


@dataclass(frozen=True)
class Bed:
    """A bed with its latest measurement."""

    name: str
    valve: int
    moisture_percent: float
    last_watered: datetime


@dataclass(frozen=True)
class Rules:
    """Limits from settings.toml."""

    dry_below: float = 31
    litres_per_watering: float = 6
    keep_in_barrel: float = 20
    quiet_from_hour: int = 11
    quiet_to_hour: int = 17
    frost_limit: float = 3
    pause: timedelta = timedelta(hours=6)


def is_quiet(now: datetime, rules: Rules) -> bool:
    """In the hot hours of the day water evaporates before it reaches the roots."""
    return rules.quiet_from_hour <= now.hour < rules.quiet_to_hour


def usable_litres(level: float, rules: Rules) -> float:
    """What may be taken from the barrel without the pump running dry."""
    return max(0.0, level - rules.keep_in_barrel)


def choose_bed(beds: list[Bed], level: float, air_degrees: float, now: datetime, rules: Rules) -> Bed | None:
    """Return the bed to water now, or None when no bed should be watered."""
    if air_degrees < rules.frost_limit or is_quiet(now, rules):
        return None
    if usable_litres(level, rules) < rules.litres_per_watering:
        return None
    thirsty = [
        bed
        for bed in beds
        if bed.moisture_percent < rules.dry_below and now - bed.last_watered >= rules.pause
    ]
    if level < SHORT_OF_WATER_LITRES:
        thirsty = [bed for bed in thirsty if bed.name == FAVOURITE_BED]
    return min(thirsty, key=lambda bed: bed.moisture_percent, default=None)


def leak_suspected(level_before: float, level_now: float, minutes: float, any_valve_open: bool) -> bool:
    """The leak guard: the level falls by more than 10 litres in ten minutes although all valves are closed."""
    if any_valve_open or minutes <= 0:
        return False
    return (level_before - level_now) / minutes * 10 > 10
