"""A small stitched context to recompute parts of, made by the product's own code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from desk_rag.kv.cache import SlabCache
from desk_rag.kv.positions import plan
from desk_rag.kv.prefill import prefill_chunk, prefill_prefix
from desk_rag.kv.quant import keep_exact
from desk_rag.kv.recompute.selectors import SelectionContext
from desk_rag.kv.rope import RotaryTables, build_tables
from desk_rag.kv.stitch import StitchedCache, stitch
from desk_rag.model.language_model import LanguageModel

TEXTS = ("The boiler was serviced.", "Rent is due on Monday.", "Anna moved to Porto, then to Lyon.")
QUESTION = "When is rent due?"
ROOM = 12
"""Slots behind the question, for decoding."""


@dataclass(frozen=True)
class Case:
    model: LanguageModel
    stitched: StitchedCache
    tables: RotaryTables
    chunk_ids: list[list[int]]
    question_ids: list[int]
    texts: Sequence[str]

    @property
    def all_ids(self) -> list[int]:
        """Prefix, chunks and question as one prompt."""
        chunks = [token for ids in self.chunk_ids for token in ids]
        return [*self.model.prompt.prefix_ids, *chunks, *self.question_ids]

    @property
    def chunk_slots(self) -> range:
        return range(self.stitched.plan.prefix_tokens, self.stitched.plan.num_slots)

    @property
    def context(self) -> SelectionContext:
        return SelectionContext(self.model, self.stitched, self.chunk_ids, self.question_ids, self.texts, QUESTION)


def stitched_case(model: LanguageModel, texts: Sequence[str] = TEXTS) -> Case:
    """The texts as chunks, unquantised, with the question still to be run."""
    prefix = prefill_prefix(model)
    ids = [model.prompt.chunk_ids(text) for text in texts]
    question = model.prompt.question_ids(QUESTION)
    where = plan(prefix.num_tokens, [len(chunk) for chunk in ids])
    size = where.num_slots + len(question) + ROOM
    tables = build_tables(model, size)
    cache = SlabCache(model, size)
    chunks = [keep_exact(prefill_chunk(model, prefix, chunk)) for chunk in ids]
    return Case(model, stitch(model, where, prefix, chunks, tables, cache), tables, ids, question, texts)
