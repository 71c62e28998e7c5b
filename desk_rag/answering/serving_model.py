"""Prepare a model to serve chunk KV: load it, prefill the prefix, choose the quantization.

Results that depend on the model alone are kept on disk, so that the quality gate runs once per model and not at every
start. Answering and background prefill both start here, which is why they agree on every key.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

from desk_rag.assets import assets_dir
from desk_rag.config import MOST_PRIMERS, Settings
from desk_rag.errors import Cancelled, ForeignPlace
from desk_rag.kv.calibration.gate import GateReport, Progress, Score, drifted, probe_kv, run_gate
from desk_rag.kv.calibration.schemes import STEPS, Moves
from desk_rag.kv.calibration.self_test import check_keys
from desk_rag.kv.calibration.texts import GROUPS, PROBE
from desk_rag.kv.identity import identify
from desk_rag.kv.prefill import PrefixKV, prefill_prefix
from desk_rag.kv.prefix_variants.variants import PLAIN, build_prefix_variants, variant_prefix_ids
from desk_rag.kv.quant import LayerScheme, QuantScheme
from desk_rag.kv.serving import ServingModel
from desk_rag.kv.types import ChunkKV, Namespace
from desk_rag.model.language_model import LanguageModel
from desk_rag.model.loading import PRODUCER, load_model
from desk_rag.model.memory.device import memory_errors
from desk_rag.owned_directory import OwnedDirectory
from desk_rag.store import adaptations
from desk_rag.store.kv_directory import marker_of
from desk_rag.store.layout import Layout
from desk_rag.store.ownership import KV_RECORD, content_proves

_log = logging.getLogger(__name__)
_KEEP_SECONDS = 5.0
"""Seconds between two times that an unfinished measurement is kept."""
_MEASURED = assets_dir() / "reader" / "measured.safetensors"
"""Record of the embedded reader; a copy of what its first use writes where this file is absent."""
_UNSCORED = Score(mean_kl=0.0, top1=1.0, tokens=0)
"""Score of the coding that loses nothing, before any was measured."""


@dataclass(frozen=True, slots=True)
class StoredGate:
    """Record of a model in the data directory."""

    model: str
    """Name of the model as in the settings."""
    namespace: Namespace
    gate: GateReport
    drift_epoch: int
    key_error: float
    """Relative error of stored and rotated keys against the model's own, from the self-test."""


@dataclass(frozen=True, slots=True)
class _Record:
    """The file kept per model: a `StoredGate`, the KV of the drift probe, and what an unfinished gate has measured."""

    gate: StoredGate
    probe: ChunkKV
    moves: Moves


def say_nothing(text: str) -> None:
    """Drop a line about progress."""


def never() -> bool:
    """Return that nobody wants the quality gate to stop."""
    return False


@memory_errors()
def prepare(
    settings: Settings, say: Callable[[str], None] = say_nothing, stop: Callable[[], bool] = never
) -> ServingModel:
    """Load and prepare the model that `settings` name; `say` takes lines about the progress of the quality gate.

    Raises ModelError (OutOfMemory among them), ConfigError, and Cancelled if `stop()` turns true during the gate.
    """
    model = load_model(settings.model)
    rungs, kv_dir = settings.model.rungs, settings.store.kv_place
    return prepare_model(model, settings.data_dir, rungs, kv_dir=kv_dir, say=say, stop=stop)


