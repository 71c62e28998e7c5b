"""Measure how well questions about a folder are answered, the whole product with search, quotes and refusals.

A question needs the right file and passage among the sources, the answer in the output, and quotes from all files that
the answer rests on; a question that the folder does not answer must be refused. Shares are in per cent, with 95 %
Wilson intervals, by wording, by kind of question and by kind of file.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from desk_rag.answering.events import Answer, Finished
from desk_rag.bench.answers import desks, marks, questions, rates
from desk_rag.bench.harness import corpus, report
from desk_rag.config import IndexSettings, ModelSettings, Settings
from desk_rag.errors import ConfigError
from desk_rag.sanitize import clean

if TYPE_CHECKING:
    from desk_rag.answering.engine import AnswerEngine

_FOOT = "Per cent, with 95 % Wilson intervals. 'withheld' and 'wrong, quoted' are faults; see desk-rag help benchmarks."


def main(argv: Sequence[str]) -> int:
    """Run the measurement; returns an exit code. Raises DeskRagError subclasses."""
    options = _arguments(argv)
    if (options.folder is None) == (options.desk is None):
        raise ConfigError("Name what to ask about.", remedy="Either --folder F with --questions Q, or --desk NAME.")
    if options.folder is not None and options.questions is None:
        raise ConfigError("There are no questions.", remedy="Give --questions a file of JSON lines.")
    question_rows = questions.load(options.questions or desks.questions_of(options.desk))
    with _places(options) as (folder, data_dir):
        if options.desk is not None:
            desks.write(options.desk, folder)
        marked = _measure(options, question_rows, folder, data_dir)
    print(clean(rates.table(marked, markdown=options.markdown)))
    print(_FOOT)
    result = {
        "bench": "answers",
        **report.environment(),
        "model": options.model,
        "desk": options.desk,
        "questions": len(marked),
        **rates.to_json(marked),
    }
    report.finish(result, options.out)
    return 0


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="desk-rag bench answers",
        description=__doc__,
        epilog="Form of --questions:\n" + (questions.__doc__ or "").partition("\n\n")[2],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--folder", type=Path, help="the folder to ask about")
    parser.add_argument("--questions", type=Path, help="JSON lines; see below")
    parser.add_argument("--desk", choices=desks.names(), help="a fictional folder with its questions instead")
    parser.add_argument("--kind", action="append", default=[], help="ask only this kind of question (may be repeated)")
    parser.add_argument("--limit", type=int, default=0, help="ask only the first N questions; 0 asks all")
    parser.add_argument("--model", default="embedded", help="a model directory or ORG/NAME")
    parser.add_argument("--threads", type=int, default=0, help="CPU threads; 0 is the product's own choice")
    parser.add_argument("--data-dir", type=Path, help="where index and caches go; a temporary directory by default")
    parser.add_argument("--no-kv", action="store_true", help="make no caches ahead of time; only times are affected")
    parser.add_argument("--answers", type=Path, help="write every answer with its marks to this file, as JSON lines")
    parser.add_argument("--markdown", action="store_true", help="the table in Markdown")
    parser.add_argument("--out", type=Path, help="append the JSON line to this file")
    return parser.parse_args(list(argv))


@contextmanager
def _places(options: argparse.Namespace) -> Iterator[tuple[Path, Path]]:
    """The folder to ask about and the data directory; what is not named is temporary."""
    with tempfile.TemporaryDirectory(prefix="desk-rag-bench-") as name:
        base = options.data_dir.expanduser().absolute() if options.data_dir is not None else Path(name).resolve()
        folder = base / "folder" if options.folder is None else options.folder.expanduser().resolve()
        yield folder, base / "data"


def _measure(
    options: argparse.Namespace, all_questions: Sequence[questions.Question], folder: Path, data_dir: Path
) -> list[rates.Marked]:
    from desk_rag.answering.opening import open_engine

    model = ModelSettings.model_validate({"name": options.model, "threads": options.threads})
    chosen = [one for one in all_questions if not options.kind or one.kind in options.kind][: options.limit or None]
    if not chosen:
        raise ConfigError("There is no such question.", remedy="Leave out --kind and --limit.")
    settings = Settings(data_dir=data_dir, model=model, index=IndexSettings(exclude=_own_files(options, folder)))
    engine = open_engine(settings, writer=True)
    records, marked = [], []
    try:
        corpus.index(engine, folder, warm=not options.no_kv)
        for number, question in enumerate(chosen, start=1):
            began = time.perf_counter()
            answer = _ask(engine, question.text, folder)
            whole = time.perf_counter() - began
            marks_of_answer = marks.mark(question, answer, folder)
            marked.append(rates.Marked(question, marks_of_answer, answer.timings.ttft, whole))
            records.append(_record(question, answer, marks_of_answer))
            if number % 10 == 0 or number == len(chosen):
                sys.stderr.write(f"{number} of {len(chosen)} questions\n")
    finally:
        engine.close()
    if options.answers is not None:
        options.answers.write_text("".join(json.dumps(one) + "\n" for one in records), encoding="utf-8")
    return marked


def _own_files(options: argparse.Namespace, folder: Path) -> tuple[str, ...]:
    """A pattern for the folder of the questions, which holds the answers, if it lies in the one that they are about."""
    file = options.questions.expanduser().resolve() if options.questions is not None else None
    return (f"/{file.parent.relative_to(folder).as_posix()}/",) if file and folder in file.parent.parents else ()


def _ask(engine: AnswerEngine, question: str, folder: Path) -> Answer:
    (last,) = (event.answer for event in engine.ask(question, under=[folder]) if isinstance(event, Finished))
    return last


def _record(question: questions.Question, answer: Answer, given: marks.Marks) -> dict[str, object]:
    return {
        "kind": question.kind,
        "question": question.text,
        "wanted": [list(part) for part in question.answers],
        "answer": answer.text,
        "support": answer.support,
        "found": answer.found,
        "unmet": list(answer.unmet),
        "notices": list(answer.notices),
        "quotes": [[citation.path.name, citation.quote] for citation in answer.citations],
        "sources": [source.path.name for source in answer.sources],
        "marks": {name: getattr(given, name) for name in marks.NAMES},
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
