"""Read a GGUF file's metadata and tensor table, after every check that needs no tensor data.

A GGUF file states its own counts and lengths, and a reader that believes them takes all memory or loops for ever. Here
each is held against the bytes that are really in the file before anything is made of it. No library sees a file that
has not passed. Imports no torch.
"""

from __future__ import annotations

import math
import mmap
import stat
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from desk_rag.errors import DeskRagError, ModelError, ModelNotFound, UnsupportedModel

MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_MOST_KEYS = 4096
_MOST_TENSORS = 65_536
_MOST_NAME = 256
_MOST_STRING = 4 * 1024**2
_MOST_STRINGS = 2_000_000
"""In all lists of strings together; the largest vocabularies have 262,144 tokens and 514,906 merges."""
_MOST_NUMBERS = 8_000_000
_FORMATS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""struct's letter of each metadata type of fixed size."""
_STRING, _LIST = 8, 9
OLLAMA_MXFP4 = 4
"""A type of tensor that only Ollama's first files of gpt-oss have: MXFP4 with pairs of numbers side by side."""
_FETCH_AGAIN = "Download the file again."


@dataclass(frozen=True, slots=True)
class Tensor:
    """One entry of the tensor table."""

    name: str
    shape: tuple[int, ...]
    """In torch's order, the last dimension lies together in memory."""
    type_id: int
    """ggml's number of the form the data has, such as 12 for Q4_K."""
    start: int
    """First byte in the file."""
    size: int
    """Bytes."""


@dataclass(frozen=True, slots=True)
class Header:
    """Metadata and tensor table of a GGUF file."""

    file: Path
    metadata: dict[str, Any]
    tensors: dict[str, Tensor]

    @property
    def architecture(self) -> str:
        """llama.cpp's name of the model type."""
        return str(self.metadata["general.architecture"])

    @property
    def quantization(self) -> str:
        """The form that most of the weights have, such as 'Q4_K'."""
        sizes: dict[int, int] = {}
        for tensor in self.tensors.values():
            sizes[tensor.type_id] = sizes.get(tensor.type_id, 0) + tensor.size
        return type_name(max(sizes, key=lambda kind: sizes[kind]))

    @property
    def num_parameters(self) -> int:
        """Numbers in all tensors."""
        return sum(math.prod(tensor.shape) for tensor in self.tensors.values())


def is_gguf(file: Path) -> bool:
    """True for a regular file that begins as GGUF does."""
    try:
        if not stat.S_ISREG(file.stat().st_mode):
            return False
        with file.open("rb") as stream:
            return stream.read(4) == MAGIC
    except OSError:
        return False


def type_name(type_id: int) -> str:
    """'Q4_K' for 12."""
    import gguf

    type_id = 39 if type_id == OLLAMA_MXFP4 else type_id
    try:
        return str(gguf.GGMLQuantizationType(type_id).name)
    except ValueError:
        return f"type {type_id}"


def read_header(file: Path) -> Header:
    """Read and check what precedes the data. Raises ModelNotFound, ModelError or UnsupportedModel."""
    try:
        status = file.stat()
        if not stat.S_ISREG(status.st_mode):
            raise ModelError(f"{file} is not a regular file.", remedy=_FETCH_AGAIN)
        with file.open("rb") as stream:
            if stream.read(4) != MAGIC or status.st_size < 24:
                raise ValueError("it is cut short or no GGUF file")
            with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _parsed(file, data)
    except FileNotFoundError as error:
        raise ModelNotFound(f"There is no file {file}.", remedy="Check the path that --model names.") from error
    except DeskRagError:
        raise
    except (OSError, ValueError, struct.error) as error:
        reason = "it is cut short" if isinstance(error, struct.error) else str(error).rstrip(".")
        raise ModelError(f"{file} could not be loaded: {reason}.", remedy=_FETCH_AGAIN) from error


