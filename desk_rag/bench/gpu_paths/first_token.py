"""Time to first token of published model shapes at given context lengths: our whole path beside everybody else's.

Measured from the moment the chunks are known to the moment the first token's number is on the host. Three tiers apart:
cold (page cache dropped, direct reads, checksums verified anew), RAM-hot (page-locked memory), VRAM-hot (int8 on the
GPU; placed and rotated again all the same).

Several questions at once are one load and one pass; beside it they pass one after the other, and while one question is
prefilled the next one's chunks arrive. Their time is that of the last first token. Full prefill of as many prompts runs
one after the other and, where memory allows, as one batch; ratios are to the faster of the two.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from desk_rag.bench.baselines.serving import FullPrefill, TheirFiles
from desk_rag.bench.harness import drive
from desk_rag.bench.harness.clock import Times, Work, in_turns
from desk_rag.bench.harness.report import Spread
from desk_rag.bench.models import shapes, synthetic
from desk_rag.bench.models.chunk_pool import ChunkPool
from desk_rag.errors import ConfigError
from desk_rag.kv.cache import SlabCache, SlabRows
from desk_rag.kv.forward import full_prefill
from desk_rag.kv.forward.attention import Attention, attend_whole
from desk_rag.kv.forward.fused_decoder import FusedDecoder
from desk_rag.kv.forward.inputs import Questions
from desk_rag.kv.loading.layerwise import CacheTarget, Placer, layerwise
from desk_rag.kv.loading.load import Load
from desk_rag.kv.loading.load_part import LoadPart, SharedLoad, distinct
from desk_rag.kv.loading.loader import Loader, LoaderSettings
from desk_rag.kv.payload import ChunkFile
from desk_rag.kv.positions import StitchPlan, plan
from desk_rag.kv.prefill import PrefixKV
from desk_rag.kv.rope import build_tables
from desk_rag.model.language_model import LanguageModel

_log = logging.getLogger(__name__)


class Mode(Enum):
    """Way by which the context gets to the model."""

    FULL = "full prefill"
    """Full prefill by the fastest implementation, our own pass among them."""
    THEIRS = "full prefill, transformers"
    """Full prefill by transformers with SDPA, which published ratios compare with."""
    PREFIX = "prefix caching"
    COLD = "cached, cold"
    RAM = "cached, RAM-hot"
    VRAM = "cached, VRAM-hot"
    STOCK = "cached, RAM-hot, through transformers"
    """Loader and placer as in the others, the question through the model's own forward pass."""
    FULL_BATCH = "full prefill, one batch"
    RAM_IN_TURN = "cached, RAM-hot, one after the other"
    VRAM_IN_TURN = "cached, VRAM-hot, one after the other"
    QUESTION = "question alone"
    """The question over a cache that is already filled: what no load path can go below."""


@dataclass(frozen=True, slots=True)
class Case:
    """One cell of the table."""

    context: int
    """Tokens in chunks, per question."""
    question: int
    """Tokens after them."""
    questions: int
    """Asked at once."""

    @classmethod
    def parse(cls, text: str, questions: int = 1) -> Case:
        """From '8192+128'. Raises ConfigError."""
        context, _, question = text.partition("+")
        if not (context.isdigit() and (question or "128").isdigit()):
            raise ConfigError(f"'{text}' is no context.", remedy="Write 8192+128: tokens in chunks, tokens asked.")
        return cls(int(context), int(question or 128), questions)

    def __str__(self) -> str:
        return f"{self.context}+{self.question}" + (f" x{self.questions}" if self.questions > 1 else "")


@dataclass(frozen=True, slots=True)
class Plans:
    """Cases to measure, and the directory of their files."""

    shape: str
    cases: tuple[Case, ...]
    chunk: int
    place: Path
    settings: LoaderSettings
    graphs: bool
    big_bytes: int
    most_bytes: int
    """Chunk files of one case above this are not written; the case is named as left out."""
    baselines: bool


