"""Run `desk-rag purge`: forget a folder or file, or delete the whole data directory."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from desk_rag.cli import output as out
from desk_rag.cli.store_access import confirm, exists, nothing_indexed, open_store, print_lines, when_unlocked
from desk_rag.config import Settings, default_path
from desk_rag.errors import ConfigError, DeskRagError, StoreError
from desk_rag.indexer.resident import keeping
from desk_rag.indexer.resident.protocol import NoResident
from desk_rag.sanitize import shown_path
from desk_rag.settings_file import SettingsFile

if TYPE_CHECKING:
    from desk_rag.store.ownership import Cleared
    from desk_rag.store.store import Store
    from desk_rag.store.types import PurgeReport

_MOST_LISTED = 20


def purge(
    settings: Settings, folder: Path | None, config_file: Path | None, *, check: bool, sure: bool, as_json: bool
) -> int:
    """Delete what was derived from `folder`, or the whole data directory; 4 if traces were found afterwards.

    What is inside an indexed folder is excluded in the settings file, so that nothing reads it again.
    """
    if folder is None:
        confirm(f"everything in {settings.data_dir}, and all saved chats", sure=sure)
        has_ended = keeping.make_way(settings.data_dir, watching=True)
        if has_ended and not as_json:
            print_lines(["The desk-rag that was running has ended."])
        return _purge_all(settings, config_file or default_path(), ends=has_ended, as_json=as_json)
    path, file = Path(os.path.realpath(folder.expanduser())), SettingsFile(config_file or default_path())
    _check_is_known(settings, path)
    rule = _rule_for(settings, path)
    what = f"everything derived from {path}, and the questions in saved chats that it answered"
    confirm(what, sure=sure, besides=_excluded(rule, file, "is excluded from then on"))
    keeping.make_way(settings.data_dir, watching=False)
    if not exists(settings):
        from desk_rag.store.chats.chats import forget_folder

        turns = forget_folder(settings.data_dir, path)  # chats outlive a lost index
        if turns and not as_json:
            print_lines([_chats_line(turns)])
        return nothing_indexed(settings, as_json=as_json)
    added, unwritten = _write(rule, file)
    with _taking_back(added, file):
        report, left_out = _purge_folder(settings, path, rule, check=check)
    if as_json:
        written = [rule] if rule and not unwritten else []
        extra = {"excluded": written, "settings_file": str(file.path)}
        out.print_json(sys.stdout, asdict(report) | extra | ({"not_excluded": unwritten} if unwritten else {}))
        return StoreError.exit_code if report.traces else 0
    lines = [_forgotten(report)]
    if report.chat_turns:
        lines.append(_chats_line(report.chat_turns))
    if check and not (report.verified or report.unsearched or report.traces):
        lines.append("No text of it was stored, so there was nothing to search for.")
    if report.verified and not report.traces:
        lines.append("Searched the whole store for their text: no trace.")
    if check and report.unsearched:
        why = "their text is too short to search for, or other documents hold it too"
        lines.append(f"{out.plural(report.unsearched, 'chunk')} could not be searched for: {why}.")
    lines += [f"Part of the text is still in {trace}." for trace in report.traces]
    print_lines([*lines, *_outlook(settings, path, file, rule, unwritten, left_out=left_out)])
    return StoreError.exit_code if report.traces else 0


def _forgotten(report: PurgeReport) -> str:
    """Return 'Forgot 3 documents, 10 chunks and 10 caches (3.1 MiB).', or that there was nothing to forget."""
    said = "Nothing of it was in the index."
    if report.documents or report.chunks or report.kv_files:
        counts = f"{out.plural(report.documents, 'document')}, {out.plural(report.chunks, 'chunk')}"
        said = f"Forgot {counts} and {out.plural(report.kv_files, 'cache')} ({out.size(report.freed_bytes)})."
    if report.bin_bytes:
        said += f" Caches of files deleted before went with it ({out.size(report.bin_bytes)})."
    return said


def _rule_for(settings: Settings, path: Path) -> str:
    """Return the rule by which no indexed folder around `path` reads it again; '' if none is needed."""
    from desk_rag.indexer.resident import exclusion

    if not exists(settings):
        return ""
    with open_store(settings, writer=False) as store:
        around = [folder for folder in _indexed(settings, store) if folder in path.parents]
        if not path.exists() and all(folder.exists() for folder in around):
            return ""  # there is nothing to be read again
        is_folder = not path.is_file() and store.document(path) is None
        return exclusion.missing_rule(path, around, settings, is_folder=is_folder)


def _indexed(settings: Settings, store: Store) -> list[Path]:
    named = [folder.expanduser().resolve() for folder in settings.folders]
    return list(dict.fromkeys([*named, *store.volumes.roots()]))


def _standing_rule(settings: Settings, path: Path) -> str:
    """Return the rule of the settings file that leaves `path` out already; '' without one."""
    from desk_rag.indexer.resident import exclusion

    with open_store(settings, writer=False) as store:
        return exclusion.own_rule_for(path, _indexed(settings, store), settings)


def _excluded(rule: str, file: SettingsFile, how: str) -> str:
    """Return a sentence that names the rule and the file it stands in; '' without a rule."""
    return f"“{rule}” {how} (`exclude` under [index] in {shown_path(file.path)})." if rule else ""


def _write(rule: str, file: SettingsFile) -> tuple[str, str]:
    """Add the rule to the settings file; return it if it is new there, and why that failed, '' if it did not.

    A failure is no error: a full drive must not keep the text.
    """
    from desk_rag.indexer.resident.exclusion import EXCLUDE, rules_in

    try:
        before = rules_in(file) if rule else ()
        if not rule or rule in before:
            return "", ""
        file.write({EXCLUDE: [*before, rule]})
    except ConfigError as error:
        return "", error.message
    return rule, ""


@contextmanager
def _taking_back(rule: str, file: SettingsFile) -> Iterator[None]:
    """Take the rule out of the settings file again if the block fails; '' is none."""
    from desk_rag.indexer.resident.exclusion import EXCLUDE, rules_in

    try:
        yield
    except BaseException:
        try:
            if rule:
                file.write({EXCLUDE: list(rules_in(file, without=rule)) or None})
        except ConfigError as error:
            print_lines([f"{error.message} Take “{rule}” out of `exclude` there: nothing was forgotten."])
        raise


def _outlook(
    settings: Settings, path: Path, file: SettingsFile, rule: str, unwritten: str, *, left_out: bool
) -> list[str]:
    """Return sentences about whether, and when, the path is read again."""
    if unwritten:
        return [
            f"{unwritten} So {shown_path(path)} is read again with the next question; to prevent that, add "
            f'"{rule}" to `exclude` under [index] there.'
        ]
    if rule:
        return [
            _excluded(rule, file, "is excluded from now on"),
            f"`desk-rag index` does not read {shown_path(path)} again until you remove that line. Under another "
            "name it would be read.",
        ]
    if not path.exists():
        return []
    if standing := _standing_rule(settings, path):
        return [_excluded(standing, file, "excludes it already, and it is not read until you remove that line")]
    if any(folder.expanduser().resolve() == path for folder in settings.folders):
        return [
            f"It still stands in `folders` in {shown_path(file.path)}: `index`, `watch` and the UI read it again. Take "
            "it out there."
        ]
    if left_out:
        return [
            f"The desk-rag that is running reads {shown_path(path)} no more, and a later one only if a command "
            "names it."
        ]
    return []


def _check_is_known(settings: Settings, path: Path) -> None:
    """Raise ConfigError for a path that does not exist and of which nothing is kept."""
    from desk_rag.store.chats.chats import knows

    if path.exists() or knows(settings.data_dir, path):
        return
    if exists(settings):
        with open_store(settings, writer=False) as store:
            if store.documents(path):
                return
    raise ConfigError(f"Nothing was indexed from {path}, and it does not exist.", remedy="Check the spelling.")


def _chats_line(turns: int) -> str:
    answers = "its answer" if turns == 1 else "their answers"
    return f"Deleted {out.plural(turns, 'question')} with {answers} from chats."


def _purge_folder(settings: Settings, path: Path, rule: str, *, check: bool) -> tuple[PurgeReport, bool]:
    """Purge, here or in the process that indexes; also return whether that process leaves the folder out."""
    from desk_rag.indexer.resident import exclusion, handover
    from desk_rag.ingest import deletions
    from desk_rag.store.open_to_purge import open_to_purge

    with suppress(NoResident):
        purged = handover.purge(settings, path, check=check, progress=out.Progress(sys.stderr))
        if rule:
            with suppress(DeskRagError):  # that process leaves the folder out in any case until it ends
                handover.use_index_settings(exclusion.with_rules(settings, (*settings.index.exclude, rule)))
        return purged
    store, room = when_unlocked(settings, lambda: open_to_purge(settings.data_dir, settings.store, path))
    with store:
        report = store.purge(path, verify=check)
        if path.exists():  # it is counted among what the rules leave out, as after the next look
            rules = exclusion.with_rules(settings, (*settings.index.exclude, *([rule] if rule else []))).index
            with suppress(DeskRagError):
                deletions.take_out(store, [path if path.is_file() else path / "any"], rules)
    report = replace(report, kv_files=report.kv_files + room.files, freed_bytes=report.freed_bytes + room.freed)
    return report, False


def _purge_all(settings: Settings, settings_file: Path, *, ends: bool, as_json: bool) -> int:
    from desk_rag.model.embedded import kernels
    from desk_rag.store import ownership

    kernels.remove()
    if not ownership.is_store(settings.data_dir):
        return _purge_chats(settings, as_json=as_json)
    cleared, away = when_unlocked(settings, lambda: _delete_all(settings.data_dir), ends=ends)
    if as_json:
        foreign = [str(path) for path in cleared.remaining]
        report = {"deleted": str(settings.data_dir), "freed_bytes": cleared.freed_bytes, "left": foreign, "away": away}
        out.print_json(sys.stdout, report)
    elif not cleared.remaining:
        print_lines([f"Deleted {settings.data_dir} ({out.size(cleared.freed_bytes)}), and all saved chats."])
    else:
        names = ", ".join(path.name for path in cleared.remaining[:_MOST_LISTED])
        names += f" and {len(cleared.remaining) - _MOST_LISTED:,} more" if len(cleared.remaining) > _MOST_LISTED else ""
        freed = out.size(cleared.freed_bytes)
        print_lines([f"Deleted what desk-rag had in {settings.data_dir} ({freed}), and all saved chats."])
        print_lines([f"Left there, since it is not desk-rag's: {names}."])
    if settings_file.exists() and not as_json:
        print_lines([f"Your settings in {shown_path(settings_file)} stay, with what they exclude."])
    if away and not as_json:
        remedy = "Delete that directory once its drive is connected."
        print_lines([f"Not deleted: the caches in {away}, which is not connected. {remedy}"])
    return StoreError.exit_code if away else 0


def _purge_chats(settings: Settings, *, as_json: bool) -> int:
    """Delete the chats of a data directory that holds no index."""
    from desk_rag.store.chats import place

    chats = place.chats_directory(settings.data_dir)
    freed = place.clear(chats, all_of_it=True) if chats != settings.data_dir else 0
    if not freed:
        return nothing_indexed(settings, as_json=as_json)
    if as_json:
        out.print_json(sys.stdout, {"deleted": str(chats), "freed_bytes": freed, "left": [], "away": ""})
    else:
        print_lines([f"Deleted the saved chats in {shown_path(chats)} ({out.size(freed)}); nothing was indexed."])
    return 0


def _delete_all(root: Path) -> tuple[Cleared, str]:
    """Remove desk-rag's own files while holding the writer's lock. Needs no free disk space.

    Also returns the `kv_dir` that could not be reached, '' if there is none.
    """
    from desk_rag.store import ownership
    from desk_rag.store.layout import Layout
    from desk_rag.store.maintenance.data_directory import clear_all
    from desk_rag.store.opening import locked

    with locked(Layout(root)):
        cleared, away = clear_all(root)
    return ownership.clear_lock(root, cleared), away
