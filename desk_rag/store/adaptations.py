"""Results of `desk-rag adapt`: what it measured and learned, one file per namespace beside the model's record."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from desk_rag.kv.shift import PlaceShift, from_bytes
from desk_rag.kv.types import Namespace
from desk_rag.owned_directory import OwnedDirectory
from desk_rag.store.ownership import content_proves

_SUFFIX = ".shift.safetensors"


@dataclass(frozen=True, slots=True)
class Adaptation:
    """A stored shift, and what was recorded when it was learned."""

    shift: PlaceShift
    facts: dict[str, Any]
    """Measurements and verdict; `kept` says whether the shift is used or only the measurement was stored."""
    nbytes: int


def read(data_dir: Path, namespace: Namespace) -> Adaptation | None:
    """The adaptation for chunk KV of this namespace; None if there is none, or it is damaged."""
    with suppress(OSError, ValueError):
        data = _file(data_dir, namespace).read_bytes()
        return Adaptation(*from_bytes(data), len(data))
    return None


def stored(data_dir: Path) -> dict[str, Adaptation]:
    """Every readable adaptation by its namespace."""
    names = [file.name.removesuffix(_SUFFIX) for file in sorted((data_dir / "models").glob(f"*{_SUFFIX}"))]
    known = {name: read(data_dir, Namespace(name)) for name in names}
    return {name: one for name, one in known.items() if one is not None}


def write(data_dir: Path, namespace: Namespace, shift: PlaceShift, facts: dict[str, Any]) -> int:
    """Store a shift atomically, mode 0600, in place of an earlier one; returns its size. Raises OSError."""
    file, home = _file(data_dir, namespace), OwnedDirectory(data_dir)
    data = shift.to_bytes(facts)
    for leftover in file.parent.glob(f"{file.name}.*.tmp"):
        home.remove(leftover, content_proves(f"models/{leftover.name}"))
    home.write(file, data)
    return len(data)


def remove(data_dir: Path, namespace: Namespace) -> bool:
    """Remove the adaptation of a namespace; False if there is none."""
    file = _file(data_dir, namespace)
    return OwnedDirectory(data_dir).remove(file, content_proves(f"models/{file.name}")) is not None


def _file(data_dir: Path, namespace: Namespace) -> Path:
    return data_dir / "models" / f"{namespace}{_SUFFIX}"
