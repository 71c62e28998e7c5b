"""The user's own keys, from `keys` under [ui] in the settings: checked, shown, and handed to Textual."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from desk_rag.errors import ConfigError
from desk_rag.tui.keys.actions import GROUP_MEANINGS, GROUPS, KEY_ACTIONS, Area, KeyAction

_ACTIONS = {action.name: action for action in KEY_ACTIONS}
_NAMED = {
    "up", "down", "left", "right", "home", "end", "pageup", "pagedown", "insert", "delete", "backspace", "space",
    "enter", "tab", "escape", "backslash", "right_square_bracket", "underscore",
}  # fmt: skip
_KEY = re.compile(r"(?:(ctrl|alt|shift)\+)?([a-z0-9]|f(?:[1-9]|1[0-2])|[a-z_]{2,})")
_NOT_SENT = {
    "ctrl+i": "terminals send it as Tab",
    "ctrl+m": "terminals send it as Enter",
    "ctrl+h": "terminals send it as Backspace",
    "ctrl+s": "some terminals stop their output on it",
    "ctrl+z": "it undoes typing in the prompt",
    "alt+b": "terminals send it for a word to the left",
    "alt+f": "terminals send it for a word to the right",
}
_FIXED = {
    "ctrl+c": "it copies, and pressed twice it quits",
    "ctrl+p": "it lists every action, so that no key is the only way",
    "ctrl+j": "it begins a new line in the prompt",
    "alt+enter": "it begins a new line in the prompt",
}
_SHOWN = {"pageup": "Page Up", "pagedown": "Page Down", "escape": "Esc", "right_square_bracket": "]",
          "backslash": "\\", "underscore": "_"}  # fmt: skip
_REMEDY = "Correct `keys` under [ui] in the settings file; `desk-rag help keys` lists the actions and their keys."


@dataclass(frozen=True, slots=True)
class KeyMap:
    """The keys in use: the defaults, and what the user has chosen instead."""

    chosen: Mapping[str, str] = field(default_factory=dict)
    """Keys by the name of the action."""

    def key(self, action: str) -> str:
        """Return the key of an action as Textual names it."""
        return self.chosen.get(action, _ACTIONS[action].key)

    def shown(self, action: str) -> str:
        """Return the key of an action as the user reads it: 'Alt+R'. Other text is returned as it is."""
        return shown_key(self.key(action)) if action in _ACTIONS else action

    def help_rows(self) -> list[tuple[str, str]]:
        """Return the keys of the chat and what they do, related ones in one row."""
        rows = []
        for names in GROUPS:
            changed = any(name in self.chosen for name in names)
            keys = [self.shown(name) for name in names]
            together = f"{keys[0]} … {keys[-1][-1]}" if len(keys) > 2 and not changed else ", ".join(keys)
            rows.append((together, GROUP_MEANINGS.get(names[0], _ACTIONS[names[0]].meaning)))
        return rows

    def general_rows(self) -> list[tuple[str, str]]:
        """Return the keys that act everywhere, and what they do."""
        return [(self.shown(each.name), each.meaning) for each in KEY_ACTIONS if each.area is Area.EVERYWHERE]


def checked(chosen: Mapping[str, str]) -> KeyMap:
    """Return the keys that a user chose. Raises ConfigError for one that cannot be used, with the reason."""
    keys = {name: _checked_key(name, key) for name, key in chosen.items()}
    keymap = KeyMap(keys)
    for name in keys:
        for other in KEY_ACTIONS:
            if other.name != name and keymap.key(other.name) == keys[name] and _meet(_ACTIONS[name], other):
                raise ConfigError(
                    f"ui.keys: {shown_key(keys[name])} cannot be both '{name}' and '{other.name}'.",
                    remedy=f"Choose another key for one of them. {_REMEDY}",
                )
    return keymap


def shown_key(key: str) -> str:
    """Return a key as the user reads it."""
    *modifiers, last = key.split("+")
    name = _SHOWN.get(last, last.capitalize() if len(last) > 1 else last.upper())
    return "+".join([*(modifier.capitalize() for modifier in modifiers), name])


def _checked_key(name: str, key: str) -> str:
    if name not in _ACTIONS:
        nearest = difflib.get_close_matches(name, _ACTIONS, n=1)
        hint = f" Did you mean '{nearest[0]}'?" if nearest else ""
        raise ConfigError(f"ui.keys: there is no action '{name}'.{hint}", remedy=_REMEDY)
    key = key.strip().lower().replace(" ", "")
    match = _KEY.fullmatch(key)
    if match is None or (len(match[2]) > 1 and not _is_function_key(match[2]) and match[2] not in _NAMED):
        raise ConfigError(
            f"ui.keys: '{name}' has the key '{key}', which is not the name of a key.",
            remedy=f"Names are such as ctrl+t, alt+k, f10, alt+pageup. {_REMEDY}",
        )
    reason = _FIXED.get(key) or _NOT_SENT.get(key) or _typing(match[1], match[2])
    if reason and key != _ACTIONS[name].key:
        raise ConfigError(f"ui.keys: '{name}' cannot have the key {shown_key(key)}: {reason}.", remedy=_REMEDY)
    return key


def _typing(modifier: str | None, last: str) -> str:
    """Return why a key is needed for writing or moving; '' if it is not."""
    if modifier in (None, "shift") and len(last) == 1:
        return "letters and digits go to the prompt"
    if modifier is None and not _is_function_key(last):
        return "it moves or edits"
    if modifier == "ctrl" and last.isdigit():
        return "terminals do not send it"
    return "terminals do not send it apart" if modifier == "shift" and not _is_function_key(last) else ""


def _is_function_key(last: str) -> bool:
    return len(last) > 1 and last[0] == "f" and last[1:].isdigit()


def _meet(one: KeyAction, other: KeyAction) -> bool:
    return one.area is other.area or Area.EVERYWHERE in (one.area, other.area)
