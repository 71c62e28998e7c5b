"""Turn texts, questions and answers into token ids for training: the trained frame, and the answer's form.

An answer is its quoted evidence, verbatim, one line each, then the short answer on a line of its own, unless a quote is
the whole answer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from desk_rag.documents.sentences import quotable, units
from desk_rag.errors import ModelError
from desk_rag.model.trained_frame import (
    CHUNK_CLOSE,
    CHUNK_OPEN,
    DOC_END,
    DOC_START,
    END_OF_TEXT,
    HEAD,
    IM_END,
    IM_START,
    NO_ANSWER,
    QUESTION_OPEN,
    TAIL,
)

SPECIALS = [END_OF_TEXT, IM_START, IM_END, DOC_START, DOC_END]

_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_WORD = re.compile(r"[A-Za-z][A-Za-z\-']+|\d[\d,\.]*")
_STOP_WORDS = """
a an the of to in on for and or but is are was were be been being by with as at from that this these those it its their
his her he she they we you i not no can could may might will would should must have has had do does did than then so
such which who whom whose what when where why how also more most many much some any all each other into over under
about between after before during through because if while there here very just only own same too out up down off again
once both few
"""
STOP_WORDS = frozenset(_STOP_WORDS.split())
_LONGEST_QUOTE = 60
"""Words of a quote; of a longer sentence the part around the answer is quoted."""


def train_tokenizer(texts: Iterable[str], vocab: int, path: Path) -> Tokenizer:
    """Byte-level BPE, digits one by one."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=False))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=SPECIALS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.save(str(path))
    return tokenizer


def mark_id(tokenizer: Tokenizer, mark: str) -> int:
    """The id of one of the frame's marks; ModelError if the tokenizer does not have it."""
    token_id = tokenizer.token_to_id(mark)
    if token_id is None:
        raise ModelError(f"the tokenizer has no token {mark}.", remedy="Delete WORK/tokenizer.json and its .done file.")
    return int(token_id)


class Frame:
    """Token ids of texts in the trained frame, as `prompt` makes them: a mark within a text is ordinary characters."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._plain = Tokenizer.from_str(tokenizer.to_str())
        self._plain.encode_special_tokens = True
        self.prefix, self._open, self._close, self._tail, self._end = (
            list[int](tokenizer.encode(marks, add_special_tokens=False).ids)
            for marks in (HEAD, CHUNK_OPEN, CHUNK_CLOSE, TAIL, IM_END)
        )

    def plain(self, texts: Sequence[str]) -> list[list[int]]:
        """Texts without any frame."""
        return [encoded.ids for encoded in self._plain.encode_batch(list(texts), add_special_tokens=False)]

    def chunks(self, texts: Sequence[str]) -> list[list[int]]:
        """Chunks in their frames."""
        return [[*self._open, *ids, *self._close] for ids in self.plain(texts)]

    def questions(self, questions: Sequence[str]) -> list[list[int]]:
        """Token ids between the chunks and the answer."""
        return [[*ids, *self._tail] for ids in self.plain([QUESTION_OPEN + question for question in questions])]

    def answers(self, answers: Sequence[str]) -> list[list[int]]:
        """Answers, and the mark that ends them."""
        return [[*ids, *self._end] for ids in self.plain(answers)]


def answer_text(quotes: Sequence[str], answer: str | None) -> str:
    """The trained form of an answer; `answer` None means that the last quote is the answer."""
    lines = [f'"{clip(quote, answer or quote).strip()}"' for quote in quotes if quote]
    if not lines:
        return answer or NO_ANSWER
    if answer is None or answer.strip(". ") == quotes[-1].strip(". "):
        return "\n".join(lines)
    return "\n".join([*lines, answer])


def short_start(told: str) -> int:
    """Start of the short answer in an answer of the trained form; the length if it has none."""
    last = told.rfind("\n") + 1
    return len(told) if told.startswith(NO_ANSWER) or told.startswith('"', last) else last


def clip(sentence: str, answer: str, longest: int = _LONGEST_QUOTE) -> str:
    """At most `longest` words of `sentence`, around `answer`."""
    words = sentence.split()
    if len(words) <= longest:
        return sentence
    before = len(sentence[: max(sentence.find(answer), 0)].split())
    start = max(0, before - longest // 2)
    return " ".join(words[start : start + longest])


def content_words(text: str) -> set[str]:
    """Lower-case words and numbers without stop words."""
    return {word.lower() for word in _WORD.findall(text)} - STOP_WORDS


def evidence(text: str, question: str, answer: str) -> str | None:
    """The unit of `text` that holds `answer`, most like the question where several do; None if it crosses units.

    It is a unit that answers may quote, if there is one: none that ends with 'Mr.'.
    """
    holding = [unit for unit in quotable(text) if answer in unit] or [unit for unit in units(text) if answer in unit]
    question_words = content_words(question)
    return max(holding, key=lambda unit: len(content_words(unit) & question_words)) if holding else None
