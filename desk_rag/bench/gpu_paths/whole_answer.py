"""Whole answers, from the moment the chunks are known to the last of some twenty tokens: cached against full prefill.

Both sides decode with the same pass over the same kind of cache, so what differs is how the context gets there. After
MatKV's measurement ("Trading Compute for Flash Storage in LLM Inference": 2,048 tokens of context, 20 asked, 20
answered, batches of 8), its overlap included: the next batch is loaded while this one decodes.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from desk_rag.bench.harness import drive, energy
from desk_rag.bench.harness.clock import Times, Work, in_turns
from desk_rag.bench.harness.report import Spread
from desk_rag.bench.models import shapes, synthetic
from desk_rag.bench.models.chunk_pool import ChunkPool
from desk_rag.errors import ConfigError
from desk_rag.kv.cache import SlabCache, SlabRows
from desk_rag.kv.forward.attention import Attention, attend, attend_whole
from desk_rag.kv.forward.fused_decoder import FusedDecoder
from desk_rag.kv.loading.layerwise import CacheTarget, Placer
from desk_rag.kv.loading.loader import Loader, LoaderSettings
from desk_rag.kv.payload import ChunkFile
from desk_rag.kv.positions import plan
from desk_rag.kv.prefill import PrefixKV
from desk_rag.kv.rope import RotaryTables
from desk_rag.model.language_model import LanguageModel

_log = logging.getLogger(__name__)
FULL, COLD, RAM, OVERLAPPED = "full prefill", "cached, cold", "cached, RAM-hot", "cached, cold, next batch loading"
DECODE = "decode alone"
"""Lower bound for every way to bring the context."""
_BATCHES = 3
"""Answers in a row: the first load is exposed, the others overlap with decoding."""


@dataclass(frozen=True, slots=True)
class Job:
    """Token counts of one answer, and how many are made at once."""

    context: int
    question: int
    answer: int
    batch: int

    @classmethod
    def parse(cls, text: str) -> list[Job]:
        """From '2048+20+20:1,8': context, question, answer, batch sizes. Raises ConfigError."""
        counts, _, batches = text.partition(":")
        try:
            context, question, answer = (int(number) for number in counts.split("+"))
            return [cls(context, question, answer, int(batch)) for batch in (batches or "1").split(",")]
        except ValueError as error:
            raise ConfigError(
                f"'{text}' is no job.", remedy="Write 2048+20+20:1,8: context, question, answer, batch sizes."
            ) from error


class Answering:
    """One model and one batch size: caches in one block, a pass over all of them, a loader."""

    def __init__(
        self, model: LanguageModel, prefix: PrefixKV, tables: RotaryTables, pool: ChunkPool, job: Job, *,
        chunk: int, graphs: bool, threads: int,
    ) -> None:  # fmt: skip
        self.model, self.job = model, job
        self.lengths = synthetic.lengths(job.context, chunk)
        self.payload = job.batch * pool.payload(self.lengths)
        self._files = [pool.of_question(self.lengths, number) for number in range(job.batch)]
        self._where = plan(prefix.num_tokens, self.lengths)
        capacity = self._where.num_slots + job.question + job.answer + 64
        self._pass, caches = _caches(model, tables, prefix, job.batch, capacity, graphs=graphs)
        self._slots = [CacheTarget.of(tables, cache) for cache in caches]
        # Full prefill writes its own prefix, so it gets slabs of its own.
        self._full, _ = _caches(model, tables, prefix, job.batch, capacity, graphs=graphs)
        self._prompts = shapes.random_ids(model, job.batch, self._where.num_slots + job.question)
        self._asked = self._prompts[:, -job.question :].contiguous()
        room = self.payload + (256 << 20)
        settings = LoaderSettings(threads=threads, staging_bytes=room, resident_bytes=room)
        self.loader = Loader(model.device, settings)
        for count in (1, job.question):
            self._pass.prepare(count)
            self._full.prepare(1)
        self._last = torch.zeros((job.batch, int(model.module.config.vocab_size)), device=model.device)
        self._attention = self._faster()

    def full_prefill(self) -> list[list[int]]:
        """Answers [B][answer] from the prompts alone."""
        logits = self._full.run(self._prompts, 0, attention=self._attention)
        return self._decode(self._full, logits)

    def cached(self) -> list[list[int]]:
        """Answers from the chunk files, wherever their bytes are."""
        with _Loads(self.loader, self._files) as loads:
            logits = self._first(loads)
            return self._decode(self._pass, logits)

    def overlapped(self, loader: Loader) -> None:
        """Several batches in a row, each loading while the one before decodes."""
        following = _Loads(loader, self._files)
        for number in range(_BATCHES):
            loads = following
            logits = self._first(loads)
            loads.close()
            if number + 1 < _BATCHES:
                following = _Loads(loader, self._files)
            self._decode(self._pass, logits)

    def decode_alone(self) -> list[list[int]]:
        """The tokens after the first, over caches that the round before has filled."""
        return self._decode(self._pass, self._last)

    def cool(self) -> None:
        """Out of every tier and of the page cache; checksums are verified again."""
        drive.drop([file.path for files in self._files for file in files])
        self.loader.forget()

    def warm(self) -> None:
        """Leave the chunks in host memory only."""
        self.loader.forget(staged=False)

    def overlap_loader(self, threads: int) -> Loader:
        """One that keeps nothing from batch to batch: page-locked memory for a quarter of one, no GPU tier."""
        staging = max(64 << 20, self.payload // 4)
        return Loader(self.model.device, LoaderSettings(threads=threads, staging_bytes=staging, resident_bytes=0))

    def _first(self, loads: _Loads) -> torch.Tensor:
        placers = [Placer(load, self._where, slots) for load, slots in zip(loads.loads, self._slots, strict=True)]

        def before(layer: int) -> None:
            for placer in placers:
                placer.place_through(layer)

        return self._pass.run(self._asked, self._where.next_position, before=before)

    def _decode(self, lean: FusedDecoder, logits: torch.Tensor) -> list[list[int]]:
        tokens = logits.argmax(-1, keepdim=True)
        answers = [tokens.flatten().tolist()]
        first = self._where.num_slots + self.job.question
        for position in range(first, first + self.job.answer - 1):
            tokens = lean.run(tokens, position).argmax(-1, keepdim=True)
            # To the host token by token, as text needs them.
            answers.append(tokens.flatten().tolist())
        return [list(answer) for answer in zip(*answers, strict=True)]

    def _faster(self) -> Attention:
        """The faster of the two ways to attend in a whole prompt: the baseline is to be at its best."""
        ways: dict[str, Attention] = {"to the end": attend, "torch's choice": attend_whole}

        def first(attention: Attention) -> list[int]:
            return [int(token) for token in self._full.run(self._prompts, 0, attention=attention).argmax(-1)]

        works = {name: Work(functools.partial(first, way)) for name, way in ways.items()}
        times = in_turns(works, self.model.device, seconds=0.0, least=2)
        return ways[min(times, key=lambda name: Spread.of(times[name].wall).median)]


class _Loads:
    """The loads of one batch; a context manager."""

    def __init__(self, loader: Loader, files: Sequence[Sequence[ChunkFile]]) -> None:
        self.loads = [loader.start(one) for one in files]

    def __enter__(self) -> _Loads:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give all memory back."""
        for load in self.loads:
            load.close()


