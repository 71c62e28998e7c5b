"""Answer several questions at once with one engine: retrieval and evidence in turns, loads and passes together.

Each answer runs the engine's own code over its own cache, so its text is the same as when it is asked alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager

import torch

from desk_rag.answering.engine import AnswerEngine
from desk_rag.answering.events import AnswerEvent
from desk_rag.answering.together import loads
from desk_rag.answering.together.loads import LoadWish, MemberConnector
from desk_rag.answering.together.passes import PassWish, Rows
from desk_rag.answering.together.turns import Member, in_turns
from desk_rag.device_lock import HeldLock
from desk_rag.model.memory import device as device_memory

MOST = 8
"""Maximum number of questions at once; more gain little, see "Several questions as one pass" in bench/LOG.md."""
_SHARE = 0.5
"""Largest share of free GPU memory for the caches of several answers."""

Ask = Callable[[AnswerEngine], Iterator[AnswerEvent]]
"""Asks one question of the engine that it is given."""


class Together:
    """Answers groups of questions of one engine; keeps their caches from group to group."""

    def __init__(self, engine: AnswerEngine, most: int) -> None:
        """Use `of`, which chooses `most`. Raises torch.OutOfMemoryError."""
        target, connector, fused = engine.loading
        assert fused is not None and target.slab is not None, "without a slab and the fused pass there are no rows"
        self.most = most
        self._engine, self._target, self._connector = engine, target, connector
        self._rows = Rows(target, fused, most, target.slab.cache.capacity)

    @classmethod
    def of(cls, engine: AnswerEngine, questions: int) -> Together | None:
        """Prepare to answer up to `questions` at once; None where they must, or had better, be answered one by one.

        That is the case without a GPU, with lazy attention, with recompute, for models that need their own pass, and
        where memory is short.
        """
        target, _, fused = engine.loading
        device = target.model.device
        if device.type != "cuda" or fused is None or target.slab is None:
            return None
        row = sum(layer.key_slab.nbytes + layer.value_slab.nbytes for layer in target.slab.cache.layers)
        most = min(MOST, questions, int(_SHARE * device_memory.free_gpu_bytes(device) // row))
        try:
            return cls(engine, most) if most > 1 else None
        except torch.OutOfMemoryError:
            device_memory.release_unused(device)
            return None

    @contextmanager
    def answering(self, asks: Sequence[Ask]) -> Iterator[list[Iterator[AnswerEvent]]]:
        """Yield an iterator of events for each question, to be read in any order; holds the device.

        An answer's error is raised where its events are read. Answers that are not read to their end are cancelled.
        """
        assert len(asks) <= self.most
        events = [deque[AnswerEvent]() for _ in asks]
        members: list[Member[LoadWish | PassWish]] = []
        for index, ask in enumerate(asks):
            members.append(Member(self._work(index, ask, events[index], members), f"answer-{index}"))
        with self._engine.turn.answering(), closing(in_turns(members, self._serve)) as turns:
            yield [_events_of(member, own, turns) for member, own in zip(members, events, strict=True)]

    def _work(
        self, index: int, ask: Ask, events: deque[AnswerEvent], members: Sequence[Member[LoadWish | PassWish]]
    ) -> Callable[[], None]:
        row = self._rows.rows[index]

        def work() -> None:
            member = members[index]
            row.fused.wait_for = member.wait_for
            target = self._target.over(row)
            connector = MemberConnector(self._connector, self._engine.store, target, member.wait_for)
            try:
                for event in ask(self._engine.beside(target, connector, HeldLock())):
                    events.append(event)
            finally:
                row.fused.wait_for = None

        return work

    def _serve(self, wishes: list[LoadWish | PassWish]) -> None:
        """Begin all loads first, since answers that wait for one may soon wait for the same pass as the others."""
        if chunks := [wish for wish in wishes if isinstance(wish, LoadWish)]:
            loads.serve(self._connector, chunks)
        else:
            self._rows.serve([wish for wish in wishes if isinstance(wish, PassWish)])


def _events_of(
    member: Member[LoadWish | PassWish], events: deque[AnswerEvent], turns: Iterator[None]
) -> Iterator[AnswerEvent]:
    while True:
        while events:
            yield events.popleft()
        if member.ended:
            if member.error is not None:
                raise member.error
            return
        next(turns)
