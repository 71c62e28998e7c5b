"""Run `desk-rag finetune`: parse its options, load the data, train, and print what changed."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from desk_rag.assets import assets_dir
from desk_rag.cli import output as out
from desk_rag.cli.signals import stoppable
from desk_rag.cli.training import auxiliary
from desk_rag.cli.training.judging import judged_questions
from desk_rag.config import Settings
from desk_rag.errors import ConfigError, DeskRagError
from desk_rag.finetune.data import Sample, load_samples, save_samples
from desk_rag.finetune.rules import FolderChunk, describe, make_samples
from desk_rag.finetune.settings import REPLAY_SHARE, Method, TrainSettings
from desk_rag.sanitize import shown_path

if TYPE_CHECKING:
    from desk_rag.finetune.run import Evaluate, Report
    from desk_rag.finetune.trainer import TrainProgress
    from desk_rag.model.language_model import LanguageModel

INTERRUPTED = 130
FOLDER_DATA = "data.jsonl"
_REPORTED = frozenset({"f1", "contains", "right_quote", "refused", "false_refusal"})
"""Scores of the harness that are printed; the report holds all of them."""
_PROSE = frozenset({".md", ".txt", ".rst"})
_OF_ANSWERS = (
    "lora", "checkpointing", "full_attention", "refuse", "replay", "replay_share", "general",
)  # fmt: skip
"""Options that teach answers, or save the memory of large models; an auxiliary model has no use for them."""
_LINE_EVERY = 10.0
_TOLERATED = 1.0
"""Rise of the loss on general text, in percent, above which a warning is printed."""


def finetune(settings: Settings, arguments: Sequence[str]) -> int:
    """Run `desk-rag finetune ARGUMENTS`; returns the exit code. Raises DeskRagError subclasses."""
    options = _parser().parse_args(list(arguments))
    _check(options)
    screen = _Screen(sys.stderr)
    samples = _samples(settings, options, screen)
    stopping = "stopping after this step, which is kept; press Ctrl+C again to end at once …"
    if options.auxiliary is not None:
        with stoppable(lambda: screen.say(stopping)) as stop:
            selecting = auxiliary.train(settings, options, samples, screen.say, screen.step, stop)
        screen.clear()
        return _print(options, selecting.as_json(), auxiliary.summary(selecting), stopped=selecting.stopped)
    from desk_rag.finetune.run import Task, run

    task = Task(
        model=settings.model,
        train=train_settings(options),
        samples=samples,
        out=options.out.expanduser().absolute(),
        held_out=options.held_out,
        eval_contexts=options.eval,
        general=_texts(options.general) if options.general else _bundled_texts(),
        replay=_texts(options.replay or ()),
        resume=options.resume,
    )
    with stoppable(lambda: screen.say(stopping)) as stop:
        report = run(task, evaluate=_judge(options), say=screen.say, on_step=screen.step, stop=stop)
    screen.clear()
    return _print(options, report.as_json(), _summary(report, task.train.method), stopped=report.stopped)


def _print(options: argparse.Namespace, report: dict[str, Any], summary: str, *, stopped: bool) -> int:
    if options.json:
        out.print_json(sys.stdout, report)
    elif stopped:
        sys.stdout.write(f"Stopped after {report['steps']} steps; the same command with --resume goes on.\n")
    else:
        sys.stdout.write(summary)
    return INTERRUPTED if stopped else 0


class _Screen:
    """Messages and the line of progress, on one stream."""

    def __init__(self, stream: TextIO) -> None:
        self._progress = out.Progress(stream)
        self._terminal = stream.isatty()
        self._last = 0.0

    def say(self, text: str) -> None:
        """A line that stays."""
        self._progress.say(text)

    def clear(self) -> None:
        """Take the passing line away."""
        self._progress.clear()

    def step(self, now: TrainProgress) -> None:
        """Show a step: on a terminal each, elsewhere one every ten seconds and the last."""
        memory = f", {now.device_mib / 1024:.1f} GiB" if now.device_mib else ""
        line = (
            f"step {now.step} of {now.steps}, loss {now.loss:.3f}, {now.tokens_per_second:,.0f} tokens/s{memory}, "
            f"{out.duration(now.eta_seconds)} left"
        )
        if self._terminal:
            self._progress.passing(line)
        elif now.step in (1, now.steps) or time.monotonic() - self._last > _LINE_EVERY:
            self._last = time.monotonic()
            self._progress.say(line)


def _parser() -> argparse.ArgumentParser:
    plain = TrainSettings()
    parser = argparse.ArgumentParser(
        prog="desk-rag finetune",
        description="Teach the model named by --model to read chunks that were prefilled apart. "
        "The data is a file of chunks, questions and answers, or made by rule from an indexed folder.",
        epilog='A line of data: {"chunks": ["…"], "qas": [{"question": "…", "answer": "…", "quotes": ["…"]}]}; '
        "answer null: the chunks do not hold it; quotes may be left out. --model, --quantization nf4, --device and "
        "--data-dir mean what they always do.",
    )
    add = parser.add_argument
    add("--data", type=Path, action="append", metavar="FILE", help=".jsonl or .jsonl.xz; may be repeated")
    add("--folder", type=Path, action="append", metavar="F", help="make questions by rule from this indexed folder")
    add("--out", type=Path, required=True, metavar="DIR", help="where checkpoints and the result go")
    add("--lora", type=int, metavar="RANK", help=f"train adapters of this rank (default {plain.lora_rank})")
    add("--full", action="store_true", help="train all weights instead")
    add("--auxiliary", nargs="?", const="", metavar="MODEL", help="train this model, by default the auxiliary model of "
        "the settings, to select the tokens that the model named by --model attends to")  # fmt: skip
    add("--layers", type=int, default=0, metavar="N", help="with --auxiliary: keep only its lowest N layers")
    add("--steps", type=int, default=plain.steps)
    add("--rows", type=int, default=plain.rows_per_step, help="rows per step (default %(default)s)")
    add("--rows-at-once", type=int, default=plain.rows_at_once, help="the rest is gradient accumulation (default 1)")
    add("--row-tokens", type=int, default=plain.row_tokens, help="length of a row (default %(default)s)")
    add("--learning-rate", type=float, default=0.0, help="default 2e-4 for LoRA, 2e-5 for all weights")
    add("--full-attention", type=float, default=plain.full_share, metavar="SHARE", help="of contexts (default 0.3)")
    add("--refuse", type=float, default=plain.refuse_share, metavar="SHARE", help="contexts without their chunks")
    add("--distractors", type=int, default=plain.distractors, help="maximum chunks added per context (default 4)")
    add("--questions", type=int, default=plain.questions, help="maximum questions per context (default 8)")
    add("--replay", type=Path, action="append", metavar="FILE", help="general text to train on between contexts")
    add("--replay-share", type=float, default=REPLAY_SHARE, help="of rows, with --replay (default %(default)s)")
    add("--general", type=Path, action="append", metavar="FILE", help="text on which general ability is measured")
    add("--held-out", type=float, default=0.05, metavar="SHARE", help="samples not trained on (default 0.05)")
    add("--eval", type=int, default=64, metavar="N", help="held-out contexts measured before and after (default 64)")
    add("--checkpointing", action="store_true", help="compute activations twice: less memory, slower")
    add("--save-every", type=int, default=plain.save_every, metavar="STEPS")
    add("--seed", type=int, default=0)
    add("--resume", action="store_true", help="go on with the run in --out")
    add("--json", action="store_true", help="print one JSON object")
    return parser


def _check(options: argparse.Namespace) -> None:
    if bool(options.data) == bool(options.folder):
        raise ConfigError("No training data is named.", remedy="Give either --data FILE or --folder F.")
    if options.full and options.lora is not None:
        raise ConfigError("--full and --lora exclude each other.", remedy="Leave one of them out.")
    if options.save_every < 1 or (options.lora is not None and options.lora < 1):
        raise ConfigError("--save-every and --lora must be at least 1.")
    if options.auxiliary is not None:
        for name in _OF_ANSWERS:
            if getattr(options, name) != _parser().get_default(name):
                option = f"--{name.replace('_', '-')}"
                raise ConfigError(f"{option} does not go with --auxiliary.", remedy=f"Leave {option} out.")
    if options.layers < 0 or (options.layers and options.auxiliary is None):
        raise ConfigError("--layers needs a positive number and --auxiliary.")
    if not 0.0 <= options.held_out < 1.0:
        raise ConfigError("--held-out must be at least 0 and below 1.")


def train_settings(options: argparse.Namespace) -> TrainSettings:
    """Return the settings of a run. Raises ConfigError."""
    return TrainSettings(
        method=Method.FULL if options.full else Method.LORA,
        steps=options.steps,
        rows_per_step=options.rows,
        rows_at_once=options.rows_at_once,
        row_tokens=options.row_tokens,
        lora_rank=options.lora or TrainSettings().lora_rank,
        learning_rate=options.learning_rate,
        full_share=options.full_attention,
        refuse_share=options.refuse,
        distractors=options.distractors,
        questions=options.questions,
        replay_share=options.replay_share if options.replay else 0.0,
        checkpointing=options.checkpointing,
        save_every=options.save_every,
        seed=options.seed,
    )


def _samples(settings: Settings, options: argparse.Namespace, screen: _Screen) -> tuple[Sample, ...]:
    if options.data:
        return tuple(sample for file in options.data for sample in load_samples(file.expanduser()))
    data_file = options.out.expanduser() / FOLDER_DATA
    if options.resume and data_file.is_file():
        return tuple(load_samples(data_file))  # the folder may have changed since
    samples = make_samples(folder_chunks(settings, options.folder), options.seed)
    if not samples:
        raise DeskRagError(
            "No questions could be made from the documents.",
            remedy="Index a folder with prose in it, or write questions and give them with --data.",
        )
    screen.say(describe(samples))
    from desk_rag.owned_directory import OwnedDirectory

    try:
        data_file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        OwnedDirectory(data_file.parent).write(data_file, save_samples(samples))
    except OSError as error:
        raise ConfigError(f"{data_file} cannot be written: {error.strerror}.", remedy="Give another --out.") from error
    # Read back, as --resume does; this also merges duplicates.
    return tuple(load_samples(data_file))


def folder_chunks(settings: Settings, folders: Sequence[Path]) -> list[FolderChunk]:
    """Return every chunk indexed under the folders, all without one, in the order of paths and positions."""
    from desk_rag.documents.status import FileState
    from desk_rag.store.store import Store

    chunks = []
    with Store.open(settings.data_dir, settings.store, writer=False) as store:
        for folder in folders or (None,):
            root = None if folder is None else folder.expanduser().resolve()
            rows = [row for row in store.documents(root) if row.state is FileState.INDEXED]
            if root is not None and not rows:
                raise DeskRagError(
                    f"There is nothing indexed under {shown_path(root)}.",
                    remedy=f"First: desk-rag index {shown_path(root)} --no-kv",
                )
            for row in sorted(rows, key=lambda row: str(row.path)):
                passages = sorted(store.passages_of(row.path), key=lambda passage: passage.chunk.ordinal)
                chunks += [FolderChunk(passage.chunk.text, row.title or row.path.name) for passage in passages]
    return chunks


def _judge(options: argparse.Namespace) -> Evaluate:
    """Return a judge that runs the quality harness: one question per held-out sample, in both modes."""

    def judge(model: LanguageModel, samples: Sequence[Sample]) -> dict[str, Any]:
        from desk_rag.bench import quality
        from desk_rag.bench.answer_quality.modes import Mode, Way

        modes = (Mode(Way.FULL), Mode(Way.REORDERED))
        questions = judged_questions(samples, options.distractors, options.seed)
        results = quality.evaluate(model, [quality.Sample(**one, task="held out") for one in questions], modes)
        return {
            f"{name}, {mode.label}": estimate.mean
            for mode in modes
            for name, estimate in results.row(mode.label).scores.items()
        }

    return judge


def _texts(files: Sequence[Path]) -> tuple[str, ...]:
    try:
        return tuple(file.expanduser().read_text(encoding="utf-8") for file in files)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"A text file cannot be read: {error}.", remedy="--general and --replay take plain text."
        ) from error


def _bundled_texts() -> tuple[str, ...]:
    """Return the sample documents: prose that is not in the user's data."""
    files = sorted(file for file in (assets_dir() / "sample_docs").rglob("*") if file.suffix in _PROSE)
    return tuple(file.read_text(encoding="utf-8") for file in files)


