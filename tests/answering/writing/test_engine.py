"""A model that writes, from its chat template to the printed answer: a tiny random one whose words are scripted."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from desk_rag.answering.events import Answer, AnswerText, Finished, Grounding, ReasoningText, SentenceChecked, Support
from desk_rag.answering.writing.stream import WrittenStream
from desk_rag.config import AnswerSettings, ModelSettings
from desk_rag.model.language_model import LanguageModel
from desk_rag.model.prompt import NO_ANSWER, PromptFormat, load_prompt
from desk_rag.model.reasoning import Thinking
from desk_rag.retrieval import embedding
from tests.answer_world import BICYCLE, RENT, World, an_engine, make_world
from tests.models import FAMILIES, byte_tokenizer

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% if not enable_thinking %}{% endif %}{% endif %}"
    "{# content.split('</think>')[-1] #}"
)
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>"]


@pytest.fixture(scope="module")
def chat_prompt(tmp_path_factory: pytest.TempPathFactory) -> PromptFormat:
    """The prompt of a model directory with a chat template, over bytes; small chunks fit a small window."""
    place = tmp_path_factory.mktemp("chat")
    byte_tokenizer(SPECIALS).save(str(place / "tokenizer.json"))
    (place / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE, "eos_token": "<|im_end|>"}))
    (place / "config.json").write_text(json.dumps({"model_type": "qwen2", "eos_token_id": 2}))
    prompt = load_prompt(place)
    assert prompt.writes and prompt.reasoning.thinking is Thinking.SOMETIMES
    return prompt


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, chat_prompt: PromptFormat) -> World:
    family = next(each for each in FAMILIES if each.name == "qwen2")
    model_class, config = family.build()
    config.max_position_embeddings = 16_384
    torch.manual_seed(7)
    from desk_rag.model.loading import wrap

    model = wrap(model_class(config), chat_prompt, name="tiny-chat", directory=None)
    written_world = make_world(tmp_path_factory.mktemp("world"), "cpu", model)
    return dataclasses.replace(written_world, embedder=embedding.load_embedder(ModelSettings(device="cpu")))


@contextmanager
def saying(model: LanguageModel, text: str) -> Iterator[None]:
    """While open, the model's most probable tokens after the prompt are those of `text`, then the end."""
    special = model.prompt._special
    coming = iter([*special.encode(text, add_special_tokens=False).ids, *sorted(model.prompt.stop_ids)[-1:]])

    def bend(_module: torch.nn.Module, _inputs: object, output: torch.Tensor) -> torch.Tensor:
        output = output.clone()
        output[..., -1, next(coming)] = output.max() + 10
        return output

    handle = model.module.lm_head.register_forward_hook(bend)
    try:
        yield
    finally:
        handle.remove()


def told(world: World, question: str, text: str, **settings: Any) -> tuple[Answer, list[object]]:
    with an_engine(world, world.data, **{"max_new_tokens": 0, **settings}) as engine, saying(engine.model, text):
        events: list[object] = list(engine.ask(question))
    last = events[-1]
    assert isinstance(last, Finished)
    return last.answer, events


def test_a_written_answer_comes_with_its_passages(world: World) -> None:
    answer, events = told(world, BICYCLE, "The frame number of the blue bicycle is WTU-4471-B [1]. It has a bell.")
    assert answer.text == "The frame number of the blue bicycle is WTU-4471-B. [1] It has a bell."
    assert answer.found and answer.grounding is Grounding.PART
    assert [each.support for each in answer.sentences] == [Support.SUPPORTED, Support.UNSUPPORTED]
    assert answer.citations[0].path.name == "bicycle.txt" and "WTU-4471-B" in answer.citations[0].quote
    assert answer.sources[answer.citations[0].source_number - 1].path.name == "bicycle.txt"
    assert "".join(event.text for event in events if isinstance(event, AnswerText)) == answer.text
    assert [event.sentence for event in events if isinstance(event, SentenceChecked)] == list(answer.sentences)


