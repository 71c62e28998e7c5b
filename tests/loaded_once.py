"""Load the embedded reader and embedder, and check the reader's keys and coding, once for all tests of a process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest
import torch

from desk_rag.answering import opening, serving_model
from desk_rag.config import ModelSettings
from desk_rag.kv.calibration.gate import GateReport, Progress, run_gate
from desk_rag.kv.calibration.self_test import check_keys
from desk_rag.kv.calibration.texts import GROUPS, CalibrationGroup
from desk_rag.kv.prefill import PrefixKV
from desk_rag.model.language_model import LanguageModel
from desk_rag.model.loading import load_model
from desk_rag.retrieval import embedding
from desk_rag.retrieval.embedding import Embedder, load_embedder

_models: dict[str, LanguageModel] = {}
_embedders: dict[str, Embedder] = {}
_reports: dict[tuple[int, tuple[CalibrationGroup, ...]], GateReport] = {}
_key_errors: dict[int, float] = {}
"""Both by the id of a model; `_models` keeps it alive."""


def shared_model(settings: ModelSettings) -> LanguageModel:
    """The embedded reader on the device that the settings name; other models are loaded anew."""
    if settings.name != "embedded" or settings.adapter or settings.quantization != "none":
        return load_model(settings)
    key = _device(settings)
    if key not in _models:
        _models[key] = load_model(settings)
    return _models[key]


@contextmanager
def loaded_once() -> Iterator[None]:
    """While open, engines share what is the same for each of them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(serving_model, "load_model", shared_model)
        patch.setattr(serving_model, "check_keys", _key_error_of)
        patch.setattr(serving_model, "run_gate", _report_of)
        patch.setattr(opening, "load_embedder", _shared_embedder)
        patch.setattr(embedding, "load_embedder", _shared_embedder)
        yield


def _shared_embedder(settings: ModelSettings) -> Embedder:
    if settings.embedder != "embedded":
        return load_embedder(settings)
    key = _device(settings)
    if key not in _embedders:
        _embedders[key] = load_embedder(settings)
    return _embedders[key]


def _report_of(
    model: LanguageModel,
    prefix: PrefixKV,
    groups: Sequence[CalibrationGroup] = GROUPS,
    progress: Progress | None = None,
) -> GateReport:
    if not _is_shared(model):
        return run_gate(model, prefix, groups, progress)
    key = id(model), tuple(groups)
    if key not in _reports:
        _reports[key] = run_gate(model, prefix, groups)
    return _reports[key]


def _key_error_of(model: LanguageModel) -> float:
    if not _is_shared(model):
        return check_keys(model)
    if id(model) not in _key_errors:
        _key_errors[id(model)] = check_keys(model)
    return _key_errors[id(model)]


def _is_shared(model: LanguageModel) -> bool:
    return any(model is shared for shared in _models.values())


def _device(settings: ModelSettings) -> str:
    return "cpu" if settings.device == "auto" and not torch.cuda.is_available() else settings.device
