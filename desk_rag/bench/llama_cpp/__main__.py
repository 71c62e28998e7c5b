"""First tokens and decoding beside llama.cpp on this CPU: the embedded reader in both, question by question in turns.

llama.cpp gets the same token ids. It prefills the whole prompt, and, as its own way of caching, loads the saved states
of the chunks, shifts their positions, joins them behind the shared prefix and prefills the question. It needs
`pip install llama-cpp-python`, which builds it here; what was measured and how it had to be patched stands in LOG.md.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from desk_rag.answering.engine import AnswerEngine
from desk_rag.answering.events import AnswerMode, FirstToken, Retrieved, Source
from desk_rag.answering.opening import open_engine
from desk_rag.bench.decode import shipped
from desk_rag.bench.harness import corpus, report
from desk_rag.bench.llama_cpp import gguf_file
from desk_rag.config import AnswerSettings, ModelSettings, Settings
from desk_rag.errors import ConfigError

_BEFORE_RETRIEVED = ("queue", "retrieve")
_CACHED, _SCORED, _FULL = "desk-rag, caches", "desk-rag, caches, spans known", "desk-rag, full prefill"
_PREFILL, _JOINED = "llama.cpp, full prefill", "llama.cpp, saved states joined"
_FIRST_TOKEN_SIDES = (_CACHED, _SCORED, _FULL, _PREFILL, _JOINED)
_DECODE_SIDES = ("desk-rag", "llama.cpp")
_CAPACITY = 2560
_PLAIN = "plain"
"""llama.cpp without flash attention, which makes passes of few tokens several times slower on a CPU."""
Milliseconds = dict[str, list[float]]


class LlamaCpp:
    """llama.cpp in a child process; see worker.py."""

    def __init__(self, file: Path, threads: int) -> None:
        command = [sys.executable, "-m", "desk_rag.bench.llama_cpp.worker", str(file), str(threads), str(_CAPACITY)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, session: str, do: str, **arguments: Any) -> dict[str, float]:
        """Let the child do one thing. Raises ConfigError if it died."""
        assert self._process.stdin is not None and self._process.stdout is not None
        request = json.dumps({"session": session, "do": do, **arguments})
        try:
            self._process.stdin.write(request + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise ConfigError(
                f"llama.cpp ended with code {self._process.wait()} while it did '{do}'.",
                remedy="Its AMX code built by GCC 12 needs the patch in desk_rag/bench/LOG.md, 'Beside llama.cpp'.",
            )
        reply: dict[str, float] = json.loads(line)
        return reply

    def close(self) -> None:
        """End the child."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def main(argv: Sequence[str]) -> int:
    """Run the measurement; returns an exit code. Raises DeskRagError subclasses."""
    options = _arguments(argv)
    if importlib.util.find_spec("llama_cpp") is None:
        raise ConfigError("llama.cpp is not installed.", remedy="pip install llama-cpp-python (it is built here).")
    questions = corpus.questions(None)[: options.limit or None]
    with _opened(options) as (engine, llama, folder):
        first_token = {}
        for chunks in (int(number) for number in options.chunks.split(",")):
            first_token[chunks] = _first_tokens(engine, llama, questions, chunks, options.repeat, folder)
        decode = {
            context: _decoding(engine, llama, context, options)
            for context in (int(number) for number in options.contexts.split(","))
        }
    _print(first_token, decode)
    report.finish(_result(first_token, decode, options, len(questions)), options.out)
    return 0


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="desk-rag bench llama-cpp", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--form", choices=sorted(gguf_file.FORMS), default="q8_0", help="llama.cpp's weights")
    parser.add_argument("--chunks", default="3,5,8", help="numbers of chunks to measure at (top_k)")
    parser.add_argument("--contexts", default="512,2000", help="tokens before the decoded ones")
    parser.add_argument("--tokens", type=int, default=32, help="tokens to decode a round")
    parser.add_argument("--repeat", type=int, default=2, help="rounds")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads of both")
    parser.add_argument("--limit", type=int, default=0, help="take only the first N questions; 0 takes all")
    parser.add_argument("--out", type=Path, help="append the JSON line to this file")
    return parser.parse_args(list(argv))


