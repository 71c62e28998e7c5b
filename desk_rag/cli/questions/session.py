"""The saved chat that a question from the command line belongs to."""

from __future__ import annotations

import textwrap
from datetime import datetime

from desk_rag.answering.conversation.saved import is_kept, saved_turn, turn_from
from desk_rag.answering.conversation.turns import Turn
from desk_rag.answering.events import Answer
from desk_rag.cli.store_access import exists
from desk_rag.config import Settings
from desk_rag.errors import ConfigError, DeskRagError
from desk_rag.sanitize import clean
from desk_rag.store.chats.chats import Chats, open_chats

_LONGEST_QUESTION = 80
"""Characters of the question that is named when a chat is continued."""
_MOST_EARLIER = 8
"""Turns of a continued chat that are handed on; a follow-up leans on the last ones."""


class ChatSession:
    """Earlier turns of the chat, and where the answer is saved."""

    def __init__(self, chats: Chats | None, chat_id: int | None, earlier: tuple[Turn, ...], notice: str) -> None:
        self._chats = chats
        self._chat_id = chat_id
        self.earlier = earlier
        self._notices = [notice] if notice else []
        self._saved = False
        self.continues = ""
        """A sentence that says which chat is continued; empty for a new one."""

    @classmethod
    def begin(
        cls, settings: Settings, continued: str | None, *, private: bool, beside: ChatSession | None = None
    ) -> ChatSession:
        """Open the chats unless nothing is to be read or saved. Raises ConfigError if there is no such chat.

        The answer is saved in the chat of `beside`, if there is one, though its turns are not handed on.
        """
        save = settings.chats.save and not private
        if continued is None and not save:
            return cls(None, None, (), "")
        chats, notice = open_chats(settings.data_dir, create=save and exists(settings))
        if continued is None:
            return cls(chats, None if beside is None else beside._chat_id, (), notice)
        chat_id = _chosen(chats, continued)
        if chats is None or chat_id is None:
            raise ConfigError(
                f"There is no saved chat to continue. {notice}".rstrip(), remedy="Ask without --continue first."
            )
        all_turns = chats.get(chat_id).turns
        turns = all_turns[-_MOST_EARLIER:]
        earlier = tuple(turn_from(turn) for turn in turns)
        session = cls(chats if save else None, chat_id, earlier, notice)
        if turns:
            asked_at = datetime.fromtimestamp(turns[-1].asked_at)
            last = f", last “{_shortened(turns[-1].question)}”" if len(all_turns) > 1 else ""
            session.continues = (
                f"Continuing chat {chat_id}: “{_shortened(all_turns[0].question)}”{last} ({asked_at:%Y-%m-%d %H:%M})."
                + (" Nothing of this question is saved." if not save else "")
            )
        return session

    def save(self, answer: Answer) -> None:
        """Save the turn; a failure becomes a notice, since the answer matters more."""
        if self._chats is None:
            return
        if not is_kept(answer):
            self._chats.close()
            return
        try:
            self._chat_id = self._chats.add(self._chat_id, saved_turn(answer)).chat_id
            self._saved = True
        except DeskRagError as error:
            self._notices.append(f"This answer could not be saved: {error.message}")
        finally:
            self._chats.close()

    def notices(self, *, terminal: bool) -> list[str]:
        """Return what to tell the user afterwards; on a terminal also how to go on."""
        hint = f'Chat {self._chat_id}; to ask on: desk-rag ask --continue "…"' if terminal and self._saved else ""
        return [*self._notices, *([hint] if hint else [])]

    def as_json(self) -> dict[str, object]:
        """Return the fields that `ask --json` adds."""
        notices: dict[str, object] = {"chat_notices": self._notices} if self._notices else {}
        return {"chat": self._chat_id if self._saved else None, **notices}


def _shortened(question: str) -> str:
    return textwrap.shorten(clean(question), _LONGEST_QUESTION, placeholder=" …")


def _chosen(chats: Chats | None, continued: str) -> int | None:
    if not continued.isdecimal():
        raise ConfigError(f"'{continued}' is not the number of a chat.", remedy="desk-rag chats lists them.")
    if chats is None or int(continued):
        return int(continued) if chats is not None else None
    return chats.latest()
