"""Measure, once per model, device and drive, how fast chunk KV is loaded and how fast chunks are prefilled."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace

import torch

from desk_rag.documents.volumes import Mounts
from desk_rag.errors import DeskRagError
from desk_rag.kv.calibration.texts import PROBE
from desk_rag.kv.forward.arriving_chunks import placed
from desk_rag.kv.forward.runner import ModelRunner
from desk_rag.kv.loading.costs import Rates
from desk_rag.kv.loading.loader import Loader
from desk_rag.kv.payload import ChunkFile
from desk_rag.kv.positions import StitchPlan, plan
from desk_rag.kv.prefill import PrefixKV, prefill_chunk
from desk_rag.kv.quant import QuantScheme, quantize
from desk_rag.kv.serving import ServingModel
from desk_rag.model.language_model import LanguageModel
from desk_rag.store.kv import rates as kept_rates
from desk_rag.store.layout import drop_page_cache
from desk_rag.store.store import Store

_log = logging.getLogger(__name__)

_FILES = 16
_LEAST_BYTES = 1 << 20
"""Chunk KV below which a drive's rate cannot be told from its latency."""
_REPEATS = 3
_QUESTION_TOKENS = 32
_WHOLE_TOKENS = 256, 512, 2048, 8192
"""Lengths of full prefill that are timed, as far as the slab reaches."""
_LONG_SECONDS = 0.5
"""Time of a full prefill behind which no longer one is timed: loading wins by then, and the user is waiting."""
_PLACED_CHUNKS = 1, 6


def known_or_measured(
    store: Store, serving: ServingModel, loader: Loader, slab: ModelRunner | None = None
) -> Rates | None:
    """Return the rates for this model, device and drive; None while there is too little chunk KV to measure them.

    Full prefill is measured over `slab`, on a GPU. There the drive is timed again even if the rates are known: which
    of both is faster is close enough for a drive that was busy, or has been replaced, to turn it.
    """
    device = serving.model.device
    slab = slab if _has_choice(device) else None
    try:
        drive = Mounts().identify(store.kv_place).filesystem
    except OSError:
        return None
    name = f"{serving.namespace} {_device_name(device)} {drive}"
    known = kept_rates.all_rates(store.root).get(name)
    if known is not None and slab is None:
        return known
    files = store.sample_kv_files(serving.namespace, _FILES)
    if sum(file.payload for file in files) < _LEAST_BYTES or len(files) < 2:
        return known
    try:
        if known is not None and known.whole:
            latency, rate = _drive(loader, files)
            rates = replace(known, drive_seconds=latency, drive_bytes_per_second=rate)
        else:
            rates = measured(serving.model, serving.prefix, serving.scheme, loader, files, slab)
    except (DeskRagError, ValueError) as error:
        _log.info("the rates of loading were not measured: %s", error)
        return known
    kept_rates.keep(store.root, name, rates)
    return rates


def _has_choice(device: torch.device) -> bool:
    """Return whether full prefill may be faster than loading."""
    return device.type == "cuda"


def measured(
    model: LanguageModel,
    prefix: PrefixKV,
    scheme: QuantScheme,
    loader: Loader,
    files: Sequence[ChunkFile],
    slab: ModelRunner | None = None,
) -> Rates:
    """Time loading some files, prefilling two chunks and, given a slab, whole prompts and answers from memory.

    What the loader keeps in memory is dropped, and what is in the slab.
    """
    latency, drive_rate = _drive(loader, files)
    loader.forget(staged=False)
    again = _seconds_to_load(loader, files)
    question, per_chunk = (0.0, 0.0) if slab is None else _resident_seconds(model, slab, prefix, loader, files)
    loader.forget(staged=False)
    short = list(model.prompt.chunk_ids(PROBE))
    long = 2 * short
    short_seconds, long_seconds = (_fastest(model, prefix, scheme, ids) for ids in (short, long))
    per_token = max((long_seconds - short_seconds) / (len(long) - len(short)), long_seconds / len(long) / 10)
    return Rates(
        drive_seconds=latency,
        drive_bytes_per_second=drive_rate,
        ram_bytes_per_second=sum(file.payload for file in files) / again,
        prefill_seconds=max(0.0, short_seconds - per_token * len(short)),
        prefill_tokens_per_second=1 / per_token,
        question_seconds=question,
        chunk_seconds=per_chunk,
        whole=() if slab is None else tuple(_whole_seconds(model, slab, short)),
    )


