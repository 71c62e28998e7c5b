"""The recipe, read straight down: language model, question writer, questions for the corpus, reading, scores.

Knows the order and the amounts; each room knows its own trade. A stage whose weights are in the work folder is not run
again.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import torch
import torch.distributed as dist
from tokenizers import Tokenizer

from desk_rag.model.trained_frame import IM_END
from desk_rag.training.reader import evaluation
from desk_rag.training.reader.architecture import READER, TINY, Decoder, Shape
from desk_rag.training.reader.data.frame import mark_id
from desk_rag.training.reader.export import export
from desk_rag.training.reader.preparation import Work, load_books
from desk_rag.training.reader.question_writer import check, plan_all, save_synthetic, write_questions
from desk_rag.training.reader.training import (
    Group,
    Rates,
    Rows,
    TokenStream,
    load,
    save,
    speed_up,
    train_language_model,
    train_rows,
)

_TEXT = 0.2
"""Weight of the texts' own tokens beside the answers'."""


@dataclass(frozen=True, slots=True)
class Amounts:
    """Amounts of everything; the defaults fit one hour of one H200."""

    reader: Shape = READER
    window: int = 1024
    tokens: int = 500_000_000
    windows: int = 256
    """Windows per batch of the language model."""
    micro: int = 64
    writer_rows: int = 60_000
    short_rows: int = 360_000
    """Rows of a few chunks and a third of the length: finding the right chunk is learned from many questions."""
    drafts: int = 2
    """Sentences of each passage that are asked about."""
    reading_rows: int = 330_000
    final_rows: int = 44_000
    sister_share: float = 0.3
    """Share of the reader's rows that its sister sees."""
    rows: int = 128
    """Rows per batch of the reading stages."""
    micro_rows: int = 32
    asked: int = 400
    """Held-out questions per kind."""


QUICK = Amounts(
    reader=TINY,
    window=256,
    tokens=20_000,
    windows=8,
    micro=4,
    writer_rows=32,
    short_rows=48,
    reading_rows=16,
    final_rows=16,
    sister_share=0.5,
    rows=4,
    micro_rows=2,
    asked=4,
)
"""To try everything out on a CPU."""


