"""What an engine settles about its answers: how chunks are attended to, what is computed anew, how words are chosen.

Knows settings, free memory and the rooms that do the work; loads nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch

from desk_rag.answering import generation
from desk_rag.answering.context import Context
from desk_rag.answering.events import Source
from desk_rag.answering.evidence.selection import QuoteChooser
from desk_rag.answering.evidence.span_scorer import load_pointer
from desk_rag.config import AnswerSettings
from desk_rag.errors import ConfigError, UnsupportedModel
from desk_rag.kv.forward.runner import ModelRunner, Pass
from desk_rag.kv.lazy import cache
from desk_rag.kv.lazy.memory import AttentionPath, choose_attention
from desk_rag.kv.positions import StitchPlan
from desk_rag.kv.recompute.auxiliary_model import AuxiliaryModel
from desk_rag.kv.recompute.policy import RecomputeChoice, SelectorName
from desk_rag.kv.recompute.step import PrefillResult, RecomputeHandle, Recomputer, RecomputeRequest
from desk_rag.kv.rope import RotaryTables
from desk_rag.model.language_model import LanguageModel
from desk_rag.retrieval.embedding import Embedder
from desk_rag.timing import Stopwatch

_AUXILIARY = frozenset({SelectorName.AUX, SelectorName.AUX_STRICT})


def attention_path(asked: AnswerSettings, model: LanguageModel, where: StitchPlan, room: int) -> AttentionPath:
    """How chunks are attended to: as the settings say, else lazily where a slab for `where` does not fit the GPU.

    Ask before the slab is allocated. On a CPU 'auto' always materialises: lazily is right there too, and slow.
    Raises ConfigError where recompute is wanted as well, UnsupportedModel for models that lazy attention cannot serve.
    """
    if asked.attention == "lazy":
        if asked.recompute:
            raise _not_both(f"'{asked.recompute}'")
        if not cache.supports(model):
            raise UnsupportedModel(
                f"'{model.spec.name}' has sliding-window or soft-capped layers, which lazy attention does not cover.",
                remedy='Set `attention = "materialize"` under [answer].',
            )
        return AttentionPath.LAZY
    free_to_choose = asked.attention == "auto" and not asked.recompute and model.device.type == "cuda"
    if not free_to_choose or not cache.supports(model):
        return AttentionPath.MATERIALIZE
    free, _ = torch.cuda.mem_get_info(model.device)
    return choose_attention(free, model.spec, where, room=room)


def recompute_choice(asked: AnswerSettings) -> RecomputeChoice:
    """The knob as the settings have it."""
    return RecomputeChoice(asked.recompute, SelectorName(asked.selector))


def wants_auxiliary(asked: AnswerSettings) -> bool:
    """True if answers by these settings need the auxiliary model."""
    return bool(asked.recompute) and SelectorName(asked.selector) in _AUXILIARY


class Anew:
    """One answer's first pass with recompute; stands in for the question's own pass."""

    def __init__(self, recomputing: RecomputeHandle, selector: SelectorName) -> None:
        self._recomputing, self._selector = recomputing, selector
        self._done: PrefillResult | None = None

    def prefill(self) -> torch.Tensor:
        """Logits [vocab] of the question's last token; may be called again after the chunks were laid again."""
        self._done = self._recomputing.prefill()
        return self._done.logits

    @property
    def ratio(self) -> float:
        """Share of chunk tokens that were computed anew."""
        return self._done.selection.ratio if self._done is not None else 0.0

    def choosing(self, waited: float) -> float:
        """Seconds of choosing within the pass, which stood still for `waited` seconds for loading.

        A selector that reads the cache does that waiting, and it is counted as loading already.
        """
        took = self._done.choosing_seconds if self._done is not None else 0.0
        return max(0.0, took - waited) if self._selector.needs_cache else took


class Recompute:
    """One engine's knob over its slab."""

    def __init__(
        self,
        asked: AnswerSettings,
        model: LanguageModel,
        slab: ModelRunner | None,
        tables: RotaryTables,
        auxiliary: AuxiliaryModel | None,
    ) -> None:
        """`slab` is None where chunks are attended to lazily: there is then nothing to write new keys into."""
        self.choice, self._slab = recompute_choice(asked), slab
        self._step = Recomputer(model, slab.cache, tables, self.choice, auxiliary) if slab is not None else None

    def begin(
        self,
        choice: RecomputeChoice | None,
        where: StitchPlan,
        context: Context,
        question: str,
        question_ids: Sequence[int],
        watch: Stopwatch,
    ) -> Anew | None:
        """Decide and, where possible, start choosing; None for the plain path, which a ratio of 0 takes as well.

        Call it before the chunks are laid: measuring what 'auto' needs may empty the slab. `choice` is this answer's
        own. Raises ConfigError where chunks are attended to lazily.
        """
        chosen = choice or self.choice
        if not chosen.ratio:
            return None
        if self._step is None or self._slab is None:
            raise _not_both(f"'{chosen.ratio}'")
        self._slab.forget_prefix()
        texts = [source.text for source in reversed(context.sources)]
        ask = RecomputeRequest(where, texts, context.token_ids[::-1], question, question_ids)
        with watch.stage("choose"):
            begun = self._step.begin(ask, chosen)
        return Anew(begun, chosen.selector) if begun.ratio else None

    def rehearse(self) -> None:
        """As `Recomputer.rehearse`; the slab's contents are lost."""
        if self._step is not None and self._slab is not None:
            self._slab.forget_prefix()
            self._step.rehearse()

    def close(self) -> None:
        """End the auxiliary model's thread."""
        if self._step is not None:
            self._step.close()


class Decoding:
    """How one engine's answers come out of a cache."""

    def __init__(self, asked: AnswerSettings, model: LanguageModel, embedder: Embedder) -> None:
        """Quotes are chosen where model and embedder are those it was fitted on, unless settings say no."""
        self._prompt, self._limit = model.prompt, asked.max_new_tokens
        wanted = asked.choose_quote and model.is_embedded and embedder.is_embedded
        self.pointer = load_pointer(embedder) if wanted else None
        """For the judge as well, which it tells what it thought of the quote."""
        self._chooser = QuoteChooser(model.prompt, self.pointer) if self.pointer is not None else None

    def tokens(
        self,
        run: Pass,
        prompt_ids: Sequence[int],
        start: int,
        stop: Callable[[], bool],
        prefill: Callable[[], torch.Tensor] | None = None,
        about: tuple[str, Sequence[Source]] | None = None,
    ) -> Iterator[generation.Token]:
        """As `generate.decode`; `about` is the question and what it is asked of, without which no quote is chosen and
        no refusal objected to."""
        decode = partial(generation.decode, max_new_tokens=self._limit, stop=stop, prefill=prefill)
        if self._chooser is not None and about is not None:
            question, sources = about
            texts = [source.text for source in sources]
            opening, quote = (partial(each, question, texts) for each in (self._chooser.opening, self._chooser.choose))
            decode = partial(decode, opening=opening, quote=quote)
        return decode(self._prompt, run, prompt_ids, start)


def _not_both(recompute: str) -> ConfigError:
    return ConfigError(
        f"With recompute = {recompute} chunk tokens are computed anew, which lazy attention (`attention` under "
        "[answer]) has no place for.",
        remedy='Set `attention = "materialize"` under [answer], or `recompute = 0`.',
    )