def _summary(report: Report, method: Method) -> str:
    where = shown_path(report.out)
    lines = [f"Trained {report.steps} steps at {report.tokens_per_second:,.0f} tokens/s."]
    before, after = report.before, report.after
    if before is not None and after is not None:
        lines += [
            _change("Answers, chunks prefilled apart", before.independent, after.independent),
            _change("Answers, full attention", before.full, after.full),
            _change("General text", before.text, after.text, report.text_error),
        ]
    if report.text_change is not None and report.text_change > _TOLERATED:
        lines.append("General ability suffered: try a lower --learning-rate, fewer steps, or --replay with plain text.")
    for name, value in _numbers(report.answers_before, report.answers_after):
        lines.append(f"{name}: {value}")
    option = "--adapter" if method is Method.LORA else "--model"
    lines.append(f"To use it: desk-rag {option} {where} …")
    return "\n".join(line for line in lines if line) + "\n"


def _change(name: str, before: float | None, after: float | None, error: float | None = None) -> str:
    if before is None or after is None:
        return ""
    within = "" if error is None else f" ± {error:.1f}"
    return f"{name}: loss {before:.3f} -> {after:.3f} ({100 * (after - before) / before:+.1f}{within} %)"


def _numbers(before: dict[str, Any], after: dict[str, Any]) -> list[tuple[str, str]]:
    return [
        (name, f"{before[name]:.3f} -> {value:.3f}")
        for name, value in after.items()
        if name.split(",")[0] in _REPORTED and isinstance(before.get(name), int | float)
    ]