class Recipe:
    """One run in one process of the group."""

    def __init__(self, work: Work, amounts: Amounts, group: Group) -> None:
        self.work, self.amounts, self.group = work, amounts, group
        self.tokenizer = Tokenizer.from_file(str(work.tokenizer))

    def run(self, *, sister: bool) -> None:
        """Everything; the reader is in WORK/reader when it ends, its sister for comparisons in WORK/sister."""
        self.stage("language", None, self._language)
        self.work.wait("rows-writer")
        writer = self.stage("writer", "language", self._writer)
        self.work.wait("rows-short")
        beginner = self.stage("beginner", "language", lambda model: self._begins(model, 0.3, 1.0))
        self._ask_the_corpus(writer, beginner)
        del writer, beginner
        share = self.amounts.sister_share
        if sister and not (self.work.folder / "sister.safetensors").exists():  # while the reader's rows are prepared
            self.stage("sister-begun", "language", lambda model: self._begins(model, 1.0, share))
        self.work.wait("rows-last")
        models = {"reader": self.stage("reader", "beginner", lambda model: self._reads(model, 0.3, 1.0))}
        self._export(models["reader"], "reader")
        if sister:  # a stand-in for a stock model: it never sees the independent-attention mask
            models["sister"] = self.stage("sister", "sister-begun", lambda model: self._reads(model, 1.0, share))
            self._export(models["sister"], "sister")
        self._scores(models)

    def stage(self, name: str, begin: str | None, train: Callable[[Decoder], None]) -> Decoder:
        """A model trained from where another stage ended, or loaded if it has been."""
        model = Decoder(self.amounts.reader).to(self.group.device)
        path = self.work.folder / f"{name}.safetensors"
        if path.exists():
            load(model, path)
            speed_up(model)
            self.group.log(f"{name}: already there")
            return model.eval()
        if begin is not None:
            load(model, self.work.folder / f"{begin}.safetensors")
        self._share(model)
        speed_up(model)
        began = time.perf_counter()
        train(model)
        model.eval()
        self.group.log(f"{name}: {time.perf_counter() - began:.0f} s")
        if self.group.rank == 0:
            save(model, path)
            if name not in ("language", "writer", "sister-begun"):
                self._glance(model, name)
        self._together()
        return model

    # stages -----------------------------------------------------------------------------------------------------

    def _language(self, model: Decoder) -> None:
        amounts = self.amounts
        stream = TokenStream(self.work.stream, amounts.window, self.group)
        rates = Rates(muon=0.02, adam=2e-3, fall=0.45, decay=0.1)
        train_language_model(
            model,
            stream,
            self.group,
            rates,
            tokens=amounts.tokens,
            batch=amounts.windows,
            micro=min(amounts.micro, amounts.windows // self.group.size),
            drop=0.05,
        )

    def _writer(self, model: Decoder) -> None:
        rates = Rates(muon=0.006, adam=6e-4, fall=0.6, warm_up=30)
        self._rows(model, "writer", rates, self.amounts.writer_rows, drop=0.1, full=1.0, scale=4)

    def _begins(self, model: Decoder, full: float, share: float) -> None:
        rates = Rates(muon=0.012, adam=1.2e-3, fall=0.2, warm_up=100)
        count = int(self.amounts.short_rows * share)
        self._rows(model, "short", rates, count, drop=0.0, full=full, text=_TEXT, scale=3)

    def _reads(self, model: Decoder, full: float, share: float) -> None:
        reading = Rates(muon=0.01, adam=1e-3, fall=0.3, warm_up=60)
        count = int(self.amounts.reading_rows * share)
        self._rows(model, "reading", reading, count, drop=0.0, full=full, text=_TEXT)
        final = Rates(muon=0.005, adam=5e-4, fall=0.95, warm_up=10)
        count = int(self.amounts.final_rows * share)
        self._rows(model, "last", final, count, drop=0.05, full=full, text=_TEXT / 2)

    def _rows(
        self,
        model: Decoder,
        name: str,
        rates: Rates,
        count: int,
        *,
        drop: float,
        full: float,
        text: float = 0.0,
        scale: int = 1,
    ) -> None:
        amounts = self.amounts
        micro = amounts.micro_rows * scale
        batch = amounts.rows * scale
        train_rows(
            model,
            Rows(self.work.folder, name, self.group),
            self.group,
            rates,
            count=count,
            batch=batch,
            micro=min(micro, batch // self.group.size),
            drop=drop,
            full_share=full,
            text_weight=text,
            name=name,
        )

    def _ask_the_corpus(self, writer: Decoder, beginner: Decoder) -> None:
        """Synthetic questions for this process's share of the corpus."""
        if self.work.done("synthetic").exists():
            return
        books = load_books(self.work)
        share = list(enumerate(books))[self.group.rank :: self.group.size]
        if self.group.rank == 0:
            for stale in self.work.folder.glob("synthetic.*.jsonl"):  # of a run of more processes that was stopped
                stale.unlink()
        self._together()
        began = time.perf_counter()
        count = max(1, self.work.workers // self.group.size)
        with ProcessPoolExecutor(count, mp_context=get_context("spawn")) as workers:
            todo = plan_all(self.work.tokenizer, share, self.amounts.drafts, workers)
            self.group.log(f"questions: {len(todo)} drafts after {time.perf_counter() - began:.0f} s")
            synthetic = write_questions(writer, self.tokenizer, todo, self.group)
            written = time.perf_counter()
            kept = check(beginner, self.work.tokenizer, books, synthetic, self.group, workers)
        self.group.log(
            f"questions: {len(todo)} drafts, {len(synthetic)} made in {written - began:.0f} s, {len(kept)} kept after "
            f"{time.perf_counter() - written:.0f} s, each of {self.group.size} processes"
        )
        for _, one, value in kept[:: max(1, len(kept) // 12)]:
            self.group.log(f"  {value:.2f} {one.question!r} -> {one.answer!r}")
        save_synthetic(self.work.folder / f"synthetic.{self.group.rank}.jsonl", kept)
        self._together()
        if self.group.rank == 0:
            self.work.done("synthetic").touch()

    # results ----------------------------------------------------------------------------------------------------

    def _export(self, model: Decoder, name: str) -> None:
        if self.group.rank == 0:
            end = mark_id(self.tokenizer, IM_END)
            export(model.state_dict(), model.shape, end, self.work.folder / name, parts=True)

    def _glance(self, model: Decoder, name: str) -> None:
        """Check progress by a few held-out questions, within seconds."""
        items = evaluation.items(self.work.data, "all", min(128, self.amounts.asked), 5)
        answers = evaluation.answers(model, self.tokenizer, items, self.group, full=False)
        self.group.log(f"{name}: {evaluation.score(answers, items)}")

    def _scores(self, models: dict[str, Decoder]) -> None:
        """Each process scores some kinds; written to WORK/scores.N.json and printed."""
        kinds = [
            (kind, chunks, full)
            for kind, chunks in (
                ("all", 5),
                ("desk", 5),
                ("desk", 3),
                ("books", 5),
                ("unanswerable", 5),
                ("absent", 5),
                ("together", 5),
            )
            for full in (False, True)
        ]
        jobs = [(name, *kind) for name in models for kind in kinds]
        scores = {}
        for name, kind, chunks, full in jobs[self.group.rank :: self.group.size]:
            items = evaluation.items(self.work.data, kind, self.amounts.asked, chunks)
            answers = evaluation.answers(models[name], self.tokenizer, items, self.group, full=full)
            key = f"{name} {kind} {chunks} {'full' if full else 'stitched'}"
            scores[key] = evaluation.score(answers, items) | {"n": len(items)}
            print("SCORE", key, json.dumps(scores[key]), flush=True)
            if not full:
                shown = [
                    {"q": item.question, "want": item.answer, "told": answer}
                    for item, answer in zip(items[:40], answers[:40], strict=True)
                ]
                where = self.work.folder / f"answers.{name}.{kind}.{chunks}.json"
                where.write_text(json.dumps(shown, indent=1, ensure_ascii=False), encoding="utf-8")
        path = self.work.folder / f"scores.{self.group.rank}.json"
        path.write_text(json.dumps(scores, indent=1), encoding="utf-8")

    # processes --------------------------------------------------------------------------------------------------

    def _share(self, model: Decoder) -> None:
        if self.group.size > 1:
            for parameter in model.parameters():
                dist.broadcast(parameter.data, 0)

    def _together(self) -> None:
        if self.group.size > 1:
            if self.group.device.type == "cuda":
                torch.cuda.synchronize()
            dist.barrier()


def finished(folder: Path) -> dict[str, dict[str, float]]:
    """All scores of a run."""
    scores: dict[str, dict[str, float]] = {}
    for path in sorted(folder.glob("scores.*.json")):
        scores.update(json.loads(path.read_text(encoding="utf-8")))
    return scores