def prepare_model(
    model: LanguageModel,
    data_dir: Path,
    rungs: Sequence[int] = PLAIN,
    *,
    kv_dir: Path | None = None,
    say: Callable[[str], None] = say_nothing,
    stop: Callable[[], bool] = never,
) -> ServingModel:
    """Prepare a model that is already in memory.

    Gate and drift probe check prefix variant 0 only: the others are computed and quantized in the same way. A gate that
    ran out of time or was interrupted goes on at the next start, unless caches were made with its coding meanwhile.
    Raises UnsupportedModel if the model fails the self-test.
    """
    prefix = prefill_prefix(model)
    plain = identify(model.spec, model.prompt.prefix_ids, QuantScheme.uniform(model.spec.num_layers))
    file = data_dir / "models" / f"{plain.namespace()}.safetensors"
    probe = probe_kv(model, prefix)
    layout = Layout(data_dir, kv_dir)
    record = _read(file) or _shipped(model, file, probe, layout)
    if record is None or drifted(record.probe, probe):
        record = _measure(model, prefix, file, probe, layout, Progress(say=say, stop=stop), previous=record)
    elif not record.gate.gate.complete and not layout.namespace_dir(record.gate.namespace).exists():
        progress = Progress(record.moves, say, stop=stop)
        record = _measure(model, prefix, file, probe, layout, progress, previous=None)
    stored = record.gate
    variants = build_prefix_variants(model, prefix, rungs, stored.gate.scheme, drift_epoch=stored.drift_epoch)
    # Variants carry what a shift would add, so the two exclude each other.
    adaptation = adaptations.read(data_dir, stored.namespace) if variants.is_plain else None
    shift = adaptation.shift.to(model.device) if adaptation is not None and adaptation.facts["kept"] else None
    return ServingModel(model, variants, stored.gate, stored.drift_epoch, shift)


def _shipped(model: LanguageModel, file: Path, probe: ChunkKV, layout: Layout) -> _Record | None:
    """Keep and return what was measured of the embedded reader before it shipped, so that its first use waits for none.

    None for another model, and on a machine that computes other numbers with it.
    """
    record = _read(_MEASURED) if model.is_embedded else None
    if record is None or drifted(record.probe, probe):
        return None
    report = record.gate.gate
    if record.gate.namespace != identify(model.spec, model.prompt.prefix_ids, report.scheme).namespace():
        return None  # an adapter, or other weights in its place
    record = _Record(_with_namespace(model, report, check_keys(model), layout, None), probe, Moves())
    _write(file, record)
    return record


def _measure(
    model: LanguageModel,
    prefix: PrefixKV,
    file: Path,
    probe: ChunkKV,
    layout: Layout,
    progress: Progress,
    *,
    previous: _Record | None,
) -> _Record:
    """Run self-test and gate and keep the results; `previous` is a record whose caches cannot be trusted.

    Until the gate has ended, what it has measured is kept with the coding that loses nothing: it may be interrupted.
    """
    key_error = check_keys(model)
    stale = _read(file)
    raw = QuantScheme.uniform(model.spec.num_layers, STEPS[-1])
    unfinished = GateReport(raw, _UNSCORED, _UNSCORED, needles_found=0, needles_expected=0, complete=False)
    kept_at = time.monotonic()

    def keep(*, now: bool = False) -> None:
        nonlocal kept_at
        if now or time.monotonic() >= kept_at + _KEEP_SECONDS:
            kept_at = time.monotonic()
            unserved = _with_namespace(model, unfinished, key_error, layout, previous)
            _write(file, _Record(unserved, probe, progress.moves))

    progress.keep = keep
    try:
        gate = run_gate(model, prefix, progress=progress)
    except (KeyboardInterrupt, Cancelled):
        keep(now=True)
        raise
    meanwhile = _read(file)  # another process may have written it
    if (
        meanwhile is not None
        and meanwhile.gate.gate.score.tokens
        and (stale is None or meanwhile.gate != stale.gate)
        and not drifted(meanwhile.probe, probe)
    ):
        return meanwhile
    record = _Record(_with_namespace(model, gate, key_error, layout, previous), probe, progress.moves)
    _write(file, record)
    return record


def stored_gates(data_dir: Path) -> list[StoredGate]:
    """Records of all models that this data directory has served; loads no model."""
    records = [_read(file) for file in sorted((data_dir / "models").glob("*.safetensors"))]
    return [record.gate for record in records if record is not None]


def why_not_of(serving: ServingModel, data_dir: Path) -> str:
    """Return why chunk KV of another data directory cannot serve this model, as a sentence; "" if it can."""
    model = serving.model
    plain = identify(model.spec, model.prompt.prefix_ids, QuantScheme.uniform(model.spec.num_layers))
    record = _read(data_dir / "models" / f"{plain.namespace()}.safetensors")
    if record is None:
        others = ", ".join(sorted({f"'{gate.model}'" for gate in stored_gates(data_dir)})) or "an unknown model"
        return (
            f"Its caches were made by {others}; the model here is '{model.spec.name}', or differs from one of that name"
            " in weights, adapter, quantisation or prompt."
        )
    if record.gate.gate.scheme != serving.scheme:
        return f"Its caches are coded as {record.gate.gate.scheme.label}, those of this machine {serving.scheme.label}."
    if drifted(record.probe, probe_kv(model, serving.prefix)):
        return f"The machine that made them computes other numbers with '{model.spec.name}' than this one."
    if record.gate.namespace != serving.namespace:
        return (
            f"The results of '{model.spec.name}' changed {record.gate.drift_epoch} times on the machine that made them"
            f" and {serving.drift_epoch} times on this one, so that their caches have other names."
        )
    return ""


