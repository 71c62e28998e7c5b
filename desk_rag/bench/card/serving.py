"""One model served as an answer engine serves it, beside the same weights in transformers' own classes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from transformers.cache_utils import DynamicCache

from desk_rag.answering import kv_connector
from desk_rag.bench.card.memory import Ledger
from desk_rag.bench.harness.clock import Work
from desk_rag.bench.models import shapes, synthetic
from desk_rag.bench.models.chunk_pool import ChunkPool
from desk_rag.config import AnswerSettings
from desk_rag.kv.forward.fused_decoder import FusedDecoder
from desk_rag.kv.forward.runner import FusedPass, ModelRunner, Pass
from desk_rag.kv.loading.layerwise import Placer, layerwise
from desk_rag.kv.loading.load import Load
from desk_rag.kv.loading.loader import Loader, LoaderSettings
from desk_rag.kv.nf4.choice import Nf4Products
from desk_rag.kv.positions import StitchPlan, plan
from desk_rag.kv.prefill import PrefixKV, prefill_chunks, prefill_prefix
from desk_rag.kv.quant import QuantScheme, quantize
from desk_rag.kv.rope import build_tables
from desk_rag.model import sdpa
from desk_rag.model.language_model import LanguageModel

QUESTION = 64
"""Tokens of a question with its frame."""
GPU, RAM, DISK = "cached, GPU memory", "cached, RAM", "cached, disk"
FULL, STOCK_FULL = "full prefill", "full prefill, transformers"
DECODE, STOCK_DECODE = "decode", "decode, transformers"
LIBRARY_RAM, LIBRARY_DECODE = "cached, RAM, bitsandbytes' products", "decode, bitsandbytes' products"


class ServedModel:
    """A model, its cache for the longest context, and a loader; a context manager."""

    def __init__(
        self,
        model: LanguageModel,
        pool: ChunkPool,
        longest: int,
        ledger: Ledger,
        *,
        chunk: int,
        compare_products: bool = False,
    ) -> None:
        """`compare_products` serves a second pass over the same cache, whose products are all bitsandbytes' own."""
        self.model, self.pool, self.device, self.chunk = model, pool, model.device, chunk
        self.prefix: PrefixKV = prefill_prefix(model)
        capacity = self.prefix.num_tokens + longest + 2 * QUESTION
        with ledger.part("slab and tables"):
            self.runner = ModelRunner(model, self.prefix, build_tables(model, capacity), capacity)
        with ledger.part("graphs and work space"):
            self.runner.prepare(shapes.random_ids(model, 1, 16)[0].tolist())
            self.prefill_chunks(1)
        self.by_library: FusedDecoder | None = None
        if compare_products and self.runner.fused is not None:
            with ledger.part("second pass, to compare with"):
                layers, nf4 = self.runner.cache.layers, Nf4Products(model.spec.dtype, choose=lambda *_: False)
                self.by_library = FusedDecoder(model, layers, build_tables(model, capacity), nf4=nf4)
                for count in (1, QUESTION):
                    self.by_library.prepare(count)
        if self.device.type == "cuda":
            resident, staging = kv_connector.tier_bytes(AnswerSettings(), self.device)
            settings = LoaderSettings(resident_bytes=resident, staging_bytes=staging)
        else:
            settings = LoaderSettings(resident_bytes=256 << 20)
        self.resident_bytes, self.staging_bytes = settings.resident_bytes, settings.staging_bytes
        self.loader = Loader(self.device, settings)

    def __enter__(self) -> ServedModel:
        return self

    def __exit__(self, *_: object) -> None:
        self.loader.close()

    def lengths(self, context: int) -> list[int]:
        """Tokens of each chunk of a context."""
        return synthetic.lengths(context, self.chunk)

    def prefill_chunks(self, count: int) -> int:
        """Prefill and quantise that many chunks together, as idle work does; returns their tokens."""
        scheme = QuantScheme.uniform(self.model.spec.num_layers)
        ids = shapes.random_ids(self.model, count, self.chunk).tolist()
        for kv in prefill_chunks(self.model, self.prefix, ids):
            quantize(kv, scheme)
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return count * self.chunk

    @contextmanager
    def attached(self, load: Load, where: StitchPlan, fused: FusedDecoder | None = None) -> Iterator[Pass]:
        """Yield the pass over the cache while the load's chunks arrive in it, as answers get it; or by `fused`."""
        runner = self.runner
        runner.lay_prefix()
        if runner.fused is None:
            with layerwise(self.model, load, where, None, runner.slots):
                yield runner.run()
            return
        runner.cache.set_length(where.num_slots)
        placer = Placer(load, where, runner.slots)
        placer.place_resident()
        yield FusedPass(fused or runner.fused, runner.cache, placer.place_through)
        placer.place_all()


