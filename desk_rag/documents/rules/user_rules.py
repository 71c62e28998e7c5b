"""Judge paths by the user's own rules alone, without a look at any file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from desk_rag.documents.rules.ignore_rules import Rules, rules_of_user, secret_rules

if TYPE_CHECKING:
    from desk_rag.config import IndexSettings


class UserRules:
    """The user's rules, for paths in indexed folders, and those for secrets, which they may lift; no file is opened."""

    def __init__(self, settings: IndexSettings, roots: Sequence[Path]) -> None:
        self._patterns, self._roots = settings.exclude, tuple(roots)
        self._by_root: dict[Path, Rules] = {}

    def excluding(self, path: Path) -> tuple[Path, str] | None:
        """Return the path, or the folder above it, that is left out, with the reason; None if it is read."""
        root = next((root for root in self._roots if root in path.parents), path.parent)
        if root not in self._by_root:
            self._by_root[root] = rules_of_user(self._patterns, root)
        parts = path.relative_to(root).parts
        for depth in range(1, len(parts) + 1):
            shown = "/".join(parts[:depth]).replace("\n", "\x1a") + ("/" if depth < len(parts) else "")
            rule = self._by_root[root].verdict(shown) or secret_rules().verdict(shown)
            if rule is not None and rule.excludes:
                return root.joinpath(*parts[:depth]), rule.reason
        return None