def _with_namespace(
    model: LanguageModel, gate: GateReport, key_error: float, layout: Layout, previous: _Record | None
) -> StoredGate:
    """Choose a namespace that is still empty for the model's KV.

    After a drift, or if the record was lost or is unreadable, KV in the old namespace cannot be trusted. It is not used
    any more and is evicted first.
    """
    epoch = 0 if previous is None else previous.gate.drift_epoch + 1
    if layout.kv_dir is not None and marker_of(layout.kv_dir) is None and (layout.root / KV_RECORD).exists():
        epoch += int(time.time())  # a drive that is not connected cannot be checked: take an unused number
    prefixes = [
        variant_prefix_ids(model.prompt, count) for count in range(MOST_PRIMERS + 1)
    ]  # all variants that may ever have been used
    while True:
        namespaces = [identify(model.spec, ids, gate.scheme, drift_epoch=epoch).namespace() for ids in prefixes]
        if not any(layout.namespace_dir(namespace).exists() for namespace in namespaces):
            return StoredGate(model.spec.name, namespaces[0], gate, epoch, key_error)
        epoch += 1


def _canary_hash() -> str:
    return hashlib.blake2b(repr((GROUPS, PROBE)).encode(), digest_size=8).hexdigest()


def _read(file: Path) -> _Record | None:
    """Read a record.

    None if there is none or it is damaged, in which case self-test and gate run again.
    """
    try:
        data = file.read_bytes()
        tensors = load(data)
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"]
        if header["canaries"] != _canary_hash() or header["probe"] != _probe_hash(tensors):
            return None
        fields = json.loads(header["told"])
        gate = fields.pop("gate")
        report = GateReport(
            scheme=QuantScheme(tuple(LayerScheme(**layer) for layer in gate["scheme"]["layers"])),
            score=Score(**gate["score"]),
            plain_score=Score(**gate["plain_score"]),
            needles_found=gate["needles_found"],
            needles_expected=gate["needles_expected"],
            complete=gate.get("complete", True),
        )
        moves = Moves(json.loads(header.get("moves", "{}")))
        return _Record(StoredGate(gate=report, **fields), ChunkKV(tensors["keys"], tensors["values"]), moves)
    except (OSError, SafetensorError, ValueError, KeyError, TypeError):
        return None


def _write(file: Path, record: _Record) -> None:
    """Write a record atomically, mode 0600.

    If the disk is full, the gate runs again at the next start.
    """
    tensors: dict[str, torch.Tensor] = {
        "keys": record.probe.keys.contiguous(),
        "values": record.probe.values.contiguous(),
    }
    metadata = {
        "told": json.dumps(asdict(record.gate)),
        "moves": json.dumps({} if record.gate.gate.complete else record.moves.alone),
        "probe": _probe_hash(tensors),
        "canaries": _canary_hash(),
        "producer": PRODUCER,
    }
    try:
        home = OwnedDirectory(file.parents[1])
        file.parents[1].mkdir(mode=0o700, parents=True, exist_ok=True)
        for leftover in file.parent.glob(f"{file.name}.*.tmp"):
            home.remove(leftover, content_proves(f"models/{leftover.name}"))
        home.write(file, save(tensors, metadata))
    except (OSError, ForeignPlace) as error:
        _log.warning("the results of the model check could not be saved: %s", error)


def _probe_hash(tensors: dict[str, torch.Tensor]) -> str:
    """Hash the probe.

    Safetensors checks only lengths, and a flipped bit must not pass for drift, or hide it.
    """
    digest = hashlib.blake2b(digest_size=16)
    for name in ("keys", "values"):
        digest.update(tensors[name].contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
