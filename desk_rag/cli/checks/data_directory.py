"""Checks of the data directory: may it be used, is there room, and what has the index lost."""

from __future__ import annotations

import os
import shutil
import stat
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from desk_rag.cli import output as out
from desk_rag.cli.checks.finding import Finding, Verdict
from desk_rag.cli.deletions import missing_line
from desk_rag.cli.store_access import exists, open_store
from desk_rag.config import GIB, Settings
from desk_rag.errors import catalog_lost
from desk_rag.indexer.names import kept_embedder
from desk_rag.ingest import damage, deletions
from desk_rag.sanitize import shown_path
from desk_rag.store import kv_directory, presence
from desk_rag.store.chats.database import ChatsDamaged, ChatsDatabase
from desk_rag.store.chats.place import places
from desk_rag.store.opening import has_traces
from desk_rag.store.ownership import first_foreign

if TYPE_CHECKING:
    from desk_rag.answering.serving_model import StoredGate
    from desk_rag.ingest.damage import Gap
    from desk_rag.ingest.deletions import MissingFiles
    from desk_rag.store.presence import AbsentFolder
    from desk_rag.store.types import Activity

_MOST_NAMED = 10
_LITTLE_ROOM = 256 << 20
"""Bytes of remaining room below which a warning is given."""


def data_dir(settings: Settings) -> Finding:
    place = settings.data_dir
    if not place.exists():
        parent = next(p for p in place.parents if p.exists())
        if os.access(parent, os.W_OK):
            return Finding("data", Verdict.OK, f"{shown_path(place)} will be created by the first index")
        return Finding("data", Verdict.FAIL, f"{parent} cannot be written to", "Name another place with --data-dir.")
    if not place.is_dir():
        return Finding("data", Verdict.FAIL, f"{place} is not a directory", "Name another place with --data-dir.")
    foreign = first_foreign(place)
    if foreign is not None:
        detail = f"{place} holds files of others, such as {foreign.name}: desk-rag does not use it"
        return Finding("data", Verdict.FAIL, detail, "Name an empty or new directory with --data-dir.")
    if not os.access(place, os.W_OK):
        remedy = "Correct its permissions, or name another place with --data-dir."
        return Finding("data", Verdict.FAIL, f"{place} cannot be written to", remedy)
    mode = stat.S_IMODE(place.stat().st_mode)
    if os.name == "posix" and mode & 0o077:
        remedy = f"It holds text of your documents: chmod 700 '{place}'"
        return Finding("data", Verdict.WARN, f"{place} can be read by others (mode {mode:o})", remedy)
    return Finding("data", Verdict.OK, shown_path(place))


def kv_dir(settings: Settings) -> list[Finding]:
    """Check the directory of the caches if it is not the default one. Raises StoreError as indexing does."""
    place = settings.store.kv_place
    if not exists(settings):
        if place is None:
            return []
        kv_directory.check_new(place)
        return [Finding("kv_dir", Verdict.OK, f"{shown_path(place)}, set up when something is indexed")]
    with open_store(settings, writer=False) as store:
        away = store.kv_away
    if away and place is not None and place.is_dir() and kv_directory.marker_of(place) is None:
        kv_directory.check_new(place)
    if away:
        remedy = "If its drive is not connected, connect it; else set `kv_dir` under [store] to a directory of its own."
        return [Finding("kv_dir", Verdict.WARN, away, remedy)]
    return [] if place is None else [Finding("kv_dir", Verdict.OK, shown_path(place))]


def other_files(settings: Settings) -> list[Finding]:
    """Files in desk-rag's directories that it did not write and therefore leaves alone."""
    if not exists(settings):
        return []
    from desk_rag.store.maintenance.data_directory import foreign_files

    with open_store(settings, writer=False) as store:
        away = store.kv_away
    foreign = foreign_files(settings.data_dir, None if away else settings.store.kv_place)
    if not foreign:
        return []
    names = ", ".join(str(path) for path in foreign[:_MOST_NAMED])
    names += f" and {len(foreign) - _MOST_NAMED:,} more" if len(foreign) > _MOST_NAMED else ""
    remedy = "desk-rag did not write these and never deletes them. Move them elsewhere; `desk-rag verify` names all."
    return [Finding("other files", Verdict.WARN, names, remedy)]


