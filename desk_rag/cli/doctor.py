"""Run `desk-rag doctor`: check the installation and name a remedy for each fault.

Checks files, packages and devices; loads no weights and changes nothing on disk. Model and embedder go through the same
checks as before an answer.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
import sqlite3
import stat
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

from desk_rag.cli import output as out
from desk_rag.config import GIB, ModelSettings, Settings
from desk_rag.errors import DeskRagError, told_to_user
from desk_rag.sanitize import clean, shown_path

if TYPE_CHECKING:
    from desk_rag.answering.serving_model import StoredGate
    from desk_rag.store.store import Store

_MOST_NAMED = 10
_LITTLE_ROOM = 256 << 20
"""Bytes of remaining room below which a warning is given."""


class Verdict(Enum):
    """Severity of a finding."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    """Result of one check."""

    name: str
    verdict: Verdict
    detail: str
    remedy: str = ""


def run(settings: Settings, *, as_json: bool) -> int:
    """Print all findings; 1 if one of them is a failure."""
    findings = list(examine(settings))
    failed = any(finding.verdict is Verdict.FAIL for finding in findings)
    if as_json:
        rows = [{"name": f.name, "verdict": f.verdict.value, "detail": f.detail, "remedy": f.remedy} for f in findings]
        out.print_json(sys.stdout, {"ok": not failed, "findings": rows})
        return int(failed)
    for finding in findings:
        sys.stdout.write(clean(f"{finding.verdict.value:<5} {finding.name:<14} {finding.detail}\n"))
        if finding.remedy and finding.verdict is not Verdict.OK:
            sys.stdout.write(clean(f"      {'':<14} {finding.remedy}\n"))
    return int(failed)


def examine(settings: Settings) -> Iterator[Finding]:
    """Run all checks, in the order in which a fault would show."""
    checks: tuple[Callable[[Settings], Finding | list[Finding]], ...] = (
        *(_python, _torch, _gpu, _quantization, _model, _memory, _adapter, _auxiliary, _rungs),
        *(_embedder, _words, _vectors, _data_dir, _kv_dir, _disk, _store, _foreign),
        *(_notices, _coding, _break_even, _watches),
    )
    reported: set[str] = set()
    for check in checks:
        try:
            findings = check(settings)
            yield from findings if isinstance(findings, list) else [findings]
        except (DeskRagError, OSError) as error:
            known = told_to_user(error)
            if known is None:
                raise
            if known.message in reported:
                continue  # several checks open the store and meet the same fault
            reported.add(known.message)
            yield Finding(check.__name__.strip("_").replace("_", " "), Verdict.FAIL, known.message, known.remedy)


def _python(_settings: Settings) -> Finding:
    version = ".".join(map(str, sys.version_info[:3]))
    return Finding("python", Verdict.OK, f"{version} on {sys.platform}")


def _torch(_settings: Settings) -> Finding:
    try:
        version = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return Finding("torch", Verdict.FAIL, "not installed", "Run the set-up again: make setup")
    return Finding("torch", Verdict.OK, version)


def _gpu(settings: Settings) -> Finding:
    import torch

    if torch.cuda.is_available():
        memory = torch.cuda.get_device_properties(0).total_memory
        return Finding("gpu", Verdict.OK, f"{torch.cuda.get_device_name(0)}, {out.size(memory)}")
    driver = Path("/proc/driver/nvidia/version").exists() or shutil.which("nvidia-smi") is not None
    if driver:
        cause = "this torch was built without CUDA" if torch.version.cuda is None else "torch cannot use it"
        remedy = "Install the build of torch that fits this machine (desk-rag help install)."
        return Finding("gpu", Verdict.WARN, f"an NVIDIA driver is installed, but {cause}", remedy)
    verdict = Verdict.FAIL if settings.model.device == "cuda" else Verdict.OK
    return Finding("gpu", verdict, "none; the model runs on the CPU", 'Take `device = "cuda"` out of the settings.')


def _quantization(settings: Settings) -> Finding:
    installed = importlib.util.find_spec("bitsandbytes") is not None
    if settings.model.quantization != "none" and not installed:
        detail = f"'{settings.model.quantization}' is set, but bitsandbytes is not installed"
        return Finding("bitsandbytes", Verdict.FAIL, detail, "pip install 'desk-rag[gpu]'")
    detail = "installed" if installed else "not installed; only needed for nf4 and int8 weights"
    return Finding("bitsandbytes", Verdict.OK, detail)


def _model(settings: Settings) -> Finding:
    return Finding("model", Verdict.OK, _checked(settings.model))


def _memory(settings: Settings) -> list[Finding]:
    from desk_rag.cli.models import memory_needed

    needed = memory_needed(settings)  # None: the check of the model itself says why
    return [Finding("memory", Verdict.WARN if needed[1] else Verdict.OK, *needed)] if needed else []


def _auxiliary(settings: Settings) -> list[Finding]:
    """Check the auxiliary model if it is not the embedded one."""
    from desk_rag.answering.auxiliary import model_settings

    if settings.answer.auxiliary == "embedded":
        return []
    return [Finding("auxiliary", Verdict.OK, _checked(model_settings(settings, settings.answer.auxiliary)))]


def _checked(settings: ModelSettings) -> str:
    """Run all checks that precede loading a model; return its name, size and directory."""
    from desk_rag.model.weights import resolve, weight_files

    directory, remark = resolve(settings.name, allow_download=False), ""
    if settings.name != "embedded":
        from desk_rag.model import directory_check
        from desk_rag.model.loading import quiet_libraries

        quiet_libraries()
        config, _ = directory_check.check(directory, settings)
        reasoning = directory_check.check_prompt(directory, settings, config).reasoning
        remark = f"; {reasoning.notice}" if reasoning.notice else ""
    total = sum(file.stat().st_size for file in weight_files(directory))
    return f"{settings.name}, {out.size(total)} in {shown_path(directory)}{remark}"


def _adapter(settings: Settings) -> list[Finding]:
    """Check the adapter if one is set."""
    from desk_rag.model import adapters

    if not settings.model.adapter:
        return []
    files = adapters.inspect(Path(settings.model.adapter))
    if importlib.util.find_spec("peft") is None:  # importing it would take seconds
        detail = "is set, but peft is not installed"
        return [Finding("adapter", Verdict.FAIL, detail, "pip install 'desk-rag[finetune]'")]
    return [Finding("adapter", Verdict.OK, f"LoRA in {shown_path(files.directory)}")]


def _rungs(settings: Settings) -> list[Finding]:
    """Check the cache variants (`rungs`) if there are several."""
    rungs = settings.model.rungs
    if len(rungs) == 1:
        return []
    detail = f"{', '.join(map(str, rungs))}: every chunk is prefilled and kept {len(rungs)} times, once for each"
    if settings.model.name == "embedded":
        remedy = "Take `rungs` out of the settings: the embedded reader was trained to do without."
        return [Finding("rungs", Verdict.WARN, detail, remedy)]
    top_k = settings.answer.top_k
    if 0 < top_k <= rungs[-1]:
        detail = f"{', '.join(map(str, rungs))}, but answers of `top_k` = {top_k} chunks have no place for the last"
        return [Finding("rungs", Verdict.WARN, detail, "Leave out the rungs from `top_k` on, or raise it.")]
    return [Finding("rungs", Verdict.OK, f"{detail}; a chunk counts as warm once the first is there")]


def _embedder(settings: Settings) -> Finding:
    if settings.model.embedder != "embedded":
        from desk_rag.retrieval.embedding import check_directory

        offline = settings.model.model_copy(update={"allow_download": False})
        directory = check_directory(offline)
        return Finding("embedder", Verdict.OK, f"{settings.model.embedder} in {shown_path(directory)}")
    from desk_rag.retrieval.embedding import EMBEDDED_NAME, embedded_dir

    return Finding("embedder", Verdict.OK, f"{EMBEDDED_NAME} in {shown_path(embedded_dir())}")


def _words(_settings: Settings) -> Finding:
    connection = sqlite3.connect(":memory:")
    try:
        connection.execute("CREATE VIRTUAL TABLE probe USING fts5 (text)")
    except sqlite3.OperationalError:
        detail = f"SQLite {sqlite3.sqlite_version} has no FTS5"
        return Finding("word search", Verdict.FAIL, detail, "Use a Python whose sqlite3 has FTS5; python.org's does.")
    finally:
        connection.close()
    return Finding("word search", Verdict.OK, f"SQLite {sqlite3.sqlite_version} with FTS5")


def _vectors(_settings: Settings) -> Finding:
    installed = importlib.util.find_spec("hnswlib") is not None
    return Finding("vector search", Verdict.OK, "hnswlib" if installed else "exact, without hnswlib")


def _data_dir(settings: Settings) -> Finding:
    place = settings.data_dir
    if not place.exists():
        parent = next(p for p in place.parents if p.exists())
        if os.access(parent, os.W_OK):
            return Finding("data", Verdict.OK, f"{shown_path(place)} will be created by the first index")
        return Finding("data", Verdict.FAIL, f"{parent} cannot be written to", "Name another place with --data-dir.")
    if not os.access(place, os.W_OK):
        remedy = "Correct its permissions, or name another place with --data-dir."
        return Finding("data", Verdict.FAIL, f"{place} cannot be written to", remedy)
    mode = stat.S_IMODE(place.stat().st_mode)
    if os.name == "posix" and mode & 0o077:
        remedy = f"It holds text of your documents: chmod 700 '{place}'"
        return Finding("data", Verdict.WARN, f"{place} can be read by others (mode {mode:o})", remedy)
    return Finding("data", Verdict.OK, shown_path(place))


def _kv_dir(settings: Settings) -> list[Finding]:
    """Check the directory of the caches if it is not the default one."""
    place = settings.store.kv_place
    if not _has_store(settings):
        return [] if place is None else [Finding("kv_dir", Verdict.OK, f"{place}, set up when something is indexed")]
    with _open(settings) as store:
        away = store.kv_away
    if away:
        remedy = "Connect the drive, or set `kv_dir` under [store] to a directory of its own."
        return [Finding("kv_dir", Verdict.WARN, away, remedy)]
    return [] if place is None else [Finding("kv_dir", Verdict.OK, shown_path(place))]


def _foreign(settings: Settings) -> list[Finding]:
    """Files in desk-rag's directories that it did not write and therefore leaves alone."""
    if not _has_store(settings):
        return []
    from desk_rag.store.maintenance.data_directory import foreign_files

    with _open(settings) as store:
        away = store.kv_away
    foreign = foreign_files(settings.data_dir, None if away else settings.store.kv_place)
    if not foreign:
        return []
    names = ", ".join(str(path) for path in foreign[:_MOST_NAMED])
    names += f" and {len(foreign) - _MOST_NAMED:,} more" if len(foreign) > _MOST_NAMED else ""
    remedy = "desk-rag did not write these and never deletes them. Move them elsewhere; `desk-rag verify` names all."
    return [Finding("other files", Verdict.WARN, names, remedy)]


