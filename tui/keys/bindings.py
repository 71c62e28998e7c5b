"""Textual bindings of the actions whose keys the user can change."""

from __future__ import annotations

from textual.binding import Binding

from desk_rag.tui.keys.actions import KEY_ACTIONS

_KEYS = {action.name: action.key for action in KEY_ACTIONS}


def bound(name: str, action: str, label: str, *, show: bool = False, priority: bool = False) -> Binding:
    """Return a binding of the key of `name`, which the app's keymap may replace; `label` stands in the footer."""
    return Binding(_KEYS[name], action, label, show=show, priority=priority, id=name)
