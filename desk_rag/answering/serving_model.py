"""A model made ready to serve chunk KV: loaded, shared prefix prefilled, coding chosen, drift checked, rungs named.

Knows the order of these steps and keeps their results on disk, so that the gate runs once per model and not once per
start. The answering side and the background prefill both start here, which is why they agree on every key.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

from desk_rag.config import MOST_PRIMERS, Settings
from desk_rag.errors import ForeignPlace
from desk_rag.kv.calibration.gate import GateReport, Score, drifted, probe_kv, run_gate
from desk_rag.kv.calibration.self_test import check_keys
from desk_rag.kv.calibration.texts import GROUPS, PROBE
from desk_rag.kv.identity import identify
from desk_rag.kv.prefill import PrefixKV, prefill_prefix
from desk_rag.kv.prefix_variants.variants import (
    PLAIN,
    PrefixVariant,
    PrefixVariants,
    build_prefix_variants,
    variant_prefix_ids,
)
from desk_rag.kv.quant import LayerScheme, QuantScheme
from desk_rag.kv.types import ChunkKV, Namespace
from desk_rag.model.language_model import LanguageModel
from desk_rag.model.loading import PRODUCER, load_model
from desk_rag.owned_directory import OwnedDirectory
from desk_rag.store.kv_directory import marker_of
from desk_rag.store.layout import Layout, write_private
from desk_rag.store.ownership import KV_RECORD, content_proves

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Prepared:
    """Everything that follows from the model alone, before any document or question."""

    model: LanguageModel
    prefix: PrefixKV
    gate: GateReport
    namespace: Namespace
    drift_epoch: int
    later: tuple[PrefixVariant, ...] = ()
    """The rungs above rung 0, which is `prefix` and `namespace`."""

    @property
    def ladder(self) -> PrefixVariants:
        """All rungs."""
        return PrefixVariants((PrefixVariant(0, self.prefix, self.namespace), *self.later))


@dataclass(frozen=True, slots=True)
class StoredGate:
    """What this data directory remembers of a model."""

    model: str
    """Its name as in the settings."""
    namespace: Namespace
    gate: GateReport
    drift_epoch: int
    key_error: float
    """Relative error of the self-test: keys as stored and turned, against the model's own."""


@dataclass(frozen=True, slots=True)
class _Record:
    """A `StoredGate` and the drift probe's KV, as kept on disk per model."""

    told: StoredGate
    probe: ChunkKV


def prepare(settings: Settings) -> Prepared:
    """Load the model of `settings` and settle how its chunk KV is coded and named. Raises ModelError, ConfigError."""
    model = load_model(settings.model)
    return prepare_model(model, settings.data_dir, settings.model.rungs, kv_dir=settings.store.kv_place)


def prepare_model(
    model: LanguageModel, data_dir: Path, rungs: Sequence[int] = PLAIN, *, kv_dir: Path | None = None
) -> Prepared:
    """As `prepare`, for a model already in memory. Raises UnsupportedModel if it fails the self-test.

    Gate and probe look at rung 0: the others differ in what stands before a chunk, not in how it is coded or computed.
    """
    prefix = prefill_prefix(model)
    plain = identify(model.spec, model.prompt.prefix_ids, QuantScheme.uniform(model.spec.num_layers))
    file = data_dir / "models" / f"{plain.namespace()}.safetensors"
    now = probe_kv(model, prefix)
    record = _read(file)
    if record is None or drifted(record.probe, now):
        key_error = check_keys(model)
        gate = run_gate(model, prefix)
        after = record
        record = _read(file)  # again: another process may have been faster
        if record is None or drifted(record.probe, now):
            record = _Record(_named(model, gate, key_error, Layout(data_dir, kv_dir), after), now)
            _write(file, record)
    told = record.told
    ladder = build_prefix_variants(model, prefix, rungs, told.gate.scheme, drift_epoch=told.drift_epoch)
    return Prepared(model, prefix, told.gate, told.namespace, told.drift_epoch, ladder.variants[1:])


def stored_gates(data_dir: Path) -> list[StoredGate]:
    """What is remembered of every model this data directory has seen, for `doctor`; loads no model."""
    records = [_read(file) for file in sorted((data_dir / "models").glob("*.safetensors"))]
    return [record.told for record in records if record is not None]


def _named(
    model: LanguageModel, gate: GateReport, key_error: float, layout: Layout, after: _Record | None
) -> StoredGate:
    """Give the model a namespace for its KV from now on: one that holds nothing which this probe does not vouch for.

    After a drift, and where the record was lost or unreadable, what lies in the old namespace can no longer be told to
    be right; it ends as misses and is evicted first.
    """
    epoch = 0 if after is None else after.told.drift_epoch + 1
    if layout.kv_dir is not None and marker_of(layout.kv_dir) is None and (layout.root / KV_RECORD).exists():
        epoch += int(time.time())  # what lies on a drive that is away cannot be looked at: a number it never had
    # whatever rungs there ever were
    prefixes = [variant_prefix_ids(model.prompt, count) for count in range(MOST_PRIMERS + 1)]
    while True:
        rungs = [identify(model.spec, ids, gate.scheme, drift_epoch=epoch).namespace() for ids in prefixes]
        if not any(layout.namespace_dir(namespace).exists() for namespace in rungs):
            return StoredGate(model.spec.name, rungs[0], gate, epoch, key_error)
        epoch += 1


def _canary_hash() -> str:
    return hashlib.blake2b(repr((GROUPS, PROBE)).encode(), digest_size=8).hexdigest()


def _read(file: Path) -> _Record | None:
    """None when there is no record, or one that cannot be trusted: self-test and gate then simply run again."""
    try:
        data = file.read_bytes()
        tensors = load(data)
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"]
        if header["canaries"] != _canary_hash() or header["probe"] != _probe_hash(tensors):
            return None
        told = json.loads(header["told"])
        gate = told.pop("gate")
        report = GateReport(
            scheme=QuantScheme(tuple(LayerScheme(**layer) for layer in gate["scheme"]["layers"])),
            score=Score(**gate["score"]),
            plain_score=Score(**gate["plain_score"]),
            needles_found=gate["needles_found"],
            needles_expected=gate["needles_expected"],
        )
        return _Record(StoredGate(gate=report, **told), ChunkKV(tensors["keys"], tensors["values"]))
    except (OSError, SafetensorError, ValueError, KeyError, TypeError):
        return None


def _write(file: Path, record: _Record) -> None:
    """Keep a record, 0600, complete or not at all. A full disk costs no answer: the gate runs again next time."""
    tensors: dict[str, torch.Tensor] = {
        "keys": record.probe.keys.contiguous(),
        "values": record.probe.values.contiguous(),
    }
    metadata = {
        "told": json.dumps(asdict(record.told)),
        "probe": _probe_hash(tensors),
        "canaries": _canary_hash(),
        "producer": PRODUCER,
    }
    try:
        home = OwnedDirectory(file.parents[1])
        file.parents[1].mkdir(mode=0o700, parents=True, exist_ok=True)
        for left_over in file.parent.glob(f"{file.name}.*.tmp"):
            home.remove(left_over, content_proves(f"models/{left_over.name}"))
        write_private(file, save(tensors, metadata), home.root)
    except (OSError, ForeignPlace) as error:
        _log.warning("what was found out about the model could not be kept (%s)", error)


def _probe_hash(tensors: dict[str, torch.Tensor]) -> str:
    """safetensors checks lengths only; a flipped bit in the probe must not pass for drift, or hide it."""
    digest = hashlib.blake2b(digest_size=16)
    for name in ("keys", "values"):
        digest.update(tensors[name].contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
