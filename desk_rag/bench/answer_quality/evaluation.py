"""Answer samples in every mode, batch by batch, and return a report."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path
from types import MappingProxyType

import torch

from desk_rag.answering.evidence.selection import EvidenceSelector
from desk_rag.answering.generation import refusal_probability
from desk_rag.bench.answer_quality.data.sample import Sample, digest_of
from desk_rag.bench.answer_quality.modes import FULL, STITCHED, Mode, Way
from desk_rag.bench.answer_quality.prefill import quantized_chunks
from desk_rag.bench.answer_quality.results_cache import Answered, Entry, Journal
from desk_rag.bench.answer_quality.run import NO_PREFIX, Item, Said, Setting, Shelved, ask, to_item
from desk_rag.bench.answer_quality.score import Judge, mark
from desk_rag.bench.answer_quality.tables import Report, to_report
from desk_rag.bench.baselines import selectors
from desk_rag.errors import ConfigError
from desk_rag.kv.calibration.gate import run_gate
from desk_rag.kv.prefill import PrefixKV, prefill_prefix
from desk_rag.kv.prefix_variants.variants import PLAIN, PrefixVariants, build_prefix_variants, variant_prefix_ids
from desk_rag.kv.quant import LayerScheme, QuantScheme
from desk_rag.kv.recompute.auxiliary_model import AuxiliaryModel
from desk_rag.kv.rope import build_tables
from desk_rag.kv.shift import PlaceShift
from desk_rag.kv.types import QuantizedKV
from desk_rag.model.language_model import LanguageModel

_ROWS = {"cpu": 4, "cuda": 128}
_CPU_BYTES = 1 << 30
_GPU_SHARE = 8
"""A batch's padded slabs may take this many bytes of main memory, or one part in so many of the GPU's; so may the
logits of its answers."""
Progress = Callable[[int, int], None]
"""Called with the questions done and all questions, after every batch."""


class Coding(Enum):
    """Coding of chunk KV."""

    INT8 = "int8"
    GATE = "gate"
    """The choice of the model's quality gate, as in the product; int8 in every layer for most models."""
    EXACT = "exact"
    """Not coded at all: separates what int8 costs from what independent attention costs."""


@dataclass(frozen=True, slots=True)
class QualitySettings:
    """Settings that answers depend on besides model, samples and modes."""

    max_new_tokens: int = 160
    coding: Coding = Coding.INT8
    batch: int = 0
    """Questions side by side; 0 chooses by device and length."""
    rungs: tuple[int, ...] = PLAIN
    """Filler passages before a chunk, by its place; primed modes only (`kv.prefix_variants`)."""