class ContextWorks:
    """Everything that is timed at one context length."""

    def __init__(self, served: ServedModel, context: int, *, decoded: int) -> None:
        self.served, self.context, self._decoded = served, context, decoded
        model = served.model
        self._files = served.pool.of_question(served.lengths(context), 0)
        self._where = plan(served.prefix.num_tokens, served.lengths(context))
        self._prompt = shapes.random_ids(model, 1, self._where.num_slots + QUESTION)
        self._asked: Sequence[int] = self._prompt[0, -QUESTION:].tolist()
        self._stock_cache: DynamicCache | None = None

    @property
    def payload(self) -> int:
        """Bytes of the chunks in 8 bits."""
        return self.served.pool.payload(self.served.lengths(self.context))

    def works(self) -> dict[str, Work]:
        """Pieces of work by name; what has to be loaded anew for each is forgotten before it."""

        def before(attention: str, then: Callable[[], object] = int) -> Callable[[], None]:
            def prepare() -> None:
                self._use(attention)
                then()

            return prepare

        ours, stock = functools.partial(before, sdpa.NAME), functools.partial(before, "sdpa")
        works = {
            FULL: Work(self._full, ours()),
            STOCK_FULL: Work(self._stock_full, stock()),
            DISK: Work(self._cached, ours(self._cool)),
            RAM: Work(self._cached, ours(functools.partial(self.served.loader.forget, staged=False))),
            DECODE: Work(self._decode, ours(self._cached)),
            STOCK_DECODE: Work(self._stock_decode, stock(functools.partial(self._stock_full, keep=True))),
        }
        if self.served.by_library is not None:
            again = functools.partial(self._cached, self.served.by_library)
            works[LIBRARY_RAM] = Work(again, works[RAM].before)
            works[LIBRARY_DECODE] = Work(functools.partial(self._decode, self.served.by_library), works[DECODE].before)
        if self.payload <= self.served.resident_bytes:
            works[GPU] = Work(self._cached, ours(self._cached))
        return works

    def close(self) -> None:
        """Let go of transformers' cache, and attend as an engine does again."""
        self._stock_cache = None
        self._use(sdpa.NAME)

    def difference(self) -> float:
        """Largest difference of first logits between the loaded pass and transformers', in standard deviations."""
        self._use(sdpa.NAME)
        logits = []
        for stock in (False, True):
            load = self.served.loader.start(self._files)
            if stock:
                with layerwise(self.served.model, load, self._where, None, self.served.runner.slots):
                    ids = torch.tensor(self._asked, device=self.served.device)
                    cache = self.served.runner.cache
                    result = self.served.model.forward(ids, cache, self._where.next_position, logits=True)
                    assert result is not None
            else:
                with self.served.attached(load, self._where) as run:
                    result = run.forward(self._asked, self._where.next_position)
            logits.append(result.float().clone())
            load.close()
        return float((logits[0] - logits[1]).abs().max() / logits[1].std())

    def _use(self, attention: str) -> None:
        self._stock_cache = None
        if not self.served.model.spec.support.needs_eager:
            self.served.model.module.set_attn_implementation(attention)

    def _full(self) -> int:
        return int(self.served.runner.whole(self._prompt[0].tolist())().argmax())

    def _stock_full(self, *, keep: bool = False) -> int:
        cache = DynamicCache(config=self.served.model.module.config)
        with torch.inference_mode():
            output = self.served.model.module(self._prompt, past_key_values=cache, logits_to_keep=1, use_cache=True)
        self._stock_cache = cache if keep else None
        return int(output.logits[0, -1].argmax())

    def _cached(self, fused: FusedDecoder | None = None) -> int:
        load = self.served.loader.start(self._files)
        try:
            with self.served.attached(load, self._where, fused) as run:
                return int(run.forward(self._asked, self._where.next_position).argmax())
        finally:
            load.close()

    def _decode(self, fused: FusedDecoder | None = None) -> None:
        start = self._where.next_position + QUESTION
        run = self.served.runner.run() if fused is None else FusedPass(fused, self.served.runner.cache)
        self._tokens(lambda token, position: run.forward([token], position), start)

    def _stock_decode(self) -> None:
        assert self._stock_cache is not None
        module, device, cache = self.served.model.module, self.served.device, self._stock_cache

        def step(token: int, _position: int) -> torch.Tensor:
            with torch.inference_mode():
                ids = torch.tensor([[token]], device=device)
                logits: torch.Tensor = module(ids, past_key_values=cache, use_cache=True, logits_to_keep=1).logits
            return logits[0, -1]

        self._tokens(step, self._where.num_slots + QUESTION)

    def _tokens(self, step: Callable[[int, int], torch.Tensor], start: int) -> None:
        token = 100
        for position in range(start, start + self._decoded):
            token = int(step(token, position).argmax())

    def _cool(self) -> None:
        from desk_rag.bench.harness import drive

        drive.drop([file.path for file in self._files])
        self.served.loader.forget()
