"""python -m desk_rag.training.pointer OUT DATA...: trains the pointer and writes OUT/pointer.safetensors."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file

from desk_rag.answering.evidence.span_scorer import FILE
from desk_rag.training import command
from desk_rag.training.pointer.loading import load_start
from desk_rag.training.pointer.low_rank import adapter_tensors
from desk_rag.training.pointer.material import material
from desk_rag.training.pointer.rows import Batches
from desk_rag.training.pointer.scoring import score
from desk_rag.training.pointer.training import Settings, train


def main(argv: Sequence[str] | None = None) -> int:
    """Read, train, write, score; returns an exit code."""
    return command.run(argv, "desk_rag.training.pointer", __doc__, Settings, _run)


def _run(out: Path, data: Sequence[Path], start: Path, how: Settings, say: command.Say) -> None:
    net, tokenizer = load_start(start, how.seed)
    of = material(data, tokenizer, how.versions, how.seed)
    batches = Batches(of, tokenizer, how.questions, how.chunks, how.seed)
    say(f"{len(of.versions)} passages, {batches.questions} questions, {len(of.held)} passages held out; {how}")
    train(net.to("cuda" if torch.cuda.is_available() else "cpu"), batches, batches.questions, how, say)
    beside = out / f"{FILE}.tmp"
    save_file(adapter_tensors(net), beside)
    beside.replace(out / FILE)
    say(str(score(net, of, batches)))


if __name__ == "__main__":
    sys.exit(main())