def evaluate(
    model: LanguageModel,
    samples: Sequence[Sample],
    modes: Sequence[Mode] = (FULL, *STITCHED),
    settings: QualitySettings = QualitySettings(),
    *,
    folder: Path | None = None,
    auxiliary: AuxiliaryModel | None = None,
    judge: Judge | None = None,
    chooser: EvidenceSelector | None = None,
    shift: PlaceShift | None = None,
    progress: Progress | None = None,
) -> Report:
    """Ask every sample in every mode and sum up.

    With a `folder`, answers are kept there under a hash of the configuration, and a run that was stopped goes on where
    it was. KL divergence, top-1 agreement and ratios need full prefill among the modes. `auxiliary` serves the
    selectors that ask for one; with a `judge` answers are marked as the user would see them; a `chooser` chooses what
    they quote; adapted modes need a `shift`. Raises ConfigError, UnsupportedModel (ablation positions, sliding layers).
    """
    if not samples or not modes:
        raise ConfigError("There is nothing to measure.", remedy="Give questions and at least one mode.")
    ordered = sorted(modes, key=lambda mode: mode.way is not Way.FULL)
    _check(ordered, auxiliary, chooser)
    if shift is None and any(mode.way is Way.ADAPTED for mode in modes):
        raise ConfigError("Adapted modes need a learned shift.", remedy="Name its file with --shift.")
    prefix = prefill_prefix(model)
    setting = Setting(model, prefix, build_tables(model, 1), settings.max_new_tokens, auxiliary)
    items = [to_item(sample, setting) for sample in samples]
    longest = prefix.num_tokens + max(item.num_tokens for item in items) + settings.max_new_tokens
    scheme = _scheme(model, prefix, settings.coding)
    ladder = _ladder(model, prefix, items, modes, settings, scheme)
    tables = build_tables(model, longest)
    setting = Setting(model, prefix, tables, settings.max_new_tokens, auxiliary, ladder, chooser, shift)
    batches = _batches(items, _rows(model, settings), _room(model))
    configuration = _configuration(setting, samples, modes, settings, scheme) | {"judge": _judge_name(judge)}
    configuration |= {"quotes": chooser.name} if chooser is not None else {}
    configuration |= {"shift": shift.digest} if shift is not None else {}
    journal = Journal(folder, configuration, batches)
    done = 0
    for batch in batches:
        if not journal.has(batch):
            batch_items = [items[index] for index in batch]
            known = _prefilled(setting, batch_items, modes, scheme)
            journal.add(_entries(setting, ordered, batch, batch_items, known, judge))
        done += len(batch)
        if progress is not None:
            progress(done, len(items))
    return to_report(journal.entries, [mode.label for mode in modes], journal.name)


def _entries(
    setting: Setting, modes: Sequence[Mode], batch: Sequence[int], items: Sequence[Item],
    known: dict[Shelved, QuantizedKV], judge: Judge | None,
) -> list[Entry]:  # fmt: skip
    full: list[Said] | None = None
    answered: list[dict[str, Answered]] = [{} for _ in items]
    for mode in modes:
        outputs = ask(setting, mode, items, known, full)
        if mode.way is Way.FULL:
            full = outputs
        for row, (item, one) in enumerate(zip(items, outputs, strict=True)):
            answered[row][mode.label] = _answered(setting.model, item, one, judge)
    return [
        Entry(index, item.sample.task, MappingProxyType(modes))
        for index, item, modes in zip(batch, items, answered, strict=True)
    ]


def _answered(model: LanguageModel, item: Item, generated: Said, judge: Judge | None) -> Answered:
    ids = [token for token in generated.token_ids if token not in model.prompt.stop_ids]
    output = model.prompt.decode(ids)
    doubt = refusal_probability(model.prompt, generated.begun.logits) if model.is_embedded else None
    return Answered(
        output=output,
        marks=mark(item.sample, output, judge, doubt),
        kl=generated.kl,
        top1=generated.top1,
        recomputed=generated.begun.recomputed,
        prefill_seconds=generated.begun.prefill_seconds,
        select_seconds=generated.begun.select_seconds,
        tokens=item.num_tokens,
        left_out=item.left_out,
    )


def _batches(items: Sequence[Item], rows: int, room: int) -> list[list[int]]:
    """Indices of samples, of like length, at most `rows` and `room` padded tokens together."""
    return list(_cut(sorted(range(len(items)), key=lambda index: (items[index].num_tokens, index)), items, rows, room))


def _cut(order: Sequence[int], items: Sequence[Item], rows: int, room: int) -> Iterator[list[int]]:
    batch: list[int] = []
    for index in order:
        if batch and (len(batch) == rows or (len(batch) + 1) * items[index].num_tokens > room):
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch


