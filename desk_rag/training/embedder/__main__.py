"""python -m desk_rag.training.embedder OUT DATA...: trains the embedder to find passages.

Writes what it changed to OUT/retrieval.safetensors.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from desk_rag.retrieval.embedding import RETRIEVAL_FILE
from desk_rag.retrieval.retrieval_weights import CHANGE, STEPS
from desk_rag.training import command
from desk_rag.training.embedder.rows import Batches, Packer
from desk_rag.training.embedder.scoring import score
from desk_rag.training.embedder.training import Settings, train
from desk_rag.training.pointer.int4 import pack
from desk_rag.training.pointer.loading import load_bert
from desk_rag.training.pointer.material import material


def main(argv: Sequence[str] | None = None) -> int:
    """Read, train, score, write; returns an exit code."""
    return command.run(argv, "desk_rag.training.embedder", __doc__, Settings, _run)


def _run(out: Path, data: Sequence[Path], start: Path, how: Settings, say: command.Say) -> None:
    bert, tokenizer = load_bert(start, how.seed)
    before = {name: tensor.clone() for name, tensor in bert.state_dict().items()}
    of, packer = material(data, tokenizer, how.versions, how.seed), Packer(tokenizer)
    batches = Batches(of, packer, how.questions, how.seed)
    bert.to("cuda" if torch.cuda.is_available() else "cpu")
    say(f"{len(of.versions)} passages, {batches.questions} questions, {len(of.held)} passages held out; {how}")
    train(bert, batches, how, say)
    say(f"after: {score(bert, of, packer)}")
    beside = out / f"{RETRIEVAL_FILE}.tmp"
    save_file(changes(before, bert.state_dict()), beside)
    beside.replace(out / RETRIEVAL_FILE)


def changes(before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The trained changes in the form that `retrieval_weights` reads; tensors that did not change are left out."""
    tensors = {}
    for name, weights in after.items():
        change = (weights.detach().cpu() - before[name]).contiguous()
        if change.dim() == 2 and change.any():
            tensors[name + CHANGE], tensors[name + STEPS] = pack(change)
        elif change.any():
            tensors[name + CHANGE] = change.half()
    return tensors


if __name__ == "__main__":
    sys.exit(main())
