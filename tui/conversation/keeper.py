"""Save the turns of the conversation on the screen, and find earlier ones.

Without Textual. Methods may wait for the disk, so they are called in worker threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING

from desk_rag.errors import DeskRagError

if TYPE_CHECKING:
    from desk_rag.answering.events import Answer
    from desk_rag.store.chats.chats import Chats
    from desk_rag.store.chats.records import ChatRow, SavedAs, SavedChat

_MOST_QUESTIONS = 500


class Keeper:
    """The chats in one data directory and the one that is being written."""

    def __init__(self, root: Path, *, save: bool) -> None:
        self._root = root
        self._save = save
        self._guard = RLock()
        self._chats: Chats | None = None
        self._chat_id: int | None = None
        self._saved: dict[int, SavedAs] = {}
        self.is_private = not save
        """True if nothing of this conversation is saved."""
        self.notice = ""
        """Notice about a failure to save; empty if there was none."""

    def save(self, turn: int, answer: Answer) -> None:
        """Save a turn under its number on the screen, in its place if it was asked before; a failure is a notice."""
        from desk_rag.answering.conversation.saved import is_kept, saved_turn

        if self.is_private or not is_kept(answer):
            return

        with self._guard:
            chats = self._open(create=True)
            if chats is None:
                return
            try:
                known = self._saved.get(turn)
                saved = saved_turn(answer)
                self._saved[turn] = chats.replace(known, saved) if known else chats.add(self._chat_id, saved)
                self._chat_id = self._saved[turn].chat_id
            except DeskRagError as error:
                self.notice = f"This answer could not be saved: {error.message}"

    def delete_turn(self, turn: int) -> None:
        """Delete a turn from its saved chat, if it was saved. Raises StoreError."""
        with self._guard:
            if (known := self._saved.pop(turn, None)) and (chats := self._open(create=False)):
                chats.delete_turn(known)

    def begin(self, *, private: bool = False) -> None:
        """Begin a new conversation."""
        with self._guard:
            self._chat_id, self._saved = None, {}
            self.is_private = private or not self._save

    def resume(self, chat: SavedChat, turns: Sequence[int]) -> None:
        """Go on with a saved chat whose turns have these numbers on the screen."""
        from desk_rag.store.chats.records import SavedAs

        with self._guard:
            self.begin()
            self._chat_id = chat.chat_id
            saved = (SavedAs(chat.chat_id, turn.turn_id) for turn in chat.turns)
            self._saved = dict(zip(turns, saved, strict=True))

    def rows(self, words: str = "") -> list[ChatRow]:
        """Return the saved chats, the latest first; with `words`, those that contain them. Raises StoreError."""
        with self._guard:
            chats = self._open(create=False)
            if chats is None:
                return []
            return chats.search(words) if words.strip() else chats.rows()

    def chat(self, chat_id: int) -> SavedChat:
        """Return a saved chat. Raises ConfigError, StoreError."""
        with self._guard:
            chats = self._open(create=True)
            if chats is None:
                raise DeskRagError(self.notice or "There are no saved chats.")
            return chats.get(chat_id)

    def delete(self, chat_id: int) -> None:
        """Delete a saved chat; what is on the screen stays and is saved anew with its next turn. Raises StoreError."""
        with self._guard:
            if chats := self._open(create=False):
                chats.delete(chat_id)
            if chat_id == self._chat_id:
                self.begin(private=self.is_private)

    def title(self) -> str:
        """Return the title of the conversation on the screen, which may have been renamed; '' if it is not saved."""
        with self._guard:
            chats = None if self._chat_id is None else self._open(create=False)
            return "" if chats is None or self._chat_id is None else chats.get(self._chat_id).title

    def rename(self, chat_id: int, title: str) -> None:
        """Give a saved chat another title. Raises ConfigError, StoreError."""
        with self._guard:
            if chats := self._open(create=False):
                chats.rename(chat_id, title)

    def questions(self) -> list[str]:
        """Return the questions of saved chats, oldest first, each once. Raises StoreError."""
        with self._guard:
            chats = self._open(create=False)
            return chats.questions(_MOST_QUESTIONS)[::-1] if chats else []

    def close(self) -> None:
        """Close the database."""
        with self._guard:
            if self._chats is not None:
                self._chats.close()
                self._chats = None

    def _open(self, *, create: bool) -> Chats | None:
        if self._chats is None:
            from desk_rag.store.chats.chats import open_chats

            self._chats, notice = open_chats(self._root, create=create)
            self.notice = notice or self.notice
        return self._chats