@contextmanager
def _opened(options: argparse.Namespace) -> Iterator[tuple[AnswerEngine, LlamaCpp, Path]]:
    base = Settings().data_dir.parent
    base.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="desk-rag-bench-", dir=base) as place:
        folder = Path(place)
        settings = Settings(
            data_dir=folder / "data",
            model=ModelSettings(threads=options.threads, device="cpu"),
            answer=AnswerSettings(context_tokens=_CAPACITY - 256),
        )
        gguf_file.write_reader(folder / "reader.gguf", options.form)
        llama = LlamaCpp(folder / "reader.gguf", options.threads)
        engine = open_engine(settings, writer=True)
        try:
            corpus.index(engine, corpus.sample_folder())
            yield engine, llama, folder
        finally:
            engine.close()
            llama.close()


def _first_tokens(
    engine: AnswerEngine,
    llama: LlamaCpp,
    questions: Sequence[corpus.Question],
    chunks: int,
    rounds: int,
    folder: Path,
) -> Milliseconds:
    """Milliseconds from retrieval to the first token by side, in an order that turns from question to question."""
    times: Milliseconds = {side: [] for side in _FIRST_TOKEN_SIDES}
    for number, question in enumerate([questions[0], *(list(questions) * rounds)]):  # the first is not reported
        first = number % len(_FIRST_TOKEN_SIDES)
        order = _FIRST_TOKEN_SIDES[first:] + _FIRST_TOKEN_SIDES[:first]
        _, sources = _asked(engine, question.text, AnswerMode.CACHED, chunks)
        prompt = engine.model.prompt
        passages = [prompt.chunk_ids(source.text) for source in reversed(sources)]  # the best one stands last
        asked, prefix = prompt.question_ids(question.text), prompt.prefix_ids
        whole = [*prefix, *(token for passage in passages for token in passage), *asked]
        files = [_state(llama, folder, prefix, passage) for passage in passages]
        for side in order:
            if side == _SCORED:
                _asked(engine, question.text, AnswerMode.CACHED, chunks)
            if side == _PREFILL:
                milliseconds = llama.ask("flash", "prefill", ids=whole)["ms"]
            elif side == _JOINED:
                llama.ask(_PLAIN, "hold", prefix=prefix)
                milliseconds = llama.ask(_PLAIN, "join", prefix=len(prefix), files=files, question=asked)["ms"]
            else:
                mode = AnswerMode.FULL if side == _FULL else AnswerMode.CACHED
                milliseconds, _ = _asked(engine, question.text, mode, chunks, scored=side == _SCORED)
            if number:
                times[side].append(milliseconds)
    return times


def _asked(
    engine: AnswerEngine, question: str, mode: AnswerMode, chunks: int, *, scored: bool = False
) -> tuple[float, Sequence[Source]]:
    """Milliseconds from retrieval to the first token, and the chunks that were read, best first.

    If `scored`, the span scorer remembers these chunks from the answer before; llama.cpp has no such step.
    """
    sources: Sequence[Source] = ()
    if not scored:
        engine.forget_read()
    for event in engine.ask(question, mode=mode, top_k=chunks):
        if isinstance(event, Retrieved):
            sources = event.sources
        elif isinstance(event, FirstToken):
            stages = event.timings.stages
            return sum(stage.seconds for stage in stages if stage.name not in _BEFORE_RETRIEVED) * 1e3, sources
    raise ConfigError(f"'{question}' was answered without the model.", remedy="Leave it out.")