def _disk(settings: Settings) -> Finding:
    from desk_rag.store.kv.budget import Budget

    wanted = settings.store.kv_place or settings.data_dir
    place = next(p for p in (wanted, *wanted.parents) if p.exists())
    kept, cap = settings.store.reserve_gib, int(settings.store.budget_gib * GIB)
    free = shutil.disk_usage(place).free
    used = 0
    if _has_store(settings):
        with _open(settings) as store:
            used = store.counts().kv_bytes
    limit = Budget(place, settings.store, used).limit()
    detail = f"{out.size(free)} free; chunk KV takes {out.size(used)} and may take {out.size(limit)}"
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
        return Finding("disk", Verdict.WARN, f"{detail}: no chunk KV is kept", remedy)
    return Finding("disk", Verdict.OK, detail)


def _store(settings: Settings) -> Finding:
    if not _has_store(settings):
        return Finding("index", Verdict.OK, "empty")
    with _open(settings) as store:
        counts, activity, outlook = store.coverage(), store.activity(), store.outlook(None, 0.0)
    amount = f"{out.plural(counts.files, 'file')}, {out.plural(counts.chunks, 'chunk')}"
    detail = f"{amount}, {counts.warm:,} of them warm"
    if outlook is not None:
        detail += f". {outlook.sentence}"
    if activity is not None:
        detail += f"; process {activity.pid} is writing"
    if counts.failed:
        remedy = "desk-rag status lists them; desk-rag why FILE says more."
        detail += f"; {out.plural(counts.failed, 'file')} could not be read"
        return Finding("index", Verdict.WARN, detail, remedy)
    return Finding("index", Verdict.OK, detail)


