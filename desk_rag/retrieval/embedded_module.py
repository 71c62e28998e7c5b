"""The embedder that ships as a plain module: BERT, mean of its token vectors, scaled to unit length.

It computes what sentence-transformers computes from the same files, bit for bit, without importing that library or
transformers, which take longer than everything else that a question needs.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Encoding, Tokenizer

from desk_rag.model.embedded import int8_linear
from desk_rag.model.embedded.bert import Bert, bert_of, int8_twin, load_bert
from desk_rag.model.embedded.bert_bf16 import Bf16Bert
from desk_rag.retrieval.retrieval_weights import retrieval_weights

_ADDED = ("[CLS]", "[SEP]", "[PAD]")


class WordPieces:
    """The tokenizer, called as one of the transformers library is."""

    def __init__(self, file: Path, most: int) -> None:
        self.plain: Tokenizer = Tokenizer.from_file(str(file))
        """The tokenizer that cuts no text and fills none up; not to be changed, because several threads use it."""
        self.plain.no_truncation()
        self.plain.no_padding()
        self._most = most
        self._padding = self.plain.token_to_id("[PAD]")
        self._is_word: dict[int, bool] = {}

    def __call__(self, text: str, *, add_special_tokens: bool = True, **_options: object) -> dict[str, list[Any]]:
        """Return ids and character offsets of a text that is not cut."""
        encoded: Encoding = self.plain.encode(text, add_special_tokens=add_special_tokens)
        return {"input_ids": encoded.ids, "offset_mapping": encoded.offsets}

    def batch(self, texts: Sequence[str]) -> dict[str, torch.Tensor]:
        """Return the inputs of the model for texts that are cut and padded to the longest."""
        encoded: list[Encoding] = self.plain.encode_batch(list(texts))
        rows = [self._cut(each.ids) for each in encoded]
        longest = max(map(len, rows))
        ids = torch.tensor([row + [self._padding] * (longest - len(row)) for row in rows])
        known = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows])
        return {"input_ids": ids, "token_type_ids": torch.zeros_like(ids), "attention_mask": known}

    def _cut(self, ids: list[int]) -> list[int]:
        """Cut the ids to as many as the model reads; the last one, which ends a text, stays."""
        return ids if len(ids) <= self._most else [*ids[: self._most - 1], ids[-1]]

    def is_word(self, ids: torch.Tensor) -> torch.Tensor:
        """Return which of the ids are parts of words or numbers: no punctuation, nothing added to the text."""
        rows: list[list[int]] = ids.tolist()
        for number in {number for row in rows for number in row}:
            if number not in self._is_word:
                piece = self.plain.id_to_token(number) or ""
                self._is_word[number] = piece not in _ADDED and any(map(str.isalnum, piece))
        return torch.tensor([[self._is_word[number] for number in row] for row in rows])


class EmbeddedModule(torch.nn.Module):
    """The part of a sentence-transformers module that an `Embedder` uses; it has no prompts."""

    max_seq_length = 256
    gives_tokens = True
    default_prompt_name: str | None = None

    def __init__(self, folder: Path) -> None:
        """Load the model from `folder`; raises as `load_bert` does."""
        super().__init__()
        self._stored: Path | None = folder
        """Folder in which the matrices are stored as int8; None if these are others."""
        self.bert: Bert = load_bert(folder)
        self.tokenizer = WordPieces(folder / "tokenizer.json", self.max_seq_length)
        self.prompts: dict[str, str] = {}

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        parameter: torch.Tensor = next(self.bert.parameters())
        return parameter.device

    def for_short_texts(self) -> EmbeddedModule | None:
        """The same module with matrices as int8, which short texts take less time over; None if this CPU cannot."""
        if self.device.type != "cpu" or not int8_linear.keeps_int8():
            return None
        return self._with(int8_twin(self.bert, self._stored))

    def for_retrieval(self, changes: Path) -> EmbeddedModule:
        """The same module with the weights of `retrieval_weights`; shares the tensors that these do not change."""
        twin = self._with(bert_of(self.bert.config, retrieval_weights(self.bert.state_dict(), changes)).eval())
        twin._stored = None
        return twin

    def in_bf16(self) -> EmbeddedModule | None:
        """The same module with matrices packed in bfloat16, for passages, as autocast rounds them; None on a GPU."""
        return self._with(Bf16Bert(self.bert)) if self.device.type == "cpu" else None

    def _with(self, bert: torch.nn.Module) -> EmbeddedModule:
        twin = copy.copy(self)
        twin._modules = {"bert": bert}
        return twin

    def preprocess(self, texts: list[str], prompt: str | None = None) -> dict[str, torch.Tensor]:
        """Return the inputs of `forward`."""
        return self.tokenizer.batch([f"{prompt or ''}{text}" for text in texts])

    def forward(self, features: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return the inputs with `token_embeddings` [texts, pieces, dim] and `sentence_embedding` [texts, dim]."""
        tokens = self.bert(**features).last_hidden_state
        mask = features["attention_mask"].unsqueeze(-1).to(tokens.dtype)
        total, count = (tokens * mask).sum(dim=1, dtype=torch.float32), mask.sum(dim=1, dtype=torch.float32)
        mean = (total / count.clamp(min=1e-9)).to(tokens.dtype)
        unit = torch.nn.functional.normalize(mean, p=2, dim=1)
        return {**features, "token_embeddings": tokens, "sentence_embedding": unit}