class Desk:
    """One model with its caches, loader and files; a context manager."""

    def __init__(self, plans: Plans, model: LanguageModel, prefix: PrefixKV, pool: ChunkPool) -> None:
        """Raises ConfigError when no case is small enough."""
        self.plans, self.model, self.prefix, self.device = plans, model, prefix, model.device
        self.shape = shapes.model_shape(plans.shape)
        self.pool = pool
        self.left_out = [case for case in plans.cases if self.payload(case) > plans.most_bytes]
        self.cases = [case for case in plans.cases if case not in self.left_out]
        if not self.cases:
            raise ConfigError("Every case needs more bytes of chunk files than allowed.", remedy="Raise --most-mib.")
        self.capacity = prefix.num_tokens + max(case.context + case.question for case in self.cases) + 256
        self.tables = build_tables(self.model, self.capacity)
        most = max(case.questions for case in self.cases)
        self.rows = SlabRows(self.model, most, self.capacity)
        self.caches = self.rows.caches
        for cache in self.caches:
            prefix.write_to(cache)
        self.decoder = FusedDecoder(self.model, self.rows.layers, self.tables, graphs=plans.graphs)
        self.slots = [CacheTarget.of(self.tables, cache) for cache in self.caches]
        # Of its own, so that a cached answer finds the shared prefix where it was put once.
        self.full_cache = SlabCache(self.model, self.capacity)
        self.full = FullPrefill(self.model, self.full_cache, self.tables)
        self.full_batch = self.decoder.over(SlabRows(self.model, most, self.capacity).layers) if most > 1 else None
        self.loader = Loader(self.device, plans.settings)
        self.theirs = self._their_files() if plans.baselines else None

    def __enter__(self) -> Desk:
        return self

    def __exit__(self, *_: object) -> None:
        self.loader.close()

    def lengths(self, case: Case) -> list[int]:
        """Tokens of one question's chunks."""
        return synthetic.lengths(case.context, self.plans.chunk)

    def payload(self, case: Case) -> int:
        """Bytes that all of the case's loads bring together."""
        return case.questions * self.pool.payload(self.lengths(case))

    def files(self, case: Case) -> list[list[ChunkFile]]:
        """The chunk files of each question."""
        return [self.pool.of_question(self.lengths(case), number) for number in range(case.questions)]

    def where(self, case: Case) -> StitchPlan:
        """Plan of one question's chunks."""
        return plan(self.prefix.num_tokens, self.lengths(case))

    def _their_files(self) -> TheirFiles:
        # Sixteen bits a number and two formats: the longest contexts would take longer to write than to measure.
        wanted = [self.lengths(case) for case in self.cases if case.questions == 1 and case.context <= 16_384]
        place = self.plans.place / "theirs"
        return TheirFiles.write(place, self.shape.chunk_shape, wanted or [[16]], self.plans.big_bytes)


