"""Take out of the index what is left out since `exclude` in the settings was changed.

A sweep does that, too, but it may be minutes away, and from the moment a rule is written down nothing that it names
may be quoted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from desk_rag.documents.rules.ignore_rules import OWN, Rules, rules_of_user, secret_rules
from desk_rag.documents.status import FileState, plural
from desk_rag.errors import StoreError

if TYPE_CHECKING:
    from desk_rag.config import IndexSettings
    from desk_rag.store.store import Store

_WAIT_SECONDS = 20.0
"""Seconds that the process that writes gets to take out what is excluded; it looks at the settings once a second."""
_EVERY = 0.1
_MOST_LEFT_OUT = 20_000


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


def take_out(store: Store, paths: Sequence[Path], settings: IndexSettings) -> None:
    """Remove documents that the rules leave out, and record why; their chunk KV stays for a while."""
    if not paths:
        return
    rules = UserRules(settings, store.volumes.roots())
    store.remove_documents(paths, keep_kv=True)
    for place, reason in dict(filter(None, map(rules.excluding, paths))).items():
        store.record_outcome(place, FileState.SKIPPED, reason, None)


def note_obeyed(store: Store, roots: Sequence[Path], settings: IndexSettings) -> None:
    """Record that the index of `roots` obeys the rules, with no line left for a folder that is read again."""
    rules = UserRules(settings, roots)
    for path, state, reason in store.unread_files(roots, _MOST_LEFT_OUT) if roots else ():
        was_excluded = state is FileState.SKIPPED and reason.startswith(f"{OWN}: ")
        if was_excluded and path.is_dir() and rules.excluding(path / "any") is None:
            store.remove_document(path)
    for root in roots:
        store.note_rules(root, settings.exclude)


def wait_until_taken_out(store: Store, paths: Iterable[Path], stop: Callable[[], bool]) -> None:
    """Wait until the process that writes has removed these documents. Raises StoreError if it does not."""
    end = time.monotonic() + _WAIT_SECONDS
    while paths := [path for path in paths if _is_indexed(store, path)]:
        if stop():
            return
        if time.monotonic() > end:
            count = plural(len(paths), "file")
            raise StoreError(
                f"The index still holds {count} that `exclude` under [index] leaves out, and cannot be written now.",
                remedy="`desk-rag index` removes what is excluded; then ask again.",
            )
        time.sleep(_EVERY)


def _is_indexed(store: Store, path: Path) -> bool:
    row = store.document(path)
    return row is not None and row.state is FileState.INDEXED
