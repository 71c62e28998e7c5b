"""Count document text in a model's tokens, in this process or in the one that parses. Imports no torch."""

from __future__ import annotations

from typing import Protocol

from tokenizers import Tokenizer


class PortableCounter(Protocol):
    """A token counter that another process can rebuild; desk_rag.model.prompt.PromptFormat is one."""

    @property
    def tokenizer_json(self) -> str:
        """The whole tokenizer, as `plain_tokenizer` takes it."""
        ...

    def count(self, text: str) -> int:
        """Number of tokens of `text`."""
        ...


class TextCounter:
    """The counter that `tokenizer_json` describes."""

    def __init__(self, tokenizer_json: str) -> None:
        self._tokenizer = plain_tokenizer(tokenizer_json)

    def count(self, text: str) -> int:
        """Number of tokens of `text`."""
        return count_tokens(self._tokenizer, text)


def plain_tokenizer(tokenizer_json: str) -> Tokenizer:
    """Build a tokenizer that reads '<|im_end|>' in a document as twelve ordinary characters and cuts nothing off."""
    tokenizer = Tokenizer.from_str(tokenizer_json)
    tokenizer.encode_special_tokens = True
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def count_tokens(tokenizer: Tokenizer, text: str) -> int:
    """Number of tokens of `text`, without those that a tokenizer may add at its ends."""
    return len(tokenizer.encode(text, add_special_tokens=False).ids)
