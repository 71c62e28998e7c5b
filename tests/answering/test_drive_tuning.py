"""Tests of the record of a drive; nonsense in its place is measured again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from desk_rag.answering import drive_tuning
from desk_rag.answering.drive_tuning import Tuned
from desk_rag.kv.loading.loader import LoaderSettings
from desk_rag.kv.payload import ChunkFile
from desk_rag.store.kv import chunk_file
from tests.store import made

CPU = torch.device("cpu")


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[ChunkFile]:
    monkeypatch.setattr(drive_tuning, "SMALLEST_SAMPLE", 1 << 16)
    monkeypatch.setattr(drive_tuning, "THREADS", (1, 2))
    found = []
    for number in range(3):
        key = made.key(str(number))
        path = tmp_path / "kv" / f"{number}.safetensors"
        chunk_file.write(path, chunk_file.prepare(key, made.kv_for(key, layers=4, tokens=512, dim=16), ["c"], 0.1))
        found.append(ChunkFile(path, chunk_file.read_header(path)))
    return found


def test_what_is_remembered_is_applied_and_other_drives_stay(tmp_path: Path) -> None:
    assert drive_tuning.remembered(tmp_path) is None
    drive_tuning.remember(tmp_path, Tuned(16, 8, 3e9))
    content = json.loads((tmp_path / drive_tuning.FILE).read_text())
    content["drives"]["fs-other"] = {"threads": 2, "waves": 2, "bytes_per_second": 1.0}
    (tmp_path / drive_tuning.FILE).write_text(json.dumps(content))
    drive_tuning.remember(tmp_path, Tuned(4, 8, 2e9))
    known = drive_tuning.remembered(tmp_path)
    assert known == Tuned(4, 8, 2e9)
    assert known.applied(LoaderSettings()).threads == 4
    assert known.applied(LoaderSettings()).waves == 8
    assert known.applied(LoaderSettings()).run_bytes == LoaderSettings().run_bytes
    assert "fs-other" in json.loads((tmp_path / drive_tuning.FILE).read_text())["drives"]


@pytest.mark.parametrize(
    "content",
    [
        "", "{", "[]", "null", '{"version": 9, "drives": {}}',
        '{"version": 2, "drives": {"DRIVE": {"threads": 4, "waves": 1, "bytes_per_second": 1.0}}}',
        '{"version": 3, "drives": []}',
        '{"version": 3, "drives": {"DRIVE": 5}}',
        '{"version": 3, "drives": {"DRIVE": {"threads": 4}}}',
        '{"version": 3, "drives": {"DRIVE": {"threads": 0, "waves": 4, "bytes_per_second": 1.0}}}',
        '{"version": 3, "drives": {"DRIVE": {"threads": 100000, "waves": 4, "bytes_per_second": 1.0}}}',
        '{"version": 3, "drives": {"DRIVE": {"threads": "8", "waves": 4, "bytes_per_second": 1.0}}}',
        '{"version": 3, "drives": {"DRIVE": {"threads": 8, "waves": 4, "bytes_per_second": "fast"}}}',
        '{"version": 3, "drives": {"DRIVE": {"threads": 8, "waves": 4, "bytes_per_second": -1}}}',
        '{"version": 3, "drives": {"DRIVE": {"threads": 8, "waves": 4, "bytes_per_second": 1.0, "more": 1}}}',
    ],
)  # fmt: skip
def test_nonsense_is_measured_again(tmp_path: Path, files: list[ChunkFile], content: str) -> None:
    (tmp_path / drive_tuning.FILE).write_text(content.replace("DRIVE", drive_tuning.drive_of(tmp_path)))
    assert drive_tuning.remembered(tmp_path) is None
    settings = drive_tuning.settle(tmp_path, files, CPU)
    known = drive_tuning.remembered(tmp_path)
    assert known is not None
    assert (settings.threads, settings.waves) == (known.threads, known.waves)
    assert known.threads in (1, 2, 4, 8, 16, 32) and known.waves in drive_tuning.WAVES
    assert known.bytes_per_second > 0


def test_a_drive_that_is_known_is_not_measured(
    tmp_path: Path, files: list[ChunkFile], monkeypatch: pytest.MonkeyPatch
) -> None:
    drive_tuning.remember(tmp_path, Tuned(5, 7, 1e9))
    monkeypatch.setattr(drive_tuning, "measure", lambda *_: pytest.fail("measured"))
    assert drive_tuning.settle(tmp_path, files, CPU).threads == 5


def test_the_fastest_threads_and_the_fewest_waves_that_do(
    files: list[ChunkFile], monkeypatch: pytest.MonkeyPatch
) -> None:
    rates = {(1, 2): 1e9, (2, 2): 3e9, (2, 1): 3.1e9, (2, 4): 3.02e9, (2, 8): 1e9}

    def found(_sample: object, _device: object, choices: list[tuple[int, int]], _total: int) -> list[float]:
        return [rates[choice] for choice in choices]

    monkeypatch.setattr(drive_tuning, "_rates", found)
    assert drive_tuning.measure(files, CPU) == Tuned(2, 4, 3.02e9), "a pass takes about as long as its load"
    monkeypatch.setattr(drive_tuning, "is_large", lambda _device: True)
    assert drive_tuning.measure(files, CPU) == Tuned(2, 1, 3.1e9), "a pass is over at once"


@pytest.mark.parametrize(
    ("gigabytes", "pass_rate", "waves"),
    [
        ((1.825, 1.706, 1.662, 1.466), 40e9, 1),  # 238 MB on an H200, as measured: 130, 139, 143 and 162 ms
        ((1.8, 1.8, 1.8, 1.8), 40e9, 1),  # nothing is lost, but a twenty-fifth is all that can be gained
        ((1.6, 1.6, 1.61, 1.6), 40e9, 1),
        ((7.0, 6.8, 6.6, 6.2), 40e9, 2),
        ((14.0, 13.5, 13.3, 12.0), 40e9, 4),
        ((14.0, 10.0, 8.0, 5.0), 40e9, 1),  # shorter reads cost more than is left of the pass
        ((1.825, 1.706, 1.662, 1.466), 4e9, 4),  # a smaller GPU behind the same drive
        ((40.0, 40.0, 40.0, 40.0), 40e9, 8),
        ((50.0, 50.0, 50.0, 50.0), 0.1e9, 1),  # the pass is all there is
    ],
)
def test_waves_are_worth_what_is_left_of_the_pass(gigabytes: tuple[float, ...], pass_rate: float, waves: int) -> None:
    assert drive_tuning.fewest_waves([rate * 1e9 for rate in gigabytes], pass_rate) == waves


def test_too_little_to_read_and_damage_leave_the_defaults_and_remember_nothing(
    tmp_path: Path, files: list[ChunkFile]
) -> None:
    assert drive_tuning.settle(tmp_path, [], CPU) == LoaderSettings()
    files[1].path.unlink()
    assert drive_tuning.settle(tmp_path, files, CPU) == LoaderSettings()
    assert not (tmp_path / drive_tuning.FILE).exists()


def test_a_full_gpu_keeps_nobody_from_starting(
    tmp_path: Path, files: list[ChunkFile], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(drive_tuning, "measure", full)
    assert drive_tuning.settle(tmp_path, files, CPU) == LoaderSettings()
    assert not (tmp_path / drive_tuning.FILE).exists()


def test_a_place_that_cannot_be_written_is_no_obstacle(tmp_path: Path, files: list[ChunkFile]) -> None:
    (tmp_path / drive_tuning.FILE).mkdir()
    assert drive_tuning.settle(tmp_path, files, CPU).threads >= 1
