"""A load that several questions share: what two want is read once, and what one has lost is nobody else's matter."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from desk_rag.kv.loading.load import ChunksLost
from desk_rag.kv.loading.load_part import SharedLoad, distinct
from desk_rag.kv.loading.loader import Loader
from tests.kv.loading.test_loader import DEVICE, SMALL, same, some_kv, write


@pytest.fixture
def loader() -> Iterator[Loader]:
    with Loader(DEVICE, SMALL) as loader:
        yield loader


def test_each_question_gets_its_chunks_in_its_order_and_a_common_one_is_read_once(
    loader: Loader, tmp_path: Path
) -> None:
    chunks = [some_kv(20 + number, seed=number) for number in range(3)]
    files = [write(tmp_path, number, chunk) for number, chunk in enumerate(chunks)]
    wanted, parts = distinct([[2, 0], [0, 1], [0]])
    assert sorted(wanted) == [0, 1, 2]
    shared = SharedLoad(loader.start([files[number] for number in wanted]), parts)
    for part, numbers in zip(shared.parts, ([2, 0], [0, 1], [0]), strict=True):
        part.wait(len(part.wave_ends) - 1)
        assert part.missing() == []
        assert [same(part.quantized(index), chunks[number]) for index, number in enumerate(numbers)] == [True] * len(
            numbers
        )
        assert part.nbytes == sum(files[number].payload for number in numbers)
    assert loader.reader.bytes_read == sum(file.payload for file in files)
    shared.parts[0].close()
    shared.parts[0].close()  # only once
    assert same(shared.parts[1].quantized(1), chunks[1]), "the load is open until its last question has closed"
    for part in shared.parts[1:]:
        part.close()
    assert loader.start([files[0]]).resident, "and then leaves its chunks for the next"


def test_a_lost_chunk_is_lost_for_those_who_want_it_and_replaced_for_all_of_them(
    loader: Loader, tmp_path: Path
) -> None:
    chunks = [some_kv(20, seed=number) for number in range(3)]
    files = [write(tmp_path, number, chunk) for number, chunk in enumerate(chunks)]
    with files[1].path.open("r+b") as file:
        file.seek(files[1].header.data_start + 5)
        file.write(b"\xff\x00\xff")
    wanted, parts = distinct([[0, 2], [2, 1], [1]])
    shared = SharedLoad(loader.start([files[number] for number in wanted]), parts)
    intact, second, third = shared.parts
    last = len(intact.wave_ends) - 1
    intact.wait(last)
    for part, index in ((second, 1), (third, 0)):
        with pytest.raises(ChunksLost) as lost:
            part.wait(last)
        assert lost.value.indices == (index,) and part.missing() == [index]
    second.replace(1, chunks[1])
    third.wait(last)
    assert third.missing() == [] and same(third.quantized(0), chunks[1])
    for part in shared.parts:
        part.close()
