"""Answers loaded layer by layer equal those from whole files, whatever happens to the files in between."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import torch

from desk_rag.answering import engine as answer
from desk_rag.answering.engine import AnswerEngine
from desk_rag.answering.events import Answer, AnswerMode
from desk_rag.answering.kv_connector import CacheTarget, KVConnector, host_bytes, tier_bytes
from desk_rag.bench import overlap
from desk_rag.config import AnswerSettings
from desk_rag.errors import OutOfMemory
from desk_rag.kv.forward.fused_decoder import FusedDecoder
from desk_rag.kv.loading.file_io import FileReader
from desk_rag.kv.payload import ChunkFile, LayerGroup
from desk_rag.kv.types import KVKey, QuantizedKV, TokenHash
from desk_rag.model.memory import device as device_memory
from desk_rag.store.kv.header import read_header
from desk_rag.store.store import Store
from tests.answer_world import BICYCLE, RENT, World, an_engine, ask, filled, loader_of, streamed
from tests.whole_files import WholeFiles


@pytest.fixture(autouse=True, scope="module")
def _one_reading() -> Iterator[None]:
    """Every question takes one reading, which is what is tested here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("desk_rag.answering.questions.asking.convincing", lambda events: (yield from events))
        yield


@pytest.fixture
def engine(world: World, data: Path) -> Iterator[AnswerEngine]:
    with an_engine(world, data, streamed) as opened:
        yield opened


def stages(answer: Answer) -> set[str]:
    return {stage.name for stage in answer.timings.stages}


def test_memory_follows_what_is_free_or_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = torch.device("cuda")
    monkeypatch.setattr(device_memory, "free_gpu_bytes", lambda _device: 3 << 30)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(total=16 << 30, available=8 << 30))
    assert tier_bytes(AnswerSettings(), gpu) == (768 << 20, 1 << 30)
    assert tier_bytes(AnswerSettings(gpu_cache_mib=100, ram_cache_mib=200), gpu) == (100 << 20, 200 << 20)
    assert tier_bytes(AnswerSettings(ram_cache_mib=1), gpu)[1] == 64 << 20
    monkeypatch.setattr(device_memory, "free_gpu_bytes", lambda _device: 140 << 30)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(total=128 << 30, available=2 << 30))
    assert tier_bytes(AnswerSettings(), gpu) == (4 << 30, 512 << 20)
    assert host_bytes(AnswerSettings()) == 256 << 20
    assert host_bytes(AnswerSettings(ram_cache_mib=700)) == 700 << 20


