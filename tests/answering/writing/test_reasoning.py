"""Reasoning is recognised by the marks of the chat template, and taken out of the answer wherever pieces end."""

from __future__ import annotations

import pytest

from desk_rag.answering.writing.reasoning_filter import ReasoningFilter
from desk_rag.model.reasoning import HARMONY, MARKS, NO_REASONING, Reasoning, Thinking, detect, visible_tokens

THINK = MARKS[0]
SWITCH = "{% if enable_thinking %}<think>{% else %}<think>\n\n</think>\n\n{% endif %}"


@pytest.mark.parametrize(
    ("template", "tail", "tokens", "thinking"),
    [
        ("{{ messages }}", "<|im_start|>assistant\n", (), Thinking.NEVER),
        (SWITCH, "<|im_start|>assistant\n<think>\n\n</think>\n\n", (), Thinking.NEVER),
        ("... content.split('</think>')[-1] ... <think>", "<|Assistant|><think>\n", (), Thinking.ALWAYS),
        ("... content.split('</think>')[-1] ...", "<|Assistant|>", (), Thinking.SOMETIMES),
        ("{{ messages }}", "[/INST]", ("[THINK]", "[/THINK]"), Thinking.SOMETIMES),
        ("<|start|>assistant<|channel|>final<|message|>", "<|start|>assistant", (), Thinking.ALWAYS),
        ("<|channel>thought\n<channel|>", "<|turn>model\n<|channel>thought\n<channel|>", (), Thinking.NEVER),
        ("<|channel>thought\n<channel|>", "<|turn>model\n", (), Thinking.SOMETIMES),
        ("Here are my reasoning steps:[BEGIN FINAL RESPONSE]", "Here are my reasoning steps:\n", (), Thinking.ALWAYS),
        ("<seed:think>", "<seed:bos>assistant\n<seed:think>", (), Thinking.ALWAYS),
    ],
)  # fmt: skip
def test_a_template_says_when_its_model_reasons(
    template: str, tail: str, tokens: tuple[str, ...], thinking: Thinking
) -> None:
    assert detect(template, tail, tokens).thinking is thinking


def test_marks_that_are_special_tokens_stay_in_the_text() -> None:
    tokens = {"<|channel|>", "<|message|>", "<|start|>", "<|end|>", "<|return|>", "<|endoftext|>"}
    assert visible_tokens(Reasoning((HARMONY,)), tokens) == tokens - {"<|return|>", "<|endoftext|>"}
    assert visible_tokens(Reasoning((THINK,)), {"<think>", "</think>", "</s>"}) == {"<think>", "</think>"}
    assert visible_tokens(NO_REASONING, tokens) == frozenset()


OUTPUTS = {
    "think": (
        Reasoning((THINK,)),
        "<think>\nLet me see. a < b\n</think>\n\nIt is **4**.",
        "Let me see. a < b",
        "It is **4**.",
    ),
    "begun by the prompt": (Reasoning((THINK,), Thinking.ALWAYS, THINK), "Hm.\n</think>\nFour.", "Hm.", "Four."),
    "not named by the template": (NO_REASONING, "<thinking>Hm.</thinking>Four.", "Hm.", "Four."),
    "square": (Reasoning((MARKS[5],)), "[THINK]Hm.[/THINK]Four.", "Hm.", "Four."),
    "empty": (Reasoning((THINK,)), "<think>\n\n</think>\n\nFour.", "", "Four."),
    "never closed": (Reasoning((THINK,)), "<think>Hm. Hm.", "Hm. Hm.", ""),
    "harmony": (
        Reasoning((HARMONY,), Thinking.ALWAYS),
        "<|channel|>analysis<|message|>Look it up.<|end|><|start|>assistant<|channel|>final<|message|>Four.",
        "Look it up.",
        "Four.",
    ),
    "harmony without reasoning": (
        Reasoning((HARMONY,), Thinking.ALWAYS),
        "<|channel|>final<|message|>Four.",
        "",
        "Four.",
    ),
    "channel": (Reasoning((MARKS[8],)), "<|channel>thought\nHm.<channel|>Four.", "Hm.", "Four."),
    "in words": (
        Reasoning((MARKS[11],), Thinking.ALWAYS, MARKS[11]),
        "1. Look.\n[BEGIN FINAL RESPONSE]\nFour.",
        "1. Look.",
        "Four.",
    ),
    "closed without being opened": (Reasoning((THINK,)), "</think>\n\nFour.", "", "Four."),
    "an answer in a frame": (Reasoning((THINK,)), "<think>Hm.</think><answer>Four.</answer>", "Hm.", "Four."),
    "no reasoning": (NO_REASONING, "Use <b> and a < b, or <code>.", "", "Use <b> and a < b, or <code>."),
    "marks named later are text": (
        NO_REASONING,
        "Write <think> in the template.",
        "",
        "Write <think> in the template.",
    ),
    "thinking twice": (
        Reasoning((THINK,)),
        "<think>A</think>One. <think>B</think>Two.",
        "AB",
        "One. Two.",
    ),
}


@pytest.mark.parametrize("size", [1, 2, 5, 1000])
@pytest.mark.parametrize("name", OUTPUTS)
def test_reasoning_and_answer_are_told_apart(name: str, size: int) -> None:
    reasoning, text, thought, answer = OUTPUTS[name]
    parted = ReasoningFilter(reasoning)
    shown = "".join(parted.feed(text[start : start + size]) for start in range(0, len(text), size)) + parted.finish()
    assert parted.reasoning.strip() == thought
    assert shown == answer
    assert parted.is_open is (name == "never closed")