def measure(
    model: LanguageModel, prefix: PrefixKV, tables: RotaryTables, pool: ChunkPool, jobs: Sequence[Job], *,
    chunk: int, graphs: bool, threads: int, seconds: float, meter: energy.Meter | None, meter_seconds: float,
) -> Iterator[dict[str, object]]:  # fmt: skip
    """Time every job and, with a meter, weigh its energy; yields one entry per job as soon as it is done."""
    for job in jobs:
        bench = Answering(model, prefix, tables, pool, job, chunk=chunk, graphs=graphs, threads=threads)
        overlap = bench.overlap_loader(threads)
        try:
            works = _works(bench, overlap)
            times = in_turns(works, model.device, seconds=seconds / len(jobs), least=3, most=10)
            if FULL not in times:
                _log.warning("%s: %s: nothing to compare with", model.spec.name, job)
                continue
            entry = _entry(model, bench, times)
            if meter is not None:
                entry["energy"] = _energy(meter, works, times, job, meter_seconds)
        finally:
            bench.loader.close()
            overlap.close()
        _log.info("%s %s: %s", model.spec.name, job, entry["modes"])
        yield entry


def _works(bench: Answering, overlap: Loader) -> dict[str, Work]:
    return {
        FULL: Work(bench.full_prefill),
        COLD: Work(bench.cached, bench.cool),
        RAM: Work(bench.cached, bench.warm),
        DECODE: Work(bench.decode_alone),
        OVERLAPPED: Work(functools.partial(bench.overlapped, overlap), functools.partial(_cool, bench, overlap)),
    }


def _cool(bench: Answering, overlap: Loader) -> None:
    bench.cool()
    overlap.forget()


def _entry(model: LanguageModel, bench: Answering, times: dict[str, Times]) -> dict[str, object]:
    job = bench.job
    per_batch = {name: _BATCHES if name == OVERLAPPED else 1 for name in times}
    full = times[FULL]
    ratios = {
        name: Spread.of([a * per_batch[name] / b for a, b in zip(full.wall, one.wall, strict=True)]).scaled(1.0, 2)
        for name, one in times.items()
        if name != FULL
    }
    return {
        "shape": model.spec.name, "context": job.context, "question": job.question, "answer": job.answer,
        "batch": job.batch, "bytes": bench.payload, "batches_in_a_row": per_batch,
        "modes": {name: one.json() for name, one in times.items()}, "ratio_to_full_prefill": ratios,
    }  # fmt: skip


def _energy(
    meter: energy.Meter, works: dict[str, Work], times: dict[str, Times], job: Job, seconds: float
) -> dict[str, object]:
    used_by_way: dict[str, object] = {"idle_watts": round(energy.idle_watts(meter, min(seconds, 2.0)), 1)}
    per_answer: dict[str, float] = {}
    for name in (FULL, COLD, RAM):
        if name in times:
            used = energy.measure(meter, works[name].run, works[name].before, seconds=seconds)
            per_answer[name] = used.joules / job.batch
            used_by_way[name] = used.json() | {"joules_per_answer": round(per_answer[name], 3)}
    used_by_way["share_of_full_prefill"] = {
        name: round(joules / per_answer[FULL], 3) for name, joules in per_answer.items() if name != FULL
    }
    return used_by_way


def _caches(
    model: LanguageModel, tables: RotaryTables, prefix: PrefixKV, batch: int, capacity: int, *, graphs: bool
) -> tuple[FusedDecoder, list[SlabCache]]:
    """A pass over `batch` caches in one block, and each of them alone; the shared prefix is in all of them."""
    rows = SlabRows(model, batch, capacity)
    for cache in rows.caches:
        prefix.write_to(cache)
    return FusedDecoder(model, rows.layers, tables, graphs=graphs), rows.caches