def _rows(model: LanguageModel, settings: QualitySettings) -> int:
    logits = settings.max_new_tokens * int(model.module.config.vocab_size) * model.spec.dtype.itemsize
    fitting = max(1, _budget(model) // max(logits, 1))
    return settings.batch or min(fitting, _ROWS.get(model.device.type, 4))


def _room(model: LanguageModel) -> int:
    """Padded tokens of one batch."""
    return _budget(model) // (model.spec.fp16_bytes_per_token * model.spec.dtype.itemsize // 2)


def _budget(model: LanguageModel) -> int:
    # Of all memory, not of what is free: batches must be the same ones when a stopped run goes on.
    if model.device.type != "cuda":
        return _CPU_BYTES
    return int(torch.cuda.get_device_properties(model.device).total_memory) // _GPU_SHARE


def _ladder(
    model: LanguageModel, prefix: PrefixKV, items: Sequence[Item], modes: Sequence[Mode], settings: QualitySettings,
    scheme: QuantScheme,
) -> PrefixVariants | None:  # fmt: skip
    if not any(mode.primed for mode in modes):
        return None
    if settings.rungs == PLAIN:
        raise ConfigError("Primed modes need more than rung 0.", remedy="For one: --rungs 0,1,3")
    longest = max(len(ids) for item in items for ids in item.chunks)
    return build_prefix_variants(model, prefix, settings.rungs, scheme, largest=longest)


def _prefilled(
    setting: Setting, items: Sequence[Item], modes: Sequence[Mode], scheme: QuantScheme
) -> dict[Shelved, QuantizedKV]:
    """Every chunk KV that some mode lays; none where full prefill is all that is asked for."""
    laid = [mode for mode in modes if mode.way is not Way.FULL]
    wanted = {one for mode in laid for item in items for one in setting.shelved(mode, item)}
    before = {rung.count: rung.prefix for rung in setting.ladder.variants} if setting.ladder else {0: setting.prefix}
    before[NO_PREFIX] = PrefixKV(setting.prefix.keys[:, :, :0], setting.prefix.values[:, :, :0])
    known: dict[Shelved, QuantizedKV] = {}
    for count in sorted({count for count, _ in wanted}):
        chunks = [ids for rung, ids in wanted if rung == count]
        coded = quantized_chunks(setting.model, before[count], chunks, scheme)
        known |= {(count, ids): kv for ids, kv in coded.items()}
    return known


def _check(modes: Sequence[Mode], auxiliary: AuxiliaryModel | None, chooser: EvidenceSelector | None) -> None:
    for mode in modes:
        if mode.way is Way.APE and chooser is not None:
            raise ConfigError("Quotes are not chosen with APE's attention.", remedy="Add --quotes greedy.")
        if mode.way is Way.RECOMPUTE:
            selectors.check(mode.selector)
        if mode.selector.startswith("aux") and auxiliary is None:
            raise ConfigError(f"Mode '{mode.label}' needs an auxiliary model.", remedy="Name one with --aux-model.")


def _scheme(model: LanguageModel, prefix: PrefixKV, coding: Coding) -> QuantScheme:
    if coding is Coding.GATE:
        return run_gate(model, prefix).scheme
    return QuantScheme.uniform(model.spec.num_layers, LayerScheme(raw=coding is Coding.EXACT))


def _judge_name(judge: Judge | None) -> str:
    if judge is None:
        return "none"
    known = [each.fingerprint for each in (judge.embedder, judge.pointer) if each is not None]
    return ", ".join(known) or "words"


def _configuration(
    setting: Setting, samples: Sequence[Sample], modes: Sequence[Mode], settings: QualitySettings, scheme: QuantScheme
) -> dict[str, object]:
    spec = setting.model.spec
    return {
        "model": spec.weights_fingerprint,
        "adapter": spec.adapter,
        "tokenizer": spec.tokenizer_fingerprint,
        "weights": spec.weight_quantization,
        "config": spec.config_json,
        "dtype": str(spec.dtype),
        "device": setting.model.device.type,
        "prefix": list(setting.model.prompt.prefix_ids),
        "primers": list(variant_prefix_ids(setting.model.prompt, setting.ladder.counts[-1])) if setting.ladder else [],
        "auxiliary": setting.auxiliary.model.spec.weights_fingerprint if setting.auxiliary else "",
        "samples": digest_of(samples),
        "modes": [mode.label for mode in modes],
        "settings": asdict(settings) | {"coding": settings.coding.value},
        "scheme": scheme.label,
    }