def _drive(loader: Loader, files: Sequence[ChunkFile]) -> tuple[float, float]:
    """Seconds until a first chunk arrives, and bytes per second; afterwards these files are in the RAM tier."""
    loader.forget()
    drop_page_cache(file.path for file in files)
    first = _seconds_to_load(loader, files[:1])
    rest = _seconds_to_load(loader, files[1:])
    return max(0.0, first - rest / len(files[1:])), sum(file.payload for file in files[1:]) / rest


def _resident_seconds(
    model: LanguageModel, slab: ModelRunner, prefix: PrefixKV, loader: Loader, files: Sequence[ChunkFile]
) -> tuple[float, float]:
    """Seconds of a question over chunks in device memory, whatever their number; seconds for each chunk besides."""
    question = list(itertools.islice(itertools.cycle(model.prompt.chunk_ids(PROBE)), _QUESTION_TOKENS))
    room = slab.cache.capacity - prefix.num_tokens - _QUESTION_TOKENS
    ends = itertools.accumulate(file.header.num_tokens for file in files)
    fitting = sum(end <= room for end in ends)
    seconds = {}
    for count in sorted({min(count, fitting) for count in _PLACED_CHUNKS}):
        where = plan(prefix.num_tokens, [file.header.num_tokens for file in files[:count]])

        def answer(where: StitchPlan = where, count: int = count) -> None:
            with closing(loader.start(files[:count])) as load, placed(model, slab, load, where) as run:
                run.forward(question, where.next_position).argmax().item()

        answer()
        seconds[count] = min(_timed(answer, model.device) for _ in range(_REPEATS))
    few, many = min(seconds), max(seconds)
    per_chunk = max(0.0, seconds[many] - seconds[few]) / max(1, many - few)
    return max(0.0, seconds[few] - few * per_chunk), per_chunk


def _whole_seconds(model: LanguageModel, slab: ModelRunner, text: Sequence[int]) -> Iterator[tuple[float, float]]:
    """Yield lengths of prompts and the seconds of their full prefill."""
    ids = list(itertools.islice(itertools.cycle(text), max(_WHOLE_TOKENS)))
    for count in (count for count in _WHOLE_TOKENS if count <= slab.cache.capacity):
        prefill = slab.whole(ids[:count])
        seconds = min(_timed(lambda: prefill().argmax().item(), model.device) for _ in range(_REPEATS))  # noqa: B023
        yield count, seconds
        if seconds > _LONG_SECONDS:
            return


def _seconds_to_load(loader: Loader, files: Sequence[ChunkFile]) -> float:
    began = time.perf_counter()
    with closing(loader.start(files)) as load:
        load.wait_all()
        _synchronize(loader.device)
    return time.perf_counter() - began


def _fastest(model: LanguageModel, prefix: PrefixKV, scheme: QuantScheme, token_ids: Sequence[int]) -> float:
    def prefill() -> None:
        quantize(prefill_chunk(model, prefix, token_ids), scheme)

    prefill()  # kernels of this length may have to be compiled
    return min(_timed(prefill, model.device) for _ in range(_REPEATS))


def _timed(action: Callable[[], object], device: torch.device) -> float:
    _synchronize(device)
    began = time.perf_counter()
    action()
    _synchronize(device)
    return time.perf_counter() - began


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else f"cpu {torch.get_num_threads()}"