def test_reasoning_is_apart(world: World) -> None:
    answer, events = told(
        world, BICYCLE, "<think>Look at document 1.</think>The frame number of the blue bicycle is WTU-4471-B."
    )
    assert answer.reasoning == "Look at document 1."
    assert answer.text == "The frame number of the blue bicycle is WTU-4471-B. [1]"
    assert "".join(event.text for event in events if isinstance(event, ReasoningText)) == answer.reasoning


def test_sentences_are_passed_on_while_the_model_writes(world: World) -> None:
    """No second look holds them back: the events of the first sentence come before the model has said the next."""
    text = "The frame number of the blue bicycle is WTU-4471-B. It was bought at Ortmann's."
    with an_engine(world, world.data, max_new_tokens=0) as engine, saying(engine.model, text[:60]):
        events = engine.ask(BICYCLE)  # the script ends before the text does: reading on would raise StopIteration
        first = next(event for event in events if isinstance(event, AnswerText))
        assert first.text == "The frame number of the blue bicycle is WTU-4471-B. [1]"
        events.close()  # type: ignore[attr-defined]


def test_a_refusal_is_not_found(world: World) -> None:
    for text in ("I'm sorry, the documents do not mention a rent.", NO_ANSWER):
        answer, _ = told(world, RENT, text)
        assert not answer.found and answer.text == text and answer.grounding is None
        assert answer.sources


def test_nothing_is_withheld(world: World) -> None:
    """The judge that was fitted on the embedded reader would not let this pass for an answer to the question."""
    answer, _ = told(world, BICYCLE, '"The chain was changed in spring 2024."')
    assert answer.text == '"The chain was changed in spring 2024." [1]' and answer.found


def test_what_ends_an_answer_early_is_said(world: World) -> None:
    loop, _ = told(world, RENT, "The rent rises to 815 euros on 1 September 2026.\n" * 6)
    assert "repeat itself" in loop.notices[0] and loop.text.count("815") == 1
    cut, _ = told(
        world, RENT, "The rent rises to 815 euros on 1 September 2026. " + "And so it is written. ", max_new_tokens=70
    )
    assert any("cut off at its limit of 70 tokens" in notice for notice in cut.notices)
    assert cut.sentences[-1].support is Support.UNCHECKED


def test_the_model_is_shown_the_numbers_of_its_documents(world: World, chat_prompt: PromptFormat) -> None:
    with an_engine(world, world.data, max_new_tokens=0) as engine:
        read: list[int] = []
        handle = engine.model.module.model.register_forward_pre_hook(
            lambda _module, inputs, kwargs: read.extend(
                (inputs[0] if inputs else kwargs["input_ids"]).flatten().tolist()
            ),
            with_kwargs=True,
        )
        with saying(engine.model, "x"):
            sources = next(iter(list(engine.ask(BICYCLE)))).sources  # type: ignore[union-attr]
        handle.remove()
    text = chat_prompt._special.decode(read, skip_special_tokens=False)
    numbered = [f"[{source.number}] {source.path.name}:" for source in reversed(sources)]
    places = [text.index(line) for line in numbered]
    assert places == sorted(places) and text.index("The documents above") < places[0]
    assert text.index(numbered[-1]) < text.index("Question: What is the frame number")


def test_the_embedded_reader_has_no_numbers_and_its_own_length(reader: LanguageModel) -> None:
    prompt = reader.prompt
    assert not prompt.writes and prompt.legend_tokens == 0 and prompt.reasoning.marks == ()
    assert prompt.question_ids("When?", 40, [(1, "A title")]) == prompt.question_ids("When?", 40)
    from desk_rag.answering.writing.length import longest

    assert longest(AnswerSettings(), prompt, 8192) == 160


def test_a_fine_tuned_model_keeps_its_quoting_prompt(tmp_path: Path) -> None:
    byte_tokenizer(SPECIALS).save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen2", "eos_token_id": 2}))
    assert load_prompt(tmp_path).writes and not load_prompt(tmp_path, quotes=True).writes
    (tmp_path / "desk_rag.json").write_text("{}")
    prompt = load_prompt(tmp_path)
    assert not prompt.writes
    assert "First copy the sentence that proves the answer" in prompt.parts.head
    assert WrittenStream.__module__.endswith("writing.stream")
