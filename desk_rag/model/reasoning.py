"""Tell from a chat template whether a model reasons before it answers, and by which marks.

Models think aloud between marks of their family: '<think>…</think>' and its like. The marks decide what of a model's
text is the answer, so they are looked for in the template itself and in the vocabulary, not in a list of model names.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum


@dataclass(frozen=True, slots=True)
class ReasoningMarks:
    """Opening and closing of the reasoning of one family."""

    opening: str
    closing: str


HARMONY = ReasoningMarks("<|channel|>analysis<|message|>", "<|channel|>final<|message|>")
"""gpt-oss: reasoning and answer are messages of their own, so '<|end|>' does not end the answer."""
MARKS = (
    ReasoningMarks("<think>", "</think>"),
    ReasoningMarks("<thinking>", "</thinking>"),
    ReasoningMarks("<thought>", "</thought>"),
    ReasoningMarks("<reasoning>", "</reasoning>"),
    ReasoningMarks("<seed:think>", "</seed:think>"),
    ReasoningMarks("[THINK]", "[/THINK]"),
    ReasoningMarks("<|START_THINKING|>", "<|END_THINKING|>"),
    ReasoningMarks("<|begin_of_thought|>", "<|end_of_thought|>"),
    ReasoningMarks("<|channel>thought", "<channel|>"),
    ReasoningMarks("<|inner_prefix|>", "<|inner_suffix|>"),
    ReasoningMarks("◁think▷", "◁/think▷"),
    ReasoningMarks("Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]"),
    ReasoningMarks("Here is my thought process:", "Here is my response:"),
    HARMONY,
)


class Thinking(Enum):
    """Occasions on which a model reasons if its template, where it can, has reasoning switched off."""

    NEVER = "never"
    SOMETIMES = "sometimes"
    """The template knows the marks and leaves it to the model."""
    ALWAYS = "always"


@dataclass(frozen=True, slots=True)
class Reasoning:
    """The way one model reasons."""

    marks: tuple[ReasoningMarks, ...] = ()
    """Those that the template or the vocabulary names."""
    thinking: Thinking = Thinking.NEVER
    begun: ReasoningMarks | None = None
    """The marks that the prompt itself opens, so that the model's text begins inside of its reasoning."""

    @property
    def notice(self) -> str:
        """Sentence to read before such a model is chosen; empty for models that can answer at once."""
        if self.thinking is not Thinking.ALWAYS:
            return ""
        return "This model reasons before every answer and cannot be asked not to: answers take much longer to begin"

    @property
    def is_harmony(self) -> bool:
        """True for models whose reasoning and answer are separate messages."""
        return HARMONY in self.marks


NO_REASONING = Reasoning()


def detect(template: str, tail: str, tokens: Collection[str]) -> Reasoning:
    """Find the way a model reasons from its chat template.

    Args:
        tail: what the template writes behind the question, rendered with reasoning switched off.
        tokens: the tokenizer's added tokens.
    """
    marks = tuple(each for each in MARKS if _is_named(each, template, tokens))
    begun = next((each for each in marks if tail.rfind(each.opening) > tail.rfind(each.closing)), None)
    closed = any(tail.rfind(each.closing) > -1 for each in marks)
    if begun is not None or (HARMONY in marks and not closed):
        return Reasoning(marks, Thinking.ALWAYS, begun)
    return Reasoning(marks, Thinking.SOMETIMES if marks and not closed else Thinking.NEVER)


def visible_tokens(reasoning: Reasoning, tokens: Collection[str]) -> frozenset[str]:
    """The special tokens that must stay in a decoded answer, because they mark its reasoning."""
    wanted = "".join(each.opening + each.closing for each in reasoning.marks)
    kept = {token for token in tokens if token and token in wanted and not token.isspace()}
    return frozenset(kept | ({"<|start|>", "<|end|>"} & set(tokens) if reasoning.is_harmony else set()))


def _is_named(marks: ReasoningMarks, template: str, tokens: Collection[str]) -> bool:
    if marks is HARMONY:
        return "<|channel|>" in template and "<|message|>" in template
    if marks.closing in template or marks.opening in template:
        return True
    return marks.opening in tokens and marks.closing in tokens