def _notices(settings: Settings) -> list[Finding]:
    """Report what the store repaired or lost when it was last opened."""
    if not _has_store(settings):
        return []
    with _open(settings) as store:
        past = store.past_notices()
    if past is None:
        return []
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(past[0]))
    remedy = "desk-rag verify --repair checks everything and clears this note."
    return [Finding("store", Verdict.WARN, f"{when}: {' '.join(past[1])}", remedy)]


def _coding(settings: Settings) -> list[Finding]:
    from desk_rag.answering.serving_model import stored_gates

    gates = stored_gates(settings.data_dir)
    if not gates:
        return [Finding("int8 quality", Verdict.OK, "measured when a model is first used")]
    return [_quality(stored) for stored in gates]


def _quality(stored: StoredGate) -> Finding:
    gate = stored.gate
    exact = sum(layer.raw for layer in gate.scheme.layers)
    kept = f", {exact} of {len(gate.scheme.layers)} layers kept exact" if exact else ""
    detail = (
        f"{stored.model}: KL {gate.score.mean_kl:.1e} nats, top-1 {gate.score.top1:.1%} over {gate.score.tokens}"
        f" tokens, {gate.needles_found} of {gate.needles_expected} codes found; coded as {gate.scheme.label}{kept};"
        f" keys turn {f'to within {stored.key_error:.0e}' if stored.key_error else 'exactly'}"
    )
    if stored.drift_epoch:
        detail += f"; computed again {out.plural(stored.drift_epoch, 'time')} because this machine's results changed"
    passed = gate.score.passes and gate.needles_found == gate.needles_expected
    verdict = Verdict.OK if passed else Verdict.WARN
    return Finding("int8 quality", verdict, detail, "Answers from chunk KV may differ; --mode full is exact.")


