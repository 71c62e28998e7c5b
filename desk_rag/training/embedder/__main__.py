"""python -m desk_rag.training.embedder OUT DATA...: trains the embedder to find passages.

Writes what it changed to OUT/retrieval.safetensors.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from desk_rag.errors import ConfigError, told_to_user
from desk_rag.retrieval.embedding import RETRIEVAL_FILE, embedded_dir
from desk_rag.retrieval.retrieval_weights import CHANGE, STEPS
from desk_rag.sanitize import clean
from desk_rag.training.embedder.rows import Batches, Packer
from desk_rag.training.embedder.scoring import score
from desk_rag.training.embedder.training import Settings, train
from desk_rag.training.pointer.int4 import pack
from desk_rag.training.pointer.loading import load_bert
from desk_rag.training.pointer.material import material


def main(argv: Sequence[str] | None = None) -> int:
    """Read, train, score, write; returns an exit code."""
    parser = argparse.ArgumentParser(prog="python -m desk_rag.training.embedder", description=__doc__)
    parser.add_argument("out", type=Path, help=f"folder for {RETRIEVAL_FILE}")
    parser.add_argument("data", type=Path, nargs="+", help="folders with qa_train*")
    parser.add_argument("--start", type=Path, help="folder with the embedder, if not the installed one")
    for field in fields(Settings):
        parser.add_argument(f"--{field.name.replace('_', '-')}", type=type(field.default), default=field.default)
    arguments = parser.parse_args(argv)
    try:
        how = Settings(**{field.name: getattr(arguments, field.name) for field in fields(Settings)})
        _run(arguments.out, arguments.data, arguments.start or embedded_dir(), how)
    except Exception as error:
        message = told_to_user(error)
        if message is None:
            raise
        sys.stderr.write(clean(f"desk-rag: {message}\n"))
        return message.exit_code
    return 0


def _run(out: Path, data: Sequence[Path], start: Path, how: Settings) -> None:
    began = time.perf_counter()

    def say(text: str) -> None:
        print(f"{time.perf_counter() - began:6.0f} s  {text}", flush=True)

    if out.exists() and not out.is_dir():
        raise ConfigError(f"{out} is no folder.", remedy="Name a folder, there or not yet, for the result.")
    out.mkdir(parents=True, exist_ok=True)  # what cannot be written is better known before hours of training
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
