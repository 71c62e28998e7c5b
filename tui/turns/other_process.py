"""Answers by a process that watches the folders and has the models loaded, so that the UI needs none of its own."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from typing import TYPE_CHECKING

import psutil

from desk_rag.answering.events import AnswerEvent
from desk_rag.config import Settings

if TYPE_CHECKING:
    from desk_rag.answering.conversation.turns import Request
    from desk_rag.indexer.resident.protocol import Message


class OtherProcess:
    """A process with the same settings that answers for others: `desk-rag watch`, or that of another UI."""

    def __init__(self, pid: int, settings: Settings) -> None:
        self.pid = pid
        self._settings = settings
        self._process = psutil.Process(pid)
        self._is_given_up = False

    @property
    def has_ended(self) -> bool:
        """True once the process has ended, or answers no more."""
        return self._is_given_up or not self._process.is_running()

    def give_up(self) -> None:
        """Expect no more of it."""
        self._is_given_up = True

    @classmethod
    def of(cls, settings: Settings, *, kept: bool = False) -> OtherProcess | None:
        """Return the process that answers questions about this data directory as this one would; None without one.

        One that was `kept` for `ask` indexes nothing, so that it answers only until this one can.
        """
        from desk_rag.indexer.resident import keeping, values

        said = keeping.status(settings.data_dir) or {}
        pid = said.get("pid")
        is_alike = said.get("settings") == values.settings_key(settings)
        if bool(said.get("kept")) is not kept or not is_alike or not isinstance(pid, int):
            return None
        try:
            return cls(pid, settings)
        except psutil.NoSuchProcess:
            return None

    def ask(self, request: Request, stop: Callable[[], bool], wait: Callable[[], bool]) -> Iterator[AnswerEvent]:
        """Yield the events of its answer.

        Raises NoResident before the first if the process has ended or declines; DeskRagError with what it reports.
        """
        from desk_rag.indexer.resident import attending

        return attending.ask(self._send_for(request), stop, wait)

    def ask_all(
        self, requests: Sequence[Request], stop: Callable[[], bool]
    ) -> Generator[Iterator[AnswerEvent], None, None]:
        """Yield the events of several answers. Raises NoResident."""
        from desk_rag.indexer.resident import attending

        yield from attending.several(requests, self._sent(stop))

    def prefetch(self, question: str) -> None:
        """Nothing: what another process brings nearer is its own decision."""

    def _send_for(self, request: Request) -> Callable[[bool, Callable[[], bool]], Iterator[AnswerEvent]]:
        from desk_rag.indexer.resident import attending, values

        def send(waits: bool, stop: Callable[[], bool]) -> Iterator[AnswerEvent]:
            for reply in self._sent(stop)(attending.question(request, wait=waits)):
                if "kind" in reply:
                    yield values.to_event(reply)

        return send

    def _sent(self, stop: Callable[[], bool]) -> Callable[[Message], Generator[Message, None, None]]:
        """Return what sends a message to the process and yields the replies."""
        from desk_rag.indexer.resident import attending, client, values

        key, data_dir = values.settings_key(self._settings), self._settings.data_dir

        def send(message: Message) -> Generator[Message, None, None]:
            return client.request(data_dir, {**message, "settings": key}, stop, stop_seconds=attending.STOP_SECONDS)

        return send
