"""Rules under `exclude` in the settings file, by which a file or folder inside an indexed folder is read no more.

The file may change while a process runs; what it says now holds, not what it said when the process began.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from desk_rag.config import IndexSettings, Settings, load
from desk_rag.documents.discovery import LeftOut, examine
from desk_rag.documents.rules.ignore_rules import OWN, pattern_of
from desk_rag.errors import Cancelled, ConfigError
from desk_rag.ingest.events import Notice
from desk_rag.sanitize import shown_path

if TYPE_CHECKING:
    from desk_rag.indexer.service import Service
    from desk_rag.settings_file import Key, SettingsFile

EXCLUDE: Key = ("index", "exclude")
OWN_REASON = f"{OWN}: "
"""Beginning of the reason for which the walk leaves a path out by one of these rules."""
_EVERY_SECONDS = 1.0
_log = logging.getLogger(__name__)


class FollowedRules:
    """The rules in a settings file as it is now; one that cannot be read changes nothing."""

    def __init__(self, file: Path | None, rules: tuple[str, ...]) -> None:
        """`rules` hold as long as there is no file."""
        self.lifted = frozenset[str]()
        """Rules that the last change took away."""
        self._file, self._rules = file, rules
        self._stamp: tuple[int, int, int] | None = None
        self._lock = threading.Lock()

    def now(self) -> tuple[str, ...]:
        """Return the rules; the file is read only if it was written."""
        with self._lock:
            stamp = self._look()
            if self._file is None or stamp == self._stamp:
                return self._rules
            self._stamp = stamp
            try:
                rules = (load(self._file) if stamp else Settings()).index.exclude
            except ConfigError as error:
                _log.warning("the settings stay as they were: %s", error)
                return self._rules
            self.lifted = frozenset(self._rules) - frozenset(rules)
            self._rules = rules
            return rules

    def in_force(self, index: IndexSettings) -> IndexSettings:
        """Return `index` with the rules as they are now; with its own if there is no file to follow."""
        if self._file is None:
            return index
        rules = self.now()
        return index if rules == index.exclude else index.model_copy(update={"exclude": rules})

    def heed(self, service: Service) -> bool:
        """Have `service` read files by the rules as they are now; return whether they have changed."""
        before, rules = self._rules, self.now()
        if rules != before:
            index = service.settings.index.model_copy(update={"exclude": rules})
            service.use_index_settings(index, lifted=self.lifted)
        return rules != before

    def keep_on(self, service: Service, stopping: threading.Event) -> None:
        """Heed the rules until `stopping`; after each change, all folders are looked through."""

        def work(_emit: Callable[[None], None]) -> None:
            if self.heed(service):
                where = shown_path(self._file or Path())
                service.report(Notice("exclude", f"`exclude` in {where} has changed: looking through all folders."))
                service.report(Notice("exclude", "The changed rules hold.", is_over=True))
                service.sweep()

        while self._file is not None and not stopping.wait(_EVERY_SECONDS):
            if self._look() != self._stamp:
                with suppress(Cancelled):
                    for _ in service.perform(work, stopping.is_set):
                        pass

    def _look(self) -> tuple[int, int, int] | None:
        try:
            state = self._file.stat() if self._file else None
        except OSError:
            return None
        return (state.st_ino, state.st_size, state.st_mtime_ns) if state else None


def rules_in(file: SettingsFile, *, without: str = "") -> tuple[str, ...]:
    """Return the rules in the settings file as it is now; somebody may have changed it meanwhile."""
    listed = file.values().get(EXCLUDE)
    rules = [str(rule) for rule in listed] if isinstance(listed, list) else []
    return tuple(rule for rule in rules if rule != without)


def with_rules(settings: Settings, rules: Sequence[str]) -> Settings:
    """Return the settings with these rules instead of theirs."""
    return settings.model_copy(update={"index": settings.index.model_copy(update={"exclude": tuple(rules)})})


def rule_for(path: Path, root: Path, settings: Settings, *, is_folder: bool) -> str:
    """Return the rule that leaves `path` in the indexed folder `root` out. Raises ConfigError if none can name it."""
    rule = pattern_of(path, is_folder=is_folder)
    if not _leaves_out(with_rules(settings, (*settings.index.exclude, rule)), path, root):
        raise ConfigError(f"No rule can name {path}.", remedy="Exclude the folder that it is in.")
    return rule


def missing_rule(path: Path, roots: Sequence[Path], settings: Settings, *, is_folder: bool) -> str:
    """Return the rule by which no indexed folder around `path` reads it; '' if others do that already."""
    around = [root for root in roots if root in path.parents and not _leaves_out(settings, path, root)]
    return rule_for(path, around[0], settings, is_folder=is_folder) if around else ""


def own_rule_for(path: Path, around: Sequence[Path], settings: Settings) -> str:
    """Return the rule of the user's settings that leaves `path` out; '' if none does.

    Rules are applied as in the indexed folders `around`; one that names the path or a folder above it always counts.
    """
    inside = path if path.is_file() else path / "any"
    verdicts = (examine(root, inside, settings.index) for root in around if root in path.parents)
    reasons = (verdict.reason for verdict in verdicts if isinstance(verdict, LeftOut))
    own = next((reason.removeprefix(OWN_REASON) for reason in reasons if reason.startswith(OWN_REASON)), "")
    named = (pattern_of(each, is_folder=each != path or not path.is_file()) for each in (path, *path.parents))
    return own or next((rule for rule in named if rule in settings.index.exclude), "")


def _leaves_out(settings: Settings, path: Path, root: Path) -> bool:
    return isinstance(examine(root, path / "any", settings.index), LeftOut)
