"""python -m desk_rag.training.pointer OUT DATA...: trains the pointer and writes OUT/pointer.safetensors."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

import torch
from safetensors.torch import save_file

from desk_rag.answering.evidence.span_scorer import FILE
from desk_rag.errors import ConfigError, told_to_user
from desk_rag.retrieval.embedding import embedded_dir
from desk_rag.sanitize import clean
from desk_rag.training.pointer.loading import load_start
from desk_rag.training.pointer.low_rank import adapter_tensors
from desk_rag.training.pointer.material import material
from desk_rag.training.pointer.rows import Batches
from desk_rag.training.pointer.scoring import score
from desk_rag.training.pointer.training import Settings, train


def main(argv: Sequence[str] | None = None) -> int:
    """Read, train, write, score; returns an exit code."""
    parser = argparse.ArgumentParser(prog="python -m desk_rag.training.pointer", description=__doc__)
    parser.add_argument("out", type=Path, help=f"folder for {FILE}")
    parser.add_argument("data", type=Path, nargs="+", help="folders with qa_train* and, if any, unanswerable_train*")
    parser.add_argument("--start", type=Path, help="folder with the embedder, if not the installed one")
    for field in fields(Settings):
        parser.add_argument(f"--{field.name.replace('_', '-')}", type=type(field.default), default=field.default)
    arguments = parser.parse_args(argv)
    try:
        how = Settings(**{field.name: getattr(arguments, field.name) for field in fields(Settings)})
        _run(arguments.out, arguments.data, arguments.start, how)
    except Exception as error:
        message = told_to_user(error)
        if message is None:
            raise
        sys.stderr.write(clean(f"desk-rag: {message}\n"))
        return message.exit_code
    return 0


def _run(out: Path, data: Sequence[Path], start: Path | None, how: Settings) -> None:
    began = time.perf_counter()

    def say(text: str) -> None:
        print(f"{time.perf_counter() - began:6.0f} s  {text}", flush=True)

    if out.exists() and not out.is_dir():
        raise ConfigError(f"{out} is no folder.", remedy="Name a folder, there or not yet, for the result.")
    out.mkdir(parents=True, exist_ok=True)  # what cannot be written is better known before hours of training
    net, tokenizer = load_start(start or Path(embedded_dir()), how.seed)
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
