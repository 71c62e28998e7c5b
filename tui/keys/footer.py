"""The footer with the keys of the screen, drawn anew only when what it shows has changed."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.screen import Screen
from textual.widgets import Footer

FOOTER_CELLS = 96
"""What all keys of the chat's footer take. Below it the palette's, docked at the right, would lie over others."""


class KeyFooter(Footer):
    """Textual's footer, which makes all its widgets anew whenever the focus moves or an action is enabled."""

    _is_ready = False
    _drawn: tuple[object, ...] | None = None

    def compose(self) -> ComposeResult:
        if self._is_ready:
            self._drawn = self._keys(self.screen)
            # Textual keeps each key that is bound to this value until the value changes, which it never does.
            self.mutate_reactive(Footer.compact)
        yield from super().compose()

    def bindings_changed(self, screen: Screen[object]) -> None:
        """Compare the keys, names and states that would be drawn with those that were."""
        self._is_ready = True
        if not (self.is_attached and screen is self.screen) or self._keys(screen) != self._drawn:
            super().bindings_changed(screen)

    def _keys(self, screen: Screen[object]) -> tuple[object, ...]:
        return tuple(
            (binding.key, binding.key_display, binding.description, binding.action, enabled, tooltip)
            for key, (_, binding, enabled, tooltip) in screen.active_bindings.items()
            if binding.show or key == self.app.COMMAND_PALETTE_BINDING
        )
