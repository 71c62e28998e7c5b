"""Measure follow-up questions: three turns as a person asks them, beside the same questions written out.

Every dialogue runs through the whole product: a turn is rewritten from what desk-rag itself answered before. An answer
is right if it was found and the answer or a quote contains an expected wording. 'As typed' asks the follow-up with
nothing before it. The folder 'wharf' was used while the rules were written; 'clinic' was opened once, afterwards.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from desk_rag.answering.conversation import asking
from desk_rag.answering.conversation.turns import Request, Turn, turn_of
from desk_rag.answering.events import Answer, Finished
from desk_rag.bench.answer_quality import metrics
from desk_rag.bench.dialogues import dialogues as written
from desk_rag.bench.dialogues.dialogues import WrittenTurn
from desk_rag.bench.harness import corpus, report
from desk_rag.config import ModelSettings, Settings
from desk_rag.errors import ConfigError

if TYPE_CHECKING:
    from desk_rag.answering.engine import AnswerEngine


@dataclass(frozen=True, slots=True)
class Outcome:
    """One turn of a dialogue, asked in three ways."""

    place: int
    """0 for the first turn."""
    asked: str
    """The rewritten follow-up."""
    followed: bool
    """Right as a follow-up."""
    alone: bool
    """Right when written out."""
    typed: bool
    """Right when asked as it stands, with nothing before it."""
    file: bool
    """The right file was quoted as a follow-up."""


def main(argv: Sequence[str]) -> int:
    """Run the measurement; returns an exit code. Raises DeskRagError subclasses."""
    options = _arguments(argv)
    outcomes = _measure(options)
    counted = _count(outcomes)
    rows = [
        [name, str(row["questions"]), str(row["follow-up"]), str(row["written out"]), str(row["as typed"]), share]
        for name, row in counted.items()
        for share in [f"{100 * int(row['follow-up']) / max(int(row['written out']), 1):.0f} %"]
    ]
    print(report.table(["turn", "questions", "follow-up", "written out", "as typed", "share"], rows))
    result = {"bench": "dialogues", **report.environment(), "model": options.model, "desk": options.desk, **counted}
    report.finish(result, options.out)
    return 0


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="desk-rag bench dialogues", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--desk", choices=written.names(), default=written.DEVELOPED_ON, help="the folder")
    parser.add_argument("--model", default="embedded", help="a model directory or ORG/NAME")
    parser.add_argument("--limit", type=int, default=0, help="ask only the first N dialogues; 0 asks all")
    parser.add_argument("--answers", type=Path, help="write every turn to this file, as JSON lines")
    parser.add_argument("--out", type=Path, help="append the JSON line to this file")
    return parser.parse_args(list(argv))


def _measure(options: argparse.Namespace) -> list[Outcome]:
    from desk_rag.answering.opening import open_engine

    chosen = written.dialogues(options.desk)[: options.limit or None]
    if not chosen:
        raise ConfigError("There is no such dialogue.", remedy="Leave --limit out.")
    outcomes, records = [], []
    with tempfile.TemporaryDirectory(prefix="desk-rag-bench-") as name:
        folder = Path(name).resolve() / "folder"
        written.write(options.desk, folder)
        shutil.copytree(corpus.sample_folder(), folder / "other")  # so that a wrong passage can be found
        settings = Settings(data_dir=Path(name) / "data", model=ModelSettings(name=options.model))
        engine = open_engine(settings, writer=True)
        try:
            corpus.index(engine, folder)
            for turns in chosen:
                for outcome, record in _talk(engine, turns, folder):
                    outcomes.append(outcome)
                    records.append(record)
                sys.stderr.write(f"{len(outcomes)} of {sum(map(len, chosen))} turns\n")
        finally:
            engine.close()
    if options.answers is not None:
        lines = (json.dumps(record, ensure_ascii=False) + "\n" for record in records)
        options.answers.write_text("".join(lines), encoding="utf-8")
    return outcomes


def _talk(engine: AnswerEngine, turns: Sequence[WrittenTurn], folder: Path) -> list[tuple[Outcome, dict[str, object]]]:
    earlier: list[Turn] = []
    results = []
    for place, turn in enumerate(turns):
        answer = _ask(engine, turn.question, tuple(earlier))
        alone = _ask(engine, turn.alone)
        typed = _ask(engine, turn.question)
        cited = {citation.path for citation in answer.citations}
        outcome = Outcome(
            place, answer.asked_as or turn.question, _is_right(answer, turn), _is_right(alone, turn),
            _is_right(typed, turn), folder / turn.file in cited,
        )  # fmt: skip
        record: dict[str, object] = {
            "question": turn.question, "asked": outcome.asked, "alone": turn.alone, "right": outcome.followed,
            "right alone": outcome.alone, "right as typed": outcome.typed, "answer": answer.text,
            "answer alone": alone.text, "wanted": list(turn.answers),
        }  # fmt: skip
        results.append((outcome, record))
        earlier.append(turn_of(answer))
    return results


def _ask(engine: AnswerEngine, question: str, earlier: tuple[Turn, ...] = ()) -> Answer:
    events = asking.ask(engine, Request(question, earlier))
    (last,) = (event.answer for event in events if isinstance(event, Finished))
    return last


def _is_right(answer: Answer, turn: WrittenTurn) -> bool:
    shown = "\n".join([answer.text, *(citation.quote for citation in answer.citations)])
    return answer.found and any(metrics.contains(shown, wanted) for wanted in turn.answers)


def _count(outcomes: Sequence[Outcome]) -> dict[str, dict[str, int]]:
    groups = {str(place + 1): [one for one in outcomes if one.place == place] for place in range(3)}
    groups["2 and 3"] = groups["2"] + groups["3"]
    return {
        name: {
            "questions": len(group),
            "follow-up": sum(one.followed for one in group),
            "written out": sum(one.alone for one in group),
            "as typed": sum(one.typed for one in group),
            "right file quoted": sum(one.file for one in group),
        }
        for name, group in groups.items()
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
