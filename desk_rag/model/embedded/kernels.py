"""Compile the embedded models' passes for this CPU, once per machine, and call them.

torch spends half of a decoded token outside the products, in hundreds of short calls; `kernels.c`, and `bert_kernels.c`
or without AMX `bert_wide.c`, are whole layers in one call. The machine's own C compiler makes them when a model is
first loaded, in three seconds; without one, or on a CPU without AVX2, torch computes everything. DESK_RAG_KERNELS names
another directory for what is compiled; if it is empty, nothing is compiled or loaded.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

import platformdirs

from desk_rag.errors import ForeignPlace
from desk_rag.owned_directory import OwnedDirectory
from desk_rag.owned_folder import PROOF_BYTES, Entry, replacing, write_all

_SOURCES = tuple(map(Path(__file__).with_name, ("kernels.c", "bert_kernels.c", "bert_wide.c", "place_kernels.c")))
_HEADERS = tuple(
    map(
        Path(__file__).with_name,
        (
            *("vectors.h", "matrix.h", "attention.h"),
            *("products.h", "products_vnni.h", "products_avx2.h", "products_wide.h"),
        ),
    )
)
_AVX2 = ("avx2", "fma3", "f16c")
_AVX512 = ("avx2", "fma3", "avx512_f", "avx512_bw", "avx512_dq", "avx512_vl", "avx512_vnni")
_TILES = ("amx_tile", "amx_int8", "amx_bf16", "avx512_bf16")
"""Capabilities by torch's names."""
_OPTIONS = ("-O3", "-shared", "-fPIC", "-std=gnu11", "-Wno-psabi", "-mprefer-vector-width=512")
_MOST_ERROR = 2e-4
"""Largest error of a product beside the sum of its terms without their signs; activations have 15 bits."""
_SECONDS = 600
"""Until the compiler is given up."""
_FILE = re.compile(r"kernels-(?P<key>[0-9a-f]{16})-(?P<digest>[0-9a-f]{16})\.so")
"""Name of a compiled file: what it was compiled from, and the hash of its start, which proves who wrote it."""
_VARIABLE = "DESK_RAG_KERNELS"
_log = logging.getLogger(__name__)


