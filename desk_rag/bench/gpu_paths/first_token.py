"""Time to first token of published model shapes at given context lengths: our whole path beside everybody else's.

Measured from the moment the chunks are known to the moment the first token's number is on the host. Three tiers apart:
cold (page cache dropped, direct reads, checksums verified anew), RAM-hot (page-locked memory), VRAM-hot (int8 on the
GPU; placed and rotated again all the same).

Several questions at once are answered as one person's machine answers them: all loads are begun together, and while
one question is prefilled the next one's chunks arrive. Their time is that of the last first token; full prefill of
as many prompts runs one after the other, since its arithmetic fills the GPU by itself.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import torch

from desk_rag.bench.baselines.serving import FullPrefill, TheirFiles
from desk_rag.bench.harness import drive
from desk_rag.bench.harness.clock import Times, Work, in_turns
from desk_rag.bench.harness.report import Spread
from desk_rag.bench.models import shapes, synthetic
from desk_rag.bench.models.chunk_pool import ChunkPool
from desk_rag.errors import ConfigError
from desk_rag.kv.cache import SlabCache
from desk_rag.kv.forward import full_prefill
from desk_rag.kv.forward.fused_decoder import FusedDecoder
from desk_rag.kv.loading.layerwise import CacheTarget, Placer, layerwise
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
    """By the fastest of several ways, our own pass among them."""
    THEIRS = "full prefill, transformers"
    """Full prefill by transformers with SDPA, which published ratios compare with."""
    PREFIX = "prefix caching"
    COLD = "cached, cold"
    RAM = "cached, RAM-hot"
    VRAM = "cached, VRAM-hot"
    STOCK = "cached, RAM-hot, through transformers"
    """Loader and placer as in the others, the question through the model's own forward pass."""
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
        self.capacity = self._room(0)
        self.tables = build_tables(self.model, self.capacity)
        most = max(case.questions for case in self.cases)
        self.caches = [SlabCache(self.model, self._room(index)) for index in range(most)]
        for cache in self.caches:
            prefix.write_to(cache)
        self.passes = [
            FusedDecoder(self.model, cache.layers, self.tables, graphs=plans.graphs) for cache in self.caches
        ]
        self.slots = [CacheTarget.of(self.tables, cache) for cache in self.caches]
        # Of its own, so that a cached answer finds the shared prefix where it was put once.
        self.full_cache = SlabCache(self.model, self.capacity)
        self.full = FullPrefill(self.model, self.full_cache, self.tables)
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

    def _room(self, index: int) -> int:
        wanted = [case for case in self.cases if case.questions > index]
        return self.prefix.num_tokens + max(case.context + case.question for case in wanted) + 256

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
        for lean in desk.passes[: case.questions]:
            lean.prepare(case.question)
        self.full_way, self.full_seconds = desk.full.fastest(self.prompts[0])

    def works(self) -> dict[str, Work]:
        """By name; published loaders only for one question, as their code has it."""
        desk = self.desk
        works = {
            Mode.FULL.value: Work(self.full_prefill),
            Mode.COLD.value: Work(self.first_tokens, self.cool),
            Mode.RAM.value: Work(self.first_tokens, functools.partial(desk.loader.forget, staged=False)),
            Mode.VRAM.value: Work(self.first_tokens),
            Mode.QUESTION.value: Work(self.question_alone),
        }
        if self.case.questions == 1:
            works[Mode.THEIRS.value] = Work(desk.full.ways(self.prompts[0])[full_prefill.STOCK])
            works[Mode.PREFIX.value] = Work(self.prefix_caching)
            works[Mode.STOCK.value] = Work(
                self.through_transformers, functools.partial(desk.loader.forget, staged=False)
            )
            works |= self._published()
        return works

    def full_prefill(self) -> list[int]:
        """First token of every prompt, from nothing."""
        return [self.desk.full.ways(prompt)[self.full_way]() for prompt in self.prompts]

    def prefix_caching(self) -> int:
        """First token when only the shared prefix is reused."""
        return self.desk.full.behind_prefix(self.prompts[0], self.desk.prefix.num_tokens)

    def first_tokens(self) -> list[int]:
        """First token of every question from its chunk files, wherever their bytes are."""
        return [int(logits.argmax()) for logits in self.logits()]

    def logits(self) -> Iterator[torch.Tensor]:
        """Yield the logits [1, vocab] of every question's first token, each valid until the next."""
        desk = self.desk
        loads = [desk.loader.start(files) for files in self.files]
        for load, slots, lean, asked in zip(loads, desk.slots, desk.passes, self.asked, strict=False):
            placer = Placer(load, self.where, slots)
            placer.place_resident()
            yield lean.run(asked, self.where.next_position, before=placer.place_through)
            load.close()

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
        runs = zip(self.desk.passes, self.asked, strict=False)
        return [int(lean.run(asked, self.where.next_position).argmax()) for lean, asked in runs]

    def cool(self) -> None:
        """Out of every tier and of the page cache; checksums are verified again."""
        drive.drop([file.path for files in self.files for file in files])
        self.desk.loader.forget()

    def deviation(self) -> float:
        """Largest difference between the lean pass's logits and transformers', in standard deviations of the latter."""
        theirs = self._transformers_logits().float()
        ours = [logits[0].float().clone() for logits in self.logits()][0]
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
    entry["graphs"] = desk.passes[0].uses_graphs
    entry["full_way"] = works.full_way
    entry["full_ways_ms"] = {way: round(took * 1e3, 2) for way, took in works.full_seconds.items()}
    _log.info("%s: %s", case, {name: round(Spread.of(one.wall).median * 1e3, 2) for name, one in times.items()})
    return entry


