"""Everything the screens beside the chat work on: the store, the folders, the settings and their file.

The screens work before a model is loaded and without one. Until the answering engine is up, `store` is a reader of
their own; `attach` hands over the engine's store and the indexing of this process.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from desk_rag import config
from desk_rag.config import Settings
from desk_rag.indexer.resident.exclusion import rules_in, with_rules
from desk_rag.settings_file import Key, SettingsFile
from desk_rag.tui.management.checks import Checks, no_checks

if TYPE_CHECKING:
    from desk_rag.store.store import Store


class Indexing(Protocol):
    """Interface to the background indexing of this process."""

    @property
    def store(self) -> Store:
        """The store that the engine uses."""

    @property
    def namespace(self) -> str:
        """The namespace of the loaded model's chunk KV."""

    @property
    def indexes(self) -> bool:
        """True if this process is the one that indexes."""

    def sweep(self) -> None:
        """Scan the folders now, if this process indexes."""

    def halt(self) -> bool:
        """Stop indexing; False if a step that cannot be interrupted still runs, or another process indexes."""

    def resume(self, settings: Settings, folders: Sequence[Path]) -> None:
        """Index these folders with these settings from now on, after `halt`."""


class Session:
    """Settings, folders and store of one run of the UI. Safe to use from several threads."""

    def __init__(
        self,
        settings: Settings,
        folders: Sequence[Path],
        settings_file: Path | None = None,
        checks: Checks = no_checks,
    ) -> None:
        self.checks = checks
        """The checks of `desk-rag doctor`."""
        self.settings = settings
        """Settings in use; a change that needs a restart is only in the file."""
        self.folders = tuple(folder.absolute() for folder in folders)
        self.file = SettingsFile(settings_file or config.default_path())
        self.changed: set[Key] = set()
        """Names of settings changed in this run that may take effect only at the next start."""
        self.undo: Callable[[], str] | None = None
        """Function that undoes the last change made in the library; None if there is none."""
        self._indexing: Indexing | None = None
        self._reader: Store | None = None
        self._guard = threading.Lock()

    @property
    def indexing(self) -> Indexing | None:
        """The indexing of this process; None until the engine is up."""
        return self._indexing

    def attach(self, indexing: Indexing) -> None:
        """Use the engine's store from now on."""
        self._indexing = indexing

    def detach(self) -> None:
        """Stop using the engine's store, and close the reader if there is one."""
        with self._guard:
            self._indexing, reader, self._reader = None, self._reader, None
        if reader is not None:
            reader.close()

    def store(self) -> Store | None:
        """Return the open store; None while nothing was ever indexed. Raises StoreError."""
        if self._indexing is not None:
            return self._indexing.store
        with self._guard:
            if self._reader is None and (self.settings.data_dir / "catalog.sqlite").is_file():
                from desk_rag.store.store import Store

                self._reader = Store.open(self.settings.data_dir, self.settings.store, writer=False)
            return self._reader

    def namespace(self) -> str | None:
        """Return the namespace whose chunk KV counts as warm; None if there is none."""
        if self._indexing is not None:
            return self._indexing.namespace
        store = self.store()
        return None if store is None else store.fullest_namespace()

    def use(self, settings: Settings, folders: Sequence[Path]) -> bool:
        """Index `folders` with `settings` from now on; False if that has to wait for the next start."""
        added = [rule for rule in rules_in(self.file) if rule not in settings.index.exclude]
        settings = with_rules(settings, (*settings.index.exclude, *added))  # another process may have added some
        self.settings, self.folders = settings, tuple(folders)
        indexing = self._indexing
        if indexing is None:
            return True  # what starts later starts with these
        if not indexing.indexes:
            return False
        indexing.halt()  # what still runs ends by itself
        indexing.resume(settings, folders)
        return True
