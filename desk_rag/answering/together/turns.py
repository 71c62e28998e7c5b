"""Run several answers in turns: each on a thread of its own, only one at a time, until all of them wait for something.

Their requests are then served together. The code of an answer is thus the same as for one question, and nothing that
it uses is ever called by two threads at once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Sequence
from typing import Generic, Protocol, TypeVar

from desk_rag.errors import Cancelled


class Wish(Protocol):
    """A request that an answer waits for."""

    error: BaseException | None
    """Raised in the answer's thread once the wish is served."""
    is_served: bool


W = TypeVar("W", bound=Wish)


class Member(Generic[W]):
    """One answer; `wait_for` is called by its own thread, everything else by the thread that runs them all."""

    def __init__(self, work: Callable[[], None], name: str) -> None:
        """`work` is run by the first `resume`."""
        self._work = work
        self._go, self._paused = threading.Semaphore(0), threading.Semaphore(0)
        self._cancelled = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.wish: W | None = None
        self.ended = False
        self.error: BaseException | None = None
        """The error that ended it; None if it finished."""

    def wait_for(self, wish: W) -> None:
        """Wait until `wish` is served. Raises its error, or Cancelled."""
        self.wish = wish
        self._paused.release()
        self._go.acquire()
        self.wish = None
        if self._cancelled:
            raise Cancelled("The answer was given up.")
        if wish.error is not None:
            raise wish.error

    def resume(self) -> None:
        """Run it until it waits again or ends."""
        if self._thread.ident is None:
            self._thread.start()
        else:
            self._go.release()
        self._paused.acquire()

    def cancel(self) -> None:
        """End it where it waits."""
        self._cancelled = True
        if self._thread.ident is not None:
            while not self.ended:
                self.resume()
            self._thread.join()

    def _run(self) -> None:
        try:
            self._work()
        except BaseException as error:  # for the thread that reads this answer's events
            self.error = error
        finally:
            self.ended = True
            self._paused.release()


def in_turns(members: Sequence[Member[W]], serve: Callable[[list[W]], None]) -> Generator[None, None, None]:
    """Run all members to their ends; yields after each one's turn.

    `serve` gets what all that have not ended wait for, and serves one of them at least. Closing this ends the others.
    """
    running = list(members)
    try:
        while running:
            for member in running:
                if member.wish is None or member.wish.is_served:
                    member.resume()
                    yield
            running = [member for member in running if not member.ended]
            wishes = [member.wish for member in running if member.wish is not None]
            if wishes:
                serve(wishes)
    finally:
        for member in running:
            member.cancel()
