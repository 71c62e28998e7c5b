"""One QuantizedKV and one file: format, order, alignment, overhead, and every way a file can be wrong."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from desk_rag.errors import CorruptKV, UnknownFormat
from desk_rag.kv.payload import as_quantized
from desk_rag.kv.types import KVKey, QuantizedKV
from desk_rag.store.kv import chunk_file
from desk_rag.store.kv import header as kv_header
from tests.store import made
from tests.store.faults import FullAt

CHUNKS = ["ab" * 16]


def place(tmp_path: Path) -> Path:
    (tmp_path / "kv").mkdir(exist_ok=True)
    return tmp_path / "kv" / "ns" / "xx" / f"{made.key('a').tokens}.safetensors"


def write(tmp_path: Path, kv: QuantizedKV, key: KVKey | None = None) -> Path:
    path = place(tmp_path)
    path.parent.parent.mkdir(parents=True, exist_ok=True)
    chunk_file.write(path, chunk_file.prepare(key or made.key("a"), kv, CHUNKS, 1.25))
    return path


def read(path: Path, key: KVKey | None = None) -> QuantizedKV:
    return chunk_file.read(path, key or made.key("a"))


def mixed_kv() -> QuantizedKV:
    """Three kinds of layers: int8 with one scale group, int8 with four, bf16, fp32."""
    g = torch.Generator().manual_seed(5)
    layers = [made.int8_layer(g, 2, 33, 8) for _ in range(3)]
    layers += [made.int8_layer(g, 2, 33, 8, scales=4)]
    raw = [made.raw_layer(g, 2, 33, 8), made.raw_layer(g, 2, 33, 8), made.raw_layer(g, 2, 33, 8, torch.float32)]
    return QuantizedKV((*layers, *raw, made.raw_layer(g, 2, 33, 8, torch.float16)))


def test_roundtrip_is_bit_exact_for_all_kinds_of_layers(tmp_path: Path) -> None:
    kv = mixed_kv()
    assert made.same(read(write(tmp_path, kv)), kv)


def test_noncontiguous_tensors_are_written_by_value(tmp_path: Path) -> None:
    kv = mixed_kv()
    layer = kv.layers[4]
    turned = type(layer)(layer.keys.transpose(1, 2).contiguous().transpose(1, 2), layer.values)  # type: ignore[call-arg]
    assert not turned.keys.is_contiguous()
    assert made.same(read(write(tmp_path, QuantizedKV((turned,)))), QuantizedKV((layer,)))


def test_official_library_opens_it_and_sees_the_same_tensors(tmp_path: Path) -> None:
    kv = mixed_kv()
    path = write(tmp_path, kv)
    with safe_open(str(path), "pt") as file:
        names = set(file.keys())
        assert torch.equal(file.get_tensor("0.keys"), torch.stack([layer.keys for layer in kv.layers[:3]]))
        assert torch.equal(file.get_tensor("2.values"), torch.stack([layer.values for layer in kv.layers[4:6]]))
        meta = file.metadata()
    assert {name.split(".")[0] for name in names} == {"0", "1", "2", "3", "4"}
    assert meta["namespace"] == made.NS and meta["key"] == made.key("a").tokens
    assert meta["scheme"] == "int8/1x3,int8/4x1,bf16x2,f32x1,f16x1"
    assert meta["prefill_ms"] == "1250.000" and meta["num_tokens"] == "33"


@pytest.mark.parametrize("num_tokens", [170, 200, 333, 512])
def test_overhead_of_reader_sized_chunks_is_within_budget(tmp_path: Path, num_tokens: int) -> None:
    kv = made.kv_for(made.key("a"), layers=10, heads=2, tokens=num_tokens, dim=64)
    path = write(tmp_path, kv)
    fp16_bytes = 4 * 10 * 2 * num_tokens * 64
    assert path.stat().st_size <= 0.52 * fp16_bytes
    assert path.stat().st_size == kv.nbytes + 4096, "one header block and nothing else"


def test_groups_are_aligned_runs_of_at_least_one_mebibyte(tmp_path: Path) -> None:
    kv = made.kv_for(made.key("a"), layers=9, heads=2, tokens=512, dim=128)
    path = write(tmp_path, kv)
    header = kv_header.read_header(path)
    assert [group.num_layers for group in header.groups] == [4, 5]
    raw = path.read_bytes()
    for group in header.groups:
        assert (header.data_start + group.start) % 4096 == 0
        assert group.end - group.start >= 1 << 20
        data = torch.zeros(header.groups[-1].end, dtype=torch.uint8)
        own = raw[header.data_start + group.start : header.data_start + group.end]
        data[group.start : group.end] = torch.frombuffer(bytearray(own), dtype=torch.uint8)
        layers = as_quantized(header, data).layers[group.first_layer : group.first_layer + group.num_layers]
        wanted = kv.layers[group.first_layer : group.first_layer + group.num_layers]
        assert all(map(made.same_layer, layers, wanted)), "a group can be read from its byte range alone"
    assert header.file_size == len(raw) and header.groups[-1].pad == 0


def test_mode_and_names_tell_nothing(tmp_path: Path) -> None:
    path = write(tmp_path, mixed_kv())
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700


def flipped(path: Path, position: int, mask: int = 0x10) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ mask]))


@pytest.fixture
def grouped_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, kv_header.KVHeader]:
    """A small file with several groups, pads included."""
    monkeypatch.setattr(kv_header, "SMALLEST_GROUP", 1024)
    path = write(tmp_path, mixed_kv())
    header = kv_header.read_header(path)
    assert len(header.groups) == 8 and any(group.pad for group in header.groups)
    return path, header


def test_every_byte_class_flipped_is_found(grouped_file: tuple[Path, kv_header.KVHeader]) -> None:
    path, header = grouped_file
    positions = set(range(8))  # the length
    for group in header.groups:
        for slot in group.slots:
            positions |= {header.data_start + slot.start, header.data_start + slot.end - 1}
        if group.pad:
            positions |= {header.data_start + group.slots[-1].end, header.data_start + group.end - 1}
    assert len(positions) > 50
    good = path.read_bytes()
    for position in positions:
        flipped(path, position)
        with pytest.raises((CorruptKV, UnknownFormat)):
            read(path)
        path.write_bytes(good)
    read(path)


def test_every_header_byte_flipped_is_found(grouped_file: tuple[Path, kv_header.KVHeader]) -> None:
    path, header = grouped_file
    raw = bytearray(path.read_bytes()[: header.data_start])
    size = path.stat().st_size
    for position in range(8, header.data_start):
        for mask in (0x01, 0x20):
            raw[position] ^= mask
            with pytest.raises((CorruptKV, UnknownFormat)):
                kv_header.decode(bytes(raw), size, "it")
            raw[position] ^= mask
    kv_header.decode(bytes(raw), size, "it")


def test_truncation_at_every_block_and_around_it_is_found(grouped_file: tuple[Path, kv_header.KVHeader]) -> None:
    path, _ = grouped_file
    good = path.read_bytes()
    cuts = {max(0, block + step) for block in range(0, len(good), 4096) for step in (-1, 0, 1)} | {len(good) - 1, 7}
    for cut in cuts:
        path.write_bytes(good[:cut])
        with pytest.raises(CorruptKV):
            read(path)
    path.write_bytes(good + b"\0")
    with pytest.raises(CorruptKV):
        read(path)


def test_file_of_another_key_or_namespace_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, mixed_kv())
    for wrong in (made.key("b"), made.key("a", made.OTHER_NS)):
        with pytest.raises(CorruptKV, match="another chunk or model"):
            read(path, wrong)


def rewritten(path: Path, change: dict[str, str]) -> None:
    """Replace metadata and put the header checksum right again: only the meaning is wrong."""
    raw = path.read_bytes()
    length = struct.unpack("<Q", raw[:8])[0]
    table = json.loads(raw[8 : 8 + length])
    table["__metadata__"].update(change, header_xxh3="0" * 16)
    text = json.dumps(table, separators=(",", ":")).encode().ljust(length)
    assert len(text) == length
    text = text.replace(b"0" * 16, kv_header.xxhash.xxh3_64_hexdigest(text).encode(), 1)
    path.write_bytes(raw[:8] + text + raw[8 + length :])


def test_version_from_the_future_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, mixed_kv())
    rewritten(path, {"format_version": "2"})
    with pytest.raises(UnknownFormat, match="version '2'"):
        read(path)


def test_a_header_that_lies_about_itself_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, mixed_kv())
    good = path.read_bytes()
    rewritten(path, {"producer": "somebody else"})
    read(path)
    for lie in ({"num_tokens": "32"}, {"num_layers": "9"}, {"checksums": "0123456789abcdef"}, {"num_tokens": "x"}):
        path.write_bytes(good)
        rewritten(path, lie)
        with pytest.raises(CorruptKV):
            read(path)


def test_every_layer_group_is_checked_at_every_read(tmp_path: Path) -> None:
    path = write(tmp_path, mixed_kv())
    read(path)
    flipped(path, path.stat().st_size - 1)
    with pytest.raises(CorruptKV, match="damaged in layers 7 to 7"):
        read(path)


def test_an_error_at_any_step_of_a_write_leaves_nothing_behind(tmp_path: Path) -> None:
    kv = mixed_kv()
    with pytest.MonkeyPatch.context() as patch:
        counter = FullAt(patch, 0, ("write", "fsync", "replace"))
        path = write(tmp_path, kv)
        steps = counter.calls
        path.unlink()
    assert steps > 20
    for step in range(1, steps - 2):  # the last ones sync directories, after the rename
        with pytest.MonkeyPatch.context() as patch:
            FullAt(patch, step, ("write", "fsync", "replace"))
            with pytest.raises(OSError, match="No space left"):
                write(tmp_path, kv)
        assert list(path.parent.iterdir()) == []


def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, content: real(descriptor, content[:777]))
    kv = mixed_kv()
    path = write(tmp_path, kv)
    monkeypatch.undo()
    assert made.same(read(path), kv)
