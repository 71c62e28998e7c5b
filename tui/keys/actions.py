"""Every action that has a key: its name in the settings, its key, its meaning. The help is made from it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Area(Enum):
    """The screens on which a key acts."""

    EVERYWHERE = "Everywhere"
    CHAT = "Chat"
    LIBRARY = "Library"
    ACTIVITY = "Activity"
    FIRST_RUN = "First steps"


@dataclass(frozen=True, slots=True)
class KeyAction:
    """One action whose key can be changed in the settings."""

    name: str
    """Name used in the settings."""
    key: str
    """Textual's name of the key."""
    meaning: str
    area: Area = Area.CHAT


NUMBER_OF_SOURCE_KEYS = 9
KEY_ACTIONS = (
    KeyAction("help", "f1", "keys and signs, those of the place you are in first", Area.EVERYWHERE),
    KeyAction("settings", "f2", "settings; again: back", Area.EVERYWHERE),
    KeyAction("library", "f3", "library: every folder and file with its state", Area.EVERYWHERE),
    KeyAction("activity", "f4", "activity: what is being read, and why it waits", Area.EVERYWHERE),
    KeyAction("cache", "f5", "cache: room, use, what is deleted next, check", Area.EVERYWHERE),
    KeyAction("pause", "f6", "pause indexing for an hour, or go on", Area.EVERYWHERE),
    KeyAction("doctor", "f8", "doctor: check the installation", Area.EVERYWHERE),
    KeyAction("undo", "f9", "undo the last change made in the library", Area.EVERYWHERE),
    KeyAction("models", "alt+l", "models on this computer, and which of them fit", Area.EVERYWHERE),
    KeyAction("jump", "ctrl+g", "jump: a letter appears at every place you can go to", Area.EVERYWHERE),
    KeyAction("quit", "ctrl+q", "quit; Ctrl+C twice does the same", Area.EVERYWHERE),
    KeyAction("back", "escape", "withdraw a question that waits, stop the answer, or go back to the prompt"),
    KeyAction("actions", "alt+m", "what can be done with the selected answer; in the transcript, Enter"),
    KeyAction("turn_above", "alt+up", "select the answer above"),
    KeyAction("turn_below", "alt+down", "select the answer below"),
    *(
        KeyAction(f"source_{number}", f"alt+{number}", f"show source {number}")
        for number in range(1, NUMBER_OF_SOURCE_KEYS + 1)
    ),
    KeyAction("next_source", "alt+n", "show the next source"),
    KeyAction("previous_source", "alt+p", "show the previous source"),
    KeyAction("sources", "ctrl+b", "show or hide the sources: a pane, or a tab on a narrow terminal"),
    KeyAction("read_source", "alt+v", "read the source's document here, at the quote"),
    KeyAction("open_source", "ctrl+o", "open it in your editor or viewer, at the quote"),
    KeyAction("copy", "alt+c", "copy the answer with its quotes"),
    KeyAction("ask_again", "alt+r", "ask the selected question again"),
    KeyAction("edit", "alt+e", "edit the selected question"),
    KeyAction("edit_searched", "alt+w", "edit what was searched: the question as it was completed and limited"),
    KeyAction("write", "alt+x", "write the question in your editor, the one that VISUAL or EDITOR names"),
    KeyAction("timing", "alt+t", "the stages of the time to the first word"),
    KeyAction("compare", "f7", "compare with full prefill: times and words"),
    KeyAction("new_chat", "ctrl+n", "new chat; Ctrl+P also offers a private one"),
    KeyAction("chats", "ctrl+r", "saved chats: search, open, rename, delete"),
    KeyAction("find", "ctrl+f", "find in this chat; Up and Down go to other matches"),
    KeyAction("export", "alt+s", "write this chat to a file, as Markdown or JSON"),
    KeyAction("entry_actions", "ctrl+o", "what can be done with the folder or file", Area.LIBRARY),
    KeyAction("show", "ctrl+t", "list all files, those read, failed or left out", Area.LIBRARY),
    KeyAction("work_now", "ctrl+o", "fill caches for an hour although the computer is busy", Area.ACTIVITY),
    KeyAction("other_model", "ctrl+o", "choose the model", Area.FIRST_RUN),
    KeyAction("leave_out", "ctrl+t", "leave out the file with most of the text; again: read it", Area.FIRST_RUN),
)

FIXED_KEYS = (
    ("letters", "always go to the prompt"),
    ("Enter", "ask; on an empty prompt, answer from the files read so far"),
    ("Ctrl+J", "new line in the question; Alt+Enter does the same"),
    ("Up, Down", "earlier questions; in the transcript, the answer above or below"),
    ("Page Up, Page Down", "scroll the answers, also from the prompt"),
    ("Tab", "from the prompt to the transcript and the sources"),
    ("@", "in the prompt: search only in a folder or file; Tab or Enter takes the marked name"),
    ("/", "at the beginning of the prompt: list the passages with these words, without an answer; /help opens this"),
    ("Ctrl+C", "copy what is selected; else empty the prompt; twice: quit"),
    ("Ctrl+P", "every action by name"),
)
"""Keys of the chat that always stay as they are, and their meaning."""

GROUPS = (
    ("back",),
    ("actions",),
    ("turn_above", "turn_below"),
    tuple(f"source_{number}" for number in range(1, NUMBER_OF_SOURCE_KEYS + 1)),
    ("next_source", "previous_source"),
    ("sources",),
    ("read_source",),
    ("open_source",),
    ("copy",),
    ("ask_again", "edit"),
    ("edit_searched",),
    ("write",),
    ("timing",),
    ("compare",),
    ("new_chat",),
    ("chats",),
    ("find",),
    ("export",),
)
"""Actions of the chat that one line of the help explains together."""
GROUP_MEANINGS = {
    "turn_above": "select the answer above, below",
    "source_1": "show source 1 … 9",
    "next_source": "show the next, previous source",
    "ask_again": "ask the selected question again; edit it",
}
