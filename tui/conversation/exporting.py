"""Write the conversation on the screen to a file of the user's choice; nothing is ever overwritten."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

from desk_rag.answering.conversation import export
from desk_rag.answering.conversation.saved import saved_turn
from desk_rag.answering.events import Answer
from desk_rag.errors import DeskRagError
from desk_rag.store.chats.records import SavedChat

_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
"""Flags of a file that must not exist yet; without the last Windows changes line ends."""


def chat_of(answers: Sequence[Answer], title: str = "") -> SavedChat:
    """Return the answers on the screen as a chat, whether it is saved or private; `title` is that of a saved one."""
    turns = tuple(saved_turn(answer) for answer in answers if not answer.is_search)
    title = title or (" ".join(turns[0].question.split()) if turns else "Conversation")
    now = time.time()
    return SavedChat(0, title, now, now, turns)


def proposed_path(chat: SavedChat) -> Path:
    """Return a path in the home directory that is not taken: '~/chat-boiler-warranty.md'."""
    name = export.file_name(chat, "md").replace("chat-0-", "chat-").replace("chat-0.", "chat.")
    place = Path("~") / name
    number = 2
    while place.expanduser().exists():
        place = Path("~") / f"{Path(name).stem}-{number}.md"
        number += 1
    return place


def write(chat: SavedChat, place: Path, change_of: export.ChangeOf) -> Path:
    """Write a chat as Markdown, or as JSON if the name ends in '.json'; return the file. Raises DeskRagError."""
    if not chat.turns:
        raise DeskRagError("There is no finished answer to export.")
    path = place.expanduser().absolute()
    as_json = path.suffix.casefold() == ".json"
    text = export.dumps(export.as_json(chat, change_of)) if as_json else export.as_markdown(chat, change_of)
    try:
        descriptor = os.open(path, _NEW_FILE, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError as error:
        raise DeskRagError(f"{path} exists already.", remedy="Choose another name.") from error
    except OSError as error:
        raise DeskRagError(f"{path} cannot be written: {error.strerror or error}.") from error
    return path
