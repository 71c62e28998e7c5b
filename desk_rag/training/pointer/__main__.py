"""python -m desk_rag.training.pointer OUT DATA...: trains the pointer and writes OUT/pointer.safetensors.

With --rank 0 it trains every weight of --start, and OUT is the folder of a deeper pointer.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from desk_rag.answering.evidence.span_scorer import FILE
from desk_rag.training import command
from desk_rag.training.pointer.loading import load_start
from desk_rag.training.pointer.low_rank import adapter_tensors
from desk_rag.training.pointer.material import material
from desk_rag.training.pointer.rows import Batches
from desk_rag.training.pointer.scoring import score
from desk_rag.training.pointer.training import Settings, train
from desk_rag.training.pointer.whole import write, write_whole


def main(argv: Sequence[str] | None = None) -> int:
    """Read, train, write, score; returns an exit code."""
    return command.run(argv, "desk_rag.training.pointer", __doc__, Settings, _run)


def _run(out: Path, data: Sequence[Path], start: Path, how: Settings, say: command.Say) -> None:
    net, tokenizer = load_start(start, how.seed)
    of = material(data, tokenizer, how.versions, how.seed)
    batches = Batches(of, tokenizer, how.questions, how.chunks, how.seed)
    say(f"{len(of.versions)} passages, {batches.questions} questions, {len(of.held)} passages held out; {how}")
    train(net.to("cuda" if torch.cuda.is_available() else "cpu"), batches, batches.questions, how, say)
    if how.rank:
        write(out / FILE, adapter_tensors(net))
    else:
        write_whole(out, start, net)
    say(str(score(net, of, batches)))


if __name__ == "__main__":
    sys.exit(main())
