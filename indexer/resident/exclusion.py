"""Rules under `exclude` in the settings file, by which a file or folder inside an indexed folder is read no more."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from desk_rag.documents.discovery import LeftOut, examine
from desk_rag.documents.rules.ignore_rules import OWN, pattern_of
from desk_rag.errors import ConfigError

if TYPE_CHECKING:
    from desk_rag.config import Settings
    from desk_rag.settings_file import Key, SettingsFile

EXCLUDE: Key = ("index", "exclude")
OWN_REASON = f"{OWN}: "
"""Beginning of the reason for which the walk leaves a path out by one of these rules."""


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
