"""Commands that people of other programs type into the prompt: '/help' opens the help instead of searching for 'help'.

Everything here has a key, too, which is named once the command is done. '/ help' with a space is a search as ever.
"""

from __future__ import annotations

_PANELS = {
    "settings": ("settings", "config", "set", "options"),
    "library": ("library", "files", "ls", "list", "index"),
    "activity": ("activity",),
    "cache": ("cache",),
    "doctor": ("doctor",),
    "models": ("models", "model"),
}
"""Names of panels, which are those of their keys, and what is typed for them."""
_ACTIONS = {
    ("help", "app.help"): ("help", "h", "?", "commands", "keys"),
    ("quit", "app.quit"): ("quit", "exit", "q", "bye"),
    ("new_chat", "screen.new_chat"): ("new", "clear", "reset"),
    ("chats", "screen.chats"): ("chats", "history", "resume"),
    ("export", "screen.export"): ("export", "save"),
}
_COMMANDS = {
    **{f"/{typed}": (name, f"app.panel('{name}')") for name, words in _PANELS.items() for typed in words},
    **{f"/{typed}": action for action, words in _ACTIONS.items() for typed in words},
}


def of(text: str) -> tuple[str, str] | None:
    """Return the name of the key and the action of a command; None for what is a question or a search."""
    return _COMMANDS.get(text.strip().casefold())


def explained(text: str, key: str) -> str:
    """Return what is said after the command `text`, whose action has the key `key`."""
    word = text.strip().removeprefix("/")
    return f"{key} does this. To search for the word “{word}”, put a space before it: / {word}"
