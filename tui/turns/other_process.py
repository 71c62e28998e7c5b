"""Answers by the process that watches the folders and has the models loaded, while this one loads its own."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from desk_rag.answering.events import AnswerEvent, FilesWaiting
from desk_rag.config import Settings

if TYPE_CHECKING:
    from desk_rag.answering.conversation.asking import Request


_REST_SECONDS = 4.0


class OtherProcess:
    """A `desk-rag watch` with the same settings."""

    def __init__(self, pid: int, settings: Settings) -> None:
        self.pid = pid
        self._settings = settings
        self._answers = 0
        """Answers in progress."""
        self._used_at = time.monotonic()

    @property
    def rests(self) -> bool:
        """Whether nothing was asked for a moment, so that loading models holds up no answer."""
        return not self._answers and time.monotonic() > self._used_at + _REST_SECONDS

    def end(self) -> None:
        """Expect no more of it."""
        self._used_at = float("-inf")

    @classmethod
    def of(cls, settings: Settings) -> OtherProcess | None:
        """Return the process that answers questions about this data directory as this one would; None without one."""
        from desk_rag.indexer.resident import keeping, values

        said = keeping.status(settings.data_dir) or {}
        pid = said.get("pid")
        # A process that was kept for `ask` makes way for this one.
        if said.get("kept") or said.get("settings") != values.settings_key(settings) or not isinstance(pid, int):
            return None
        return cls(pid, settings)

    def ask(self, request: Request, stop: Callable[[], bool], wait: Callable[[], bool]) -> Iterator[AnswerEvent]:
        """Yield the events of its answer.

        Raises NoResident before the first if the process has ended or declines; DeskRagError with what it reports.
        """
        self._answers += 1
        try:
            yield from self._ask(request, stop, wait)
        finally:
            self._answers -= 1
            self._used_at = time.monotonic()

    def _ask(self, request: Request, stop: Callable[[], bool], wait: Callable[[], bool]) -> Iterator[AnswerEvent]:
        waits = wait()

        def is_hurried() -> bool:
            return waits and not wait() and not stop()

        for event in self._answer(request, lambda: stop() or is_hurried(), waits=waits):
            if is_hurried():
                break
            yield event
            waits = waits and isinstance(event, FilesWaiting)
        if is_hurried():
            yield from self._answer(request, stop, waits=False)

    def _answer(self, request: Request, stop: Callable[[], bool], *, waits: bool) -> Iterator[AnswerEvent]:
        from desk_rag.indexer.resident import client, values

        message: dict[str, object] = {"do": "ask", "request": values.plain(request), "wait": waits}
        for reply in client.request(
            self._settings.data_dir, {**message, "settings": values.settings_key(self._settings)}, stop
        ):
            if "kind" in reply:
                yield values.to_event(reply)
