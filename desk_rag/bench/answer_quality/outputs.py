"""Measure the check of written answers on whole outputs, scripted as chat models write them.

Run as `python -m desk_rag.bench.answer_quality.outputs [--part open|closed]`. Each output
(assets/training/written_outputs.jsonl) answers a question about the sample documents or about the mill's folder, in
prose, lists, tables or steps, with reasoning, refusals and citations that are right, wrong or absent; each piece has a
label. Outputs at even places may be looked at, of those at odd places only the totals are to be seen.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from desk_rag.answering.events import Source, Support
from desk_rag.answering.evidence.citations import ParsedAnswer
from desk_rag.answering.evidence.span_scorer import load_span_scorer
from desk_rag.answering.writing import claims
from desk_rag.answering.writing.length import AnswerLength
from desk_rag.answering.writing.refusals import is_refusal
from desk_rag.answering.writing.stream import WrittenStream
from desk_rag.answering.writing.support import SupportChecker
from desk_rag.assets import assets_dir
from desk_rag.bench.answer_quality.support import sources_of
from desk_rag.bench.answers import desks
from desk_rag.bench.harness.corpus import sample_folder, sync
from desk_rag.config import Settings
from desk_rag.ingest import pipeline
from desk_rag.model.prompt import load_prompt
from desk_rag.model.reasoning import MARKS, NO_REASONING, Reasoning, Thinking
from desk_rag.model.weights import resolve
from desk_rag.retrieval.embedding import Embedder, load_embedder
from desk_rag.store.store import Store

_PIECE = 7
"""Characters that are fed to the stream at once."""
_LENGTH = AnswerLength(2_000, 4_000)
_REFUSAL, _HIDDEN = "refusal", "hidden"
_BEGUN = "begun"
"""Reasoning that the prompt has opened."""


@dataclass(frozen=True, slots=True)
class Output:
    """One scripted output; each of its pieces is (label, text)."""

    desk: str
    question: str
    kind: str
    reasoning: str
    pieces: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Judged:
    """One labelled piece, and what it was shown as."""

    label: str
    text: str
    state: str
    """'supported', 'unsupported', 'unchecked', 'refused', 'shown', 'hidden' or 'absent'."""
    reason: str = ""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the measurement."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", choices=("open", "closed"), help="one half only; the open one is printed by piece")
    options = parser.parse_args(argv)
    rows: list[Judged] = []
    for output, answer in _answers(read(), options.part):
        judged = judge(output, answer)
        rows += judged
        if options.part == "open":
            print(f"\n{output.question}  [{output.kind}]")
            for each in judged:
                print(f"  {each.label:<11}{each.state:<12}{each.text.strip()}  {each.reason}")
    print(table(rows))
    return 0


def read() -> list[Output]:
    """All scripted outputs."""
    file = assets_dir() / "training" / "written_outputs.jsonl"
    lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    return [
        Output(
            line["desk"], line["question"], line["kind"], line.get("reasoning", ""),
            tuple((label, text) for label, text in line["pieces"]),
        )
        for line in lines
    ]  # fmt: skip


def judge(output: Output, answer: ParsedAnswer) -> list[Judged]:
    """Say of every labelled piece how it was shown."""
    shown = claims.plain_words(claims.without_markers(answer.text)[0])
    states = [
        (_words(answer.text[sentence.start : sentence.end]), sentence.support, sentence.reason)
        for sentence in answer.sentences
    ]
    judged = []
    for label, text in output.pieces:
        if not label:
            continue
        words = _words(text)
        if label == _HIDDEN:
            judged.append(Judged(label, text, "shown" if words and words in _words(answer.text) else "hidden"))
            continue
        support = next(((each, reason) for own, each, reason in states if words and words in own), None)
        if support is not None:
            judged.append(Judged(label, text, support[0].value, support[1]))
        elif is_refusal(claims.plain_words(claims.without_markers(text)[0])) and not answer.found:
            judged.append(Judged(label, text, "refused"))
        else:
            judged.append(Judged(label, text, "shown" if words in _words(shown) else "absent"))
    return judged


def table(rows: Sequence[Judged]) -> str:
    """Count the states by label."""
    states = (*(support.value for support in Support), "refused", "hidden", "shown", "absent")
    lines = ["".join(f"{word:>13}" for word in ("", *states))]
    for label in dict.fromkeys(row.label for row in rows):
        counts = [sum(row.label == label and row.state == state for row in rows) for state in states]
        lines.append(f"{label:>13}" + "".join(f"{count:>13}" for count in counts))
    return "\n".join(lines)


def _words(text: str) -> str:
    """Letters and digits of a piece, without citations and Markdown."""
    plain = claims.plain_words(claims.without_markers(text)[0])
    return "".join(character for character in plain.casefold() if character.isalnum())


def _answers(outputs: Sequence[Output], part: str | None) -> Iterator[tuple[Output, ParsedAnswer]]:
    embedder = load_embedder(Settings().model)
    scorer = load_span_scorer(embedder)
    wanted = [output for place, output in enumerate(outputs) if part is None or place % 2 == (part == "closed")]
    for desk in dict.fromkeys(output.desk for output in wanted):
        with _indexed(desk, embedder) as store:
            for output in wanted:
                if output.desk == desk:
                    sources = sources_of(store, embedder, output.question)
                    checker = SupportChecker(output.question, sources, embedder, scorer)
                    yield output, _stream(output, sources, checker)


def _stream(output: Output, sources: Sequence[Source], checker: SupportChecker) -> ParsedAnswer:
    begun = output.reasoning == _BEGUN
    reasoning = Reasoning((MARKS[0],), Thinking.ALWAYS, MARKS[0]) if begun else NO_REASONING
    stream = WrittenStream(output.question, sources, checker, reasoning, _LENGTH)
    text = "".join(text for _, text in output.pieces)
    for start in range(0, len(text), _PIECE):
        for _ in stream.feed(text[start : start + _PIECE]):
            pass
    return stream.finish()[0]


@contextmanager
def _indexed(desk: str, embedder: Embedder) -> Iterator[Store]:
    with tempfile.TemporaryDirectory() as folder:
        documents = sample_folder()
        if desk != "sample":
            documents = Path(folder) / "documents"
            desks.write(desk, documents)
        settings = Settings(data_dir=Path(folder) / "data")
        with Store.open(settings.data_dir, settings.store, writer=True) as store:
            sync(store, documents, load_prompt(resolve("embedded", allow_download=False)))
            for _ in pipeline.embed_pending(store, embedder, lambda: False):
                pass
            yield store


if __name__ == "__main__":
    raise SystemExit(main())
