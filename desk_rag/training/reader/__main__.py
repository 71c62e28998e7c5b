"""python -m desk_rag.training.reader DATA WORK: makes the embedded reader from text.

Starts what the processor prepares beside what the GPUs train; each is a process of its own (`--part`), so that neither
waits for the other longer than it has to. With `--quick` everything is tiny, for trying out on a CPU. `--refine` makes
no new reader: the top layers of the shipped one learn on, one variant after another.
"""

from __future__ import annotations

import argparse
import math
import os
import subprocess
import sys
from pathlib import Path

from desk_rag.assets import assets_dir
from desk_rag.training.reader.preparation import Work, prepare_reading, prepare_refining, prepare_rows, prepare_stream
from desk_rag.training.reader.recipe import QUICK, Amounts, Recipe, finished


def main() -> int:
    """Run the whole recipe or, with --part, one part of it."""
    parser = argparse.ArgumentParser(prog="python -m desk_rag.training.reader", description=__doc__)
    parser.add_argument("data", type=Path, help="folder with part-*, qa_*, multi_*, unanswerable_* and synonyms")
    parser.add_argument("work", type=Path, help="folder for everything that is made")
    parser.add_argument("--gpus", type=int, default=1, help="processes that train")
    parser.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 2) - 2), help="processes that prepare")
    parser.add_argument("--quick", action="store_true", help="tiny, to try it out")
    parser.add_argument("--sister", action="store_true", help="also train the sister that only knows full attention")
    parser.add_argument("--part", choices=("prepare", "train"))
    refining = parser.add_argument_group("refining", "the top layers of a reader that is there")
    refining.add_argument("--refine", action="store_true", help="do that instead of all the rest")
    refining.add_argument("--start", type=Path, default=assets_dir() / "reader", help="the reader to go on with")
    refining.add_argument("--rows", type=int, default=40_000, help="rows to prepare")
    refining.add_argument("--asked", type=int, default=400, help="held-out questions per kind")
    refining.add_argument("--try", dest="variants", action="append", metavar="NAME:KEY=VALUE,...", help="repeatable")
    refining.add_argument("--deadline", type=float, default=math.inf, help="seconds after which nothing is begun")
    arguments = parser.parse_args()
    amounts = QUICK if arguments.quick else Amounts()
    work = Work(arguments.data, arguments.work, arguments.workers)
    if arguments.refine:
        if arguments.quick or arguments.sister or arguments.gpus != 1:
            parser.error("--refine runs in one process and knows no --quick and no --sister")
        return _refine(work, arguments)
    if arguments.part == "prepare":
        return _prepare(work, amounts)
    if arguments.part == "train":
        from desk_rag.training.reader.training import join_group

        Recipe(work, amounts, join_group()).run(sister=arguments.sister)
        return 0
    work.done("failed").unlink(missing_ok=True)  # of an earlier run
    prepare_stream(work, amounts.reader.vocab)
    command = [sys.executable, "-m", "desk_rag.training.reader", *sys.argv[1:]]
    beside = subprocess.Popen([*command, "--part", "prepare"])
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", str(arguments.gpus), "--standalone"]
    code = subprocess.call([*torchrun, *command[1:], "--part", "train"])
    beside.terminate()
    for name, score in sorted(finished(work.folder).items()):
        print(f"{name:40s} {score}")
    return code


def _refine(work: Work, asked: argparse.Namespace) -> int:
    from desk_rag.training.reader.refinement import Refining
    from desk_rag.training.reader.refining import Refinement, parse_variant
    from desk_rag.training.reader.training import join_group

    usual = Refinement(rows=asked.rows)
    variants = dict(parse_variant(text, usual) for text in asked.variants or ["refined"])
    prepare_refining(work, asked.start, asked.rows)
    if asked.part == "prepare":
        return 0
    Refining(work, asked.start, join_group(), asked.asked).run(variants, asked.deadline)
    return 0


def _prepare(work: Work, amounts: Amounts) -> int:
    try:
        prepare_rows(work, amounts.short_rows)
        prepare_reading(work, amounts.reading_rows, amounts.final_rows)
    except BaseException:
        work.done("failed").touch()  # whoever waits must learn of it
        raise
    return 0


if __name__ == "__main__":
    sys.exit(main())
