"""Remember how often chunk KV was used, so that memory keeps what is used most and not only what was used last."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Hashable

HALF_LIFE = 4096
"""Uses of anything after which a use counts half; some weeks of one person's questions."""
_MOST_KEYS = 65536
_RECENT = 16
"""Last uses that are protected: chunks of the answers just given, or loaded ahead of the next one."""
_RECENT_SHARE = 4
"""One part in so many of what is kept is protected at most."""


def decayed(hits: float, age: int, half_life: int = HALF_LIFE) -> float:
    """Return the weight of `hits` after `age` further uses."""
    return hits * math.pow(0.5, max(0, age) / half_life)


class Uses:
    """Decayed number of uses by key, also of what memory does not hold any more. Not thread-safe."""

    def __init__(self) -> None:
        self._now = 0
        self._known: OrderedDict[Hashable, tuple[float, int]] = OrderedDict()

    def note(self, key: Hashable) -> None:
        """Count a use."""
        hits, last = self._known.pop(key, (0.0, self._now))
        self._now += 1
        self._known[key] = decayed(hits, self._now - last) + 1, self._now
        if len(self._known) > _MOST_KEYS:
            self._known.popitem(last=False)

    def worth(self, key: Hashable, kept: int) -> float:
        """Return the decayed uses of a key among `kept` keys; infinite for one that was used just now."""
        hits, last = self._known.get(key, (0.0, 0))
        age = self._now - last
        return math.inf if age < min(_RECENT, kept // _RECENT_SHARE) else decayed(hits, age)
