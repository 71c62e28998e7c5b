"""A finding of a check of `desk-rag doctor`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
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
    figures: Mapping[str, object] = field(default_factory=dict)
    """Measurements behind the sentence, for `--json`."""
