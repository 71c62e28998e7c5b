"""One model on this machine: exactness, gate, first token both ways, questions on the sample documents; one JSON line.

For a model that was never tried with its real weights. Nothing of the user's is read and nothing is sent: the line is
printed for whoever wants to pass it on.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from desk_rag.answering.engine import AnswerEngine
from desk_rag.answering.events import Answer, AnswerMode, Finished, FirstToken
from desk_rag.answering.opening import open_engine
from desk_rag.bench import exactness
from desk_rag.bench.harness import corpus, report
from desk_rag.bench.harness.agreement import is_right, token_f1
from desk_rag.config import ModelSettings, Settings
from desk_rag.ingest import background_prefill, pipeline
from desk_rag.kv.calibration.gate import run_gate
from desk_rag.kv.calibration.self_test import check_keys
from desk_rag.kv.prefill import prefill_prefix
from desk_rag.model.language_model import LanguageModel


def main(argv: Sequence[str]) -> int:
    """Run everything and print the result; returns an exit code. Raises DeskRagError subclasses."""
    parser = argparse.ArgumentParser(prog="desk-rag bench model", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--model", required=True, help="a directory, a GGUF file, an Ollama name or ORG/NAME")
    parser.add_argument("--quantization", default="none", choices=["none", "nf4", "int8", "int4"])
    parser.add_argument("--device", default="auto", choices=["auto", "cpu", "cuda"])
    parser.add_argument("--questions", type=int, default=20, help="most questions to ask")
    parser.add_argument("--out", type=Path, help="append the JSON line to this file")
    options = parser.parse_args(list(argv))
    chosen = ModelSettings(name=options.model, quantization=options.quantization, device=options.device)
    questions = corpus.questions(None)[: options.questions]
    with tempfile.TemporaryDirectory(prefix="desk-rag-bench-") as place:
        began = time.perf_counter()
        engine = open_engine(Settings(data_dir=Path(place), model=chosen), writer=True)
        try:
            loaded = time.perf_counter() - began
            result = {"load_s": round(loaded, 1), **_facts(engine.model), **_checks(engine.model)}
            result |= _answers(engine, questions)
        finally:
            engine.close()
    for name, value in result.items():
        print(f"{name}: {value}")
    report.finish({"bench": "model", "model": options.model, **report.environment(), **result}, options.out)
    return 0


def _facts(model: LanguageModel) -> dict[str, object]:
    spec, layout = model.spec, model.spec.layout
    return {
        "model_type": spec.support.model_type,
        "parameters": spec.num_parameters,
        "weight_quantization": spec.weight_quantization,
        "dtype": str(spec.dtype).removeprefix("torch."),
        "layers": spec.num_layers,
        "kv_heads": spec.num_kv_heads,
        "head_dim": spec.head_dim,
        "key_tap": layout.key_tap.value,
        "interleaved": layout.interleaved,
        "layers_without_position": layout.has_layers_without_position,
    }


def _checks(model: LanguageModel) -> dict[str, object]:
    """Errors of rotated keys and of stitched logits, and what coding the cache in 8 bits costs."""
    with model.device:  # where tensors are made unless told otherwise
        logits = exactness.logits_of(model)
    gate = run_gate(model, prefill_prefix(model))
    return {
        "key_error": float(f"{check_keys(model):.2e}"),
        "stitched_error": float(f"{exactness.relative(logits.stitched, logits.masked):.2e}"),
        "stitched_top1": round(float((logits.stitched.argmax(-1) == logits.masked.argmax(-1)).float().mean()), 4),
        "unmoved_error": float(f"{exactness.relative(logits.unmoved, logits.masked):.2e}"),
        "gate_kl": float(f"{gate.score.mean_kl:.2e}"),
        "gate_top1": round(gate.score.top1, 4),
        "gate_raw_layers": sum(layer.raw for layer in gate.scheme.layers),
        "needles": f"{gate.needles_found} of {gate.needles_expected}",
    }


def _answers(engine: AnswerEngine, asked: Sequence[corpus.Question]) -> dict[str, object]:
    """Ask every question from the caches and by full prefill."""
    corpus.sync(engine.store, corpus.sample_folder(), engine.model.prompt)
    for _ in pipeline.embed_pending(engine.store, engine.embedder, lambda: False):
        pass
    for _ in background_prefill.warm_pending(engine.store, engine.serving, engine.turn, lambda: False):
        pass
    seconds: dict[AnswerMode, list[float]] = {mode: [] for mode in (AnswerMode.CACHED, AnswerMode.FULL)}
    right: dict[AnswerMode, int] = dict.fromkeys(seconds, 0)
    alike, rows = [], []
    for question in asked:
        answers = {}
        for mode in seconds:
            first, answers[mode] = _ask(engine, question, mode)
            seconds[mode].append(first)
            right[mode] += is_right(question, answers[mode])
        texts = [answers[mode].text for mode in seconds]
        alike.append(token_f1(*texts))
        rows.append({"question": question.text, "cached": texts[0][:400], "full": texts[1][:400]})
    return {
        "questions": len(asked),
        "first_token_cached_ms": round(statistics.median(seconds[AnswerMode.CACHED]) * 1000, 1),
        "first_token_full_ms": round(statistics.median(seconds[AnswerMode.FULL]) * 1000, 1),
        "right_cached": right[AnswerMode.CACHED],
        "right_full": right[AnswerMode.FULL],
        "answers_alike_f1": round(statistics.fmean(alike), 3),
        "answers": rows,
    }


def _ask(engine: AnswerEngine, question: corpus.Question, mode: AnswerMode) -> tuple[float, Answer]:
    """Seconds to the first token, and the answer."""
    first, answer = float("nan"), None
    engine.forget_read()
    for event in engine.ask(question.text, mode=mode):
        if isinstance(event, FirstToken):
            first = event.timings.ttft
        elif isinstance(event, Finished):
            answer = event.answer
    assert answer is not None
    return first, answer
