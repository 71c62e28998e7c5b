"""The footer with the keys of the screen that fit, drawn anew only when what it shows has changed."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.screen import Screen
from textual.widgets import Footer
from textual.widgets._footer import FooterKey

_FIRST_TO_GO = ("chats", "pause_or_resume", "panel('library')", "quit")
"""Actions whose keys are left out of a footer that is too narrow, in this order; the help and the palette name them."""


class KeyFooter(Footer):
    """Textual's footer, which makes all its widgets anew whenever the focus moves or an action is enabled."""

    _is_ready = False
    _drawn: tuple[object, ...] | None = None

    def compose(self) -> ComposeResult:
        if self._is_ready:
            self._drawn = self._keys(self.screen)
            # Textual keeps each key that is bound to this value until the value changes, which it never does.
            self.mutate_reactive(Footer.compact)
        widgets = list(super().compose())
        self._fit([widget for widget in widgets if isinstance(widget, FooterKey)])
        yield from widgets

    def on_resize(self) -> None:
        """Show the keys for which there is room now."""
        self._fit(list(self.query(FooterKey)))

    def bindings_changed(self, screen: Screen[object]) -> None:
        """Compare the keys, names and states that would be drawn with those that were."""
        self._is_ready = True
        if not (self.is_attached and screen is self.screen) or self._keys(screen) != self._drawn:
            super().bindings_changed(screen)

    def _fit(self, keys: list[FooterKey]) -> None:
        """Hide the key of the screen itself, and of the others those that would be cut or lie under the palette's."""
        here = str(getattr(self.screen, "NAME", ""))
        shown = [key for key in keys if key.description != here]
        for action in _FIRST_TO_GO:
            if sum(map(_cells, shown)) > self.size.width > 0:
                shown = [key for key in shown if key.action.removeprefix("app.") != action]
        for key in keys:
            key.display = key in shown

    def _keys(self, screen: Screen[object]) -> tuple[object, ...]:
        return tuple(
            (binding.key, binding.key_display, binding.description, binding.action, enabled, tooltip)
            for key, (_, binding, enabled, tooltip) in screen.active_bindings.items()
            if binding.show or key == self.app.COMMAND_PALETTE_BINDING
        )


def _cells(key: FooterKey) -> int:
    """Return the width of a key, its name, and a blank or the palette's border."""
    return len(key.key_display) + len(key.description) + 2