class CaseWorks:
    """Every mode of one case, ready to be timed."""

    def __init__(self, desk: Desk, case: Case) -> None:
        self.desk, self.case = desk, case
        self.files = desk.files(case)
        self.where = desk.where(case)
        tokens = desk.prefix.num_tokens + case.context + case.question
        self.prompts = [shapes.random_ids(desk.model, 1, tokens) for _ in range(case.questions)]
        self.asked = [prompt[:, -case.question :].contiguous() for prompt in self.prompts]
        for batch in {1, case.questions}:
            desk.decoder.prepare(case.question, batch)
        self.full_way, self.full_seconds = desk.full.fastest(self.prompts[0])

    def works(self) -> dict[str, Work]:
        """Return what is timed, by name; published loaders only for one question, as in their code."""
        desk = self.desk
        unload = functools.partial(desk.loader.forget, staged=False)
        works = {
            Mode.FULL.value: Work(self.full_prefill),
            Mode.COLD.value: Work(self.first_tokens, self.cool),
            Mode.RAM.value: Work(self.first_tokens, unload),
            Mode.VRAM.value: Work(self.first_tokens),
            Mode.QUESTION.value: Work(self.question_alone),
        }
        if self.case.questions == 1:
            works[Mode.THEIRS.value] = Work(desk.full.ways(self.prompts[0])[full_prefill.STOCK])
            works[Mode.PREFIX.value] = Work(self.prefix_caching)
            works[Mode.STOCK.value] = Work(self.through_transformers, unload)
            works |= self._published()
        else:
            works[Mode.RAM_IN_TURN.value] = Work(self.first_tokens_in_turn, unload)
            works[Mode.VRAM_IN_TURN.value] = Work(self.first_tokens_in_turn)
            works[Mode.FULL_BATCH.value] = Work(self.full_prefill_batch)
        return works

    def full_prefill(self) -> list[int]:
        """First token of every prompt, from nothing."""
        return [self.desk.full.ways(prompt)[self.full_way]() for prompt in self.prompts]

    def prefix_caching(self) -> int:
        """First token when only the shared prefix is reused."""
        return self.desk.full.behind_prefix(self.prompts[0], self.desk.prefix.num_tokens)

    def full_prefill_batch(self) -> list[int]:
        """First token of every prompt, all of them in one pass."""
        assert self.desk.full_batch is not None
        with self._full_attention() as attention:
            logits = self.desk.full_batch.run(torch.cat(self.prompts), 0, attention=attention)
        return _tokens(logits)

    @contextmanager
    def _full_attention(self) -> Iterator[Attention | None]:
        """The attention of the fastest full prefill of one prompt."""
        if not self.full_way.endswith("cuDNN"):
            yield None
            return
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            yield attend_whole

    def first_tokens(self) -> list[int]:
        """First token of every question from its chunk files, wherever their bytes are: one load, one pass."""
        with closing_parts(self.desk.loader, self.files) as parts:
            return _tokens(self._run(range(self.case.questions), parts))

    def first_tokens_in_turn(self) -> list[int]:
        """The same one question after the other; all loads are begun together."""
        return [int(logits.argmax()) for logits in self.logits()]

    def logits(self) -> Iterator[torch.Tensor]:
        """Yield the logits [1, vocab] of one question after the other, each valid until the next."""
        loads = [self.desk.loader.start(files) for files in self.files]
        for index, load in enumerate(loads):
            yield self._run([index], [load])
            load.close()

    def _run(self, indices: Sequence[int], loads: Sequence[Load | LoadPart]) -> torch.Tensor:
        """Logits of these questions, by one pass in which their chunks arrive."""
        placers = [Placer(load, self.where, self.desk.slots[index]) for index, load in zip(indices, loads, strict=True)]
        for placer in placers:
            placer.place_resident()

        def before(layer: int) -> None:
            for placer in placers:
                placer.place_through(layer)

        return self._asked(indices, before)

    def _asked(self, indices: Sequence[int], before: Callable[[int], None] | None = None) -> torch.Tensor:
        count = len(indices)
        questions = Questions((self.where.next_position,) * count, (self.case.question,) * count, tuple(indices))
        asked = torch.cat([self.asked[index] for index in indices])
        return self.desk.decoder.run(asked, questions, before=before)

    def through_transformers(self) -> int:
        """First tokens by the model's own forward pass over the layer-wise load."""
        return int(self._transformers_logits().argmax())

    def _transformers_logits(self) -> torch.Tensor:
        desk = self.desk
        load, cache = desk.loader.start(self.files[0]), desk.caches[0]
        with layerwise(desk.model, load, self.where, desk.prefix, desk.slots[0]):
            logits = desk.model.forward(self.asked[0][0], cache, self.where.next_position, logits=True)
        load.close()
        assert logits is not None
        return logits

    def question_alone(self) -> list[int]:
        """First tokens over caches that the round before has filled."""
        return _tokens(self._asked(range(self.case.questions)))

    def cool(self) -> None:
        """Out of every tier and of the page cache; checksums are verified again."""
        drive.drop([file.path for files in self.files for file in files])
        self.desk.loader.forget()

    def deviation(self) -> float:
        """Largest difference between the lean pass's logits and transformers', in standard deviations of the latter."""
        theirs = self._transformers_logits().float()
        with closing_parts(self.desk.loader, self.files) as parts:
            ours = self._run(range(self.case.questions), parts)[0].float()
        return float((ours - theirs).abs().max() / theirs.std())

    def disk_bytes(self) -> dict[str, int]:
        """Bytes that one answer of each tier reads from the file system; none if its chunks are in GPU memory."""
        bytes_by_mode = {}
        works = self.works()
        for mode in (Mode.COLD, Mode.RAM, Mode.VRAM):
            works[mode.value].before()
            already = self.desk.loader.reader.bytes_read
            works[mode.value].run()
            bytes_by_mode[mode.value] = self.desk.loader.reader.bytes_read - already
        return bytes_by_mode

    def _published(self) -> dict[str, Work]:
        desk, lengths = self.desk, self.desk.lengths(self.case)
        if desk.theirs is None or not desk.theirs.covers(lengths):
            return {}
        works = {}
        loaders = desk.theirs.loaders(desk.shape.chunk_shape, lengths, desk.tables)
        for name, (load, paths) in loaders.items():

            def answer(load: Callable[[], object] = load) -> None:
                load()
                self.question_alone()

            works[f"{name}, cold"] = Work(answer, functools.partial(drive.drop, paths))
            works[f"{name}, in RAM"] = Work(answer)
        return works