def _state(llama: LlamaCpp, folder: Path, prefix: Sequence[int], passage: Sequence[int]) -> str:
    """Saved state of a chunk, made when it is needed for the first time."""
    file = folder / f"{hash(tuple(passage)) & (1 << 64) - 1:016x}.state"
    if not file.exists():
        llama.ask(_PLAIN, "save", prefix=prefix, chunk=passage, file=str(file))
    return str(file)


@torch.inference_mode()
def _decoding(engine: AnswerEngine, llama: LlamaCpp, context: int, options: argparse.Namespace) -> Milliseconds:
    """Milliseconds per decoded token over `context` tokens by side, in turns."""
    model = engine.model
    slab = shipped(model, engine.prefix, context + options.tokens + 1)
    shape = (model.spec.num_kv_heads, context, model.spec.head_dim)
    for layer in range(model.spec.num_layers):
        for slots in slab.cache.write(layer, 0, context):
            slots.copy_(torch.randn(shape, dtype=model.spec.dtype))
    run = slab.run()
    draw = random.Random(7)
    ids = [draw.randrange(100, 8000) for _ in range(context)]

    def ours() -> float:
        slab.cache.set_length(context)
        token, tokens, began = ids[0], int(options.tokens), time.perf_counter()
        for position in range(context, context + tokens):
            token = int(run.forward([token], position).argmax())
        return (time.perf_counter() - began) * 1e3 / tokens

    times: Milliseconds = {side: [] for side in _DECODE_SIDES}
    for number in range(options.repeat * 4 + 1):
        for side in _DECODE_SIDES if number % 2 else reversed(_DECODE_SIDES):
            theirs = side == "llama.cpp"
            milliseconds = llama.ask(_PLAIN, "decode", context=ids, tokens=options.tokens)["ms"] if theirs else ours()
            if number:
                times[side].append(milliseconds)
    return times


def _ratio(times: Milliseconds, side: str, base: str) -> report.Spread:
    """`side` over `base`, pair by pair."""
    return report.Spread.of([milliseconds / ours for milliseconds, ours in zip(times[side], times[base], strict=True)])


def _print(first_token: Mapping[int, Milliseconds], decode: Mapping[int, Milliseconds]) -> None:
    headings = [
        "from retrieval to the first token, ms",
        "chunks",
        "min",
        "p25",
        "median",
        "p75",
        "max",
        "over spans known",
    ]
    rows = [
        [side, str(chunks), *(f"{number:.0f}" for number in report.Spread.of(times[side]).scaled(1.0)),
         f"{_ratio(times, side, _SCORED).median:.2f}x"]
        for chunks, times in first_token.items()
        for side in _FIRST_TOKEN_SIDES
    ]  # fmt: skip
    print(report.table(headings, rows))
    headings = ["decoding, ms per token", "context", "min", "p25", "median", "p75", "max", "over desk-rag"]
    rows = [
        [side, str(context), *(f"{number:.1f}" for number in report.Spread.of(times[side]).scaled(1.0)),
         f"{_ratio(times, side, 'desk-rag').median:.2f}x"]
        for context, times in decode.items()
        for side in _DECODE_SIDES
    ]  # fmt: skip
    print(f"\n{report.table(headings, rows)}\n")


def _result(
    first_token: Mapping[int, Milliseconds],
    decode: Mapping[int, Milliseconds],
    options: argparse.Namespace,
    questions: int,
) -> dict[str, object]:
    def spreads(times: Milliseconds) -> dict[str, object]:
        return {side: report.Spread.of(milliseconds).scaled(1.0, 2) for side, milliseconds in times.items()}

    return {
        "bench": "llama-cpp",
        **report.environment(),
        "llama_cpp_python": version("llama-cpp-python"),
        "form": options.form,
        "threads": options.threads,
        "questions": questions,
        "spread": "min, p25, p50, p75, max",
        "first_token_ms": {str(chunks): spreads(times) for chunks, times in first_token.items()},
        "decode_ms": {str(context): spreads(times) for context, times in decode.items()},
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
