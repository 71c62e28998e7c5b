"""A file system that fails at a chosen call: the calls are real, one of them is not made."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence

import pytest

WRITING = ("open", "write", "fsync", "replace", "mkdir")


class FullAt:
    """Makes the `step`-th call of the given functions of `os` fail with ENOSPC (0: none) and counts all of them."""

    def __init__(self, patch: pytest.MonkeyPatch, step: int, names: Sequence[str] = WRITING) -> None:
        self.calls = 0
        self._step = step
        for name in names:
            patch.setattr(os, name, self._wrapped(getattr(os, name)))

    def _wrapped(self, real):  # type: ignore[no-untyped-def]
        def call(*args, **kwargs):  # type: ignore[no-untyped-def]
            self.calls += 1
            if self.calls == self._step:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return real(*args, **kwargs)

        return call
