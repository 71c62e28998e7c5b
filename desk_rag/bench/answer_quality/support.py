"""Fit and measure the check of written answers, on sentences about the sample documents.

Run as `python -m desk_rag.bench.answer_quality.support [--out FILE]`. The claims (assets/training/written_claims.jsonl)
are paraphrases of what the documents say and sentences that they do not support. Every question retrieves its passages
from all sample documents. Questions at even places are fitted on, those at odd places were held out until they had been
looked at six times; `--claims FILE` measures sentences of another file, all held out. Wrong numbers and swapped names
are also made from the paraphrases themselves.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from desk_rag.answering.events import Source, Support
from desk_rag.answering.evidence.span_scorer import load_span_scorer
from desk_rag.answering.writing import claims, facts
from desk_rag.answering.writing.support import SupportChecker
from desk_rag.assets import assets_dir
from desk_rag.bench.harness.corpus import sample_folder, sync
from desk_rag.config import Settings
from desk_rag.ingest import pipeline
from desk_rag.model.prompt import load_prompt
from desk_rag.model.weights import resolve
from desk_rag.retrieval.embedding import Embedder, load_embedder
from desk_rag.retrieval.search import retrieve
from desk_rag.store.store import Store

_PASSAGES = 6
_NAMES = ("Albrecht", "Tolman", "Ferrand", "Winslow", "Oduya", "Marchand")
_SIGNALS = ("similarity", "coverage", "missing", "contrast", "span_score", "fact_margin", "rival")
SUPPORTED = "paraphrase"
_OPPOSITE_WEIGHT = 2.0
"""Opposites are rarer here than they matter."""


@dataclass(frozen=True, slots=True)
class Claim:
    """One sentence with its label and the passages of its question."""

    held_out: bool
    kind: str
    question: str
    text: str
    sources: tuple[Source, ...]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the measurement."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="file for the signals of every claim, as JSON lines")
    parser.add_argument("--claims", type=Path, help="measure the claims of this file instead, and fit nothing")
    parser.add_argument("--words-alone", action="store_true", help="without embedder and span scorer")
    options = parser.parse_args(argv)
    embedder = load_embedder(Settings().model)
    scorer = None if options.words_alone else load_span_scorer(embedder)
    rows = []
    for claim in _claims(embedder, options.claims):
        checker = SupportChecker(claim.question, claim.sources, None if options.words_alone else embedder, scorer)
        rows.append(_row(claim, checker))
        if options.out is not None:
            with options.out.open("a", encoding="utf-8") as stream:
                stream.write(json.dumps(rows[-1]) + "\n")
    print(table(rows))
    if options.claims is None:
        print(json.dumps(fit(rows)))
    return 0


def _row(claim: Claim, checker: SupportChecker) -> dict[str, Any]:
    words = claims.plain_words(claim.text)
    context = "" if not claims.is_table_row(claim.text) else claim.question
    verdict, signals = checker.check(words, context=context), checker.last_signals
    return {
        "kind": claim.kind, "held_out": claim.held_out, "claim": claim.text, "support": verdict.support.value,
        "reason": verdict.reason, "score": verdict.score, **({} if signals is None else asdict(signals)),
    }  # fmt: skip


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Share of sentences that pass as supported, by kind, in both parts."""
    lines = [f"{'kind':<20}{'fitted on':>12}{'held out':>12}"]
    for kind in dict.fromkeys(row["kind"] for row in rows):
        cells = []
        for held_out in (False, True):
            part = [row for row in rows if row["kind"] == kind and row["held_out"] is held_out]
            passed = sum(row["support"] == Support.SUPPORTED.value for row in part)
            cells.append(f"{passed} of {len(part)}")
        lines.append(f"{kind:<20}{cells[0]:>12}{cells[1]:>12}")
    return "\n".join(lines)


def fit(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Weights of a logistic regression over the first part; facts that no passage holds are ruled out before."""
    from sklearn.linear_model import LogisticRegression

    known = [row for row in rows if not row["held_out"] and "similarity" in row]
    inputs = [[_clamped(name, row[name]) for name in _SIGNALS] for row in known]
    weights = [_OPPOSITE_WEIGHT if row["kind"] == "opposite" else 1.0 for row in known]
    model = LogisticRegression(C=3.0, max_iter=2000)
    model.fit(inputs, [row["kind"] == SUPPORTED for row in known], sample_weight=weights)
    fitted = {name: round(float(weight), 2) for name, weight in zip(_SIGNALS, model.coef_[0], strict=True)}
    return {"bias": round(float(model.intercept_[0]), 2), **fitted}


def _clamped(name: str, value: float | bool | None) -> float:
    bounds = {"span_score": (-8.0, 8.0), "fact_margin": (-12.0, 0.0), "rival": (0.0, 8.0)}.get(name, (-1.0, 1.0))
    return min(max(float(value or 0.0), bounds[0]), bounds[1])


def _claims(embedder: Embedder, other_file: Path | None) -> Iterator[Claim]:
    file = other_file or assets_dir() / "training" / "written_claims.jsonl"
    draw = random.Random(7)
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(data_dir=Path(folder))
        with Store.open(settings.data_dir, settings.store, writer=True) as store:
            sync(store, sample_folder(), load_prompt(resolve("embedded", allow_download=False)))
            for _ in pipeline.embed_pending(store, embedder, lambda: False):
                pass
            for place, line in enumerate(file.read_text(encoding="utf-8").splitlines()):
                entry = json.loads(line)
                sources = sources_of(store, embedder, entry["question"])
                held_out = other_file is not None or place % 2 == 1
                texts = "\n".join(source.text for source in sources)
                for kind, text in entry["claims"]:
                    yield Claim(held_out, kind, entry["question"], text, sources)
                    if kind == SUPPORTED:
                        for change, changed in _changed(text, texts, draw):
                            yield Claim(held_out, change, entry["question"], changed, sources)


def _changed(text: str, passages: str, draw: random.Random) -> Iterator[tuple[str, str]]:
    """The sentence with one number, or one name, replaced: by a foreign one, and by one of the same passages."""
    said_facts = facts.facts(text)
    held_facts = facts.facts(passages)
    for is_number in (True, False):
        own = [fact for fact in said_facts if fact.is_number is is_number and (fact.text[0].isdigit() or not is_number)]
        if not own:
            continue
        fact = draw.choice(own)
        foreign = str(draw.randint(11, 97)) + "7" if is_number else draw.choice(_NAMES)
        yield ("foreign number" if is_number else "foreign name"), text[: fact.begin] + foreign + text[fact.end :]
        same = [
            each.text for each in held_facts
            if each.is_number is is_number and each.text not in text and (each.text.isdigit() or not is_number)
        ]  # fmt: skip
        if same:
            kind = "number of the passages" if is_number else "name of the passages"
            yield kind, text[: fact.begin] + draw.choice(same) + text[fact.end :]


def sources_of(store: Store, embedder: Embedder, question: str) -> tuple[Source, ...]:
    """Retrieve the passages for a question."""
    chunks = retrieve(store, embedder, question, _PASSAGES, [])
    return tuple(
        Source(
            number=number, chunk_id=chunk.passage.chunk.chunk_id, path=chunk.passage.path, title=chunk.passage.title,
            location=chunk.passage.chunk.location, text=chunk.passage.chunk.text, score=chunk.score, warm=True,
            stale=False,
        )
        for number, chunk in enumerate(chunks, start=1)
    )  # fmt: skip


if __name__ == "__main__":
    raise SystemExit(main())