class Matrix(ctypes.Structure):
    """`Matrix` in kernels.c."""

    _fields_ = (
        ("codes", ctypes.c_void_p),
        ("scales", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("outputs", ctypes.c_int64),
        ("inputs", ctypes.c_int64),
    )


def library() -> ctypes.CDLL | None:
    """The compiled kernels; None where they cannot be had."""
    folder = _folder()
    return None if folder is None else _loaded(folder)


def state() -> str:
    """Return in words if the kernels are used here; nothing is compiled for it."""
    folder = _folder()
    if folder is None:
        return f"switched off, {_VARIABLE} is empty"
    wanted = _feature_sets()
    if not wanted:
        return "not for this computer: they need Linux and a CPU with AVX2"
    if any(_file(folder, _key(features)) for features in wanted):
        return "compiled for this CPU"
    return "no C compiler, so answers take longer" if compiler() is None else "compiled when a model is first loaded"


def remove() -> None:
    """Delete what was compiled, and the directory if nothing else is in it; files that were not written here stay."""
    place = _folder()
    if place is None:
        return
    with suppress(OSError, ForeignPlace), OwnedDirectory(place).opened() as folder:
        for name in folder.names():
            folder.unlink(name, _is_compiled_here)
    if os.environ.get(_VARIABLE) is None:  # a directory that somebody named is theirs
        OwnedDirectory(place.parent).remove_directory(place)


def compiler() -> str | None:
    """Path of a C compiler."""
    names = [os.environ.get("CC", ""), "cc", "gcc", "clang"]
    return next(filter(None, map(shutil.which, filter(None, names))), None)


def _folder() -> Path | None:
    """Directory of compiled kernels; None to use none."""
    named = os.environ.get(_VARIABLE)
    if named is None:
        return _own_folder()
    return Path(named) if named else None


@cache
def _own_folder() -> Path:
    return Path(platformdirs.user_cache_dir("desk-rag-kernels"))


@cache
def _feature_sets() -> tuple[tuple[str, ...], ...]:
    """Features of this CPU that the kernels can be compiled for, best first; none if it is not served."""
    import torch

    features = torch.cpu.get_capabilities() if sys.platform == "linux" else {}
    sets = (*_AVX512, *_TILES), _AVX512, (*_AVX2, "avx_vnni"), _AVX2
    return tuple(names for names in sets if all(features.get(name) for name in names))


@cache
def _loaded(folder: Path) -> ctypes.CDLL | None:
    for features in _feature_sets():
        try:
            return _checked(ctypes.CDLL(str(_compiled(folder, features))))
        except (OSError, subprocess.SubprocessError, AttributeError) as error:
            _log.info("Kernels with %s cannot be used: %s", features[-1], error)
    return None


def _options(features: Sequence[str]) -> list[str]:
    return [*_OPTIONS, *(f"-m{_flag(name)}" for name in features)]


def _key(features: Sequence[str]) -> str:
    """Hash of all that decides what is compiled for a CPU with these features."""
    key = hashlib.sha256(repr(_options(features)).encode())
    for file in (*_HEADERS, *_SOURCES):
        key.update(file.read_bytes())
    return key.hexdigest()[:16]


def _digest(start: bytes) -> str:
    return hashlib.sha256(start).hexdigest()[:16]


def _is_compiled_here(entry: Entry) -> bool:
    """Return whether a file is named after its own content, as only `_compiled` names one."""
    name = _FILE.fullmatch(entry.path.name)
    return entry.is_file and name is not None and name["digest"] == _digest(entry.start())


def _file(folder: Path, key: str) -> Path | None:
    """The file that was compiled from what `key` stands for."""
    with suppress(FileNotFoundError), OwnedDirectory(folder).opened() as opened:
        for name in opened.names():
            parts = _FILE.fullmatch(name)
            if parts is not None and parts["key"] == key and _is_compiled_here(opened.entry(name)):
                return folder / name
    return None


def _compiled(folder: Path, features: Sequence[str]) -> Path:
    """The file of kernels for a CPU with these features, compiled now if it is not there.

    Raises OSError or SubprocessError.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    owner = folder.stat()
    if owner.st_uid != os.getuid() or owner.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise OSError(f"{folder} can be written to by others")
    key = _key(features)
    file = _file(folder, key)
    if file is not None:
        return file
    program = compiler()
    if program is None:
        raise OSError("there is no C compiler")
    with tempfile.TemporaryDirectory(prefix="desk-rag-kernels-") as place:
        output = Path(place, "kernels.so")
        command = [program, *_options(features), *map(str, _SOURCES), "-o", str(output)]
        subprocess.run(command, check=True, capture_output=True, timeout=_SECONDS)
        content = output.read_bytes()
    name = f"kernels-{key}-{_digest(content[:PROOF_BYTES])}.so"
    with OwnedDirectory(folder).opened() as opened, replacing(opened, name) as descriptor:
        write_all(descriptor, memoryview(content))
    return folder / name


def _flag(capability: str) -> str:
    """The compiler's name of a capability."""
    names = {"fma3": "fma", "avx_vnni": "avxvnni"}
    return names.get(capability, capability.replace("avx512_", "avx512").replace("_", "-"))


def _checked(kernels: ctypes.CDLL) -> ctypes.CDLL:
    """Declare the functions, and ask the system for what they use. Raises OSError."""
    address, number = ctypes.c_void_p, ctypes.c_int64
    kernels.work_size.restype = number
    kernels.work_size.argtypes = [address, number]
    kernels.run_layers.restype = kernels.multiply.restype = kernels.pack.restype = None
    kernels.run_layers.argtypes = [
        *(address, address, number, address, address),
        *(number, number, address, address, address, address),
    ]
    kernels.multiply.argtypes = [address, address, number, address]
    kernels.pack.argtypes = [address, number, number, address]
    kernels.place_chunk.restype = None
    kernels.place_chunk.argtypes = [
        *(address, address, address, address, address),
        *(number, number, number, number, number),
        *(address, address, address, address, number),
    ]
    kernels.run_bert.restype = None
    kernels.run_bert.argtypes = [address, number, number, number, ctypes.c_float, address, number, address]
    if hasattr(kernels, "pack_half"):  # with AMX
        kernels.pack_half.restype, kernels.pack_half.argtypes = None, kernels.pack.argtypes
    if hasattr(kernels, "pack_wide"):  # without AMX
        kernels.pack_wide.restype, kernels.pack_wide.argtypes = None, kernels.pack.argtypes
        kernels.bert_work_size.restype, kernels.bert_work_size.argtypes = number, [number, number, number]
    if kernels.prepare() != 0:
        raise OSError("the system does not give AMX to this process")
    if not _multiplies(kernels):
        raise OSError("their products are wrong")
    return kernels


def _multiplies(kernels: ctypes.CDLL) -> bool:
    """True if a product is what torch multiplies in fp32, over more rows and inputs than registers hold."""
    import torch

    rows, outputs, inputs = 39, 32, 1088
    codes = (torch.arange(outputs * inputs).view(outputs, inputs) * 89 % 255 - 127).to(torch.int8)
    codes[0], codes[1] = 127, -127
    x = torch.cos(torch.arange(rows * inputs).view(rows, inputs) * 0.7)
    x[0] = 1.0
    scales, packed, product = torch.ones(outputs), torch.empty_like(codes), torch.empty(rows, outputs)
    kernels.pack(codes.data_ptr(), outputs, inputs, packed.data_ptr())
    matrix = Matrix(packed.data_ptr(), scales.data_ptr(), None, outputs, inputs)
    kernels.multiply(ctypes.addressof(matrix), x.data_ptr(), rows, product.data_ptr())
    error = (product - x @ codes.mT.float()).abs() / (x.abs() @ codes.mT.abs().float())
    return bool(error.max() < _MOST_ERROR)
