"""GGUF files that lie about themselves are refused in words, soon, and before memory is taken for them."""

from __future__ import annotations

import functools
import os
import re
import resource
import struct
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest

from desk_rag.cli import doctor
from desk_rag.config import ModelSettings, Settings
from desk_rag.errors import ModelError
from desk_rag.model.gguf.header import read_header
from desk_rag.model.loading import load_model
from tests.model.gguf.families import TINY, write_tiny

CPU_SECONDS = 5.0
MOST_MEMORY = 300 * 1024**2
Change = Callable[[bytearray], bytes | bytearray]
_CASES: dict[str, tuple[str, Change]] = {}


@functools.cache
def sound() -> bytes:
    """A sound file: a tiny random Qwen2."""
    with tempfile.TemporaryDirectory() as place:
        file = Path(place) / "sound.gguf"
        write_tiny(file, TINY["qwen2"], gguf.GGMLQuantizationType.F16)
        return file.read_bytes()


def case(name: str, match: str) -> Callable[[Change], Change]:
    def register(change: Change) -> Change:
        _CASES[name] = (match, change)
        return change

    return register


def field(data: bytearray, key: str) -> int:
    """Offset of the type of a metadata value."""
    name = struct.pack("<Q", len(key)) + key.encode()
    return data.index(name) + len(name)


def table_row(data: bytearray, name: str) -> int:
    """Offset of the number of dimensions of a tensor."""
    return field(data, name)


def with_value(key: str, form: str, value: float) -> Change:
    def change(data: bytearray) -> bytearray:
        struct.pack_into(f"<{form}", data, field(data, key) + 4, value)
        return data

    return change


def with_entry(data: bytearray, key: str, kind: int, value: bytes) -> bytes:
    """One more metadata entry at the front, and room at the end for what it moves."""
    (count,) = struct.unpack_from("<Q", data, 16)
    struct.pack_into("<Q", data, 16, count + 1)
    return (
        bytes(data[:24])
        + struct.pack("<Q", len(key))
        + key.encode()
        + struct.pack("<I", kind)
        + value
        + data[24:]
        + bytes(64)
    )


