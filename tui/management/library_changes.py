"""Changes that the user makes in the library: rules, pins, reading again, forgetting; and how that is undone.

Each change is described before it is made, so that the screen can ask. The user's own files are only read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from desk_rag.documents.rules.ignore_rules import pattern_of
from desk_rag.documents.status import FileState, plural
from desk_rag.errors import ConfigError, StoreError, StoreLocked
from desk_rag.indexer.resident import exclusion as rules_of_user
from desk_rag.indexer.resident.exclusion import EXCLUDE, rules_in, with_rules
from desk_rag.indexer.resident.protocol import NoResident
from desk_rag.sanitize import quoted_path, shown_path

if TYPE_CHECKING:
    from desk_rag.config import Settings
    from desk_rag.settings_file import Key
    from desk_rag.store.store import Store
    from desk_rag.store.types import PurgeReport
    from desk_rag.tui.management.session import Indexing, Session

_FOLDERS = ("folders",)


@dataclass(frozen=True, slots=True)
class Exclusion:
    """A rule that would leave out a file or folder."""

    path: Path
    rule: str
    indexed: int
    """Documents that would leave the index; their caches are kept for a while."""


@dataclass(frozen=True, slots=True)
class Change:
    """A change that was made, and how to undo it."""

    sentence: str
    undo: Callable[[], str] | None = None
    """Function that undoes the change and returns a sentence; None if it cannot be undone."""


class LibraryChanges:
    """Changes to what is indexed. Every method may take a while, and raises DeskRagError."""

    def __init__(self, session: Session) -> None:
        self._session = session

    # Rules ----------------------------------------------------------------------------------------------------

    def exclusion(self, path: Path, root: Path) -> Exclusion:
        """Return the rule that leaves out `path`, which is in the indexed folder `root`."""
        store = self._session.store()
        is_folder = path.is_dir() or (store is not None and store.document(path) is None)
        now = with_rules(self._session.settings, self._rules())
        rule = rules_of_user.rule_for(path, root, now, is_folder=is_folder)
        return Exclusion(path, rule, 0 if store is None else store.listing.count(path).indexed)

    def exclude(self, exclusion: Exclusion) -> Change:
        """Write the rule to the settings file and obey it from now on."""
        now = self._set_rules((*self._rules(), exclusion.rule), excluded=(exclusion.path,))
        said = f"{shown_path(exclusion.path)} is excluded{'' if now else self._later()}."
        return Change(said + self._still_quoted(exclusion.path), lambda: self._allow(exclusion))

    def allow(self, path: Path) -> Change:
        """Have a file or folder read that a rule of the user leaves out, and nothing else that the rule names.

        Raises ConfigError if that is not possible without taking back the rule for other files.
        """
        session, before = self._session, self._rules()
        around = [root for root in session.folders if root in path.parents]
        rule = rules_of_user.own_rule_for(path, around, with_rules(session.settings, before))
        if not rule:
            return Change(f"{shown_path(path)} is not excluded.")
        own = pattern_of(path, is_folder=path.is_dir())
        after = tuple(each for each in before if each != own)
        if rules_of_user.own_rule_for(path, around, with_rules(session.settings, after)):
            after = (*after, exception_for(path))  # the rule names others, too
        if standing := rules_of_user.own_rule_for(path, around, with_rules(session.settings, after)):
            remedy = "Change that rule: F2, `index.exclude`."
            raise ConfigError(f"“{standing}” leaves out the folder that {path.name} is in.", remedy=remedy)
        return self._allowed(path, before, after)

    def read_secret(self, path: Path) -> Change:
        """Have a file or folder read that was taken for a secret; nothing else of that name."""
        before = self._rules()
        return self._allowed(path, before, (*before, exception_for(path)))

    def _allowed(self, path: Path, before: tuple[str, ...], after: tuple[str, ...]) -> Change:
        now = self._set_rules(after, (path,))
        outlook = "is read from now on" if now else f"is no longer excluded{self._later()}"
        return Change(f"{shown_path(path)} {outlook}.", lambda: self._leave_out_again(path, before))

    def _leave_out_again(self, path: Path, rules: tuple[str, ...]) -> str:
        self._set_rules(rules, excluded=(path,))
        return f"{shown_path(path)} is left out again."

    def _still_quoted(self, path: Path) -> str:
        """Return a sentence on saved chats that quote what was excluded; '' if none does."""
        from desk_rag.store.chats.chats import knows

        if not knows(self._session.settings.data_dir, path):
            return ""
        return f" Saved chats still hold answers from it: `desk-rag purge {quoted_path(path)}` deletes them, too."

    def _allow(self, exclusion: Exclusion) -> str:
        now = self._set_rules(self._rules(without=exclusion.rule))
        outlook = "; its files are read again" if now else self._later()
        return f"{shown_path(exclusion.path)} is no longer excluded{outlook}."

    def _rules(self, *, without: str = "") -> tuple[str, ...]:
        return rules_in(self._session.file, without=without)

    def _set_rules(self, rules: tuple[str, ...], wanted: Sequence[Path] = (), excluded: Sequence[Path] = ()) -> bool:
        """Write the rules and have them obeyed; False if that has to wait.

        `wanted` is read again, and the documents of `excluded` are removed at once.
        """
        session = self._session
        session.file.write({EXCLUDE: list(rules) or None})
        return self._use(with_rules(session.settings, rules), session.folders, wanted, excluded)

    def _use(
        self, settings: Settings, folders: Sequence[Path], wanted: Sequence[Path], excluded: Sequence[Path] = ()
    ) -> bool:
        """Index `folders` from now on, here or in the process that indexes; False if that has to wait."""
        from desk_rag.indexer.resident import handover

        session = self._session
        now = session.use(settings, folders)
        if session.indexing is not None and session.indexing.indexes:
            session.indexing.remove_excluded(excluded)  # a paused indexing would leave them in answers
            return now
        with suppress(NoResident):
            return handover.use_index_settings(session.settings, wanted, excluded)
        return now

    def _later(self) -> str:
        store = self._session.store()
        activity = store.activity() if store is not None else None
        if activity is not None and self._session.indexing is not None and not self._session.indexing.indexes:
            return f"; process {activity.pid} indexes, and obeys it once it is started again"
        return " from the next start on"

    # Pins and reading again -----------------------------------------------------------------------------------

    def pin(self, folder: Path, *, pinned: bool) -> Change:
        """Keep the caches of a folder longest, or no longer."""
        store = self._opened()
        (store.pin if pinned else store.unpin)(folder)
        said = "pinned: its caches are deleted last" if pinned else "no longer pinned"
        return Change(f"{folder.name} is {said}.", lambda: self.pin(folder, pinned=not pinned).sentence)

    def read_again(self, path: Path) -> Change:
        """Have a file read again, or the files of a folder that failed, although they have not changed."""
        store = self._opened()
        row = store.document(path)
        if row is not None and row.state is FileState.SKIPPED:
            return Change(f"{path.name} is left out ({row.reason}), and was not read.")
        paths = [path] if row is not None else self._failed_in(store, path)
        for one in paths:
            store.read_again(one)
        indexing = self._session.indexing
        if indexing is not None:
            indexing.sweep()
        if not paths:
            return Change(f"No file in {path.name} failed.")
        what = path.name if row is not None else f"{len(paths):,} files that failed"
        here = indexing is not None and indexing.indexes
        return Change(f"{what}: read again {'now' if here else 'at the next look at the folder'}.")

    def _failed_in(self, store: Store, folder: Path) -> list[Path]:
        documents = store.listing.matching(folder, (), (FileState.FAILED,))
        return [listed.row.path for listed in store.listing.rows(documents) if listed is not None]

    # Forgetting -----------------------------------------------------------------------------------------------

    def forget(self, path: Path, *, keep_caches: bool) -> Change:
        """Remove everything derived from `path`, and no longer index it.

        With `keep_caches` its chunk KV stays as long as that of deleted files does, and the change can be undone.
        Otherwise nothing of it remains. A folder inside an indexed one is excluded by a rule.
        """
        session = self._session
        before, roots = session.settings, session.folders
        inside = next((root for root in roots if root in path.parents), None)
        exclusion = None if inside is None else self.exclusion(path, inside)
        named = self._folders()
        removed_folders = tuple(folder for folder in named if folder not in _without(named, path))
        if exclusion is not None:
            rules = (*self._rules(), exclusion.rule)
            changes: dict[Key, object] = {EXCLUDE: list(rules)}
            after, left = with_rules(before, rules), roots
        else:
            changes = {_FOLDERS: [str(folder) for folder in _without(named, path)] or None}
            left = _without(roots, path)
            after = before.model_copy(update={"folders": _without(before.folders, path)})
        indexing = self._halted()
        try:
            session.file.write(changes)
            try:
                report, elsewhere = self._removed(path, keep_caches=keep_caches)
            except BaseException:
                self._write_back(exclusion, removed_folders)
                raise
        except BaseException:
            if indexing is not None:
                indexing.resume(before, roots)
            raise
        session.settings, session.folders = after, left
        if indexing is not None:
            indexing.resume(after, left)
        what = f"{plural(report.documents, 'document')} of {path.name}"
        also = ""
        if elsewhere and exclusion is None:
            also = f" The desk-rag that indexes leaves {path.name} out until it ends."
        if keep_caches:
            hours = before.index.deletion_grace_hours
            undo = partial(
                self._remember, path, exclusion, removed_folders, tuple(root for root in roots if root not in left)
            )
            return Change(f"Forgot {what}; caches kept for {hours:g} h.{also}", undo)
        rest = f" Part of the text is still in {', '.join(report.traces)}." if report.traces else ""
        return Change(f"Forgot {what}, with all caches.{also}{rest}")

    def _remember(
        self, path: Path, exclusion: Exclusion | None, named: tuple[Path, ...], roots: tuple[Path, ...]
    ) -> str:
        """Take back what `forget` wrote, and nothing that was written since."""
        session = self._session
        if exclusion is not None:
            now = self._set_rules(self._rules(without=exclusion.rule), (path,))
        else:
            self._write_back(exclusion, named)
            folders = (*session.folders, *(root for root in roots if root not in session.folders))
            now = self._use(session.settings.model_copy(update={"folders": self._folders()}), folders, (path,))
        return f"{path.name} is read again{'' if now else self._later()}; caches that are still there are used again."

    def _write_back(self, exclusion: Exclusion | None, named: tuple[Path, ...]) -> None:
        """Take a rule out of the settings file, or put folders that were named there back."""
        if exclusion is not None:
            self._session.file.write({EXCLUDE: list(self._rules(without=exclusion.rule)) or None})
            return
        listed = self._folders()
        back = [*listed, *(folder for folder in named if folder not in listed)]
        self._session.file.write({_FOLDERS: [str(folder) for folder in back] or None})

    def _folders(self) -> tuple[Path, ...]:
        """Return the folders in the settings file as it is now."""
        listed = self._session.file.values().get(_FOLDERS)
        return tuple(Path(str(folder)) for folder in listed) if isinstance(listed, list) else ()

    def _halted(self) -> Indexing | None:
        """Stop the indexing of this process; None if it has not begun, or another process indexes."""
        indexing = self._session.indexing
        if indexing is None or not indexing.indexes:
            return None
        if not indexing.halt():
            indexing.resume(self._session.settings, self._session.folders)
            raise StoreLocked("A step of the indexing cannot be interrupted now.", remedy="Try again in a minute.")
        return indexing

    def _removed(self, path: Path, *, keep_caches: bool) -> tuple[PurgeReport, bool]:
        """Remove the documents, here or in the process that indexes; also return whether it was that process."""
        from desk_rag.indexer.resident import handover
        from desk_rag.indexer.resident.changes import forget
        from desk_rag.indexer.resident.keeping import make_way
        from desk_rag.store.open_to_purge import open_to_purge

        indexing, settings = self._session.indexing, self._session.settings
        if indexing is not None and indexing.indexes:
            return indexing.forget(path, keep_caches=keep_caches), False
        with suppress(NoResident):
            return handover.purge(settings, path, check=False, keep_caches=keep_caches)[0], True
        make_way(settings.data_dir)
        store, _ = open_to_purge(settings.data_dir, settings.store, path)
        with store:
            return forget(store, path, keep_caches=keep_caches), False

    def _opened(self) -> Store:
        store = self._session.store()
        if store is None:
            raise StoreError("Nothing is indexed yet.", remedy="Choose a folder first.")
        return store


def exception_for(path: Path) -> str:
    """Return the rule by which this file or folder is read, whatever other rules say."""
    return f"!{pattern_of(path, is_folder=path.is_dir())}"


def _without(folders: tuple[Path, ...], path: Path) -> tuple[Path, ...]:
    kept = (folder for folder in folders if folder.expanduser() != path and path not in folder.expanduser().parents)
    return tuple(kept)