def _entry(desk: Desk, case: Case, times: dict[str, Times], rate: float | None, bus: float) -> dict[str, object]:
    medians = {name: Spread.of(one.wall).median for name, one in times.items()}
    full = times.get(Mode.FULL.value)
    ratios = {
        name: Spread.of([a / b for a, b in zip(full.wall, one.wall, strict=True)]).scaled(1.0, 2)
        for name, one in times.items()
        if full is not None and one is not full
    }
    payload = desk.payload(case)
    entry: dict[str, object] = {
        "shape": desk.plans.shape, "context": case.context, "question": case.question, "questions": case.questions,
        "prefix": desk.prefix.num_tokens, "bytes": payload, "modes": {name: one.json() for name, one in times.items()},
        "ratio_to_full_prefill": ratios, "host_to_device_gb_s": round(bus / 1e9, 2),
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


@dataclass(frozen=True, slots=True)
class Bar:
    """A goal: at this context, one question, at least so many times faster than full prefill."""

    context: int
    mode: Mode
    least: float


BARS = (
    Bar(750, Mode.RAM, 3.0),
    Bar(8192, Mode.RAM, 12.0),
    Bar(8192, Mode.VRAM, 25.0),
    Bar(16_349, Mode.RAM, 20.0),
)
COLD_SHARE = 1.15
"""A cold first token may take this many times the larger of bytes over the drive's rate and the question's prefill."""


def verdicts(entries: Sequence[dict[str, object]]) -> list[dict[str, object]]:
    """Each bar that was measured: what, found, wanted, met."""
    results: list[dict[str, object]] = []
    for entry in entries:
        if entry["questions"] != 1:
            continue
        ratios, of_bound = entry["ratio_to_full_prefill"], entry.get("of_bound", {})
        assert isinstance(ratios, dict) and isinstance(of_bound, dict)
        for bar in BARS:
            if bar.context == entry["context"] and bar.mode.value in ratios:
                ratio = ratios[bar.mode.value][2]
                what = f"{bar.mode.value} at {bar.context:,}: times faster than full prefill"
                results.append({"bar": what, "found": ratio, "wanted": bar.least, "met": ratio >= bar.least})
                theirs = _against_transformers(entry, bar.mode)
                if theirs is not None:
                    what = f"{bar.mode.value} at {bar.context:,}: times faster than transformers' full prefill"
                    results.append({"bar": what, "found": theirs, "wanted": bar.least, "met": theirs >= bar.least})
        share = of_bound.get(Mode.COLD.value)
        if share is not None:
            what = f"{Mode.COLD.value} at {entry['context']:,}: times its bound, at most"
            results.append({"bar": what, "found": share, "wanted": COLD_SHARE, "met": share <= COLD_SHARE})
    return results


def _against_transformers(entry: dict[str, object], mode: Mode) -> float | None:
    """Ratio of medians to full prefill by transformers' own layers; None if that was not timed."""
    modes = entry["modes"]
    assert isinstance(modes, dict)
    median = {name: times["wall_ms"][2] for name, times in modes.items()}
    theirs = median.get(Mode.THEIRS.value)
    return round(float(theirs / median[mode.value]), 2) if theirs is not None else None