def disk(settings: Settings) -> Finding:
    from desk_rag.store.kv.budget import Budget

    wanted = settings.store.kv_place or settings.data_dir
    place = next(p for p in (wanted, *wanted.parents) if p.exists())
    kept, cap = settings.store.reserve_gib, int(settings.store.budget_gib * GIB)
    free = shutil.disk_usage(place).free
    used = 0
    if exists(settings):
        with open_store(settings, writer=False) as store:
            used = store.counts().kv_bytes
    limit = Budget(place, settings.store, used).limit()
    detail = f"{out.size(free)} free; caches take {out.size(used)} and may take {out.size(limit)}"
    if limit < cap:
        detail += f" of {out.size(cap)}, because {kept:g} GiB of the drive stay free"
    if limit < cap and limit - used < _LITTLE_ROOM:
        if used > limit:
            detail += f"; {out.size(used - limit)} will be given up at the next start"
        more = out.size(int(kept * GIB) + GIB - free)
        remedy = f"Free {more} or more, lower `reserve_gib` under [store], or name another drive with --data-dir."
        return Finding("disk", Verdict.WARN, detail, remedy)
    if not cap:
        remedy = "Raise `budget_gib` under [store] to have fast answers."
        return Finding("disk", Verdict.WARN, f"{detail}: no caches are kept", remedy)
    return Finding("disk", Verdict.OK, detail)


def index(settings: Settings) -> list[Finding]:
    """Report what is indexed and what it lacks: damage, files that could not be read, folders that are away."""
    if not exists(settings):
        if has_traces(settings.data_dir):
            raise catalog_lost(settings.data_dir)
        return [Finding("index", Verdict.OK, "nothing is indexed yet")]
    with open_store(settings, writer=False) as store:
        if store.is_lost:
            raise catalog_lost(settings.data_dir)
        counts, activity, outlook = store.coverage(kept_embedder(settings)), store.activity(), store.outlook(None, 0.0)
        gaps = [gap for gap in damage.gaps(store, ()) if activity is None or not gap.is_open_run]
        absent = presence.absent_folders(store)
        missing = deletions.missing_files(store, settings.index.deletion_grace_hours)
    amount = f"{out.plural(counts.files, 'file')}, {out.plural(counts.chunks, 'chunk')}"
    detail = f"{amount}, {counts.warm:,} of them warm"
    if outlook is not None:
        detail += f". {outlook.sentence.removesuffix('.')}"
    if activity is not None:
        detail += f"; kept up to date by process {activity.pid}"
    amounts = Finding("index", Verdict.WARN if gaps else Verdict.OK, detail, "It lacks something:")
    return [amounts, *_faults(counts.failed, gaps, absent, missing), *_of_process(activity)]


def _faults(
    failed: int, gaps: Sequence[Gap], absent: Sequence[AbsentFolder], missing: Sequence[MissingFiles]
) -> Iterator[Finding]:
    for gap in gaps:
        yield Finding("index", Verdict.WARN, gap.sentence, gap.remedy)
    if failed:
        remedy = "desk-rag status lists them; desk-rag why FILE says more."
        yield Finding("files", Verdict.WARN, f"{out.plural(failed, 'file')} could not be read", remedy)
    for folder in absent:
        sentence = out.reason_line(folder.path, folder.sentence)
        yield Finding("folders", Verdict.WARN, sentence, "Connect its drive; what did not change is not read again.")
    for missing_path in missing:
        sentence = missing_line(missing_path.root, missing_path.waiting, missing_path.kept, missing_path.seconds_left)
        yield Finding("folders", Verdict.WARN, sentence, "desk-rag deletions shows them, and what can be done.")


