"""Run `desk-rag cache export` and `cache import`: move a warm store, or a folder's part of it, to another machine."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from desk_rag.cli import output as out
from desk_rag.cli.store_access import exists, open_store, print_lines
from desk_rag.config import Settings, StoreSettings
from desk_rag.errors import ConfigError, StoreError, StoreFull
from desk_rag.sanitize import shown_path

if TYPE_CHECKING:
    from desk_rag.ingest.transfer import Copied, PathMap, Progress
    from desk_rag.kv.serving import ServingModel

_ROOM_BESIDE = 1.05
"""Share of the caches' size that an export takes, its catalog included."""
_ALL_OF_THE_DRIVE = StoreSettings(budget_gib=1e6, reserve_gib=0)


def export(settings: Settings, place: Path, folders: Sequence[Path], *, as_json: bool) -> int:
    """Copy what is stored, or its part under `folders`, into `place`; 4 if something could not be copied."""
    from desk_rag.ingest.transfer import Copy
    from desk_rag.store.store import Store

    if not exists(settings):
        raise ConfigError("Nothing is indexed yet.", remedy="desk-rag index FOLDER")
    under = tuple(Path(os.path.realpath(folder.expanduser())) for folder in folders)
    progress = out.Progress(sys.stderr)
    target_dir = _checked_place(settings, place)
    with open_store(settings, writer=False) as source:
        unknown = next((folder for folder in under if not source.documents(folder)), None)
        if unknown is not None:
            raise ConfigError(f"Nothing was indexed from {unknown}.", remedy="desk-rag ls lists what was.")
        files = source.transfer.stored(under)
        size = sum(file.size for file in files)
        chunks = len(source.transfer.chunks_in(under))
        progress.say(
            f"{out.plural(len(files), 'cache')} ({out.size(size)}) and the text of {out.plural(chunks, 'chunk')}"
            f" go to {shown_path(target_dir)}."
        )
        with Store.open(target_dir, _ALL_OF_THE_DRIVE, writer=True) as target:
            target.transfer.mark_export()
            missing = size - sum(file.size for file in target.transfer.stored())
            free = shutil.disk_usage(target_dir).free
            if missing * _ROOM_BESIDE > free:
                raise StoreFull(
                    f"{target_dir} has {out.size(free)} free, and {out.size(int(missing * _ROOM_BESIDE))} are needed.",
                    remedy="Free some space there, name another place, or export less with --folder.",
                )
            counts = Copy(source, target, under).export(_shown(progress, "copied"))
    return _report(counts, {"export": str(target_dir)}, progress, as_json=as_json)


def import_(settings: Settings, place: Path, renamed: Sequence[str], *, as_json: bool) -> int:
    """Take over an export; 4 if something in it is damaged."""
    from desk_rag.answering.auxiliary import prepare_all
    from desk_rag.ingest.transfer import Copy
    from desk_rag.store.ownership import is_store
    from desk_rag.store.store import Store

    paths = _path_map(renamed)
    source_dir = Path(os.path.realpath(place.expanduser()))
    if not is_store(source_dir) or not (source_dir / "catalog.sqlite").is_file():
        raise ConfigError(f"{source_dir} is not an export.", remedy="desk-rag cache export DEST makes one.")
    if source_dir == Path(os.path.realpath(settings.data_dir)):
        raise ConfigError(f"{source_dir} is the data directory itself.", remedy="Name the directory of an export.")
    progress = out.Progress(sys.stderr)
    with Store.open(source_dir, StoreSettings(), writer=False) as source:
        files = source.transfer.stored()
        progress.say(
            f"{shown_path(source_dir)} holds {out.plural(len(files), 'cache')}"
            f" ({out.size(sum(file.size for file in files))}) and {out.plural(source.counts().files, 'document')}."
        )
        with open_store(settings, writer=True) as target:
            progress.passing("loading the model …")
            serving = prepare_all(settings, progress.passing)
            namespaces = _accepted(serving, source_dir)
            target.register_model(serving.prefix_variants.namespaces, serving.auxiliary_namespace)
            copy = Copy(source, target)
            counts = copy.import_(paths, namespaces, settings.index, _shown(progress, "taken over"))
            kv = target.counts(serving.namespace)
    report = {"import": str(source_dir), "warm": kv.warm, "all_chunks": kv.chunks}
    return _report(counts, report, progress, as_json=as_json)


