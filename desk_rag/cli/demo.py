"""Run the demo: index the sample documents, ask sample questions, compare cached answers with full prefill.

Each time is the engine's own TTFT. Every answer is compared with the one in the documents; a question that needs two
files counts as answered only if both are quoted.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from desk_rag.answering.events import Answer, AnswerMode, Finished, FirstToken
from desk_rag.assets import assets_dir
from desk_rag.cli import output as out
from desk_rag.config import Settings
from desk_rag.errors import ConfigError, DeskRagError
from desk_rag.sanitize import clean, shown_path

if TYPE_CHECKING:
    from desk_rag.answering.engine import AnswerEngine

_FROM_ONE_FILE = 4
"""Questions of this kind in the short demo; one from two files and one without an answer come on top."""


@dataclass(frozen=True, slots=True)
class Question:
    """One sample question with what is known about it."""

    text: str
    answers: tuple[str, ...]
    """Wordings that count as right; none where the documents do not hold the answer."""
    files: tuple[str, ...]
    """The files that hold the answer; where there are several, each is needed."""


@dataclass(frozen=True, slots=True)
class Pair:
    """One question, answered from stored chunk KV and with full prefill."""

    question: Question
    cached: Answer
    full: Answer
    base: Path
    """The folder that the question's files are named from."""

    @property
    def ratio(self) -> float:
        """Time to the first token by full prefill over that from caches."""
        return self.full.timings.ttft / self.cached.timings.ttft


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demo in `.demo` of the current folder, with `--all` on every sample question; returns an exit code."""
    try:
        return _run(list(sys.argv[1:] if argv is None else argv))
    except DeskRagError as error:
        sys.stderr.write(clean(f"desk-rag: {error}\n"))
        return error.exit_code
    except KeyboardInterrupt:
        sys.stderr.write("\nStopped.\n")
        return 130


def _run(arguments: list[str]) -> int:
    if arguments not in ([], ["--all"]):
        raise ConfigError("The demo takes --all or nothing.", remedy="python -m desk_rag.cli.demo --all")
    documents, listed = assets_dir() / "sample_docs", read_questions(assets_dir() / "demo_questions.json")
    questions = listed if arguments else _a_few(listed)
    data = Path.cwd() / ".demo"
    if data.exists() or data.is_symlink():
        _clear(data)
    settings = Settings(data_dir=data)
    print(f"Index and caches of this demo go to {shown_path(data)}, which is created again each time.")
    progress = out.Progress(sys.stderr, [documents])
    progress.passing("loading the model …")
    from desk_rag.answering.opening import open_engine
    from desk_rag.cli.work import index_with

    engine = open_engine(settings, writer=True, say=progress.passing)
    try:
        print(f"\n== Indexing {shown_path(documents)}", flush=True)
        done = index_with(engine, [documents], settings, lambda: False, progress)
        progress.clear()
        print(out.index_summary(done), flush=True)
        _warm_up(engine, questions[0].text)
        pairs = [_ask_twice(engine, question, documents) for question in questions]
    finally:
        engine.close()
    _report(pairs)
    print("\nThe UI, on these documents or on a folder of yours:")
    print("  .venv/bin/desk-rag assets/sample_docs")
    print("  .venv/bin/desk-rag ~/Documents")
    print('In this terminal, `export PATH="$PWD/.venv/bin:$PATH"` makes that `desk-rag`.')
    return 0


def _clear(data: Path) -> None:
    """Remove what the demo before this one left. Raises ConfigError where something else lies there."""
    from desk_rag.store import ownership

    left = () if data.is_symlink() or not ownership.is_store(data) else ownership.clear(data).remaining
    if data.is_symlink() or left or (data.exists() and any(data.iterdir())):
        raise ConfigError(f"{data} holds files that are not the demo's.", remedy="Move it away and start again.")


def read_questions(file: Path) -> list[Question]:
    """The sample questions of a JSON file."""
    listed = json.loads(file.read_text(encoding="utf-8"))
    return [Question(one["question"], tuple(one["answers"]), tuple(one["files"])) for one in listed]


def _a_few(questions: list[Question]) -> list[Question]:
    """The first of each kind, in the order of the file."""
    one_file = [question for question in questions if len(question.files) == 1]
    two_files = [question for question in questions if len(question.files) > 1]
    none = [question for question in questions if not question.files]
    return [*one_file[:_FROM_ONE_FILE], *two_files[:1], *none[:1]]


def _warm_up(engine: AnswerEngine, question: str) -> None:
    """Both ways once, unreported: the first use of any code path is slower and would flatter the other one."""
    for mode in AnswerMode:
        for event in engine.ask(question, mode=mode):
            if isinstance(event, FirstToken):
                break


def _ask_twice(engine: AnswerEngine, question: Question, base: Path) -> Pair:
    print(f"\n== {question.text}", flush=True)
    printer = out.AnswerPrinter(sys.stdout, [base], footer_stream=sys.stdout)
    answers = {}
    for mode in AnswerMode:
        engine.forget_read()  # neither side reads the chunks for the other
        for event in engine.ask(question.text, mode=mode):
            if mode is AnswerMode.CACHED:
                printer.show(event)
            if isinstance(event, Finished):
                answers[mode] = event.answer
    pair = Pair(question, answers[AnswerMode.CACHED], answers[AnswerMode.FULL], base)
    same = "the same words" if pair.cached.raw == pair.full.raw else f"other words: “{out.shorten(pair.full.raw, 100)}”"
    print(
        f"-- begins after {pair.cached.timings.ttft:.3f} s; without caches after {pair.full.timings.ttft:.3f} s, "
        f"{pair.ratio:.1f} times as long; {same}"
    )
    verdict = "right" if is_right(pair.cached, question, base) else "wrong"
    print(f"-- {verdict}: the documents hold {_expected(question)}", flush=True)
    return pair


def _expected(question: Question) -> str:
    if not question.answers:
        return "no answer"
    together = f", from {' and '.join(question.files)} together" if len(question.files) > 1 else ""
    return f"“{question.answers[0]}”{together}"


def is_right(answer: Answer, question: Question, base: Path) -> bool:
    """Return True if an accepted wording is in the answer or its quotes; without any, if nothing was found."""
    if not question.answers:
        return not answer.found
    output = _plain(" ".join([answer.text, *(citation.quote for citation in answer.citations)]))
    quoted = {citation.path for citation in answer.citations}
    complete = len(question.files) == 1 or all(base / file in quoted for file in question.files)
    return answer.found and complete and any(_plain(wording) in output for wording in question.answers)


def _plain(text: str) -> str:
    return " ".join(text.casefold().split())


def _report(pairs: list[Pair]) -> None:
    print("\n== Seconds until the answer begins, with caches and without (all passages read anew)")
    print(f"{'with':>8} {'without':>8} {'ratio':>7}  question")
    for pair in pairs:
        print(
            f"{pair.cached.timings.ttft:8.3f} {pair.full.timings.ttft:8.3f} {pair.ratio:6.1f}x"
            f"  {out.shorten(pair.question.text, 60)}"
        )
    cached = statistics.median(pair.cached.timings.ttft for pair in pairs)
    full = statistics.median(pair.full.timings.ttft for pair in pairs)
    ratio = statistics.median(pair.ratio for pair in pairs)
    print(f"{cached:8.3f} {full:8.3f} {ratio:6.1f}x  median of {len(pairs)}")
    right = sum(is_right(pair.cached, pair.question, pair.base) for pair in pairs)
    print(f"{right} of {len(pairs)} answers are right.")


if __name__ == "__main__":
    raise SystemExit(main())
