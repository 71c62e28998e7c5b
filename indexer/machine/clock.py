"""Notice that the computer was suspended, or that its clock was set."""

from __future__ import annotations

_SLEPT_SECONDS = 60.0


class ClockJump:
    """Detects a suspend or a changed system time: wall clock and monotonic clock drift apart."""

    def __init__(self, wall: float, monotonic: float) -> None:
        self._offset = wall - monotonic

    def jumped(self, wall: float, monotonic: float) -> bool:
        """Return True once per jump of more than a minute in either direction."""
        offset = wall - monotonic
        moved = abs(offset - self._offset) > _SLEPT_SECONDS
        if moved:
            self._offset = offset
        return moved
