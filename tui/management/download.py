"""Fetch a model from the hub, as `desk-rag models download` does, in steps that the screen shows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from desk_rag.sanitize import shown_path
from desk_rag.tui.wording import gib

if TYPE_CHECKING:
    from desk_rag.model.library.download import Offer


@dataclass(frozen=True, slots=True)
class Described:
    """An offer of the hub in words."""

    facts: str
    access: str
    """The first step where the publisher grants access; '' if everybody has it."""
    is_here: bool
    """True if nothing is missing."""


class ModelDownload:
    """The download of one model. Methods may take long, and raise ModelError; the first connects to the hub."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._offer: Offer | None = None

    def ask(self) -> Described:
        """Ask the hub what would be fetched. Raises ModelError also where the drive has no room for it."""
        from desk_rag.model.library import download

        self._offer = None
        offer = download.ask_hub(self.name)
        download.check_room(offer)
        self._offer = offer
        missing = "" if offer.missing == offer.size else f", {gib(offer.missing)} of it not here yet"
        facts = (
            f"{gib(offer.size)}{missing} · licence: {offer.license or 'not named'} · goes to "
            f"{shown_path(offer.cache)}, where {gib(offer.free)} are free"
        )
        access = (
            f"Its publisher grants access: accept the licence at https://huggingface.co/{offer.name}, then run "
            "`hf auth login` once in a terminal."
        )
        return Described(facts, access if offer.gated else "", not offer.missing)

    def fetch(self, report: Callable[[str, float], None], stop: Callable[[], bool]) -> None:
        """Fetch what is missing; `report` takes progress in words and as a share. Raises Cancelled after `stop`."""
        from desk_rag.model.library import download

        assert self._offer is not None, "the hub was asked first"
        progress = download.Progress()
        download.fetch(
            self._offer,
            lambda done, total: report(progress.sentence(done, total), done / total if total else 0.0),
            stop,
        )
