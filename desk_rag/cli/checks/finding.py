"""A finding of a check of `desk-rag doctor`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Verdict(Enum):
    """Severity of a finding."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    """Result of one check."""

    name: str
    verdict: Verdict
    detail: str
    remedy: str = ""