def _accepted(serving: ServingModel, source_dir: Path) -> set[str]:
    """Return the namespaces that may be copied from an export. Raises StoreError if the model's are not among them."""
    from desk_rag.answering.serving_model import why_not_of

    reason = why_not_of(serving, source_dir)
    if reason:
        raise StoreError(
            f"The export in {source_dir} does not fit this machine's model. {reason}",
            remedy="Name the same model with --model, or have the caches made here: desk-rag index FOLDER",
        )
    namespaces = {str(namespace) for namespace in serving.prefix_variants.namespaces}
    auxiliary = serving.auxiliary
    if auxiliary is not None and not why_not_of(auxiliary, source_dir):
        namespaces.add(str(auxiliary.namespace))
    return namespaces


def _checked_place(settings: Settings, place: Path) -> Path:
    """Return the directory for an export. Raises ConfigError for one that holds, or is part of, something else."""
    from desk_rag.store.ownership import first_foreign, is_store
    from desk_rag.store.store import Store

    target = Path(os.path.realpath(place.expanduser()))
    directories = (settings.data_dir, settings.store.kv_place)
    own = [Path(os.path.realpath(each)) for each in directories if each is not None]
    near = next((each for each in own if target == each or each in target.parents or target in each.parents), None)
    if near is not None:
        raise ConfigError(f"{target} and the data directory {near} must lie apart.", remedy="Name another directory.")
    if target.exists() and not target.is_dir():
        raise ConfigError(f"{target} is not a directory.", remedy="Name a new or empty directory.")
    foreign = None if not target.exists() or is_store(target) else first_foreign(target)
    if foreign is not None:
        raise ConfigError(
            f"{target} holds other files, such as '{foreign.relative_to(target)}'.",
            remedy="Name a new or empty directory, or that of an earlier export.",
        )
    if (target / "catalog.sqlite").is_file():
        with Store.open(target, _ALL_OF_THE_DRIVE, writer=False) as store:
            if not store.transfer.is_export() and (store.documents() or store.transfer.stored()):
                raise ConfigError(
                    f"{target} is a data directory in use, not an export.", remedy="Name a new or empty directory."
                )
    return target


def _path_map(renamed: Sequence[str]) -> PathMap:
    from desk_rag.ingest.transfer import PathMap

    pairs = []
    for word in renamed:
        old, sign, new = word.partition("=")
        if not (sign and old.startswith(os.sep) and new):
            raise ConfigError(f"--as {word}: not of the form OLD=NEW.", remedy="Example: --as /home/ana/docs=~/docs")
        pairs.append((Path(old), Path(os.path.realpath(Path(new).expanduser()))))
    return PathMap(tuple(pairs))


def _shown(progress: out.Progress, done_word: str) -> Progress:
    return lambda done, total: progress.passing(f"{done:,} of {total:,} caches {done_word}")


def _report(counts: Copied, report: dict[str, object], progress: out.Progress, *, as_json: bool) -> int:
    progress.clear()
    if as_json:
        out.print_json(sys.stdout, report | asdict(counts))
    else:
        print_lines(_lines(counts, report))
    return StoreError.exit_code if counts.damaged else 0


def _lines(counts: Copied, report: dict[str, object]) -> list[str]:
    lines = [
        f"Copied {out.plural(counts.caches, 'cache')} ({out.size(counts.copied_bytes)}) and "
        f"{out.plural(counts.documents, 'document')}; {counts.caches_present:,} and {counts.documents_present:,} were"
        " there already."
    ]
    if counts.documents_elsewhere:
        lines.append(
            f"{out.plural(counts.documents_elsewhere, 'document')} left out: their files are not here as they were"
            " there (--as OLD=NEW names folders that lie elsewhere)."
        )
    if counts.caches_without_text:
        lines.append(f"{out.plural(counts.caches_without_text, 'cache')} left out: no document here has their text.")
    if counts.caches_of_other_models:
        lines.append(
            f"{out.plural(counts.caches_of_other_models, 'cache')} left out: they are of another model "
            "(--model NAME imports those of NAME)."
        )
    if counts.caches_without_room:
        lines.append(
            f"{out.plural(counts.caches_without_room, 'cache')} left out: `budget_gib` under [store] has no room."
        )
    lines += [f"damaged: {sentence}" for sentence in counts.damaged[:20]]
    if "warm" in report:
        lines.append(f"{report['warm']:,} of {report['all_chunks']:,} chunks are warm now.")
    return lines
