"""The encoding that the environment asks for."""

from __future__ import annotations

import os
from collections.abc import Mapping


def wants_ascii(environment: Mapping[str, str]) -> bool:
    """Return whether the locale is set, and to an encoding other than UTF-8."""
    locale = environment.get("LC_ALL") or environment.get("LC_CTYPE") or environment.get("LANG") or ""
    return bool(locale) and "utf" not in locale.lower().replace("-", "") and os.name == "posix"
