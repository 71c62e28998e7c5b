"""Keep the rates of loading and prefilling that were measured on this machine: `rates.json` in the data directory.

What is missing, damaged or of another form is measured anew.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from desk_rag.errors import ForeignPlace
from desk_rag.kv.loading.costs import Rates
from desk_rag.owned_directory import OwnedDirectory
from desk_rag.store.ownership import RATES

_MOST = 32
"""Combinations of model, device and drive that are remembered."""


def all_rates(root: Path) -> dict[str, Rates]:
    """Return the sound rates in a data directory, by the name of what was measured."""
    sound: dict[str, Rates] = {}
    try:
        table = json.loads((root / RATES).read_bytes())["rates"]
        for name, fields in table.items():
            with suppress(TypeError, ValueError):
                sound[name] = Rates(**{key: _numbers(value) for key, value in fields.items()})
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        pass
    return sound


def _numbers(value: Any) -> Any:
    """A number, or tuples of them, of what JSON holds."""
    return tuple(_numbers(each) for each in value) if isinstance(value, list) else float(value)


def keep(root: Path, name: str, rates: Rates) -> None:
    """Remember rates; on a drive that cannot be written they are measured again next time."""
    table = {key: value for key, value in all_rates(root).items() if key != name} | {name: rates}
    content = {"rates": {key: asdict(value) for key, value in list(table.items())[-_MOST:]}}
    with suppress(OSError, ForeignPlace):
        OwnedDirectory(root).write(root / RATES, json.dumps(content).encode())


def pays(root: Path, namespace: str, nbytes: int, prefill_seconds: float) -> bool:
    """Return whether a chunk KV is worth its file: loading it is faster on some device here, or nothing is known."""
    measured = [rates for name, rates in all_rates(root).items() if name.startswith(namespace)]
    return not measured or any(rates.pays(nbytes, prefill_seconds) for rates in measured)