def _parsed(file: Path, data: mmap.mmap) -> Header:
    version, tensor_count, key_count = struct.unpack_from("<IQQ", data, 4)
    if version not in _VERSIONS:
        raise UnsupportedModel(
            f"{file} is GGUF of version {version if version < 1000 else 'another byte order'}, which is not read.",
            remedy="Take a file of version 2 or 3, which all published models have had since 2023.",
        )
    if key_count > _MOST_KEYS:
        raise ValueError(f"it would have {key_count:,} metadata keys")
    if not 0 < tensor_count <= _MOST_TENSORS:
        raise ValueError(f"it would have {tensor_count:,} tensors")
    reader = _Reader(data, 24)
    metadata: dict[str, Any] = {}
    for _ in range(key_count):
        key = reader.string(_MOST_NAME)
        if key in metadata:
            raise ValueError(f"it has the key '{key[:80]}' twice")
        metadata[key] = reader.value(key)
    architecture = metadata.get("general.architecture")
    if not isinstance(architecture, str) or not architecture.isprintable() or not 0 < len(architecture) <= 64:
        raise ValueError("it does not say of which architecture it is")
    alignment = metadata.get("general.alignment", 32)
    if type(alignment) is not int or not 8 <= alignment <= 1 << 16 or alignment & (alignment - 1):
        raise ValueError(f"its alignment is {str(alignment)[:40]}")
    rows = [_row(reader) for _ in range(tensor_count)]
    start = -(-reader.place // alignment) * alignment
    tensors = {row.name: _placed(row, start, alignment) for row in rows}
    if len(tensors) != len(rows):
        raise ValueError("it has a tensor twice")
    _check_spans(tensors, len(data))
    return Header(file, metadata, tensors)


class _Reader:
    """Walks through the bytes of a file; nothing that is not in the file is believed."""

    def __init__(self, data: mmap.mmap, place: int) -> None:
        self._data, self.place = data, place
        self._strings, self._numbers = 0, 0

    def numbers(self, form: str) -> tuple[Any, ...]:
        values = struct.unpack_from(f"<{form}", self._data, self.place)
        self.place += struct.calcsize(f"<{form}")
        return values

    def string(self, most: int = _MOST_STRING) -> str:
        (length,) = struct.unpack_from("<Q", self._data, self.place)
        start = self.place + 8
        if length > len(self._data) - start:
            raise ValueError("it is cut short")
        if length > most:
            raise ValueError(f"it has text of {length:,} bytes in its header")
        self.place = start + length
        return self._data[start : self.place].decode("utf-8", "replace")

    def value(self, key: str) -> Any:
        (kind,) = self.numbers("I")
        if kind in _FORMATS:
            number = self.numbers(_FORMATS[kind])[0]
            if isinstance(number, float) and not math.isfinite(number):
                raise ValueError(f"its '{key[:80]}' is not a finite number")
            return number
        if kind == _STRING:
            return self.string()
        if kind != _LIST:
            raise ValueError(f"its '{key[:80]}' is of type {kind}, which does not exist")
        element, count = self.numbers("IQ")
        if element == _STRING:
            return self._string_list(key, count)
        if element not in _FORMATS:
            raise ValueError(f"its '{key[:80]}' is a list of type {element}, which does not exist or is nested")
        self._numbers += count
        if self._numbers > _MOST_NUMBERS or count * struct.calcsize(_FORMATS[element]) > len(self._data) - self.place:
            raise ValueError(f"its '{key[:80]}' would hold {count:,} numbers")
        return list(self.numbers(f"{count}{_FORMATS[element]}"))

    def _string_list(self, key: str, count: int) -> list[str]:
        self._strings += count
        if self._strings > _MOST_STRINGS or count * 8 > len(self._data) - self.place:
            raise ValueError(f"its '{key[:80]}' would hold {count:,} texts")
        return [self.string() for _ in range(count)]


def _row(reader: _Reader) -> Tensor:
    name = reader.string(_MOST_NAME)
    (dimensions,) = reader.numbers("I")
    if not 1 <= dimensions <= 4:
        raise ValueError(f"'{name[:80]}' has {dimensions} dimensions")
    shape = tuple(reversed(reader.numbers(f"{dimensions}Q")))
    type_id, offset = reader.numbers("IQ")
    if any(not 1 <= number < 1 << 40 for number in shape) or math.prod(shape) >= 1 << 42:
        raise ValueError(f"'{name[:80]}' would be of shape {list(shape)}")
    return Tensor(name, shape, type_id, offset, _bytes(name, shape, type_id))


def _bytes(name: str, shape: tuple[int, ...], type_id: int) -> int:
    import gguf

    try:
        kind = gguf.GGMLQuantizationType.MXFP4 if type_id == OLLAMA_MXFP4 else gguf.GGMLQuantizationType(type_id)
        block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    except (ValueError, KeyError) as error:
        raise UnsupportedModel(
            f"The tensor '{name[:80]}' is of a quantisation (ggml type {type_id}) that this version does not know.",
            remedy="Take the model as Q4_K_M, Q5_K_M, Q6_K, Q8_0 or F16.",
        ) from error
    if shape[-1] % block:
        raise ValueError(f"the rows of '{name[:80]}' are no whole blocks of {kind.name}")
    return math.prod(shape) // int(block) * int(block_bytes)


def _placed(row: Tensor, start: int, alignment: int) -> Tensor:
    if row.start % alignment:
        raise ValueError(f"the data of '{row.name[:80]}' is not aligned")
    return Tensor(row.name, row.shape, row.type_id, start + row.start, row.size)


def _check_spans(tensors: dict[str, Tensor], size: int) -> None:
    """Raise ValueError unless all tensors lie in the file, none over another."""
    end = 0
    for tensor in sorted(tensors.values(), key=lambda each: each.start):
        if tensor.start < end:
            raise ValueError(f"the data of '{tensor.name[:80]}' overlaps that of another tensor")
        end = tensor.start + tensor.size
        if end > size:
            raise ValueError(f"it is cut short: the data of '{tensor.name[:80]}' ends beyond the file")
