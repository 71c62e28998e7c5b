"""A model made ready to serve chunk KV: loaded, shared prefix prefilled, coding chosen, drift checked, namespace named.

Knows the order of these steps and keeps their results on disk, so that the gate runs once per model and not once per
start. The answering side and the background prefill both start here, which is why they agree on every key.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

from desk_rag.config import Settings
from desk_rag.kv.canaries import GROUPS, PROBE
from desk_rag.kv.gate import GateReport, Score, drifted, probe_kv, run_gate
from desk_rag.kv.identity import identify
from desk_rag.kv.prefill import PrefixKV, prefill_prefix
from desk_rag.kv.quant import LayerScheme, QuantScheme
from desk_rag.kv.types import ChunkKV, Namespace
from desk_rag.model import PRODUCER, LanguageModel, load_model


@dataclass(frozen=True, slots=True)
class Prepared:
    """Everything that follows from the model alone, before any document or question."""

    model: LanguageModel
    prefix: PrefixKV
    gate: GateReport
    namespace: Namespace
    drift_epoch: int


@dataclass(frozen=True, slots=True)
class _Record:
    """What is kept on disk per model."""

    gate: GateReport
    drift_epoch: int
    probe: ChunkKV


def prepare(settings: Settings) -> Prepared:
    """Load the model of `settings` and settle how its chunk KV is coded and named. Raises ModelError, ConfigError."""
    return prepare_model(load_model(settings.model), settings.data_dir)


def prepare_model(model: LanguageModel, data_dir: Path) -> Prepared:
    """As `prepare`, for a model already in memory."""
    prefix = prefill_prefix(model)
    plain = identify(model.spec, model.prompt.prefix_ids, QuantScheme.uniform(model.spec.num_layers))
    file = data_dir / "models" / f"{plain.namespace()}.safetensors"
    now = probe_kv(model, prefix)
    record = _read(file)
    if record is None:
        record = _Record(run_gate(model, prefix), 0, now)
        _write(file, record)
    elif drifted(record.probe, now):
        record = _Record(run_gate(model, prefix), record.drift_epoch + 1, now)
        _write(file, record)
    identity = identify(model.spec, model.prompt.prefix_ids, record.gate.scheme, drift_epoch=record.drift_epoch)
    return Prepared(model, prefix, record.gate, identity.namespace(), record.drift_epoch)


def stored_gates(data_dir: Path) -> list[tuple[str, GateReport]]:
    """(producer, report) of every model this data directory has seen, for `doctor`; loads no model."""
    found = []
    for file in sorted((data_dir / "models").glob("*.safetensors")):
        record = _read(file)
        if record is not None:
            found.append((file.stem, record.gate))
    return found


def _canary_hash() -> str:
    return hashlib.blake2b(repr((GROUPS, PROBE)).encode(), digest_size=8).hexdigest()


def _read(file: Path) -> _Record | None:
    """None when there is no record, or one that cannot be trusted: the gate then simply runs again."""
    try:
        data = file.read_bytes()
        tensors = load(data)
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"]
        if header["canaries"] != _canary_hash():
            return None
        gate = json.loads(header["gate"])
        report = GateReport(
            scheme=QuantScheme(tuple(LayerScheme(**layer) for layer in gate["layers"])),
            score=Score(**gate["score"]),
            plain_score=Score(**gate["plain_score"]),
            needles_found=gate["needles_found"],
            needles_expected=gate["needles_expected"],
        )
        return _Record(report, int(header["drift_epoch"]), ChunkKV(tensors["keys"], tensors["values"]))
    except (OSError, SafetensorError, ValueError, KeyError, TypeError):
        return None


def _write(file: Path, record: _Record) -> None:
    gate = record.gate
    text = json.dumps(
        {
            "layers": [{"raw": layer.raw, "group": layer.group} for layer in gate.scheme.layers],
            "score": _score(gate.score),
            "plain_score": _score(gate.plain_score),
            "needles_found": gate.needles_found,
            "needles_expected": gate.needles_expected,
        }
    )
    metadata = {
        "gate": text,
        "drift_epoch": str(record.drift_epoch),
        "canaries": _canary_hash(),
        "producer": PRODUCER,
    }
    tensors: dict[str, torch.Tensor] = {
        "keys": record.probe.keys.contiguous(),
        "values": record.probe.values.contiguous(),
    }
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    temporary = file.with_suffix(f".{os.getpid()}.tmp")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(save(tensors, metadata))
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(file)
    finally:
        temporary.unlink(missing_ok=True)


def _score(score: Score) -> dict[str, float]:
    return {"mean_kl": score.mean_kl, "top1": score.top1, "tokens": score.tokens}