case("empty", "cut short")(lambda data: b"GGUF")
case("half-a-header", "cut short")(lambda data: data[:400])
case("half-the-data", "cut short")(lambda data: data[: len(data) * 2 // 3])
case("another-magic", "no GGUF file")(lambda data: b"GGML" + data[4:])
case("version-1", "version 1")(lambda data: b"GGUF" + struct.pack("<I", 1) + data[8:])
case("other-byte-order", "another byte order")(lambda data: b"GGUF" + struct.pack(">I", 3) + data[8:])
case("many-keys", "metadata keys")(lambda data: data[:16] + struct.pack("<Q", 1 << 60) + data[24:])
case("many-tensors", "tensors")(lambda data: data[:8] + struct.pack("<Q", 1 << 60) + data[16:])
case("no-tensors", "0 tensors")(lambda data: data[:8] + struct.pack("<Q", 0) + data[16:])
case("some-more-tensors", "cut short|dimensions|text of|type|shape")(
    lambda data: data[:8] + struct.pack("<Q", 60_000) + data[16:]
)
case("huge-key", "cut short")(lambda data: data[:24] + struct.pack("<Q", 1 << 62) + data[32:])
case("endless-text", "cut short")(lambda data: with_entry(data, "a.b", 8, struct.pack("<Q", (1 << 64) - 1)))
case("long-text", "text of")(lambda data: with_entry(data, "a.b", 8, struct.pack("<Q", 5 << 20) + b"x" * (5 << 20)))
case("huge-list", "would hold")(lambda data: with_entry(data, "a.b", 9, struct.pack("<IQ", 0, 1 << 50)))
case("huge-list-of-texts", "would hold")(lambda data: with_entry(data, "a.b", 9, struct.pack("<IQ", 8, 1 << 50)))
case("bomb-of-empty-texts", "would hold")(
    lambda data: with_entry(data, "a.b", 9, struct.pack("<IQ", 8, 2_500_000) + bytes(8 * 2_500_000))
)
case("nested-lists", "nested")(lambda data: with_entry(data, "a.b", 9, struct.pack("<IQ", 9, 1)))
case("unknown-type-of-value", "does not exist")(lambda data: with_entry(data, "a.b", 77, b""))
case("key-twice", "twice")(lambda data: with_entry(data, "general.architecture", 8, struct.pack("<Q", 5) + b"qwen2"))
case("not-a-number", "finite number")(with_value("qwen2.rope.freq_base", "f", float("nan")))
case("absurd-alignment", "alignment")(lambda data: with_entry(data, "general.alignment", 4, struct.pack("<I", 3)))
case("no-layers", "num_hidden_layers")(with_value("qwen2.block_count", "I", 0))
case("many-layers", "layers|num_hidden_layers")(with_value("qwen2.block_count", "I", 1 << 31))
case("more-layers-than-tensors", "layers")(with_value("qwen2.block_count", "I", 900))
case("huge-width", "hidden_size")(with_value("qwen2.embedding_length", "I", 1 << 30))
case("odd-heads", "heads|hidden_size")(with_value("qwen2.attention.head_count", "I", 7))
case("other-width", "should be")(with_value("qwen2.feed_forward_length", "I", 64))
case("unknown-property", "not understood")(
    lambda data: with_entry(data, "qwen2.attention.secret", 4, struct.pack("<I", 9))
)
case("one-of-several", "one of 3 parts")(lambda data: with_entry(data, "split.count", 2, struct.pack("<H", 3)))
case("adapter", "no language model")(
    lambda data: with_entry(data, "general.type", 8, struct.pack("<Q", 7) + b"adapter")
)


@case("unknown-architecture", "not read from GGUF")
def _(data: bytearray) -> bytearray:
    place = field(data, "general.architecture")
    data[place + 12 : place + 17] = b"rwkv9"
    return data


@case("many-dimensions", "dimensions")
def _(data: bytearray) -> bytearray:
    struct.pack_into("<I", data, table_row(data, "blk.0.attn_q.weight"), 1 << 31)
    return data


@case("huge-tensor", "shape")
def _(data: bytearray) -> bytearray:
    struct.pack_into("<Q", data, table_row(data, "blk.0.attn_q.weight") + 4, 1 << 60)
    return data


@case("unknown-quantisation", "quantisation")
def _(data: bytearray) -> bytearray:
    struct.pack_into("<I", data, table_row(data, "blk.0.attn_q.weight") + 20, 4711)
    return data


@case("tensor-outside", "beyond the file")
def _(data: bytearray) -> bytearray:
    struct.pack_into("<Q", data, table_row(data, "blk.0.attn_q.weight") + 24, 1 << 40)
    return data


@case("tensors-over-each-other", "overlaps")
def _(data: bytearray) -> bytearray:
    struct.pack_into("<Q", data, table_row(data, "blk.0.attn_q.weight") + 24, 0)
    return data


@case("not-aligned", "not aligned")
def _(data: bytearray) -> bytearray:
    struct.pack_into("<Q", data, table_row(data, "blk.0.attn_q.weight") + 24, 5)
    return data


@case("another-name", "lacks the tensor")
def _(data: bytearray) -> bytearray:
    return bytearray(data.replace(b"blk.1.attn_k.weight", b"blk.1.attn_z.weight"))


@case("no-vocabulary", "no vocabulary")
def _(data: bytearray) -> bytearray:
    return bytearray(data.replace(b"tokenizer.ggml.tokens", b"tokenizer.ggml.tokenz"))


@pytest.mark.parametrize("name", list(_CASES))
def test_it_is_refused_soon_and_in_words(name: str, tmp_path: Path) -> None:
    match, change = _CASES[name]
    file = tmp_path / "hostile.gguf"
    file.write_bytes(change(bytearray(sound())))
    settings = ModelSettings(device="cpu", name=str(file))
    before, peak = sum(os.times()[:4]), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ModelError) as refusal:
        load_model(settings)
    assert sum(os.times()[:4]) - before < CPU_SECONDS
    if sys.platform == "linux":
        assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak) * 1024 < MOST_MEMORY
    message = refusal.value.message
    assert re.search(match, message), message
    assert len(message) < 600 and "\n" not in message
    assert refusal.value.exit_code == 5
    with pytest.raises(ModelError) as doctors:
        doctor._model(Settings(model=settings, data_dir=tmp_path / "data"))
    assert doctors.value.message == message


def test_there_are_many_and_the_file_they_are_made_from_is_sound(tmp_path: Path) -> None:
    assert len(_CASES) >= 15
    file = tmp_path / "sound.gguf"
    file.write_bytes(sound())
    assert load_model(ModelSettings(device="cpu", name=str(file))).spec.num_layers == 3
    assert read_header(file).architecture == "qwen2"


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "model.gguf")
    with pytest.raises(ModelError):
        load_model(ModelSettings(device="cpu", name=str(tmp_path / "model.gguf")))


def test_bytes_at_random_never_do_anything_else(tmp_path: Path) -> None:
    """Whatever a single wrong byte in the header does, it ends in a refusal or in a model that can be described."""
    generator = np.random.default_rng(3)
    header = len(sound()) - sum(tensor.size for tensor in _tensors(tmp_path))
    file = tmp_path / "changed.gguf"
    for _ in range(300):
        data = bytearray(sound())
        data[int(generator.integers(4, header))] = int(generator.integers(0, 256))
        file.write_bytes(data)
        try:
            read_header(file)
        except ModelError:
            continue


def _tensors(tmp_path: Path) -> list[object]:
    file = tmp_path / "sound.gguf"
    file.write_bytes(sound())
    return list(read_header(file).tensors.values())
