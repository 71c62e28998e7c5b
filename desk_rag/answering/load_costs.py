"""Measure, once per model, device and drive, how fast chunk KV is loaded and how fast chunks are prefilled."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import closing

import torch

from desk_rag.documents.volumes import Mounts
from desk_rag.errors import DeskRagError
from desk_rag.kv.calibration.texts import PROBE
from desk_rag.kv.forward.runner import ModelRunner
from desk_rag.kv.loading.costs import Rates
from desk_rag.kv.loading.loader import Loader
from desk_rag.kv.payload import ChunkFile
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
_WHOLE_TOKENS = 512, 2048


def known_or_measured(
    store: Store, serving: ServingModel, loader: Loader, slab: ModelRunner | None = None
) -> Rates | None:
    """Return the rates for this model, device and drive; None while there is too little chunk KV to measure them.

    Full prefill is measured over `slab`, on a GPU.
    """
    device = serving.model.device
    slab = slab if device.type == "cuda" else None
    try:
        drive = Mounts().identify(store.kv_place).filesystem
    except OSError:
        return None
    name = f"{serving.namespace} {_device_name(device)} {drive}"
    known = kept_rates.all_rates(store.root).get(name)
    if known is not None and (slab is None or known.whole_tokens_per_second):
        return known
    files = store.sample_kv_files(serving.namespace, _FILES)
    if sum(file.payload for file in files) < _LEAST_BYTES or len(files) < 2:
        return None
    try:
        rates = measured(serving.model, serving.prefix, serving.scheme, loader, files, slab)
    except (DeskRagError, ValueError) as error:
        _log.info("the rates of loading were not measured: %s", error)
        return None
    kept_rates.keep(store.root, name, rates)
    return rates


def measured(
    model: LanguageModel,
    prefix: PrefixKV,
    scheme: QuantScheme,
    loader: Loader,
    files: Sequence[ChunkFile],
    slab: ModelRunner | None = None,
) -> Rates:
    """Time loading some files, prefilling two chunks and, given a slab, two whole prompts.

    What the loader keeps in memory is dropped, and what is in the slab.
    """
    loader.forget()
    drop_page_cache(file.path for file in files)
    first = _seconds_to_load(loader, files[:1])
    rest = _seconds_to_load(loader, files[1:])
    loader.forget(staged=False)
    again = _seconds_to_load(loader, files)
    loader.forget(staged=False)
    short = list(model.prompt.chunk_ids(PROBE))
    long = 2 * short
    short_seconds, long_seconds = (_fastest(model, prefix, scheme, ids) for ids in (short, long))
    per_token = max((long_seconds - short_seconds) / (len(long) - len(short)), long_seconds / len(long) / 10)
    question, whole_fixed, whole_rate = (0.0, 0.0, 0.0) if slab is None else _whole_rates(model, slab, short)
    rest_bytes, all_bytes = sum(file.payload for file in files[1:]), sum(file.payload for file in files)
    return Rates(
        drive_seconds=max(0.0, first - rest / len(files[1:])),
        drive_bytes_per_second=rest_bytes / rest,
        ram_bytes_per_second=all_bytes / again,
        prefill_seconds=max(0.0, short_seconds - per_token * len(short)),
        prefill_tokens_per_second=1 / per_token,
        question_seconds=question,
        whole_seconds=whole_fixed,
        whole_tokens_per_second=whole_rate,
    )


def _whole_rates(model: LanguageModel, slab: ModelRunner, text: Sequence[int]) -> tuple[float, float, float]:
    """Seconds of a question's pass; seconds of full prefill whatever the length, and its tokens per second besides.

    The rates are 0 if the slab has no room for two lengths.
    """
    ids = list(itertools.islice(itertools.cycle(text), max(_WHOLE_TOKENS)))
    few, many = (min(count, slab.cache.capacity) for count in _WHOLE_TOKENS)
    if few >= many:
        return 0.0, 0.0, 0.0
    times = []
    for count in (few, many):
        prefill = slab.whole(ids[:count])
        times.append(min(_timed(lambda: prefill().argmax().item(), model.device) for _ in range(_REPEATS)))  # noqa: B023
    run = slab.run()
    question = min(_timed(lambda: run.forward(ids[:_QUESTION_TOKENS], few), model.device) for _ in range(_REPEATS))
    per_token = max((times[1] - times[0]) / (many - few), times[1] / many / 10)
    return question, max(0.0, times[0] - per_token * few), 1 / per_token


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
