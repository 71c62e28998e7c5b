"""The embedded reader as a GGUF file answers as it does from safetensors, within its quantisation."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest
import torch
from gguf import GGMLQuantizationType as Kind

from desk_rag.answering.context import passage_limit
from desk_rag.answering.writing.length import QUOTED_TOKENS
from desk_rag.cli import doctor
from desk_rag.cli.checks.finding import Verdict
from desk_rag.config import AnswerSettings, ModelSettings, Settings
from desk_rag.errors import UnsupportedModel
from desk_rag.kv.cache import SlabCache
from desk_rag.kv.prefill import prefill_prefix
from desk_rag.model.language_model import LanguageModel
from desk_rag.model.loading import load_model
from tests.model.gguf.writing import reader_state, write_reader
from tests.models import stream

PASSAGES = (
    "The rent for the flat in Mill Lane rises from 780 euros to 815 euros on 1 September 2026.",
    "The frame number of the blue bicycle is WTU-4471-B. It was bought at Ortmann's on 3 May 2021 for 649 euros.",
    "Camping is forbidden in the whole of the Norrfell nature park, and the fine is 200 crowns.",
    "The train leaves at 6.52 from platform 11. Anna has the tickets.",
)
QUESTIONS = (
    "When does the rent rise?", "What is the new rent?", "What is the frame number of the blue bicycle?",
    "When was the bicycle bought?", "What is the fine for camping?", "From which platform does the train leave?",
    "Who has the tickets?", "When was the piano tuned?",
)  # fmt: skip
LARGEST_ERROR = {Kind.F16: 0.001, Kind.Q8_0: 0.03, Kind.Q4_0: 0.4, Kind.Q4_K: 0.4}
"""Largest error of the logits, relative to those from safetensors."""
FEWEST_EQUAL = {Kind.F16: 8, Kind.Q8_0: 7, Kind.Q4_0: 5, Kind.Q4_K: 5}
"""Number of the eight greedy answers that are the same word for word."""


@functools.cache
def by_safetensors() -> LanguageModel:
    return load_model(ModelSettings(device="cpu"))


@functools.cache
def answers_by_safetensors() -> tuple[str, ...]:
    return tuple(answer(by_safetensors(), question) for question in QUESTIONS)


def prompt_of(model: LanguageModel, question: str) -> list[int]:
    prompt = model.prompt
    passages = [token_id for passage in PASSAGES for token_id in prompt.chunk_ids(passage)]
    return [*prompt.prefix_ids, *passages, *prompt.question_ids(question)]


def logits(model: LanguageModel, question: str) -> torch.Tensor:
    ids = prompt_of(model, question)
    return model.forward_all(torch.tensor(ids), SlabCache(model, len(ids)), 0)


def answer(model: LanguageModel, question: str) -> str:
    ids = prompt_of(model, question)
    cache = SlabCache(model, len(ids) + 60)
    tokens = stream(model, cache, ids, 0, max_new_tokens=60, stop=lambda: False)
    return "".join(token.text for token in tokens)


@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, id=kind.name, marks=() if kind is Kind.Q4_K else pytest.mark.slow) for kind in LARGEST_ERROR],
)
def test_weights_and_tokens_are_those_of_the_safetensors(kind: Kind, tmp_path: Path) -> None:
    file = tmp_path / "reader.gguf"
    written = write_reader(file, kind)
    plain = load_model(ModelSettings(device="cpu", name=str(file)), pack=False)
    state = plain.module.state_dict()
    assert all(torch.equal(state[name], tensor) for name, tensor in written.items())
    assert set(state) - set(written) == {"lm_head.weight"} and plain.module.lm_head.weight is state_of_embeddings(plain)
    base = by_safetensors()
    assert plain.prompt.parts == base.prompt.parts and plain.prompt.stop_ids == base.prompt.stop_ids
    sample = "Ünïcode — 3.141 und 'quotes', tabs\tand\n\n  indents; 東京 <|im_end|> don't stop"
    assert all(plain.prompt.chunk_ids(text) == base.prompt.chunk_ids(text) for text in (*PASSAGES, sample))
    assert plain.spec.weights_fingerprint != base.spec.weights_fingerprint
    model = load_model(ModelSettings(device="cpu", name=str(file)))
    own, other = logits(base, QUESTIONS[0]), logits(model, QUESTIONS[0])
    assert (own - other).norm() / own.norm() < LARGEST_ERROR[kind]


@pytest.mark.slow
@pytest.mark.parametrize("kind", [pytest.param(kind, id=kind.name) for kind in FEWEST_EQUAL])
def test_most_answers_are_those_of_the_safetensors(kind: Kind, tmp_path: Path) -> None:
    file = tmp_path / "reader.gguf"
    write_reader(file, kind)
    model = load_model(ModelSettings(device="cpu", name=str(file)))
    answers = [answer(model, question) for question in QUESTIONS]
    equal = sum(one == other for one, other in zip(answers, answers_by_safetensors(), strict=True))
    assert equal >= FEWEST_EQUAL[kind]


@pytest.mark.parametrize("window", [512, 8192])
def test_a_short_window_takes_smaller_passages_and_a_long_one_is_used(window: int, tmp_path: Path) -> None:
    file = tmp_path / "reader.gguf"
    write_reader(file, Kind.Q8_0, max_position_embeddings=window)
    model = load_model(ModelSettings(name=str(file), device="cpu"))
    assert model.spec.max_context == window
    size = model.prompt.chunk_size
    assert size.largest == min(280, window // 4) and size.smallest < size.target < size.largest
    room = prefill_prefix(model).num_tokens + min(256, window // 8) + QUOTED_TOKENS
    limit = passage_limit(AnswerSettings(), model.prompt, window, "reader")
    assert size.largest <= limit.tokens <= window - room
    assert limit.usual_passages(model.prompt, 0) == (5 if window == 8192 else 2)


def test_a_window_without_room_for_a_passage_is_refused_with_its_size(tmp_path: Path) -> None:
    file = tmp_path / "reader.gguf"
    write_reader(file, Kind.Q8_0, max_position_embeddings=512)
    model = load_model(ModelSettings(name=str(file), device="cpu"))
    with pytest.raises(UnsupportedModel, match="at most 512 tokens") as refused:
        passage_limit(AnswerSettings(max_new_tokens=380), model.prompt, 512, "reader")
    assert refused.value.remedy == "Lower max_new_tokens under [answer]."
    with pytest.raises(UnsupportedModel) as refused:
        passage_limit(AnswerSettings(), model.prompt, 256, "reader")
    assert "longer context" in refused.value.remedy
    write_reader(file, Kind.Q8_0, max_position_embeddings=256)
    settings = Settings(data_dir=tmp_path / "data", model=ModelSettings(name=str(file), device="cpu"))
    finding = next(each for each in doctor.examine(settings) if each.name == "model")
    assert finding.verdict is Verdict.FAIL and "at most 256 tokens" in finding.detail


def state_of_embeddings(model: LanguageModel) -> torch.nn.Parameter:
    weight: torch.nn.Parameter = model.module.model.embed_tokens.weight
    return weight


def test_f16_rounds_the_readers_weights_and_does_nothing_else(tmp_path: Path) -> None:
    state = reader_state()
    written = write_reader(tmp_path / "reader.gguf", Kind.F16)
    for name, tensor in state.items():
        expected = tensor if tensor.ndim == 1 else tensor.half().float()
        assert torch.equal(written[name], expected)