def test_a_full_gpu_is_told_with_a_remedy(engine: AnswerEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(loader_of(engine), "start", full)
        with pytest.raises(OutOfMemory, match="even from one passage"):
            ask(engine, RENT)
    assert not engine.turn.answer_waits()
    assert "Mill Lane" in ask(engine, RENT).raw


def test_both_ways_fill_the_cache_bit_for_bit_the_same(world: World, data: Path, engine: AnswerEngine) -> None:
    assert min(len(read_header(file).groups) for file in files_of(engine)) > 1, "the test needs several waves"
    with an_engine(world, data, WholeFiles, writer=False) as mapped:
        for question in (BICYCLE, RENT):
            length, expected = filled(mapped, question)
            got_length, got = filled(engine, question)
            assert got_length == length > engine.prefix.num_tokens
            assert all(torch.equal(one, other) for one, other in zip(got, expected, strict=True))
            one, other = ask(engine, question), ask(mapped, question)
            assert one.raw == other.raw
            assert one.cold_chunks == other.cold_chunks == 0
            assert one.timings.loaded_bytes == pytest.approx(other.timings.loaded_bytes, rel=0.1)  # groups are padded
    assert "WTU-4471-B" in ask(engine, BICYCLE).text


def test_stages_name_loading_and_sum_to_the_first_token(engine: AnswerEngine) -> None:
    answer = ask(engine, RENT)
    names = [stage.name for stage in answer.timings.stages]
    assert names == ["queue", "retrieve", "load", "stitch", "prefill"]
    assert all(stage.seconds >= 0 for stage in answer.timings.stages)
    assert ask(engine, RENT, AnswerMode.FULL).timings.loaded_bytes == 0


def test_waiting_for_a_slow_drive_counts_as_loading(engine: AnswerEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = loader_of(engine).reader
    read, pause = reader.read, threading.Event()

    def slow(*arguments: object) -> None:
        pause.wait(0.02)
        read(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(reader, "read", slow)
    slowly = {stage.name: stage.seconds for stage in ask(engine, RENT).timings.stages}
    assert slowly["load"] > 0.02
    quickly = {stage.name: stage.seconds for stage in ask(engine, RENT).timings.stages}
    assert quickly["load"] < slowly["load"], "the second time everything is resident"


def files_of(engine: AnswerEngine) -> list[Path]:
    return sorted((engine.settings.data_dir / "kv").rglob("*.safetensors"))


def quarantined(engine: AnswerEngine) -> list[Path]:
    return list((engine.settings.data_dir / "quarantine").iterdir())


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 0x10
    path.chmod(0o600)
    path.write_bytes(content)


def when_found(engine: AnswerEngine, monkeypatch: pytest.MonkeyPatch, strike: Callable[[ChunkFile], None]) -> list[str]:
    """Do something to the first file right after its header was read, once; returns the struck tokens' hashes."""
    struck: list[str] = []
    real = engine.store.kv_files

    def files(keys: Sequence[KVKey], *, used: bool = True) -> list[ChunkFile | None]:
        files = real(keys, used=used)
        if not struck:
            file = next(file for file in files if file is not None)
            struck.append(file.path.stem)
            strike(file)
        return files

    monkeypatch.setattr(engine.store, "kv_files", files)
    return struck


@pytest.mark.parametrize("group", [0, -1])
def test_a_layer_group_damaged_between_retrieval_and_load(
    engine: AnswerEngine, monkeypatch: pytest.MonkeyPatch, group: int
) -> None:
    with monkeypatch.context() as patch:
        expected = ask(engine, BICYCLE)
        engine.forget_loaded()
        struck = when_found(
            engine, patch, lambda file: flip(file.path, file.header.data_start + file.header.groups[group].end - 1)
        )
        answer = ask(engine, BICYCLE)
    assert struck
    assert answer.raw == expected.raw
    assert "live prefill" in stages(answer)
    assert (answer.warm_chunks, answer.cold_chunks) == (expected.warm_chunks - 1, 1), "as read, not as the catalog says"
    assert sum(source.warm for source in answer.sources) == answer.warm_chunks
    assert [file.name.split("-")[1].split(".")[0] for file in quarantined(engine)] == struck
    engine.settle()
    assert struck[0] in {file.stem for file in files_of(engine)}, "the chunk is warm again"
    after = ask(engine, BICYCLE)
    assert after.raw == expected.raw
    assert "live prefill" not in stages(after)
    assert engine.store.verify().clean


def test_damage_found_out_while_other_damage_is_looked_at(
    engine: AnswerEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is put aside like the first: a damaged file that stayed in its place would never be written anew."""
    expected = ask(engine, BICYCLE)
    engine.settle()
    engine.forget_loaded()
    for file in files_of(engine):
        flip(file, -1)
    reader: FileReader = loader_of(engine).reader
    verify, reread = reader.verify, engine.store.reread_kv
    asked, found_out = threading.Event(), threading.Event()

    def late(path: Path, identity: object, groups: Sequence[tuple[int, LayerGroup]], run: torch.Tensor) -> None:
        last_of_many = groups[-1][0] >= 4  # the other two chunks have fewer groups, so they are lost waves before
        if last_of_many:
            asked.wait(10)
        try:
            verify(path, identity, groups, run)  # type: ignore[arg-type]
        finally:
            if last_of_many:
                found_out.set()

    def look(keys: Sequence[KVKey]) -> list[QuantizedKV | None]:
        asked.set()
        assert found_out.wait(10)
        time.sleep(0.2)  # the thread that found out has yet to say so
        return reread(keys)

    with monkeypatch.context() as patch:
        patch.setattr(reader, "verify", late)
        patch.setattr(engine.store, "reread_kv", look)
        answer = ask(engine, BICYCLE)
    assert answer.raw == expected.raw
    assert len(quarantined(engine)) == 3
    engine.settle()
    assert "live prefill" not in stages(ask(engine, BICYCLE))


def test_a_file_deleted_between_retrieval_and_load(engine: AnswerEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = ask(engine, BICYCLE)
    engine.forget_loaded()
    with monkeypatch.context() as patch:
        struck = when_found(engine, patch, lambda file: file.path.unlink())
        answer = ask(engine, BICYCLE)
    assert answer.raw == expected.raw
    assert "live prefill" in stages(answer)
    assert not quarantined(engine)
    engine.settle()
    assert struck[0] in {file.stem for file in files_of(engine)}


def test_a_read_that_went_wrong_once_blames_no_file(engine: AnswerEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = ask(engine, BICYCLE)
    engine.forget_loaded()
    reader: FileReader = loader_of(engine).reader
    read, spoiled = reader.read, threading.Event()

    def garbled(path: Path, identity: object, offset: int, nbytes: int, into: torch.Tensor) -> None:
        read(path, identity, offset, nbytes, into)  # type: ignore[arg-type]
        if not spoiled.is_set():
            spoiled.set()
            into[nbytes // 2] ^= 1

    monkeypatch.setattr(reader, "read", garbled)
    answer = ask(engine, BICYCLE)
    assert spoiled.is_set()
    assert answer.raw == expected.raw
    assert "live prefill" not in stages(answer), "the file itself is sound"
    assert not quarantined(engine)


def test_a_broken_header_is_put_aside_before_anything_is_loaded(engine: AnswerEngine) -> None:
    expected = ask(engine, BICYCLE)
    engine.forget_loaded()
    for file in files_of(engine):
        flip(file, 100)
    answer = ask(engine, BICYCLE)
    assert answer.raw == expected.raw
    assert "live prefill" in stages(answer)
    assert quarantined(engine)
    assert answer.timings.loaded_bytes == 0


@pytest.mark.parametrize("lean", [False, True])
def test_an_answer_of_which_nothing_was_on_disk_fills_every_layer(world: World, data: Path, lean: bool) -> None:
    with an_engine(world, data, WholeFiles, writer=False) as mapped:
        expected = ask(mapped, BICYCLE)
    for file in sorted((data / "kv").rglob("*.safetensors")):
        file.unlink()
    with an_engine(world, data, streamed, lean=lean) as engine:
        slab = engine._slab
        assert slab is not None
        for layer in slab.cache.layers:  # what an earlier answer left there must not help
            layer.key_slab.fill_(float("nan"))
            layer.value_slab.fill_(float("nan"))
        slab.forget_prefix()
        answer = ask(engine, BICYCLE)
        assert answer.cold_chunks == len(answer.sources) > 0
        assert answer.timings.loaded_bytes == 0
        assert answer.raw == expected.raw


def test_a_machine_that_cannot_run_the_lean_pass_starts_and_answers(
    world: World, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unable(*_: object, **__: object) -> torch.Tensor:
        raise RuntimeError("FlashAttention only supports Ampere GPUs or newer.")

    monkeypatch.setattr(FusedDecoder, "run", unable)
    with an_engine(world, data, streamed, lean=True) as engine:
        assert engine._slab is not None and engine._slab.fused is None
        assert "Mill Lane" in ask(engine, RENT).raw


def test_an_engine_that_cannot_start_gives_its_memory_back(
    world: World, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connectors: list[KVConnector] = []

    def loading(store: Store, site: CacheTarget) -> KVConnector:
        connectors.append(streamed(store, site))
        return connectors[-1]

    def full(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(answer, "prefill_chunk", full)
    with pytest.raises(OutOfMemory), an_engine(world, data, loading):
        pass
    assert not any(thread.is_alive() for thread in connectors[0].loader._threads)


def test_losers_are_cancelled(engine: AnswerEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = [KVKey(engine.namespace, TokenHash(file.stem)) for file in files_of(engine)][:3]
    assert len(keys) == 3
    reader = loader_of(engine).reader
    read, gate, paths = reader.read, threading.Event(), []

    def held(path: Path, *arguments: object) -> None:
        paths.append(path.stem)
        gate.wait(10)
        read(path, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(reader, "read", held)
    reading = engine._connector.start_load(lambda: keys)
    reading.select([keys[2]])
    under_way = set(paths)
    gate.set()
    assert reading.missing() == []
    reading._load.wait_all()  # type: ignore[attr-defined]
    reading.close()
    assert set(paths) <= under_way | {str(keys[2].tokens)}
    assert str(keys[2].tokens) in paths


def test_what_was_fetched_ahead_is_not_read_again_and_changes_no_answer(engine: AnswerEngine) -> None:
    expected = {question: ask(engine, question).raw for question in (RENT, BICYCLE)}
    engine.forget_loaded()
    reader = loader_of(engine).reader
    before = reader.bytes_read
    engine.prefetch(BICYCLE)
    engine.settle()
    engine._connector._prefetch[1].wait_all()  # type: ignore[attr-defined]
    ahead = reader.bytes_read
    assert ahead > before
    answer = ask(engine, BICYCLE)
    assert reader.bytes_read == ahead
    assert answer.raw == expected[BICYCLE]
    engine.prefetch(BICYCLE)
    assert ask(engine, RENT).raw == expected[RENT]


def test_a_fetch_ahead_that_is_under_way_is_taken_over(engine: AnswerEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = ask(engine, RENT).raw
    engine.forget_loaded()
    reader = loader_of(engine).reader
    read, gate, before = reader.read, threading.Event(), reader.bytes_read

    def held(*arguments: object) -> None:
        gate.wait(10)
        read(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(reader, "read", held)
    engine.prefetch(RENT)
    engine.settle()
    threading.Timer(0.2, gate.set).start()
    answer = ask(engine, RENT)
    assert answer.raw == expected
    assert reader.bytes_read - before == answer.timings.loaded_bytes, "every byte was read once"


def test_two_threads_and_fetching_ahead(engine: AnswerEngine) -> None:
    questions = [RENT, BICYCLE, "Who has the tickets?"]
    expected = {question: ask(engine, question).raw for question in questions}
    engine.forget_loaded()
    answers: list[tuple[str, str]] = []

    def work(order: list[str]) -> None:
        for question, following in zip(order, [*order[1:], order[0]], strict=True):
            engine.prefetch(following)
            answers.append((question, ask(engine, question).raw))

    threads = [threading.Thread(target=work, args=(order,)) for order in (questions, questions[::-1])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 6
    assert all(raw == expected[question] for question, raw in answers)


def test_the_benchmarks_queue_runs_both_ways(engine: AnswerEngine) -> None:
    texts: dict[str, str] = {}
    for prefetching in (False, True):
        stages = overlap._stages(overlap._queue(engine, [RENT, BICYCLE], prefetching, texts))
        assert list(stages) == ["queue", "retrieve", "load", "stitch", "prefill", "first token"]
        assert stages["first token"].count == 2
    assert set(texts) == {RENT, BICYCLE}
    with pytest.raises(AssertionError, match="otherwise"):
        overlap._queue(engine, [RENT], False, {RENT: "something else"})
