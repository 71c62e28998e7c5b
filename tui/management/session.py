"""Everything the screens beside the chat work on: the store, the folders, the settings and their file.

The screens work before a model is loaded and without one. `store` is a reader of this process; `attach` hands over
the indexing by the engine of this UI.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from desk_rag import config
from desk_rag.config import Settings
from desk_rag.indexer.resident.exclusion import FollowedRules
from desk_rag.settings_file import Key, SettingsFile
from desk_rag.tui.management.checks import Checks, no_checks

if TYPE_CHECKING:
    from desk_rag.store.store import Store
    from desk_rag.store.types import PurgeReport
    from desk_rag.tui.management.models import ModelsReport


class Indexing(Protocol):
    """Interface to the background indexing by the engine of this UI."""

    @property
    def namespace(self) -> str:
        """The namespace of the loaded model's chunk KV."""

    @property
    def indexes(self) -> bool:
        """True if the engine of this UI is the one that indexes."""

    def sweep(self) -> None:
        """Scan the folders now, if the engine of this UI indexes."""

    def halt(self) -> bool:
        """Stop indexing; False if a step that cannot be interrupted still runs, or another process indexes."""

    def resume(self, settings: Settings, folders: Sequence[Path]) -> None:
        """Index these folders with these settings from now on, after `halt`."""

    def forget(self, path: Path, *, keep_caches: bool) -> PurgeReport:
        """Remove what was derived from `path`, after `halt`."""

    def remove_excluded(self, paths: Iterable[Path]) -> None:
        """Remove the documents at and below `paths`, which a rule leaves out."""


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
        self._settings = settings
        self.folders = tuple(folder.absolute() for folder in folders)
        self.file = SettingsFile(settings_file or config.default_path())
        self._rules = FollowedRules(self.file.path, settings.index.exclude)
        self.changed: set[Key] = set()
        """Names of settings changed in this run that may take effect only at the next start."""
        self.undo: Callable[[], str] | None = None
        """Function that undoes the last change made in the library; None if there is none."""
        self.models: ModelsReport | None = None
        """The models on this computer when they were last looked at, which takes seconds."""
        self._indexing: Indexing | None = None
        self._reader: Store | None = None
        self._before: list[Store] = []
        """Readers from before the engine was up; a screen may still use one."""
        self._guard = threading.Lock()

    @property
    def settings(self) -> Settings:
        """Settings in use, with the rules of the file as it is; a change that needs a restart is only in the file."""
        settings, index = self._settings, self._rules.in_force(self._settings.index)
        return settings if index is settings.index else settings.model_copy(update={"index": index})

    @settings.setter
    def settings(self, settings: Settings) -> None:
        self._settings = settings

    @property
    def indexing(self) -> Indexing | None:
        """The indexing by the engine of this UI; None until that is up."""
        return self._indexing

    def attach(self, indexing: Indexing) -> None:
        """Direct the engine's indexing from now on, and open the store anew, as the engine may have rebuilt it."""
        with self._guard:
            self._indexing = indexing
            if self._reader is not None:
                self._before.append(self._reader)
                self._reader = None

    def detach(self) -> None:
        """Direct nothing any more, and close the store."""
        with self._guard:
            opened = [*self._before, *([self._reader] if self._reader is not None else [])]
            self._indexing, self._reader = None, None
            self._before.clear()
        for reader in opened:
            reader.close()

    def store(self) -> Store | None:
        """Return the open store; None while nothing was ever indexed. Raises StoreError."""
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
        self.settings, self.folders = settings, tuple(folders)
        indexing = self._indexing
        if indexing is None:
            return True  # what starts later starts with these
        if not indexing.indexes:
            return False
        indexing.halt()  # what still runs ends by itself
        indexing.resume(self.settings, folders)
        return True
