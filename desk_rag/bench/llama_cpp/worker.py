"""llama.cpp in a process of its own: reads one JSON request a line, prints one JSON reply a line.

llama.cpp and torch both configure the AMX tiles of a thread, so they cannot share a process. Token ids go in; times in
milliseconds and the id of the most likely next token come out.
"""

from __future__ import annotations

import ctypes
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import llama_cpp.llama_cpp as api  # type: ignore[import-not-found]

_CONTEXT, _LOADED = 0, 1
"""Sequences: the one that is answered from, and the one that a state is loaded into."""
_UBATCH = 512


class Session:
    """One model with one context of `capacity` tokens. Raises RuntimeError if llama.cpp refuses it."""

    def __init__(self, file: Path, threads: int, capacity: int, *, flash: bool) -> None:
        model_options = api.llama_model_default_params()
        model_options.n_gpu_layers = 0
        self._model = api.llama_model_load_from_file(str(file).encode(), model_options)
        if not self._model:
            raise RuntimeError(f"llama.cpp cannot load {file}")
        options = api.llama_context_default_params()
        options.n_ctx = options.n_batch = capacity
        options.n_ubatch = _UBATCH
        options.n_threads = options.n_threads_batch = threads
        options.n_seq_max = 2
        options.kv_unified = True
        options.flash_attn_type = api.LLAMA_FLASH_ATTN_TYPE_ENABLED if flash else api.LLAMA_FLASH_ATTN_TYPE_DISABLED
        self._context = api.llama_init_from_model(self._model, options)
        if not self._context:
            raise RuntimeError("llama.cpp cannot make a context")
        self._memory = api.llama_get_memory(self._context)
        self._vocabulary = api.llama_vocab_n_tokens(api.llama_model_get_vocab(self._model))
        self._batch = api.llama_batch_init(capacity, 0, 1)
        self._capacity = capacity

    def prefill(self, ids: Sequence[int]) -> dict[str, float]:
        """Prefill a whole prompt."""
        self._clear()
        began = time.perf_counter()
        token = self._pass(ids, 0)
        return {"ms": _ms_since(began), "token": token}

    def decode(self, context: Sequence[int], tokens: int) -> dict[str, float]:
        """Decode `tokens` greedily after `context`; milliseconds per token."""
        self._clear()
        token = self._pass(context, 0)
        began = time.perf_counter()
        for position in range(len(context), len(context) + tokens):
            token = self._pass([token], position)
        return {"ms": _ms_since(began) / tokens, "token": token}

    def save(self, prefix: Sequence[int], chunk: Sequence[int], file: Path) -> dict[str, float]:
        """Prefill `chunk` behind `prefix` and save the chunk's cells alone."""
        self._clear()
        self._pass([*prefix, *chunk], 0)
        api.llama_memory_seq_rm(self._memory, _CONTEXT, 0, len(prefix))
        ids = (api.llama_token * len(chunk))(*chunk)
        size = api.llama_state_seq_save_file(self._context, str(file).encode(), _CONTEXT, ids, len(chunk))
        if not size:
            raise RuntimeError(f"llama.cpp cannot save {file}")
        return {"bytes": size}

    def hold(self, prefix: Sequence[int]) -> dict[str, float]:
        """Prefill `prefix` and keep it; `join` continues behind it."""
        self._clear()
        self._pass(prefix, 0)
        return {"tokens": len(prefix)}

    def join(self, prefix: int, files: Sequence[str], question: Sequence[int]) -> dict[str, float]:
        """Load saved chunks behind the held prefix of `prefix` tokens, shift their positions, prefill the question."""
        api.llama_memory_seq_rm(self._memory, _CONTEXT, prefix, -1)
        began = time.perf_counter()
        end = prefix
        for file in files:
            end += self._load(file, prefix, end)
        loaded = _ms_since(began)
        token = self._pass(question, end)
        return {"ms": _ms_since(began), "load": loaded, "token": token}

    def _load(self, file: str, saved_at: int, start: int) -> int:
        tokens, count = (api.llama_token * self._capacity)(), ctypes.c_size_t()
        size = api.llama_state_seq_load_file(
            self._context, file.encode(), _LOADED, tokens, self._capacity, ctypes.byref(count)
        )
        if not size:
            raise RuntimeError(f"llama.cpp cannot load {file}")
        if start != saved_at:
            api.llama_memory_seq_add(self._memory, _LOADED, saved_at, -1, start - saved_at)
        api.llama_memory_seq_cp(self._memory, _LOADED, _CONTEXT, -1, -1)
        api.llama_memory_seq_rm(self._memory, _LOADED, -1, -1)
        return int(count.value)

    def _pass(self, ids: Sequence[int], start: int) -> int:
        """Run `ids` at positions from `start`; returns the most likely next token."""
        batch = self._batch
        batch.n_tokens = len(ids)
        for row, token in enumerate(ids):
            batch.token[row], batch.pos[row] = token, start + row
            batch.n_seq_id[row], batch.seq_id[row][0] = 1, _CONTEXT
            batch.logits[row] = row == len(ids) - 1
        code = api.llama_decode(self._context, batch)
        if code:
            raise RuntimeError(f"llama_decode failed with code {code}")
        logits = api.llama_get_logits_ith(self._context, len(ids) - 1)
        row = ctypes.cast(logits, ctypes.POINTER(ctypes.c_float * self._vocabulary)).contents
        return _largest(row)

    def _clear(self) -> None:
        api.llama_memory_clear(self._memory, True)


def _largest(row: Any) -> int:
    import numpy as np

    return int(np.frombuffer(row, dtype=np.float32).argmax())


def _ms_since(began: float) -> float:
    return (time.perf_counter() - began) * 1e3


def _quiet(_level: int, _text: bytes, _data: ctypes.c_void_p) -> None:
    """Drop llama.cpp's own messages."""


def main(file: str, threads: str, capacity: str) -> None:
    """Answer requests until standard input ends."""
    quiet = api.llama_log_callback(_quiet)
    api.llama_log_set(quiet, ctypes.c_void_p(0))
    api.llama_backend_init()
    sessions = {
        name: Session(Path(file), int(threads), int(capacity), flash=flash)
        for name, flash in (("flash", True), ("plain", False))
    }
    for line in sys.stdin:
        request = json.loads(line)
        session = sessions[request.pop("session")]
        work: Callable[..., dict[str, float]] = getattr(session, request.pop("do"))
        print(json.dumps(work(**request)), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
