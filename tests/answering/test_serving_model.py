"""Preparing a model runs the gate once, remembers it, and renames the namespace when the machine computes otherwise."""

from __future__ import annotations

import os
import random
import signal
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from desk_rag.answering import serving_model
from desk_rag.answering.serving_model import prepare_model, stored_gates
from desk_rag.errors import Cancelled, UnsupportedModel
from desk_rag.kv.calibration import gate
from desk_rag.kv.calibration.gate import GateReport, Progress, run_gate
from desk_rag.kv.calibration.texts import GROUPS
from desk_rag.kv.identity import kv_key
from desk_rag.kv.prefill import PrefixKV, prefill_chunk
from desk_rag.kv.quant import quantize
from desk_rag.kv.serving import ServingModel
from desk_rag.kv.types import KVKey
from desk_rag.model.language_model import LanguageModel
from desk_rag.owned_directory import OwnedDirectory
from desk_rag.store.layout import Layout
from desk_rag.store.store import Store
from tests.models import FAMILIES, build_model
from tests.store import made
from tests.store.faults import FullAt

A = Path("/d/a.md")
SHIPPED = serving_model._MEASURED
pytestmark = pytest.mark.usefixtures("_short_gate")


@pytest.fixture
def _short_gate(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """One group of canaries instead of four, and always: what is tested here is what becomes of the outcome."""
    real = serving_model.run_gate
    monkeypatch.setattr(serving_model, "_MEASURED", tmp_path / "no record ships")
    monkeypatch.setattr(
        serving_model, "run_gate", lambda model, prefix, progress: real(model, prefix, GROUPS[:1], progress)
    )


def record_of(data_dir: Path) -> Path:
    (file,) = (data_dir / "models").iterdir()
    return file


@contextmanager
def drift(model: LanguageModel) -> Iterator[None]:
    """Change the numerics as another driver would; the fingerprint was taken from the files, so it does not move."""
    weight = model.decoder_layers[3].self_attn.k_norm.weight
    original = weight.data.clone()
    try:
        with torch.no_grad():
            weight.mul_(1.2)
        yield
    finally:
        weight.data.copy_(original)


def warm(store: Store, ready: ServingModel, *texts: str) -> list[KVKey]:
    """Give each text its real KV as background prefill does."""
    store.put_document(made.document(A, texts), made.chunks(texts), made.stamp())
    keys = []
    for text in texts:
        ids = ready.model.prompt.chunk_ids(text)
        keys.append(kv_key(ready.namespace, ids))
        kv = quantize(prefill_chunk(ready.model, ready.prefix, ids), ready.gate.scheme)
        store.put_kv(keys[-1], kv, [made.chunk_id(text)], 0.5)
    return keys


def test_the_gate_is_remembered_and_a_broken_record_only_costs_time(reader: LanguageModel, tmp_path: Path) -> None:
    first = prepare_model(reader, tmp_path)
    file = record_of(tmp_path)
    written = file.stat().st_mtime_ns
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    second = prepare_model(reader, tmp_path)
    assert second.namespace == first.namespace
    assert second.gate == first.gate
    assert file.stat().st_mtime_ns == written
    (stored,) = stored_gates(tmp_path)
    assert (stored.model, stored.namespace, stored.gate) == (reader.spec.name, first.namespace, first.gate)
    assert stored.key_error < 1e-6 and stored.drift_epoch == 0

    whole = file.read_bytes()
    for broken in (whole[:1000], whole[:-1], whole[:-40] + bytes([whole[-40] ^ 8]) + whole[-39:], b""):
        file.write_bytes(broken)
        assert stored_gates(tmp_path) == []
    third = prepare_model(reader, tmp_path)
    assert third.namespace == first.namespace, "there was no KV that could be wrong"
    assert stored_gates(tmp_path) == [stored]


def test_the_embedded_reader_was_measured_before_it_shipped(
    reader: LanguageModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If this fails: delete the shipped record, index with a new data directory, and copy what that writes there."""
    fresh = prepare_model(reader, tmp_path / "fresh")
    monkeypatch.setattr(serving_model, "_MEASURED", SHIPPED)
    ready = prepare_model(reader, tmp_path / "shipped")
    assert ready.gate.complete and ready.gate.score.passes and ready.gate.needles_found == len(GROUPS)
    assert (ready.namespace, ready.scheme) == (fresh.namespace, fresh.scheme)
    (stored,) = stored_gates(tmp_path / "shipped")
    assert stored.key_error < 1e-6, "its keys are checked on each machine"
    with drift(reader):
        assert prepare_model(reader, tmp_path / "other numbers").gate.needles_expected == 1, "measured here"
    other = replace(reader, spec=replace(reader.spec, weights_fingerprint="of other weights"))
    assert prepare_model(other, tmp_path / "other weights").gate.needles_expected == 1


def test_an_interrupted_gate_goes_on_at_the_next_start_until_there_are_caches(
    reader: LanguageModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def one_text(model: LanguageModel, prefix: PrefixKV, progress: Progress) -> GateReport:
        return run_gate(model, prefix, GROUPS[:1], progress)

    monkeypatch.setattr(serving_model, "run_gate", one_text)

    def interrupt(line: str) -> None:
        if "8 bits" in line:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare_model(reader, tmp_path, say=interrupt)
    (left,) = stored_gates(tmp_path)
    assert not left.gate.complete and left.gate.scheme.label == "raw*10" and left.drift_epoch == 0
    caches = Layout(tmp_path, None).namespace_dir(left.namespace)
    caches.mkdir(parents=True)
    lines = list[str]()
    kept = prepare_model(reader, tmp_path, say=lines.append)
    assert kept.namespace == left.namespace and kept.scheme == left.gate.scheme, "its caches stay in use"
    assert lines == [], "nothing was measured"

    caches.rmdir()
    ready = prepare_model(reader, tmp_path, say=lines.append)
    assert ready.gate.complete and ready.scheme.label == "int8*10" and ready.drift_epoch == 0
    assert any("text 1 of 1" in line for line in lines)
    assert stored_gates(tmp_path)[0].gate == ready.gate


def test_what_a_killed_or_stopped_gate_has_measured_is_kept(
    reader: LanguageModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The measured layers are on disk while the gate runs; a stop ends it between two passages.

    No coding passes: 8 bits cost the reader 3e-8 nats here, which fp32 may round to 0.
    """

    def hard_gate(model: LanguageModel, prefix: PrefixKV, progress: Progress) -> GateReport:
        with monkeypatch.context() as patch:
            patch.setattr(gate, "MAX_MEAN_KL", -1.0)
            return run_gate(model, prefix, GROUPS[:1], progress)

    monkeypatch.setattr(serving_model, "run_gate", hard_gate)
    monkeypatch.setattr(serving_model, "_KEEP_SECONDS", 0.0)
    on_disk = list[int]()

    def stop() -> bool:
        records = map(serving_model._read, (tmp_path / "models").glob("*.safetensors"))
        on_disk.append(sum(len(record.moves.alone) for record in records if record is not None))
        return on_disk[-1] >= 3

    with pytest.raises(Cancelled):
        prepare_model(reader, tmp_path, stop=stop)
    assert on_disk[-1] == 3
    (left,) = stored_gates(tmp_path)
    assert not left.gate.complete and left.gate.scheme.label == "raw*10"


def test_after_drift_what_is_stored_ends_as_misses_and_goes_first(reader: LanguageModel, tmp_path: Path) -> None:
    before = prepare_model(reader, tmp_path)
    texts = ["The boiler was serviced in May.", "Rent is due on Monday."]
    with Store.open(tmp_path, made.settings(), writer=True) as store:
        stale = warm(store, before, *texts)
        store.pin(A.parent)
        sizes = store.counts().kv_bytes
    with drift(reader):
        after = prepare_model(reader, tmp_path)
        assert after.drift_epoch == before.drift_epoch + 1
        assert after.namespace != before.namespace
        assert prepare_model(reader, tmp_path).namespace == after.namespace, "it is one drift, not one per start"
        with Store.open(tmp_path, made.settings(budget_bytes=sizes), writer=True) as store:
            fresh = [KVKey(after.namespace, key.tokens) for key in stale]
            assert store.get_kv(fresh) == [None, None]
            assert len(store.chunks_without_kv(after.namespace, 9)) == 2
            store.unpin(A.parent)
            store.pin(A)  # a pin does not protect what can never be read again
            warm(store, after, *texts)
            assert store.has_kv([*stale, *fresh]) == set(fresh)
            assert store.verify().clean


@pytest.mark.parametrize("loss", ["deleted", "broken"])
def test_kv_whose_record_was_lost_is_not_trusted(loss: str, reader: LanguageModel, tmp_path: Path) -> None:
    """Drift, then a lost record: the epoch must not begin again at the one whose KV another driver made."""
    first = prepare_model(reader, tmp_path)
    with Store.open(tmp_path, made.settings(), writer=True) as store:
        warm(store, first, "Rent is due on Monday.")
    record_of(tmp_path).unlink() if loss == "deleted" else record_of(tmp_path).write_bytes(b"x" * 99)
    again = prepare_model(reader, tmp_path)
    assert again.namespace != first.namespace and again.drift_epoch == 1
    assert prepare_model(reader, tmp_path).namespace == again.namespace


def test_two_processes_that_begin_at_once_agree(
    reader: LanguageModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one finishes its gate, and has stored KV, while ours is still running."""
    real, other = serving_model.run_gate, []

    def slow_gate(model: LanguageModel, prefix: object, progress: object) -> object:
        if not other:
            other.append(None)
            other[0] = prepare_model(reader, tmp_path)
            with Store.open(tmp_path, made.settings(), writer=True) as store:
                warm(store, other[0], "Rent is due on Monday.")
        return real(model, prefix, progress=progress)  # type: ignore[arg-type]

    monkeypatch.setattr(serving_model, "run_gate", slow_gate)
    ours = prepare_model(reader, tmp_path)
    assert ours.namespace == other[0].namespace


def test_a_full_disk_at_any_step_of_the_record_costs_no_answer(reader: LanguageModel, tmp_path: Path) -> None:
    first = prepare_model(reader, tmp_path / "first")
    record = serving_model._read(record_of(tmp_path / "first"))
    assert record is not None
    file = tmp_path / "second" / "models" / "0.safetensors"
    failures = 0
    for step in range(1, 20):
        with pytest.MonkeyPatch.context() as patch:
            disk = FullAt(patch, step)
            serving_model._write(file, record)
        if disk.calls < step:
            break
        failures += not file.exists()  # the last two calls flush its name, after it has one
        assert serving_model._read(file) is None or serving_model._read(file).gate == record.gate  # type: ignore[union-attr]
        assert list(file.parent.glob("*.tmp")) == []
        file.unlink(missing_ok=True)
    assert failures >= 3 and serving_model._read(file) is not None

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OwnedDirectory, "write", _full)
        assert prepare_model(reader, tmp_path / "third").namespace == first.namespace
    assert stored_gates(tmp_path / "third") == []


def _full(_: OwnedDirectory, path: Path, content: bytes) -> None:
    raise OSError(28, "No space left on device", str(path))


@pytest.mark.slow
def test_a_kill_at_any_moment_leaves_a_whole_record_or_none(reader: LanguageModel, tmp_path: Path) -> None:
    prepare_model(reader, tmp_path)
    content = record_of(tmp_path).read_bytes()
    file = tmp_path / "killed" / "models" / f"{'0' * 32}.safetensors"
    file.parent.mkdir(parents=True)
    whole = none = 0
    for seed in range(60):
        file.unlink(missing_ok=True)
        child = os.fork()
        if child == 0:  # files and nothing else from here on: no thread of torch lives on in a fork
            while True:
                OwnedDirectory(file.parent).write(file, content)
        time.sleep(random.Random(seed).uniform(0.0, 0.02))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        read_record = serving_model._read(file)
        assert read_record is not None or not file.exists(), "a record that is there must be whole"
        whole += read_record is not None
        none += read_record is None
    assert whole and none, "the kills must fall on both sides of the rename"
    record = serving_model._read(record_of(tmp_path))
    assert record is not None
    serving_model._write(file, record)
    assert [path.name for path in file.parent.iterdir()] == [file.name], "left-overs of the killed are removed"


def test_a_model_that_fails_its_self_test_is_refused_and_leaves_no_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers.models.qwen3 import modeling_qwen3

    def interleaved(x: torch.Tensor) -> torch.Tensor:
        return torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)

    model = build_model(next(family for family in FAMILIES if family.name == "qwen3"))
    monkeypatch.setattr(modeling_qwen3, "rotate_half", interleaved)
    with pytest.raises(UnsupportedModel):
        prepare_model(model, tmp_path)
    assert stored_gates(tmp_path) == []