def _of_process(activity: Activity | None) -> Iterator[Finding]:
    """Yield what the process that indexes says needs attention, as far as no other check says it."""
    for subject, sentence, remedy in activity.notices if activity is not None else ():
        if not subject.startswith(("folder ", "caches")):
            yield Finding("notice", Verdict.WARN, sentence, remedy)


def chats(settings: Settings) -> list[Finding]:
    """Check that the saved chats can be read."""
    for place in places(settings.data_dir):
        try:
            ChatsDatabase(place, create=False).close()
        except (FileNotFoundError, NotADirectoryError):
            continue
        except ChatsDamaged as error:
            remedy = "When chats are next used, these are moved to quarantine/ and new ones are started."
            return [Finding("chats", Verdict.WARN, error.message, remedy)]
    return []


def notices(settings: Settings) -> list[Finding]:
    """Report what the store repaired or lost when it was last opened."""
    if not exists(settings):
        return []
    with open_store(settings, writer=False) as store:
        past = store.past_notices()
    if past is None:
        return []
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(past[0]))
    remedy = "desk-rag verify --repair checks everything and clears this note."
    return [Finding("store", Verdict.WARN, f"{when}: {' '.join(past[1])}", remedy)]


def cache_quality(settings: Settings) -> list[Finding]:
    """Say whether answers from caches are as good as without, for each model that was used here."""
    from desk_rag.answering.serving_model import stored_gates

    gates = stored_gates(settings.data_dir)
    if not gates:
        return [Finding("cache quality", Verdict.OK, "measured when a model is first used")]
    return [_quality(stored) for stored in gates]


def _quality(stored: StoredGate) -> Finding:
    gate = stored.gate
    passed = gate.score.passes and gate.needles_found == gate.needles_expected
    differs = "do not differ noticeably from" if passed else "may differ from"
    detail = (
        f"{stored.model}: answers from caches {differs} those without. Tested on {gate.score.tokens:,} words and"
        f" word parts: the same next one {gate.score.top1:.1%} of the time, and {gate.needles_found} of"
        f" {gate.needles_expected} hidden codes found"
    )
    if stored.drift_epoch:
        detail += f". Caches were made again {out.plural(stored.drift_epoch, 'time')}: this machine's results changed"
    if gate.notice:
        detail += f". {gate.notice}"
    verdict = Verdict.OK if passed else Verdict.WARN
    remedy = "Add --mode full to a question for an answer without caches."
    return Finding("cache quality", verdict, detail, remedy, _figures(stored))


def _figures(stored: StoredGate) -> dict[str, object]:
    """Return the measurements behind the sentence, for `doctor --json`."""
    layers = stored.gate.scheme.layers
    return {
        "mean_kl_nats": stored.gate.score.mean_kl,
        "coding": stored.gate.scheme.label,
        "layers": len(layers),
        "exact_layers": sum(layer.raw for layer in layers),
        "key_error": stored.key_error,
    }


def time_saved(settings: Settings) -> list[Finding]:
    """Compare the cost of prefill with that of loading, at this machine's rates (MatKV)."""
    import torch

    from desk_rag.answering.serving_model import stored_gates
    from desk_rag.kv.recompute.policy import AUXILIARY_NAMES

    auxiliary = AUXILIARY_NAMES.get(settings.answer.auxiliary, settings.answer.auxiliary)
    has_gpu = settings.model.device != "cpu" and torch.cuda.is_available()
    findings = []
    if exists(settings):
        with open_store(settings, writer=False) as store:
            for stored in stored_gates(settings.data_dir):
                on_processor = stored.model == auxiliary != settings.model.name
                pays = store.break_even(stored.namespace, on_gpu=has_gpu and not on_processor)
                if pays is not None:
                    verdict = Verdict.OK if pays.days else Verdict.WARN
                    remedy = "Answers are as fast without: set `budget_gib = 0` under [store]."
                    findings.append(Finding("time saved", verdict, f"{stored.model}: {pays.sentence}", remedy))
    return findings or [Finding("time saved", Verdict.OK, "measured once there are some caches")]
