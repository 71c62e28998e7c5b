"""Steps of the first run: folders to choose from, what is in one, and the start with it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from desk_rag.assets import assets_dir
from desk_rag.config import GIB
from desk_rag.documents.rules.ignore_rules import pattern_of
from desk_rag.indexer.resident.exclusion import EXCLUDE, rules_in
from desk_rag.ingest.preview import FolderPreview, preview
from desk_rag.tui.management.models import ModelChoice

if TYPE_CHECKING:
    from desk_rag.tui.management.session import Session

_USUAL = ("Documents", "Notes", "notes", "Desktop", "Downloads")
_MOST_SHOWN = 200


class FirstRun:
    """Choices of the first run. Every method may take a while, and raises DeskRagError."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.left_out: tuple[Path, ...] = ()
        """Files and folders that are left out by the user's choice; the rules are written with the folder."""

    def is_due(self) -> bool:
        """Return whether no folder is known: none was named, and none was ever indexed."""
        if self._session.folders:
            return False
        store = self._session.store()
        return store is None or not store.volumes.roots()

    def new_folders(self, stop: Callable[[], bool]) -> Iterator[str]:
        """Yield what indexing will do with each folder of this run that was never indexed."""
        store = self._session.store()
        known = [] if store is None else store.volumes.roots()
        for folder in self._session.folders:
            if folder not in known and folder.is_dir():
                seen = preview(folder, self._session.settings.index, stop)
                yield f"{folder.name} is new here: {seen.sentence}"

    def folders(self, typed: str) -> list[Path]:
        """Return folders that begin with the typed text; the usual ones if it is empty."""
        if not typed.strip():
            home = Path.home()
            usual = [home / name for name in _USUAL if (home / name).is_dir()]
            return [*usual, home, assets_dir() / "sample_docs"]
        expanded = _expanded(typed)
        parent, prefix = (expanded, "") if typed.endswith(("/", os.sep)) else (expanded.parent, expanded.name)
        try:
            with os.scandir(parent) as entries:
                names = sorted(entry.name for entry in entries if entry.is_dir() and _begins(entry.name, prefix))
        except OSError:
            return []
        return [parent / name for name in names[:_MOST_SHOWN]]

    def preview(self, typed: str, stop: Callable[[], bool], report: Callable[[int], None]) -> FolderPreview:
        """Count what indexing the typed folder would read."""
        index = self._session.settings.index
        index = index.model_copy(update={"exclude": (*index.exclude, *self._rules)})
        return preview(_expanded(typed), index, stop, report)

    @property
    def _rules(self) -> list[str]:
        return [pattern_of(path, is_folder=path.is_dir()) for path in self.left_out]

    def room(self) -> tuple[int, int]:
        """Return (free bytes on the drive of the caches, bytes that caches may take)."""
        store = self._session.settings.store
        wanted = store.kv_place or self._session.settings.data_dir
        place = next(path for path in (wanted, *wanted.parents) if path.exists())
        free = shutil.disk_usage(place).free
        return free, max(0, min(int(store.budget_gib * GIB), free - int(store.reserve_gib * GIB)))

    def choose(self, folder: Path, model: ModelChoice) -> str:
        """Index `folder` from now on, and with the next start; returns why it was not noted for that, '' if it was."""
        from desk_rag.errors import ConfigError

        session = self._session
        changes: dict[tuple[str, ...], object] = {("folders",): [str(folder)]}
        if self.left_out:
            changes[EXCLUDE] = [*rules_in(session.file), *self._rules]
        before = session.settings.model
        if model != ModelChoice(before.name, before.quantization):
            changes["model", "name"] = model.name
            if model.quantization != before.quantization:
                changes["model", "quantization"] = model.quantization
            chosen = before.model_copy(update={"name": model.name, "quantization": model.quantization})
            session.settings = session.settings.model_copy(update={"model": chosen})
        try:
            session.file.write(changes)
        except ConfigError as error:
            unsaved = f"{error.message} Name the folder at the next start: desk-rag {folder}"
        else:
            unsaved = ""
        session.use(session.settings.model_copy(update={"folders": (folder,)}), [folder])
        return unsaved


def _expanded(typed: str) -> Path:
    try:
        return Path(os.path.abspath(Path(typed.strip()).expanduser()))  # noqa: PTH100 - keeps links in the name
    except (RuntimeError, ValueError):
        return Path(typed.strip()).absolute()


def _begins(name: str, prefix: str) -> bool:
    hidden = name.startswith(".") and not prefix.startswith(".")
    return name.lower().startswith(prefix.lower()) and not hidden
