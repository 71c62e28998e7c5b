"""The checks of `desk-rag doctor`, handed in by the command line, which stands above the UI."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import Enum
from typing import Protocol

from desk_rag.config import Settings


class Finding(Protocol):
    """Result of one check."""

    @property
    def name(self) -> str:
        """The part that was checked."""

    @property
    def verdict(self) -> Enum:
        """The check's result: 'ok', 'warn' or 'fail'."""

    @property
    def detail(self) -> str:
        """The finding in words."""

    @property
    def remedy(self) -> str:
        """The remedy; '' if there is nothing to do."""


Checks = Callable[[Settings], Iterator[Finding]]
"""Function that runs all checks, in the order in which users meet faults."""


def no_checks(_settings: Settings) -> Iterator[Finding]:
    """Return no findings: for a UI without the command line."""
    return iter(())
