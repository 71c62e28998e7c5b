"""Preparing a model runs the gate once, remembers it, and renames the namespace when the machine computes otherwise."""

from __future__ import annotations

import stat
from pathlib import Path

import torch

from desk_rag.model import LanguageModel
from desk_rag.prepared import prepare_model, stored_gates


def test_the_gate_is_remembered_and_a_broken_record_only_costs_time(reader: LanguageModel, tmp_path: Path) -> None:
    first = prepare_model(reader, tmp_path)
    (file,) = (tmp_path / "models").iterdir()
    written = file.stat().st_mtime_ns
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    second = prepare_model(reader, tmp_path)
    assert second.namespace == first.namespace
    assert second.gate == first.gate
    assert file.stat().st_mtime_ns == written
    assert [gate for _, gate in stored_gates(tmp_path)] == [first.gate]

    file.write_bytes(file.read_bytes()[:1000])
    assert stored_gates(tmp_path) == []
    third = prepare_model(reader, tmp_path)
    assert third.namespace == first.namespace
    assert file.stat().st_size > 1000


def test_drift_that_no_fingerprint_sees_changes_the_namespace(reader: LanguageModel, tmp_path: Path) -> None:
    before = prepare_model(reader, tmp_path)
    weight = reader.decoder_layers[3].self_attn.k_norm.weight
    original = weight.data.clone()
    try:
        with torch.no_grad():
            weight.mul_(1.2)  # the fingerprint was taken from the files, so it does not move
        after = prepare_model(reader, tmp_path)
    finally:
        weight.data.copy_(original)
    assert after.drift_epoch == before.drift_epoch + 1
    assert after.namespace != before.namespace
