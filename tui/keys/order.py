"""Keys in the order in which they were typed, also when they arrive in one burst.

A key that is text waits in the queue of the input, while bindings are run by the app; Textual lets the second overtake
the first. Here a key is handed on only once everything that the keys before it set off has been done. Text after text
needs no waiting: it goes to the same input.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from textual import events
from textual.message import Message
from textual.message_pump import MessagePump
from textual.widgets import Input, TextArea

if TYPE_CHECKING:
    from textual.app import App

_TRIPS = 2
"""Number of `KeysSettled` messages to wait for: the first follows a key to the app, the second what the key caused."""
_LOOK_SECONDS = 0.05
_MOST_LOOKS = 100
"""Number of checks after which, five seconds later, the next key is forwarded in any case."""


_FEWEST_JOINED = 8
"""Number of characters that must arrive together to be inserted as one text."""


class TypedText(events.Paste):
    """Characters read from the terminal at once; an input receives them as one text, other widgets as keys."""

    def __init__(self, keys: list[events.Key]) -> None:
        super().__init__("".join(key.character or "" for key in keys))
        self.keys = keys


def joined(messages: Iterable[Message]) -> Iterator[Message]:
    """Yield the messages of one read, with characters that follow each other as one TypedText."""
    keys: list[events.Key] = []
    for message in messages:
        if isinstance(message, events.Key) and _is_text(message):
            keys.append(message)
            continue
        yield from _together(keys)
        keys = []
        yield message
    yield from _together(keys)


def _together(keys: list[events.Key]) -> list[events.Key] | list[TypedText]:
    return [TypedText(keys)] if len(keys) >= _FEWEST_JOINED else keys


@dataclass
class KeysSettled(Message):
    """Message sent after keys; when the app receives it, the keys before it have been handled."""

    trip: int


class KeyOrder:
    """Queue that forwards keys and pastes to the app one by one. All methods run in the app's own task."""

    def __init__(self, app: App[Any], deliver: Callable[[events.Event], Awaitable[None]]) -> None:
        self._app, self._deliver = app, deliver
        self._waiting: deque[events.Event] = deque()
        self._delivered, self._settled = 0, 0
        self._only_text = True
        """Whether all keys that have not settled are text."""
        self._trip, self._legs_left, self._covers = 0, 0, 0
        self._look: asyncio.TimerHandle | None = None

    async def take(self, event: events.Event) -> None:
        """Forward a key or paste, now or after those before it."""
        self._waiting.append(event)
        await self._hand_on()

    async def settled(self, message: KeysSettled) -> None:
        """Record that a `KeysSettled` message arrived or timed out; both may be reported."""
        if message.trip != self._trip or not self._legs_left:
            return
        if self._look is not None:
            self._look.cancel()
        self._legs_left -= 1
        if self._legs_left:
            self._send()
            return
        self._settled = self._covers
        if self._settled == self._delivered:
            self._only_text = True
        await self._hand_on()
        self._begin()

    async def _hand_on(self) -> None:
        while self._waiting:
            is_text = _is_text(self._waiting[0])
            if self._delivered > self._settled and not (is_text and self._only_text):
                return
            event = self._waiting.popleft()
            if isinstance(event, TypedText):
                if not isinstance(self._app.focused, Input | TextArea):
                    self._waiting.extendleft(reversed(event.keys))
                    continue
                event = events.Paste(event.text)
            self._only_text = self._only_text and is_text
            self._delivered += 1
            await self._deliver(event)
            self._begin()

    def _begin(self) -> None:
        if not self._legs_left and self._delivered > self._settled:
            self._covers, self._legs_left = self._delivered, _TRIPS
            self._send()

    def _send(self) -> None:
        self._trip += 1
        message = KeysSettled(self._trip)
        target = self._target()
        if not target.post_message(message):
            target = self._app
            target.post_message(message)
        self._look = asyncio.get_running_loop().call_later(_LOOK_SECONDS, self._look_after, target, self._trip, 1)

    def _look_after(self, target: MessagePump, trip: int, looks: int) -> None:
        """Stop waiting for a message that was lost because its widget was removed."""
        if trip != self._trip:
            return
        if looks >= _MOST_LOOKS or not (target.is_attached and target.is_running):
            self._app.post_message(KeysSettled(trip))
            return
        self._look = asyncio.get_running_loop().call_later(_LOOK_SECONDS, self._look_after, target, trip, looks + 1)

    def _target(self) -> MessagePump:
        if not self._app.screen_stack:
            return self._app
        return self._app.focused or self._app.screen


def _is_text(event: events.Event) -> bool:
    if isinstance(event, events.Key):
        return event.is_printable and not event.key.startswith(("alt+", "ctrl+"))
    return isinstance(event, events.Paste)