def measure(desk: Desk, seconds: Callable[[int], float]) -> Iterator[dict[str, object]]:
    """Measure every case; yields one entry per case as soon as it is done.

    `seconds(left)` is what the next of that many cases may take; what there is no time for is added to `desk.left_out`.
    """
    rate: float | None = None
    if desk.theirs is not None:
        rate = max(spread.median for spread in drive.rates(desk.theirs.files.big, (4, 8), 2).values())
    bus = drive.host_to_device(desk.device, 5).most
    for number, case in enumerate(desk.cases):
        if number and seconds(len(desk.cases) - number) <= 0:
            desk.left_out.append(case)
            continue
        try:
            entry = _measured(desk, case, seconds(len(desk.cases) - number), rate, bus)
        except RuntimeError:  # out of memory, mostly: the other cases are smaller
            _log.exception("%s is left out", case)
            desk.left_out.append(case)
            continue
        yield entry


def _measured(desk: Desk, case: Case, seconds: float, rate: float | None, bus: float) -> dict[str, object]:
    works = CaseWorks(desk, case)
    times = in_turns(works.works(), desk.device, seconds=seconds)
    entry = _entry(desk, case, times, rate, bus)
    entry["logits_off_by"] = round(works.deviation(), 4)
    entry["disk_bytes"] = works.disk_bytes()
    entry["graphs"] = desk.decoder.uses_graphs
    entry["full_way"] = works.full_way
    entry["full_ways_ms"] = {way: round(took * 1e3, 2) for way, took in works.full_seconds.items()}
    _log.info("%s: %s", case, {name: round(Spread.of(one.wall).median * 1e3, 2) for name, one in times.items()})
    return entry


def _entry(desk: Desk, case: Case, times: dict[str, Times], rate: float | None, bus: float) -> dict[str, object]:
    medians = {name: Spread.of(one.wall).median for name, one in times.items()}
    whole = [name for name in (Mode.FULL.value, Mode.FULL_BATCH.value) if name in medians]
    fastest = min(whole, key=lambda name: medians[name])
    full = times[fastest]
    ratios = {
        name: Spread.of([a / b for a, b in zip(full.wall, one.wall, strict=True)]).scaled(1.0, 2)
        for name, one in times.items()
        if one is not full
    }
    payload = desk.payload(case)
    entry: dict[str, object] = {
        "shape": desk.plans.shape, "context": case.context, "question": case.question, "questions": case.questions,
        "prefix": desk.prefix.num_tokens, "bytes": payload, "modes": {name: one.json() for name, one in times.items()},
        "ratio_to_full_prefill": ratios, "compared_with": fastest, "host_to_device_gb_s": round(bus / 1e9, 2),
    }  # fmt: skip
    alone = medians.get(Mode.QUESTION.value)
    if alone is not None:
        bounds = {Mode.RAM.value: max(payload / bus, alone), Mode.VRAM.value: alone}
        if rate is not None:
            entry["drive_gb_s"] = round(rate / 1e9, 2)
            bounds[Mode.COLD.value] = max(payload / rate, alone)
        entry["bound_ms"] = {name: round(bound * 1e3, 2) for name, bound in bounds.items()}
        entry["of_bound"] = {name: round(medians[name] / bound, 3) for name, bound in bounds.items() if name in medians}
    return entry


def _tokens(logits: torch.Tensor) -> list[int]:
    return [int(token) for token in logits.argmax(-1).tolist()]


@contextmanager
def closing_parts(loader: Loader, files: Sequence[Sequence[ChunkFile]]) -> Iterator[list[LoadPart]]:
    """One load of every question's files, a file that several want once; yields each question's part."""
    by_path = {file.path: file for of_question in files for file in of_question}
    paths, parts = distinct([[file.path for file in of_question] for of_question in files])
    shared = SharedLoad(loader.start([by_path[path] for path in paths]), parts)
    try:
        yield shared.parts
    finally:
        for part in shared.parts:
            part.close()