def _break_even(settings: Settings) -> list[Finding]:
    """Compare the cost of prefill with that of loading, at this machine's rates (MatKV)."""
    from desk_rag.answering.serving_model import stored_gates

    findings = []
    if _has_store(settings):
        with _open(settings) as store:
            for stored in stored_gates(settings.data_dir):
                pays = store.break_even(stored.namespace)
                if pays is not None:
                    verdict = Verdict.OK if pays.days else Verdict.WARN
                    remedy = "Answers are as fast without: set `budget_gib = 0` under [store]."
                    findings.append(Finding("break-even", verdict, f"{stored.model}: {pays.sentence}", remedy))
    return findings or [Finding("break-even", Verdict.OK, "measured once there is some chunk KV")]


def _has_store(settings: Settings) -> bool:
    return (settings.data_dir / "catalog.sqlite").is_file()


def _open(settings: Settings) -> Store:
    from desk_rag.store.store import Store

    return Store.open(settings.data_dir, settings.store, writer=False)


def _watches(_settings: Settings) -> Finding:
    limit = Path("/proc/sys/fs/inotify/max_user_watches")
    if not limit.is_file():
        return Finding("watching", Verdict.OK, "by the operating system's own events")
    most = int(limit.read_text(encoding="ascii"))
    if most < 16384:
        remedy = "Larger trees are polled instead. To raise it: sudo sysctl fs.inotify.max_user_watches=524288"
        return Finding("watching", Verdict.WARN, f"only {most:,} folders can be watched", remedy)
    return Finding("watching", Verdict.OK, f"up to {most:,} folders")
